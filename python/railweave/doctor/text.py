"""Findings as lines for a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examination import Examination
from railweave.doctor.finding import Answer, Finding

if TYPE_CHECKING:
    from railweave.doctor.compare import Comparison

_WIDTH, _LEAST_WIDTH = 120, 60
_TITLES = {check.id: check.title for check in CHECKS}


def render(examination: Examination) -> str:
    """What fires in full, what is unknown with the reason, and how many are clear."""
    about = (f"GPUs: {examination.gpus}", f"fabric NICs: {examination.fabric_nics}")
    lines = [examination.name, *(line for text in about for line in _wrapped(text, "")), ""]
    for group in groups(examination.with_answer(Answer.fires)):
        lines += [*_fired(group), ""]
    unknown = groups(examination.with_answer(Answer.unknown))
    if unknown:
        lines.append("Unknown, because not readable here:")
        for group in unknown:
            lines += list(_wrapped(f"{group[0].check}, {subjects(group)}: {group[0].text}", "  "))
        lines.append("")
    lines += _wrapped(summary(examination), "")
    return "\n".join(lines) + "\n"


def summary(examination: Examination) -> str:
    """One line: how many of what."""
    fired = examination.with_answer(Answer.fires)
    counts = [f"{sum(finding.severity.value == name for finding in fired)} {name}" for name in ("error", "warning", "info")]
    clear = examination.with_answer(Answer.clear)
    absent = sum(finding.absent for finding in clear)
    rest = f", of which {absent} had nothing to look at" if absent else ""
    return f"{', '.join(counts)}; {len(examination.with_answer(Answer.unknown))} unknown, {len(clear)} clear{rest}"


def groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one check that say the same, together, in order of the first."""
    found: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        # What is unknown for one reason is one unknown; what fires is told by subject where it is told differently.
        key = (finding.check, finding.severity, finding.text, finding.effect, finding.fix)
        found.setdefault(key, []).append(finding)
    return list(found.values())


def title(check: str) -> str:
    """A check's title by its id."""
    return _TITLES[check]


def subjects(group: Sequence[Finding]) -> str:
    """Whom the findings of a group are about."""
    return ", ".join(finding.subject for finding in group)


def _fired(group: Sequence[Finding]) -> Iterator[str]:
    first = group[0]
    yield f"{first.severity.value.upper():<8}{title(first.check)} ({first.check})"
    yield from _wrapped(f"{subjects(group)}: {first.text}", "  ")
    evidence = list(dict.fromkeys(line for finding in group for line in finding.evidence))
    for line in evidence[:6]:
        yield from _wrapped(line, "    ")
    if len(evidence) > 6:
        yield f"    ... {len(evidence) - 6} more lines (--json has all)"
    for name, text in (("effect", first.effect), ("fix", first.fix), ("source", first.source)):
        if text:
            yield from _wrapped(f"{name}: {text}", "  ")


def _wrapped(text: str, indent: str) -> Iterator[str]:
    """Between words only; by hand, because `textwrap` takes longer to import than a report takes to write."""
    line, width = indent, _width()
    for word in text.split():
        if line.strip() and len(line) + len(word) > width:
            yield line.rstrip()
            line = indent + "  "
        line += word + " "
    if line.strip():
        yield line.rstrip()


def _width() -> int:
    """Of a terminal as it is, but lines shall be neither tatters nor too long to read."""
    if sys.stdout is None or not sys.stdout.isatty():
        return _WIDTH
    return min(max(os.get_terminal_size(sys.stdout.fileno()).columns, _LEAST_WIDTH), _WIDTH)


def render_comparison(comparison: Comparison) -> str:
    """What differs, and who is odd."""
    lines = [f"{len(comparison.machines)} machines compared"]
    if not comparison.differences:
        return "\n".join([f"{lines[0]}: nothing differs", *comparison.notes]) + "\n"
    lines.append("")
    for difference in comparison.differences:
        usual = f"usually {difference.usual}" if difference.usual is not None else "no value is usual"
        lines += list(_wrapped(f"{difference.what}: {usual}", "  "))
        for value, machines in difference.odd.items():
            lines += list(_wrapped(f"{', '.join(machines)}: {value}", "    "))
    lines.append("")
    lines += list(comparison.notes)
    odd = comparison.odd_ones
    if odd:
        lines.append("Odd ones out: " + ", ".join(f"{name} ({count} {'thing' if count == 1 else 'things'})" for name, count in odd))
    else:
        lines.append("No machine is the odd one: no value has a majority.")
    return "\n".join(lines) + "\n"
