"""An examination: every check of the catalogue over one machine."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.doctor.finding import Answer, Finding, Severity
from railweave.records import dataclass

LEAF = "leaf at "
"""What the traits begin with that name the switch at the other end of a cable."""


@dataclass(frozen=True)
class Examination:
    """All answers about one machine, worst first, its GPUs, and how the fabric NICs were told from the others."""

    name: str  # The recording's file name, or "this machine".
    findings: tuple[Finding, ...]
    fabric_nics: str  # Which NICs were taken for the GPU network, and why.
    traits: dict[str, str]  # What should be equal on equal nodes: driver, kernel, firmware, ...
    gpus: str = ""  # Which GPUs there are, or why that is not known.
    gpu_count: int | None = None  # None where it is not known.
    salt: str | None = None  # Which salt its recording was made with; None where it does not say. Live machines have their own names.

    def with_answer(self, answer: Answer) -> tuple[Finding, ...]:
        """Findings with that answer, worst first."""
        return tuple(finding for finding in self.findings if finding.answer is answer)

    @property
    def worst(self) -> Severity | None:
        """Severity of the worst finding that fires; None when none does."""
        fired = [finding.severity for finding in self.with_answer(Answer.fires)]
        return max(fired, key=lambda severity: severity.rank) if fired else None

    def reaches(self, level: Severity) -> bool:
        """Whether a finding of that severity or a worse one fires."""
        return self.worst is not None and self.worst.rank >= level.rank


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Fires before unknown before clear, worse before better, else as the catalogue has them."""
    answers = list(Answer)
    return tuple(sorted(findings, key=lambda finding: (answers.index(finding.answer), -finding.severity.rank)))
