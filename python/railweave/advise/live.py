"""Advice for machines: this one, or the one of a recording."""

from __future__ import annotations

from railweave.advise.advice import advise
from railweave.advise.document import document
from railweave.advise.facts import with_machine
from railweave.advise.host import Gpu, Host, compute_capability, read_host
from railweave.advise.mapping import Workload
from railweave.errors import Error
from railweave.launch.placement import write, write_none
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Machine, Unknown, known
from railweave.machine.processors import CPUINFO
from railweave.machine.source import CommandOutput, LiveSource, Reason, Unreadable
from railweave.machine.wiring import DRIVER, read_wiring
from railweave.records import replace

_DRIVER = DRIVER

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class _Files(LiveSource):
    """This machine's files alone. Starting ranks takes no NVLinks, clocks, counters and services, and asking NVML and programs for them
    takes longer than everything else."""

    def read_bytes(self, path: str) -> bytes:
        return self._read(path, b"\n\n" if path == CPUINFO else None)  # the kernel takes milliseconds to list hundreds of CPUs

    def command(self, argv: Sequence[str]) -> CommandOutput:
        raise Unreadable(" ".join(argv), Reason.tool_missing, "not asked")

    def library(self, name: str) -> str:
        raise Unreadable(f"library:{name}", Reason.tool_missing, "not asked")


def host_of(machine: Machine, nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """A machine's host, and what was not known about its wiring. `nics` names the NICs of the GPU network, else they are inferred. Raises
    FabricError for a machine without GPUs, UnknownNicError for a NIC that it does not have."""
    fabric, unknown = fabric_of(machine)
    return with_machine(read_host(fabric), machine, nics), unknown


def this_host(nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """The same for this machine, with the device files of its GPUs, which tell a rank what it may open."""
    from railweave.machine.discovery import discover  # takes longer to import than a machine's wiring to read

    host, unknown = host_of(discover(LiveSource()), nics)
    return replace(host, gpus=tuple(_with_driver(gpu) for gpu in host.gpus)), unknown


def recorded_host(recording: str | Path, nics: Sequence[str] = ()) -> tuple[Host, tuple[str, ...]]:
    """The same for the machine of a recording; damage of the file is among what was not known."""
    from railweave.machine.discovery import discover
    from railweave.machine.recording import RecordedSource

    source = RecordedSource(recording)
    host, unknown = host_of(discover(source), nics)
    damage = source.recording.damage
    return host, ((f"{damage}; what is left of it is used", *unknown) if damage else unknown)


def _with_driver(gpu: Gpu) -> Gpu:
    """What /proc/driver/nvidia/gpus/BUS_ID/information says: the N of /dev/nvidiaN, and where NVML was not asked, model and UUID."""
    try:
        with open(f"{_DRIVER}/{gpu.bus_id}/information", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return gpu
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    minor, uuid, model = said.get("Device Minor", ""), said.get("GPU UUID", ""), said.get("Model", "")
    return replace(
        gpu,
        minor=int(minor) if minor.isdigit() else None,
        uuid=gpu.uuid or (uuid if "?" not in uuid else None) or None,  # it has question marks until a program has used the GPU
        sm=gpu.sm if gpu.uuid else compute_capability(model) or gpu.sm,
    )


def placement_text(workload: str) -> str:
    """What `railweave run` keeps of the advice for this machine. Files are enough, unless they hide the machine."""
    try:
        host = _host_by_files() or this_host()[0]
        return write(document(advise(host, Workload(workload))))
    except Error as error:
        return write_none(str(error))


def _host_by_files() -> Host | None:
    machine = read_wiring(_Files())
    if any(isinstance(fact, Unknown) for fact in (machine.pci, machine.numa, machine.cpus.cores)) or not known(machine.gpus):
        return None
    host, _ = host_of(machine)
    host = replace(host, gpus=tuple(_with_driver(gpu) for gpu in host.gpus))
    return host if all(gpu.uuid and gpu.sm for gpu in host.gpus) else None
