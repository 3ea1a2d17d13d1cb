"""A check: what it needs, whom it judges, how, and what to say when it fires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from railweave.doctor.finding import Answer, Finding, Severity
from railweave.records import dataclass, field

if TYPE_CHECKING:
    from railweave.doctor.patient import Patient


class MissingError(Exception):
    """An input of a check is unknown; `reason` says why, with the path."""


@dataclass(frozen=True)
class Verdict:
    """What one judgement came to; texts that depend on what was found replace the check's own."""

    answer: Answer
    text: str
    evidence: tuple[str, ...] = ()
    effect: str = ""
    fix: str = ""
    severity: Severity | None = None


def fires(text: str, *evidence: str, effect: str = "", fix: str = "", severity: Severity | None = None) -> Verdict:
    """The fault is there."""
    return Verdict(Answer.fires, text, evidence, effect, fix, severity)


def clear(text: str, *evidence: str) -> Verdict:
    """The fault is not there."""
    return Verdict(Answer.clear, text, evidence)


def unknown(text: str, *evidence: str) -> Verdict:
    """It cannot be told."""
    return Verdict(Answer.unknown, text, evidence)


@dataclass(frozen=True)
class Subject:
    """Whom a check judges: its name in findings, the facts themselves, and the PCI addresses that a picture shows it at."""

    name: str
    facts: tuple[object, ...] = ()
    devices: tuple[str, ...] = ()
    missing: str = ""  # Why it cannot be judged, where not even what to judge is known.


Judge = Callable[["Patient", "Subject"], Verdict]
Subjects = Callable[["Patient"], Sequence[Subject]]


def machine(_: Patient) -> Sequence[Subject]:
    """The one subject of checks about the whole machine."""
    return (Subject("machine"),)


@dataclass(frozen=True)
class Check:
    """An entry of the catalogue."""

    id: str
    title: str
    severity: Severity
    inputs: str  # The files and commands it reads, in words.
    effect: str
    fix: str
    source: str  # Where the rule comes from, with version.
    judge: Judge
    subjects: Subjects = field(default=machine)
    nobody: str = ""  # What to say when there is nothing to judge.
    needs: str = ""  # "job": judges a process; "probe": runs a measurement.

    def examine(self, patient: Patient) -> Iterator[Finding]:
        """One finding a subject; one for the machine when there is no subject, or they cannot be told."""
        try:
            subjects = self.subjects(patient)
        except MissingError as missing:
            yield self._finding(Subject("machine"), unknown(str(missing)))
            return
        if not subjects:
            yield self._finding(Subject("machine"), clear(self.nobody or "nothing here that it could be about"), absent=True)
        for subject in subjects:
            try:
                verdict = unknown(subject.missing) if subject.missing else self.judge(patient, subject)
            except MissingError as missing:
                verdict = unknown(str(missing))
            yield self._finding(subject, verdict)

    def _finding(self, subject: Subject, verdict: Verdict, absent: bool = False) -> Finding:
        fired = verdict.answer is Answer.fires
        return Finding(
            self.id,
            verdict.answer,
            verdict.severity or self.severity,
            subject.name,
            verdict.text,
            verdict.evidence,
            (verdict.effect or self.effect) if fired else "",
            (verdict.fix or self.fix) if fired else "",
            self.inputs,
            self.source,
            subject.devices,
            absent,
        )
