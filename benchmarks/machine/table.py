"""The table of the comparisons in this folder: what railweave says, what another tool says, whether they are the same."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[str, str, str, str]
"""Field, other tool, railweave's value, the other's."""

# GT/s of a lane by generation, as nvidia-smi numbers them.
LANE_SPEEDS = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0, "6": 64.0}


def link_text(generation: str, width: str) -> str:
    """nvidia-smi's two words as railweave writes a PCIe link."""
    return f"{LANE_SPEEDS[generation]:g} GT/s x{width}" if generation in LANE_SPEEDS else generation


def report(rows: Sequence[Row]) -> int:
    """Prints what differs, and how many fields of which tool were compared; the exit status, 1 where something differs."""
    different = [row for row in rows if row[2] != row[3]]
    for field, tool, ours, theirs in different:
        print(f"DIFFERS {field}: railweave {ours[:300]!r}, {tool} {theirs[:300]!r}")
    for tool in sorted({row[1] for row in rows}):
        same = [row for row in rows if row[1] == tool]
        print(f"{tool}: {len(same)} fields, {sum(row[2] != row[3] for row in same)} differ")
    return 1 if different else 0
