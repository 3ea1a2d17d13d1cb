"""What follows from times that were taken again and again."""

from __future__ import annotations

import statistics


class Timed:
    """Of results that have them as fields."""

    seconds: list[float]
    bound_seconds: float

    @property
    def seconds_median(self) -> float:
        """Over the repetitions."""
        return statistics.median(self.seconds)

    @property
    def bound_fraction(self) -> float:
        """1 is as fast as the bound."""
        return self.bound_seconds / self.seconds_median

    def rate(self, count: int) -> float:
        """Of that many bytes in the median time, 10^9 bytes per second."""
        return count / self.seconds_median / 1e9
