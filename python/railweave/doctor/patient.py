"""The machine under examination, with what many checks ask of it: which NICs serve the GPUs, how far apart devices are, what is a job's."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from railweave.doctor.check import MissingError
from railweave.launch.errors import LaunchError
from railweave.launch.gpus import gpus_of
from railweave.launch.placement import Placement
from railweave.launch.rank import find_rank
from railweave.machine.fabric_nics import UnknownNicError, fabric_nics, is_up
from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, PciDevice, Process, Unknown, known
from railweave.machine.paths import SWITCHED, WAYS, pci_way
from railweave.machine.pci import gpus_on_the_bus
from railweave.machine.source import Reason
from railweave.records import dataclass

if TYPE_CHECKING:
    from railweave.doctor.probe import Probes
    from railweave.doctor.rails import Rails
    from railweave.fabric import Fabric

T = TypeVar("T")


def need(fact: Fact[T]) -> T:
    """The value, or MissingError with the reason and the path."""
    if isinstance(fact, Unknown):
        raise MissingError(str(fact))
    return fact.value


def need_all(facts: Iterable[Fact[object]]) -> None:
    """MissingError with the first that could be known and is not; what a device does not have is no gap."""
    for fact in facts:
        if isinstance(fact, Unknown) and fact.reason is not Reason.unsupported:
            raise MissingError(str(fact))


def evidence(fact: Fact[object], value: object = None) -> str:
    """Where a fact was read, with what stood there."""
    if isinstance(fact, Unknown):
        return str(fact)
    return f"{fact.evidence}: {fact.value if value is None else value}"


@dataclass(frozen=True)
class Way:
    """The PCIe path between two functions."""

    kind: str  # As `railweave.machine.paths.WAYS` has them.
    bridges: tuple[PciDevice, ...]  # Those that a transaction crosses, from one end to the other, without the common one.
    common: PciDevice | None  # The bridge where both sides meet; None when they meet in the CPU.


class Patient:
    """A machine, a job on it if one is judged, and what probes measured."""

    def __init__(self, machine: Machine, named_nics: Sequence[str] = (), probes: Probes | None = None, rails: Rails | None = None) -> None:
        self.machine = machine
        self.rails = rails
        self.probes = probes
        self._named_nics = tuple(named_nics)
        self._ways: dict[tuple[str, str], Way] = {}
        self._fabrics: dict[int, Fabric | MissingError] = {}
        self._texts: dict[int, str] = {}
        self.exchanges: dict[str, float | None] = {}
        """What exchanges came to, by what was changed on the machine: findings about the same GPUs ask for the same ones."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs; MissingError when that is not known."""
        return need(self.machine.gpus)

    @property
    def gpus_told(self) -> str:
        """How many GPUs of which name; without any, who says so."""
        if isinstance(self.machine.gpus, Unknown):
            return f"unknown: {self.machine.gpus}"
        counts: dict[str, int] = {}
        for gpu in self.machine.gpus.value:
            name = gpu.name.value if isinstance(gpu.name, Known) else "of unknown name"
            counts[name] = counts.get(name, 0) + 1
        told = ", ".join(f"{count} {name}" if name == "of unknown name" else f"{count} x {name}" for name, count in counts.items())
        if told:
            return told
        # A driver may list none although the bus has some: that is no machine without GPUs.
        if not isinstance(self.machine.pci, Known):
            return f"none: {self.machine.gpus.evidence} lists none, and the PCI bus is not readable"
        there = len(gpus_on_the_bus(self.machine.pci.value))
        return f"none that the driver lists, {there} on the PCI bus" if there else "none on the PCI bus"

    @property
    def nics(self) -> tuple[Nic, ...]:
        """All ports."""
        return need(self.machine.nics)

    @property
    def job(self) -> Process:
        """The process that is judged."""
        if self.machine.process is None:
            raise MissingError("no job is judged: --pid N names a process of one")
        return self.machine.process

    @property
    def environ(self) -> dict[str, str]:
        """The job's variables of communication libraries and launchers."""
        return dict(need(self.job.environ))

    @property
    def is_virtual(self) -> bool:
        """Whether this is a virtual machine."""
        return need(self.machine.host.hypervisor)

    @property
    def fabric_nics(self) -> tuple[Nic, ...]:
        """Ports of the GPU network."""
        return self._fabric_nics[0]

    @property
    def sure_fabric_nics(self) -> tuple[Nic, ...]:
        """The same for who counts them: MissingError where a port is among them only because its state or rate is not known."""
        rates = [nic.rate_bps.value for nic in self.fabric_nics if isinstance(nic.rate_bps, Known)]
        for nic in () if self._named_nics else self.fabric_nics:
            if isinstance(nic.rate_bps, Unknown) or nic.rate_bps.value < max(rates):
                need(nic.state)
            if is_up(nic):
                need(nic.rate_bps)
        return self.fabric_nics

    @property
    def fabric_nics_why(self) -> str:
        """Which ports were taken for the GPU network, and why."""
        try:
            chosen, why = self._fabric_nics
        except MissingError as missing:
            return f"unknown: {missing}"
        return f"{', '.join(nic.name for nic in chosen) or 'none'}: {why}"

    @functools.cached_property
    def _fabric_nics(self) -> tuple[tuple[Nic, ...], str]:
        try:
            need(self.machine.nics)
            return fabric_nics(self.machine, self._named_nics)
        except UnknownNicError as error:
            raise MissingError(str(error)) from error

    def is_up(self, nic: Nic) -> bool:
        """Whether a port is known to be up."""
        return is_up(nic)

    def device(self, bus_id: Fact[str] | Fact[str | None]) -> PciDevice | None:
        """The PCI function of a GPU or NIC, where it is known."""
        return self.machine.pci_device(bus_id.value) if isinstance(bus_id, Known) and bus_id.value is not None else None

    def need_device(self, what: Gpu | Nic) -> PciDevice:
        """The PCI function; MissingError when the tree does not have it."""
        bus_id = need(what.bus_id)
        if bus_id is None:
            raise MissingError(f"{label(what)} is not on the PCI bus")
        need(self.machine.pci)
        device = self.machine.pci_device(bus_id)
        if device is None:
            raise MissingError(f"{label(what)}: no PCI function {bus_id} in the tree")
        return device

    def parent(self, device: PciDevice) -> PciDevice | None:
        """The bridge above a function."""
        return self.machine.pci_device(device.parent) if device.parent is not None else None

    def way(self, one: PciDevice, other: PciDevice) -> Way:
        """The path between two functions of the tree."""
        key = (one.bus_id, other.bus_id)
        if key not in self._ways:
            self._ways[key] = self._find_way(one, other)
        return self._ways[key]

    def _find_way(self, one: PciDevice, other: PciDevice) -> Way:
        kind = need(pci_way(self.machine, one.bus_id, other.bus_id))
        left, right = self.machine.ancestors(one.bus_id), self.machine.ancestors(other.bus_id)
        ids = {bridge.bus_id for bridge in right}
        common = next((bridge for bridge in left if bridge.bus_id in ids), None)
        if common is not None:
            left = left[: left.index(common)]
            right = right[: [bridge.bus_id for bridge in right].index(common.bus_id)]
        return Way(kind, (*left, *reversed(right)), common)

    def nearest_nics(self, gpu: Gpu, all_of_them: bool = False) -> tuple[str, tuple[Nic, ...]]:
        """The least distance from a GPU to a fabric NIC, and the NICs at it. MissingError where a NIC of unknown place could be nearer, or
        with `all_of_them` as near."""
        device = self.need_device(gpu)
        ways, missing = [], list[MissingError]()
        for nic in self.fabric_nics:
            try:
                ways.append((self.way(device, self.need_device(nic)).kind, nic))
            except MissingError as error:
                missing.append(error)
        least = min((kind for kind, _ in ways), key=WAYS.index, default=WAYS[-1])
        if missing and (all_of_them or not ways or least not in SWITCHED):
            raise missing[0]
        if not ways:
            raise MissingError("there is no fabric NIC")
        return least, tuple(nic for kind, nic in ways if kind == least)

    def fabric(self, nodes: int) -> Fabric:
        """That many machines like this one, joined by rails; MissingError when too little is known for it."""
        if nodes not in self._fabrics:
            self._fabrics[nodes] = self._make_fabric(nodes)
        made = self._fabrics[nodes]
        if isinstance(made, MissingError):
            raise made
        return made

    def fabric_json(self, nodes: int) -> str:
        """The same as text, to be changed."""
        if nodes not in self._texts:
            self._texts[nodes] = self.fabric(nodes).to_json()
        return self._texts[nodes]

    def _make_fabric(self, nodes: int) -> Fabric | MissingError:
        from railweave.errors import Error
        from railweave.machine.fabric import fabric_of

        if self.machine.hidden_tree is not None and isinstance(self.machine.topology, Unknown):
            return MissingError(str(self.machine.hidden_tree))
        for bus_id in bus_ids(*self.gpus, *self.fabric_nics):
            device = self.machine.pci_device(bus_id)
            if device is not None and device.unplaced is not None:
                return MissingError(str(device.unplaced))

        try:
            return fabric_of(self.machine, nodes)[0]
        except Error as error:
            return MissingError(str(error))

    @property
    def job_gpu(self) -> Gpu:
        """The GPU of the job's process: the only one that it has open, else that of its rank, as `railweave run` finds it."""
        environ, gpus = self.environ, self.gpus
        opened = [gpu for gpu in gpus if known(gpu.minor) in (known(self.job.open_gpus) or ())]
        if len(opened) == 1:
            return opened[0]
        seen = need(self.job.gpu_devices)
        node = {Placement({"uuid": known(gpu.uuid) or ""}, {}): gpu for gpu in gpus if len(seen) >= len(gpus) or need(gpu.minor) in seen}
        _need_absolute_numbers(environ, len(node))
        try:
            found, why = gpus_of(find_rank(environ), list(node), environ)
        except LaunchError as error:
            raise MissingError(str(error)) from error
        if len(found) == 1:
            return node[found[0]]
        nothing = "which GPU the process uses: neither CUDA_VISIBLE_DEVICES names one, nor does a launcher's local rank"
        raise MissingError(why or nothing)


