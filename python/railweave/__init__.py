"""Railweave: moves data between GPUs over all paths at once, and explains the fabric it does it on."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    # Looked up when asked for: importlib.metadata takes longer to import than a rank's whole start (docs/run.md).
    if name == "__version__":
        from importlib.metadata import version

        return version("railweave")
    raise AttributeError(f"module 'railweave' has no attribute '{name}'")
