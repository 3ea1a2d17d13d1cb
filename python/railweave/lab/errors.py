"""What can go wrong with a lab."""

from __future__ import annotations

from railweave.errors import Error


class LabError(Error):
    """A lab could not be built, found or used; the text says what is missing and how to get it."""
