"""Units: one for all figures of a column, and three digits of each."""

from __future__ import annotations

import pytest

from railweave.units import BYTES, RATES, TIMES, Unit, fitting


@pytest.mark.parametrize(
    ("units", "values", "name", "shown"),
    [
        (TIMES, [0.6788, 0.1712, 0.0402], "ms", ["678.8", "171.2", "40.2"]),
        (TIMES, [0.0021, 8.4e-5], "us", ["2100.0", "84.0"]),
        (TIMES, [2.5, 1.25], "s", ["2.50", "1.25"]),
        (TIMES, [0.68, 1e-6], "us", ["680000.0", "1.00"]),
        (TIMES, [1e-9, 0.0], "us", ["0.00100", "0"]),
        (TIMES, [0.0], "us", ["0"]),
        (TIMES, [], "us", []),
        (BYTES, [448, 56], "B", ["448", "56"]),
        (BYTES, [57344], "KB", ["57.3"]),
        (BYTES, [1 << 10, 1 << 30], "MB", ["0.00102", "1073.7"]),
        (BYTES, [1 << 62], "GB", ["4611686018.4"]),
        (RATES, [49434534.0, 196e6], "MB/s", ["49.4", "196.0"]),
        (RATES, [12.0], "KB/s", ["0.0120"]),
    ],
)
def test_figures(units: tuple[Unit, ...], values: list[float], name: str, shown: list[str]) -> None:
    unit = fitting(values, units)
    assert unit.name == name
    assert [unit.show(value) for value in values] == shown
