"""What the host of a virtual machine took from it while something was measured."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

# Three quiet runs of a lab lost 0.2% and spread by 1 to 9%; runs that lost 25% spread by 20 to 200% and reached a fifth less of the bound.
NOTABLE = 0.05


class StolenTime:
    """A span, as a context; `share` of the CPU time that the machine wanted meanwhile, its host gave to others (0 on hardware)."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat, self.share = stat, 0.0

    def __enter__(self) -> StolenTime:
        self._busy, self._stolen = self._ticks()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        busy, stolen = self._ticks()
        wanted = max(0, busy - self._busy) + max(0, stolen - self._stolen)
        self.share = max(0, stolen - self._stolen) / wanted if wanted else 0.0

    def _ticks(self) -> tuple[int, int]:
        """Of all CPUs since boot, busy and stolen (proc(5))."""
        user, nice, system, _, _, irq, softirq, stolen = (int(field) for field in self._stat.read_text().split("\n", 1)[0].split()[1:9])
        return user + nice + system + irq + softirq, stolen


def warning(machine: dict[str, object]) -> str:
    """What to say of figures that a machine gave while its host took much of it, or nothing."""
    share = machine.get("cpu_stolen", 0.0)
    if not isinstance(share, float) or share < NOTABLE:
        return ""
    return f"The host of this virtual machine took {share:.0%} of the CPU time that it wanted: times say more about that than about rails."
