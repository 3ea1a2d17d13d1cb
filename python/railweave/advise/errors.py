"""Errors of advice."""

from __future__ import annotations

from railweave.errors import Error


class AdviceError(Error):
    """What was asked cannot be advised from what is known; the text says what is missing and where it could come from."""
