"""What can go wrong with a benchmark."""

from __future__ import annotations

from railweave.errors import Error


class BenchError(Error):
    """A benchmark could not run to its end; the text says which rank, policy or peer failed, and what it said."""