def _need_absolute_numbers(environ: Mapping[str, str], gpus: int) -> None:
    """MissingError where CUDA_VISIBLE_DEVICES may count among the GPUs of a device cgroup (Slurm's ConstrainDevices), which nobody but the
    kernel knows: in a step of Slurm that is given some of them only."""
    listed = environ.get("CUDA_VISIBLE_DEVICES") or ""
    numbers = [word for word in listed.split(",") if word.strip().isdecimal()]
    if environ.get("SLURM_STEP_ID") and 0 < len(numbers) < gpus:
        raise MissingError(f"CUDA_VISIBLE_DEVICES={listed}: in a Slurm step it may count among the GPUs of the step's device cgroup only")


def label(what: Gpu | Nic) -> str:
    """As findings name a GPU or a NIC."""
    if isinstance(what, Gpu):
        return f"GPU {what.index}"
    return what.name if what.port == 1 else f"{what.name} port {what.port}"


def bus_ids(*things: Gpu | Nic) -> tuple[str, ...]:
    """PCI addresses of those that are known to have one."""
    return tuple(thing.bus_id.value for thing in things if isinstance(thing.bus_id, Known) and thing.bus_id.value is not None)


def cpu_list(cpus: Sequence[int]) -> str:
    """0-3,8 as Linux writes it."""
    ordered = sorted(set(cpus))
    parts: list[str] = []
    start = 0
    for place, cpu in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != cpu + 1:
            parts.append(f"{ordered[start]}" if start == place else f"{ordered[start]}-{cpu}")
            start = place + 1
    return ",".join(parts) or "none"
