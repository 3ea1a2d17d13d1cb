"""Sets of logical CPUs as Linux, Slurm and people write them (`launch.placement.cpu_text` writes lists)."""

from __future__ import annotations

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Iterable


def from_list(text: str) -> tuple[int, ...]:
    """`0-3,8` as /sys, taskset -c and numactl write it; an empty text is the empty set. Raises ValueError."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < 1 << 16:
            raise ValueError(f"'{part}' is no range of CPUs")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def to_mask(cpus: Iterable[int]) -> str:
    """`0x10f`, as Slurm's mask_cpu takes it."""
    return hex(sum(1 << cpu for cpu in set(cpus)))
