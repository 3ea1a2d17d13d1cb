"""Errors of starting a rank.

Not derived from `railweave.errors.Error`, whose import loads the extension module: that alone would take longer than a start may.
"""

from __future__ import annotations


class LaunchError(Exception):
    """The program is not started; the text says what was wrong with which input, and what was expected. `status` is the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class NoAdviceError(LaunchError):
    """There is nothing to advise for this machine, such as one without GPUs; programs are started as they are."""
