"""Many machines that should be alike: what differs, and which one is the odd one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examination import Examination
from railweave.records import dataclass


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same on all machines."""

    what: str  # A trait, or a check and its subject.
    usual: str | None  # What more than half of the machines have; None when there is no such majority.
    odd: dict[str, tuple[str, ...]]  # Each other value, and the machines that have it.


@dataclass(frozen=True)
class Comparison:
    """What differs between machines."""

    machines: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def odd_ones(self) -> tuple[tuple[str, int], ...]:
        """Machines that differ from a majority, each with in how many things, most first."""
        counts = Counter(
            machine for each in self.differences if each.usual is not None for machines in each.odd.values() for machine in machines
        )
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


_OF_A_JOB = {check.id for check in CHECKS if check.needs == "job"}
ABSENT = "not there"


def compare(examinations: Sequence[Examination]) -> Comparison:
    """Traits and answers, machine by machine. Two machines have no majority: then both values are shown and nobody is called odd."""
    tables = {examination.name: _facts(examination) for examination in examinations}
    keys = list(dict.fromkeys(key for table in tables.values() for key in table))
    differences = []
    for key in keys:
        having: dict[str, list[str]] = {}
        for name, table in tables.items():
            having.setdefault(table.get(key, ABSENT), []).append(name)
        if len(having) == 1:
            continue
        usual, machines = max(having.items(), key=lambda item: len(item[1]))
        majority = usual if 2 * len(machines) > len(tables) else None
        odd = {value: tuple(names) for value, names in having.items() if value != majority}
        differences.append(Difference(key, majority, odd))
    return Comparison(tuple(tables), tuple(differences))


def _facts(examination: Examination) -> dict[str, str]:
    facts = dict(examination.traits)
    for finding in examination.findings:
        # A job is not the machine: some recordings have one, each with a number of its own.
        if finding.check in _OF_A_JOB:
            continue
        facts[f"{finding.check}, {finding.subject}"] = finding.answer.value
    return facts
