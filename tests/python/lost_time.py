"""What a machine kept from its threads: a test that judges how fast something goes asks whether it could go at all."""

from __future__ import annotations

import os
import time
from pathlib import Path


def stolen_s() -> float:
    """Seconds, since some time, in which a CPU waited for its host (summed over CPUs)."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def _lost_s() -> float:
    """The same, and those in which a thread that was ready waited for a CPU."""
    pressure = Path("/proc/pressure/cpu")  # absent without CONFIG_PSI
    waited = int(pressure.read_text().split("total=")[1].split()[0]) * 1e-6 if pressure.exists() else 0.0
    return waited + stolen_s()


class Span:
    """Time from its making on."""

    def __init__(self) -> None:
        self._start, self._lost = time.monotonic(), _lost_s()

    def lost(self) -> float:
        """Seconds in which some thread of the machine was ready and did not run; where several CPUs are stolen, more than have passed."""
        return _lost_s() - self._lost

    def ran(self) -> float:
        """Seconds that have passed, without the lost ones."""
        return time.monotonic() - self._start - self.lost()

    def quiet(self, part: float) -> bool:
        """Whether less than this part was lost."""
        return self.lost() < part * (time.monotonic() - self._start)
