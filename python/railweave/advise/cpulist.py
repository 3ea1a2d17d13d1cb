"""Sets of logical CPUs as Linux, Slurm and people write them."""

from __future__ import annotations

from collections.abc import Iterable


def to_list(cpus: Iterable[int]) -> str:
    """`0-3,8`, as in /sys and for taskset -c and numactl."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def from_list(text: str) -> tuple[int, ...]:
    """The inverse of `to_list`; an empty text is the empty set. Raises ValueError."""
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
