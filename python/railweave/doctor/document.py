"""Findings as JSON (schema/doctor.schema.json) and as a Prometheus textfile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from railweave.doctor.compare import Comparison
from railweave.doctor.examination import Examination
from railweave.doctor.finding import Answer, Finding, Severity

FORMAT, VERSION = "railweave-doctor", 1


def document(examinations: Sequence[Examination], comparison: Comparison | None) -> dict[str, Any]:
    """All answers of all machines, and what differs between them."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "machines": [
            {
                "name": examination.name,
                "gpus": examination.gpus,
                "gpu_count": examination.gpu_count,
                "fabric_nics": examination.fabric_nics,
                "worst": examination.worst.value if examination.worst is not None else None,
                "findings": [_finding(finding) for finding in examination.findings],
            }
            for examination in examinations
        ],
        "comparison": None
        if comparison is None
        else {
            "odd_ones": [{"machine": machine, "differences": count} for machine, count in comparison.odd_ones],
            "differences": [
                {
                    "what": difference.what,
                    "usual": difference.usual,
                    "odd": [{"value": value, "machines": list(machines)} for value, machines in difference.odd.items()],
                }
                for difference in comparison.differences
            ],
            "notes": list(comparison.notes),
        },
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "answer": finding.answer.value,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "text": finding.text,
        "evidence": list(finding.evidence),
        "effect": finding.effect,
        "fix": finding.fix,
        "inputs": finding.inputs,
        "source": finding.source,
        "devices": list(finding.devices),
        "absent": finding.absent,
    }


def prometheus(examinations: Sequence[Examination]) -> str:
    """For node_exporter's textfile collector. Every check has a series, so that an alert can tell silence from health."""
    lines = [
        "# HELP railweave_doctor_finding Answer of a check: 1 fires, 0 clear, NaN unknown.",
        "# TYPE railweave_doctor_finding gauge",
    ]
    values = {Answer.fires: "1", Answer.clear: "0", Answer.unknown: "NaN"}
    several = len(examinations) > 1
    for examination in examinations:
        for finding in examination.findings:
            labels = {"check": finding.check, "severity": finding.severity.value, "subject": finding.subject}
            if several:
                labels["machine"] = examination.name
            lines.append(f"railweave_doctor_finding{_labels(labels)} {values[finding.answer]}")
    lines += [
        "# HELP railweave_doctor_findings Number of findings that fire, by severity.",
        "# TYPE railweave_doctor_findings gauge",
    ]
    for examination in examinations:
        for severity in Severity:
            labels = {"severity": severity.value} | ({"machine": examination.name} if several else {})
            count = sum(finding.severity is severity for finding in examination.with_answer(Answer.fires))
            lines.append(f"railweave_doctor_findings{_labels(labels)} {count}")
    lines += [
        "# HELP railweave_doctor_gpus Number of GPUs; NaN where it is not known.",
        "# TYPE railweave_doctor_gpus gauge",
    ]
    for examination in examinations:
        of = _labels({"machine": examination.name}) if several else ""
        lines.append(f"railweave_doctor_gpus{of} {'NaN' if examination.gpu_count is None else examination.gpu_count}")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
