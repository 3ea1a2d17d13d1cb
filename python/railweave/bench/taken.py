"""CPU time that was taken from a measurement: by the host of a virtual machine, and by other programs."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import TracebackType

# Three quiet runs of a lab lost 0.2% and spread by 1 to 9%; runs that lost 25% spread by 20 to 200% and reached a fifth less of the bound.
NOTABLE = 0.05


def _own_seconds() -> float:
    """CPU time of this process and of those descendants that have ended and were waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class TakenTime:
    """A span, as a context, in which this process measures by itself and by children that end within it.

    `stolen`: of the CPU time that the machine wanted meanwhile, the share that its host gave to others (0 on hardware). `others`: of the
    CPU time that there was, the share that other programs had; interrupts are nobody's.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat, self.stolen, self.others = stat, 0.0, 0.0

    def __enter__(self) -> TakenTime:
        self._before, self._own = self._ticks(), _own_seconds()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.look()

    def look(self) -> None:
        """Of the span so far. `others` counts children that have not ended."""
        user, nice, system, idle, iowait, irq, softirq, stolen = (
            max(0, after - before) for after, before in zip(self._ticks(), self._before, strict=True)
        )
        wanted = user + nice + system + irq + softirq + stolen
        self.stolen = stolen / wanted if wanted else 0.0
        there = wanted + idle + iowait
        others = user + nice + system - (_own_seconds() - self._own) * os.sysconf("SC_CLK_TCK")
        self.others = max(0.0, others / there) if there else 0.0

    def _ticks(self) -> list[int]:
        """Of all CPUs since boot: user, nice, system, idle, iowait, irq, softirq, stolen (proc(5))."""
        return [int(field) for field in self._stat.read_text().split("\n", 1)[0].split()[1:9]]


def warning(machine: dict[str, object]) -> str:
    """What to say of figures that a machine gave while much of its CPU time was taken, or nothing."""
    taken = []
    for key, text in (
        ("cpu_stolen", "The host of this virtual machine took {} of the CPU time that it wanted"),
        ("cpu_others", "Other programs had {} of this machine's CPU time"),
    ):
        share = machine.get(key, 0.0)
        if isinstance(share, float) and share >= NOTABLE:
            taken.append(text.format(f"{share:.0%}"))
    return f"{'. '.join(taken)}: times say more about that than about what was measured." if taken else ""
