"""Findings as one HTML file: the picture of each machine, what fires with evidence, effect and fix, what is unknown and why."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.doctor.compare import Comparison
from railweave.doctor.examination import Examination
from railweave.doctor.finding import Answer, Finding
from railweave.doctor.text import groups, subjects, summary, title
from railweave.machine.facts import Known, Machine
from railweave.report.page import Note, Page
from railweave.topo.marks import Mark

# A fleet's page shows what fires on the machines that have something; the rest is a line in the table.
_SHOWN_IN_FULL = 16


def marks(examination: Examination, machine: Machine) -> list[Mark]:
    """What fires, for the machine's picture, at the parts concerned, or below what they hang from."""
    found = []
    for group in groups(examination.with_answer(Answer.fires)):
        devices = tuple(dict.fromkeys(device for finding in group for device in finding.devices))
        text = title(group[0].check) if subjects(group) == "machine" else f"{title(group[0].check)}: {subjects(group)}"
        near = tuple(bridge.bus_id for device in devices for bridge in machine.ancestors(device))
        found.append(Mark(devices, group[0].severity.value, text, near))
    if machine.hidden_tree is not None and not isinstance(machine.topology, Known):
        found.append(Mark((), "info", f"PCIe paths are unknown ({machine.hidden_tree.detail}); devices are drawn below the CPU"))
    return found


def page(examinations: Sequence[Examination], comparison: Comparison | None, pictures: Sequence[str | None], command: str) -> str:
    """The document; `pictures` has an <svg> for each machine, or None where its fabric is not known."""
    if len(examinations) == 1:
        result = Page(f"Doctor: {examinations[0].name}", summary(examinations[0]))
    else:
        result = Page(f"Doctor: {len(examinations)} machines", _fleet_line(examinations, comparison))
        result.table(
            "Machines",
            "Findings that fire, by severity, and what could not be read.",
            ["machine", "error", "warning", "info", "unknown", "clear", "differs in"],
            [_row(examination, comparison) for examination in examinations],
            1,
        )
        if comparison is not None and (comparison.differences or comparison.notes):
            result.table(
                "What differs",
                " ".join(["A value that more than half of the machines have is the usual one.", *comparison.notes]),
                ["what", "usual", "other", "on"],
                [
                    [difference.what if place == 0 else "", difference.usual or "none", value, ", ".join(machines)]
                    for difference in comparison.differences
                    for place, (value, machines) in enumerate(difference.odd.items())
                ],
                4,
            )
    shown = sorted(zip(examinations, pictures, strict=True), key=lambda pair: -_weight(pair[0]))[:_SHOWN_IN_FULL]
    for examination, picture in shown:
        _machine(result, examination, picture, len(examinations) > 1)
    checks = {finding.check: finding for examination in examinations for finding in examination.findings}
    result.table(
        "Checks",
        "What each reads, and where its rule comes from.",
        ["check", "finds", "reads", "source"],
        [[finding.check, title(finding.check), finding.inputs, finding.source] for _, finding in sorted(checks.items())],
        4,
    )
    facts = [("machines", ", ".join(examination.name for examination in examinations))]
    result.facts("Where this comes from", facts, command)
    return result.render()


def _weight(examination: Examination) -> int:
    return sum(10**finding.severity.rank for finding in examination.with_answer(Answer.fires))


def _fleet_line(examinations: Sequence[Examination], comparison: Comparison | None) -> str:
    odd = comparison.odd_ones if comparison is not None else ()
    return f"Odd ones out: {', '.join(name for name, _ in odd)}." if odd else "No machine differs from a majority."


def _row(examination: Examination, comparison: Comparison | None) -> list[str]:
    fired = examination.with_answer(Answer.fires)
    counts = [str(sum(finding.severity.value == name for finding in fired)) for name in ("error", "warning", "info")]
    differs = dict(comparison.odd_ones).get(examination.name, 0) if comparison is not None else 0
    rest = [str(len(examination.with_answer(answer))) for answer in (Answer.unknown, Answer.clear)]
    return [examination.name, *counts, *rest, f"{differs} things" if differs else "nothing"]


def _machine(result: Page, examination: Examination, picture: str | None, several: bool) -> None:
    of = f": {examination.name}" if several else ""
    fired = groups(examination.with_answer(Answer.fires))
    about = f"GPUs: {examination.gpus}. Fabric NICs: {examination.fabric_nics}."
    text = "" if fired else "Nothing that could be judged is wrong."
    if picture is not None:
        result.figure(f"The machine{of}", about, picture)
    else:
        text = f"{about} {text}".strip()
    result.notes(f"Findings{of}", text, [_note(group) for group in fired])
    unknown = examination.with_answer(Answer.unknown)
    if unknown:
        result.table(
            f"Unknown{of}",
            "Not readable here, and not guessed.",
            ["check", "subject", "why"],
            [[group[0].check, subjects(group), group[0].text] for group in groups(unknown)],
            3,
        )
    clear = examination.with_answer(Answer.clear)
    result.table(
        f"Clear{of}",
        "Judged, and found as it should be.",
        ["check", "subject", "found"],
        [[group[0].check, subjects(group), group[0].text] for group in groups([finding for finding in clear if not finding.absent])],
        3,
    )
    absent = [finding for finding in clear if finding.absent]
    if absent:
        result.table(
            f"Nothing to look at{of}",
            "Counted as clear, because what these checks are about is not there.",
            ["check", "why"],
            [[finding.check, finding.text] for finding in absent],
            2,
        )


def _note(group: Sequence[Finding]) -> Note:
    first = group[0]
    evidence = tuple(dict.fromkeys(line for finding in group for line in finding.evidence))
    return Note(
        first.severity.value,
        title(first.check),
        first.check,
        f"{subjects(group)}: {first.text}",
        evidence,
        (("Effect", first.effect), ("Fix", first.fix), ("Source", first.source)),
    )
