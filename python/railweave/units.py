"""Units in which figures are neither all zeros nor too long to read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Of a column or an axis; `size` is in seconds, bytes, or bytes per second."""

    name: str
    size: float
    least_decimals: int = 1

    def show(self, value: float) -> str:
        """Three significant digits, or more in front of the point; columns of large values keep their decimals."""
        scaled = value / self.size
        if scaled == 0:
            return "0"
        if self.least_decimals == 0:
            return f"{scaled:.0f}"
        return f"{scaled:.{decimals(scaled, self.least_decimals)}f}"


TIMES = (Unit("us", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0))
BYTES = (Unit("B", 1.0, 0), Unit("KB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9))
RATES = (Unit("KB/s", 1e3), Unit("MB/s", 1e6), Unit("GB/s", 1e9))


def decimals(value: float, least: int) -> int:
    """So many that a positive value shows three significant digits."""
    return max(least, 2 - math.floor(math.log10(value))) if value > 0 else least


def fitting(values: Iterable[float], units: tuple[Unit, ...]) -> Unit:
    """One unit for all: that of the middle between the smallest and the largest, by their ratio, so that neither is far from it."""
    positive = [value for value in values if value > 0]
    # before the root, so that the product cannot leave the range of a float
    middle = math.sqrt(min(positive)) * math.sqrt(max(positive)) if positive else units[0].size
    return next((unit for unit in reversed(units) if unit.size <= middle), units[0])
