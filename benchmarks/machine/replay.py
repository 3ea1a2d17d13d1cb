"""Every fact of this machine as it is read live, against the same fact of a recording made here and replayed here. Exits 1 where one
differs that is neither replaced in recordings nor documented to change by itself."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from table import Row, report

from railweave.machine.discovery import discover, record
from railweave.machine.facts import Known, Machine, Unknown
from railweave.machine.recording import RecordedSource
from railweave.machine.redaction import without_serial_number
from railweave.machine.source import LiveSource

# Facts that change while nobody touches the machine (docs/machine.md, Recordings): clocks and links of GPUs that go idle, counters.
CHANGING = {
    "link": "an idle GPU lowers its link's speed",
    "sm_clock_MHz": "follows load",
    "throttle": "follows load and temperature",
    "errors": "NVLink counts on",
    "aer": "PCI Express counts on",
    "counters": "the port counts on",
    "statistics": "the netdevice counts on",
    "carrier_changes": "the netdevice counts on",
    "irq_affinity": "irqbalance moves interrupts",
    "hugepages": "the kernel reserves and frees",
    "memory_B": "a hypervisor gives a guest memory and takes it back",
}
# What recordings hold a stand-in of (docs/machine.md, Recordings).
REPLACED = {"uuid", "guid", "gid", "switch", "port", "cmdline", "environ"}
# `origin` says which of both it is.
_SAYS_WHICH = {"origin"}


def differences(one: Any, other: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Facts that are not the same, by their place (`gpus[3].sm_clock_MHz`). A fact is a value with its evidence, or why there is none."""
    if isinstance(one, Known) and isinstance(other, Known) and one.evidence == other.evidence and _has_facts(one.value, other.value):
        yield from differences(one.value, other.value, at)
    elif isinstance(one, (Known, Unknown)) or type(one) is not type(other):
        if _plain(one) != _plain(other):
            yield at, one, other
    elif isinstance(one, tuple):
        parts, others = _by_name(one), _by_name(other)
        for name in dict.fromkeys((*parts, *others)):
            yield from differences(parts.get(name), others.get(name), f"{at}[{name}]")
    elif is_dataclass(one) and not isinstance(one, type):
        for field in fields(one):
            yield from differences(getattr(one, field.name), getattr(other, field.name), f"{at}.{field.name}".lstrip("."))
    elif one != other:
        yield at, one, other


def facts(value: Any) -> Iterator[Any]:
    """Every fact of a machine, to count them."""
    if isinstance(value, (Known, Unknown)):
        yield value
        value = getattr(value, "value", None)
    if isinstance(value, tuple):
        for part in value:
            yield from facts(part)
    elif is_dataclass(value) and not isinstance(value, (type, Unknown)):
        for field in fields(value):
            yield from facts(getattr(value, field.name))


def _has_facts(one: Any, other: Any) -> bool:
    """Whether a value is made of parts that have facts of their own."""
    return any(isinstance(value, tuple) and any(is_dataclass(part) for part in value) for value in (one, other))


def _by_name(parts: tuple[Any, ...]) -> dict[str, Any]:
    """Parts by what identifies them, so that one that is missing shifts no other."""
    found: dict[str, Any] = {}
    for place, part in enumerate(parts):
        bus_id, index, port = (getattr(part, name, None) for name in ("bus_id", "index", "port"))
        if isinstance(bus_id, str):
            name = bus_id
        elif hasattr(part, "name") and isinstance(part.name, str):
            name = f"{part.name} port {port}"
        else:
            name = str(index if isinstance(index, int) else place)
        found[name] = part
    return found


def _plain(fact: Any) -> Any:
    """A fact to compare: mappings and bytes by value; of a configuration space without the serial number, which recordings do not have."""
    if not isinstance(fact, Known):
        return fact
    value = fact.value
    if isinstance(value, bytes):
        value = without_serial_number(value)
    return (dict(value) if isinstance(value, Mapping) else value, fact.evidence)


def name_of(place: str) -> str:
    """The fact's own name in such a place."""
    return place.rpartition(".")[2].partition("[")[0]


def rows(live: Machine, replayed: Machine) -> list[Row]:
    """One row a fact that differs and must not, and one for all the others; prints which ones changed or were replaced."""
    found: list[Row] = []
    told: dict[str, int] = {}
    for place, one, other in differences(live, replayed):
        name = name_of(place)
        if name in CHANGING or name in REPLACED or name in _SAYS_WHICH:
            told[name] = told.get(name, 0) + 1
        else:
            found.append((place, "its own recording", str(one), str(other)))
    for name, count in sorted(told.items()):
        print(f"replay: {count} x {name}: {CHANGING.get(name, 'replaced in recordings' if name in REPLACED else 'says which it is')}")
    same = sum(1 for _ in facts(live)) - len(found) - sum(told.values())
    return [*found, *(("fact", "its own recording", "same", "same") for _ in range(same))]


def main() -> int:
    """Records, replays, compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="Keeps the recording here, as machine.tar.zst.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        live = discover(LiveSource())
        record(folder / "machine.tar.zst")
        return report(rows(live, discover(RecordedSource(folder / "machine.tar.zst"))))


if __name__ == "__main__":
    sys.exit(main())
