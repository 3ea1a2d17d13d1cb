"""Advice for machines: this one, or the one of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from railweave.advise.advice import advise
from railweave.advise.document import document
from railweave.advise.facts import with_machine
from railweave.advise.host import Host, read_host
from railweave.advise.mapping import Workload
from railweave.errors import Error
from railweave.launch.placement import write, write_none
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Machine
from railweave.machine.recording import RecordedSource
from railweave.machine.source import LiveSource

_DRIVER = Path("/proc/driver/nvidia/gpus")


def host_of(machine: Machine, nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """A machine's host, and what was not known about its wiring. `nics` names the NICs of the GPU network, else they are inferred. Raises
    FabricError for a machine without GPUs, or a NIC that it does not have."""
    fabric, unknown = fabric_of(machine)
    return with_machine(read_host(fabric), machine, nics), unknown


def this_host(nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """The same for this machine, with the device files of its GPUs, which tell a rank what it may open."""
    host, unknown = host_of(discover(LiveSource()), nics)
    return replace(host, gpus=tuple(replace(gpu, minor=_minor(gpu.bus_id)) for gpu in host.gpus)), unknown


def recorded_host(recording: Path, nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """The same for the machine of a recording; damage of the file is among what was not known."""
    source = RecordedSource(recording)
    host, unknown = host_of(discover(source), nics)
    damage = source.recording.damage
    return host, ((f"{damage}; what is left of it is used", *unknown) if damage else unknown)


def _minor(bus_id: str) -> int | None:
    """The N of /dev/nvidiaN, as the driver says in /proc/driver/nvidia/gpus/BUS_ID/information."""
    try:
        text = (_DRIVER / bus_id / "information").read_text()
    except OSError:
        return None
    found = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("Device Minor:")]
    return int(found[0]) if found and found[0].isdigit() else None


def placement_text(workload: str) -> str:
    """What `railweave run` keeps of the advice for this machine."""
    try:
        host, _ = this_host()
        return write(document(advise(host, Workload(workload))))
    except Error as error:
        return write_none(str(error))
