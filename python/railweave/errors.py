"""Errors that Railweave raises; all derive from `Error`. The text says what was wrong with which input and what was expected."""

from railweave._native import DemandError, Error, FabricError, ParseError, UnreachableError

__all__ = ["DemandError", "Error", "FabricError", "ParseError", "UnreachableError"]
