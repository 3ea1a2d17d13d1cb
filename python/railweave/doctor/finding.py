"""What the doctor says: a check's answer about one subject (a GPU, a NIC, a path, the machine)."""

from __future__ import annotations

import enum

from railweave.records import dataclass


class Severity(enum.Enum):
    """How much a finding costs when it fires."""

    info = "info"  # Worth knowing, no fault.
    warning = "warning"  # Costs performance, or hides a fault.
    error = "error"  # Communication fails, or loses much of what the hardware can carry.

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return list(Severity).index(self)


class Answer(enum.Enum):
    """What a check found out."""

    fires = "fires"
    unknown = "unknown"  # An input could not be read; nothing is assumed in its place.
    clear = "clear"


@dataclass(frozen=True)
class Finding:
    """One answer of one check about one subject."""

    check: str  # Id of the check, stable across versions.
    answer: Answer
    severity: Severity
    subject: str  # What it is about: a GPU, a NIC, a path, "machine".
    text: str  # What was found, or why nothing could be.
    evidence: tuple[str, ...] = ()  # The exact registers, files or lines it rests on.
    effect: str = ""  # What it does to communication; GB/s where capacities are known.
    fix: str = ""
    inputs: str = ""  # What the check reads.
    source: str = ""  # Where its rule comes from.
    devices: tuple[str, ...] = ()  # PCI addresses of the GPUs and NICs concerned: where a picture shows it.
    absent: bool = False  # Clear only because what it would judge is not there.
