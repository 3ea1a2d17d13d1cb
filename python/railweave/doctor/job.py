"""A job's own findings, for `railweave run --explain`: the process that is about to become the command, judged as it will then be."""

from __future__ import annotations

import os
from collections.abc import Mapping

from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examination import in_order
from railweave.doctor.finding import Answer, Finding
from railweave.doctor.patient import Patient
from railweave.machine.discovery import discover
from railweave.machine.facts import Machine
from railweave.machine.source import LiveSource


class _AboutToStart(LiveSource):
    """This process with the variables that the command will have; cores, limits and mounts stay as they are."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._environ = "".join(f"{name}={value}\0" for name, value in environment.items()).encode("utf-8", errors="surrogateescape")

    def read_bytes(self, path: str) -> bytes:
        """A file's content, at most FILE_LIMIT_B of it."""
        return self._environ if path == f"/proc/{os.getpid()}/environ" else super().read_bytes(path)


def findings_of_job(machine: Machine) -> tuple[Finding, ...]:
    """What the checks about a job answer of the machine's process."""
    patient = Patient(machine)
    return in_order([finding for check in CHECKS if check.needs == "job" for finding in check.examine(patient)])


def lines_before_start(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with this rank as it is going to start, with the fix, and what cannot be told yet."""
    findings = findings_of_job(discover(_AboutToStart(environment), os.getpid()))
    lines = [
        f"doctor: {finding.severity.value}: {finding.text} ({finding.check}, {finding.subject}). {finding.fix}"
        for finding in findings
        if finding.answer is Answer.fires
    ]
    unknown = sorted({finding.check for finding in findings if finding.answer is Answer.unknown})
    if unknown:
        lines.append(f"doctor: not known before the command runs: {', '.join(unknown)}; `railweave doctor --pid` tells then")
    return lines or ["doctor: nothing wrong with this rank's cores, limits, devices and variables"]
