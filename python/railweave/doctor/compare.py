"""Many machines that should be alike: what differs, and which one is the odd one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examination import LEAF, Examination
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
    notes: tuple[str, ...] = ()  # What could not be compared, and why.

    @property
    def odd_ones(self) -> tuple[tuple[str, int], ...]:
        """Machines that differ from a majority, each with in how many things, most first."""
        counts = Counter(
            machine for each in self.differences if each.usual is not None for machines in each.odd.values() for machine in machines
        )
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


_OF_A_JOB = {check.id for check in CHECKS if check.needs == "job"}
# Judged by machines with the same salt: where one has another, the answers say that and nothing of the machine.
_BY_OTHERS = {"nic.rail"}
ABSENT = "not there"


def compare(examinations: Sequence[Examination]) -> Comparison:
    """Traits and answers, machine by machine. Two machines have no majority: then both values are shown and nobody is called odd."""
    salts = {examination.salt for examination in examinations}
    one_salt = len(salts) == 1 and None not in salts
    tables = {examination.name: _facts(examination, one_salt) for examination in examinations}
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
    note = ("recorded with different salts: names of switches and addresses in the kernel command line are not compared (topo --salt)",)
    return Comparison(tuple(tables), tuple(differences), () if one_salt else note)


def names_of(files: Sequence[str]) -> list[str]:
    """A name for each recording: its file's, with as many folders before it as make it the only one of that name."""
    paths = [Path(file).absolute() for file in files]
    parts = [[*path.parts[1:-1], path.name.removesuffix(".zst").removesuffix(".tar")] for path in paths]
    count = [1] * len(parts)
    while len(shown := ["/".join(each[-number:]) for each, number in zip(parts, count, strict=True)]) != len(set(shown)):
        twice = {name for name, times in Counter(shown).items() if times > 1}
        if all(count[place] == len(parts[place]) for place, name in enumerate(shown) if name in twice):
            break  # one file, named twice
        count = [min(number + (name in twice), len(each)) for each, number, name in zip(parts, count, shown, strict=True)]
    return shown


# Stand-ins for host and switch names, MAC and IP addresses and UUIDs, as recordings have them (railweave.machine.redaction).
_STAND_IN = re.compile(
    r"\b(?:(?:host|switch)-[0-9a-f]{6}|02(?:[:-][0-9a-f]{2}){5,}|10(?:\.\d{1,3}){3}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)


def _facts(examination: Examination, one_salt: bool) -> dict[str, str]:
    facts = dict(examination.traits)
    if not one_salt:
        facts = {name: _STAND_IN.sub("*", value) for name, value in facts.items() if not name.startswith(LEAF)}
    for finding in examination.findings:
        # A job is not the machine: some recordings have one, each with a number of its own.
        if finding.check in _OF_A_JOB or (finding.check in _BY_OTHERS and not one_salt):
            continue
        facts[f"{finding.check}, {finding.subject}"] = finding.answer.value
    return facts
