"""A machine as NCCL's topology XML: what NCCL would find on it, by NCCL's rules: for machines that hide it from NCCL (VMs).

The project's own reader makes the fabric of it, so a machine found live and one that comes as a topology file are read alike.
"""

from __future__ import annotations

from railweave.errors import FabricError
from railweave.machine.fabric_nics import is_down, is_virtual
from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, PciDevice, PlaceInFile, Unknown, known
from railweave.machine.nccl_document import (
    ANY_CPU,
    ANY_NVSWITCH,
    BRIDGE_CLASS,
    CPU_CLASS,
    GPU_CLASS,
    NVSWITCH_CLASS,
    Cpu,
    Net,
    NvLinks,
    Pci,
    render,
)
from railweave.machine.paths import place_of
from railweave.machine.pci import unlisted_gpus
from railweave.machine.reading import is_hex
from railweave.machine.source import Reason
from railweave.records import dataclass

_DMABUF_SINCE = (5, 12)  # dma-buf of device memory in the RDMA core


@dataclass(frozen=True)
class Export:
    """The file's text, and what it cannot say or what was not known."""

    text: str
    notes: tuple[str, ...]


def gpudirect_rdma(machine: Machine) -> Fact[bool]:
    """Whether NICs can read and write GPU memory: an RDMA NIC, and a peer memory module or dma-buf (open driver, Linux 5.12).
    Says nothing about how well (PCIe paths, ACS)."""
    if isinstance(machine.nics, Unknown):
        return machine.nics
    if not any(known(nic.rdma) for nic in machine.nics.value):
        unsure = next((nic.rdma for nic in machine.nics.value if isinstance(nic.rdma, Unknown)), None)
        return unsure or Known(False, f"{machine.nics.evidence}: no RDMA device")
    kernel = machine.kernel
    if known(kernel.peermem):
        assert isinstance(kernel.peermem, Known)
        return Known(True, kernel.peermem.evidence)
    by_dmabuf = _dmabuf(machine)
    if known(by_dmabuf):
        return by_dmabuf
    return kernel.peermem if isinstance(kernel.peermem, Unknown) else by_dmabuf


def _dmabuf(machine: Machine) -> Fact[bool]:
    kernel = machine.kernel
    if isinstance(kernel.nvidia_open, Unknown):
        return kernel.nvidia_open
    if isinstance(kernel.release, Unknown):
        return kernel.release
    numbers = kernel.release.value.replace("-", ".").split(".")[:2]  # 6.8.0-45-generic
    version = tuple(int(part) for part in numbers if part.isascii() and part.isdigit())
    evidence = f"{kernel.nvidia_open.evidence}, {kernel.release.evidence}"
    return Known(kernel.nvidia_open.value and version >= _DMABUF_SINCE, evidence)


def export(machine: Machine, name: str = "machine") -> Export:
    """The topology file. Raises FabricError where there is no GPU, or where neither the PCI tree nor the ways between devices are known."""
    return _Writer(machine).export(name)


def fabric_ports(machine: Machine) -> list[Nic]:
    """The ports that NCCL would use: RDMA ports that are up; where there is none, netdevices. In NCCL's order, by address. Physical ones,
    unless there are virtual ones alone, as in a pod: NCCL lists both, but virtual functions and sub-functions have no wire of their own."""
    nics = known(machine.nics) or ()
    rdma = [nic for nic in nics if known(nic.rdma) and not is_down(nic)]
    chosen = rdma or [nic for nic in nics if not known(nic.rdma) and not is_down(nic)]
    chosen = [nic for nic in chosen if not is_virtual(machine, nic)] or chosen
    return sorted(chosen, key=lambda nic: (known(nic.bus_id) or "~", nic.port, nic.name))


class _Writer:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._notes: list[str] = []
        self._cpus: dict[int, Cpu] = {}
        self._bridges: dict[str, Pci] = {}
        self._devices = {device.bus_id: device for device in known(machine.pci) or ()}

    def export(self, name: str) -> Export:
        machine = self._machine
        if isinstance(machine.gpus, Unknown):
            raise FabricError(f"GPUs of {machine.origin} are not known: {machine.gpus}; a topology is made of GPUs")
        if not machine.gpus.value:
            raise FabricError(f"{machine.origin} has no GPU ({machine.gpus.evidence}); a topology is made of GPUs")
        if isinstance(machine.pci, Unknown) and all(isinstance(gpu.bus_id, Unknown) for gpu in machine.gpus.value):
            raise FabricError(
                f"{machine.origin} has no addresses of GPUs ({machine.gpus.value[0].bus_id}); NCCL finds GPUs by them. A file that NCCL "
                "can use comes from the machine itself, or from its recording or hwloc XML: `railweave topo --nccl-xml FILE` there"
            )
        if machine.hidden_tree is not None and not isinstance(machine.topology, Known):
            self._note(f"PCIe paths are unknown ({machine.hidden_tree.detail}); GPUs and NICs are written below the CPU, as NCCL sees them")
        gdr = gpudirect_rdma(machine)
        if isinstance(gdr, Unknown):
            self._note(f"whether GPUDirect RDMA works is not known ({gdr}); written as gdr=0")
        for gpu in machine.gpus.value:
            self._add_gpu(gpu)
        for device in unlisted_gpus(machine):
            self._note(f"the GPU at {device.bus_id} is on the PCI bus and not among the driver's; left out")
        if not self._cpus:
            raise FabricError(
                f"no GPU of {machine.origin} can be placed: {'; '.join(self._notes)}. A file that NCCL can use comes from the machine "
                "itself, or its recording or hwloc XML: `railweave topo --nccl-xml FILE` there"
            )
        for nic in known(machine.nics) or ():
            if known(nic.rdma) and is_down(nic):
                self._note(f"{nic.name} port {nic.port} is {known(nic.state)}; left out, as NCCL does")
        for number, nic in enumerate(fabric_ports(machine)):
            self._add_net(number, nic, known(gdr) is True)
        self._describe_cpus()
        return Export(render([self._cpus[numa] for numa in sorted(self._cpus)], name, self._notes), tuple(self._notes))

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # ---- places ----

    def _place(self, bus_id: str) -> list[Pci]:
        """Children of the switch, or NUMA node, that a device hangs from. NCCL takes every second bridge: of a switch the upstream
        port; the root port is part of the CPU."""
        given = place_of(self._machine, bus_id)
        if given is not None:
            return self._place_in_file(given)
        device = self._devices.get(bus_id)
        if device is not None and device.unplaced is not None:
            self._note(f"the place of {bus_id} in the PCI tree is not known ({device.unplaced}); written below the CPU")
        ancestors = self._machine.ancestors(bus_id)
        if len(ancestors) < 3:
            return self._cpu(bus_id).children
        upstream = ancestors[1]
        if upstream.bus_id not in self._bridges:
            bridge = self._pci(upstream, BRIDGE_CLASS)
            self._bridges[upstream.bus_id] = bridge
            self._place(upstream.bus_id).append(bridge)
        return self._bridges[upstream.bus_id].children

    def _place_in_file(self, given: PlaceInFile) -> list[Pci]:
        """The same of the topology file that a guest is given."""
        if not given.above:
            number = -1 if given.numa is None else given.numa
            return self._cpus.setdefault(number, Cpu(number)).children
        switch = given.above[0]
        if switch not in self._bridges:
            place = place_of(self._machine, switch)
            assert place is not None  # whatever stands around another has its own place
            speed, width = (place.link.speed_GTps, place.link.width) if place.link is not None else (None, None)
            self._bridges[switch] = Pci(switch, BRIDGE_CLASS, {}, speed, width)
            self._place_in_file(place).append(self._bridges[switch])
        return self._bridges[switch].children

    def _cpu(self, bus_id: str) -> Cpu:
        numa = self._numa(bus_id)
        return self._cpus.setdefault(numa, Cpu(numa))

    def _numa(self, bus_id: str) -> int:
        device = self._devices.get(bus_id)
        above = [device, *self._machine.ancestors(bus_id)] if device is not None else []
        for candidate in above:
            assert candidate is not None
            number = known(candidate.numa)
            if number is not None:
                return number
        nodes = known(self._machine.numa)
        if nodes is not None and len(nodes) == 1:
            return -1 if device is not None and _says_minus_one(device) else nodes[0].id
        self._note(f"the NUMA node of {bus_id} is not known ({device.numa if device else 'not on the PCI bus'}); written as numaid=-1")
        return -1

    def _pci(self, device: PciDevice, pci_class: str) -> Pci:
        named = known(device.pci_class)
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        ids = {name: value for name in names if (value := known(getattr(device, name))) is not None}
        speed, width = self._link(device)
        return Pci(device.bus_id, pci_class if named is None else f"0x{named:06x}", ids, speed, width)

    def _link(self, device: PciDevice) -> tuple[float | None, int | None]:
        """What the link can do: the lesser of both ends' maxima, as NCCL takes it; an idle GPU's present speed says nothing."""
        given = place_of(self._machine, device.bus_id)
        if given is not None and given.link is not None:
            return given.link.speed_GTps, given.link.width
        own = known(device.link_max)
        if own is None:
            by_rate = known(device.rate_Bps)
            if by_rate:
                return _equivalent(by_rate)
            self._note(
                f"the PCIe link of {device.bus_id} is not known ({device.link_max}); written as unknown, for which readers take 8 GT/s x16"
            )
            return None, None
        parent = self._devices.get(device.parent or "")
        above = known(parent.link_max) if parent is not None else None
        if above is None:
            return own.speed_GTps, own.width
        return min(own.speed_GTps, above.speed_GTps), min(own.width, above.width)

    # ---- devices ----

    def _add_gpu(self, gpu: Gpu) -> None:
        if gpu.lost is not None:
            self._note(f"GPU {gpu.index} does not answer ({gpu.lost}); left out")
            return
        bus_id = known(gpu.bus_id)
        if bus_id is None:
            self._note(f"the PCI address of GPU {gpu.index} is not known ({gpu.bus_id}); left out, a topology places GPUs by it")
            return
        device = self._devices.get(bus_id)
        if device is None:
            device = PciDevice(bus_id, None, "pci")
            self._note(f"GPU {gpu.index} at {bus_id} is not in the PCI tree; written below the CPU")
        element = self._pci(device, GPU_CLASS)
        capability = known(gpu.sm)
        element.gpu = {"dev": gpu.index, "rank": gpu.index, "gdr": 1}
        if capability is not None:
            element.gpu = {"dev": gpu.index, "sm": capability, "rank": gpu.index, "gdr": 1}
        element.nvlinks = self._nvlinks(gpu)
        self._place(bus_id).append(element)

    def _nvlinks(self, gpu: Gpu) -> list[NvLinks]:
        if isinstance(gpu.nvlinks, Unknown):
            self._note(f"NVLinks of GPU {gpu.index} are not known ({gpu.nvlinks}); none written")
            return []
        counts: dict[tuple[str, str], int] = {}
        for link in gpu.nvlinks.value:
            ends = {"gpu": GPU_CLASS, "switch": NVSWITCH_CLASS, "cpu": CPU_CLASS}
            if link.remote not in ends:
                self._note(f"NVLink {link.link} of GPU {gpu.index} ends at something unknown; left out")
                continue
            target = {"switch": ANY_NVSWITCH, "cpu": ANY_CPU}.get(link.remote) or known(link.remote_bus_id)
            if target is None:
                self._note(f"NVLink {link.link} of GPU {gpu.index}: other end not known ({link.remote_bus_id}); left out")
                continue
            key = (target, ends[link.remote])
            counts[key] = counts.get(key, 0) + 1
        return [NvLinks(target, count, target_class) for (target, target_class), count in counts.items()]

    def _add_net(self, number: int, nic: Nic, gdr: bool) -> None:
        bus_id = known(nic.bus_id)
        rate = known(nic.rate_bps)
        if rate is None:
            self._note(f"the rate of {nic.name} is not known ({nic.rate_bps}); left out, readers take 10 Gbit/s")
        net = Net(nic.name, number, nic.port, None if rate is None else rate // 1_000_000, gdr and known(nic.rdma) is not None)
        guid = known(nic.guid)
        if guid is not None and guid.count(":") == 3 and all(is_hex(word, 4, 4) for word in guid.split(":")):
            net.guid = "0x" + guid.replace(":", "").lstrip("0").rjust(1, "0")
        device = self._devices.get(bus_id or "")
        if device is None:
            self._note(f"{nic.name} is on no known PCI device; written below the CPU")
            self._first_cpu().nets.append(net)
            return
        card = self._card(device)
        card.nets.append(net)

    def _first_cpu(self) -> Cpu:
        return self._cpus[min(self._cpus)]

    def _card(self, device: PciDevice) -> Pci:
        """The element of a NIC. Functions of one card are one for NCCL, at function 0, virtual ones too (NCCL
        src/transport/net_ib, NCCL_IB_MERGE_VFS: default 1)."""
        card = (known(device.physical_function) or device.bus_id).rsplit(".", 1)[0] + ".0"
        if card not in self._bridges:
            element = self._pci(self._devices.get(card, device), "0x020000")
            element.bus_id = card
            self._bridges[card] = element
            self._place(device.bus_id).append(element)
        return self._bridges[card]

    def _describe_cpus(self) -> None:
        cpus = self._machine.cpus
        cores = {node.id: known(node.cpus) for node in known(self._machine.numa) or ()}
        only = next(iter(cores.values())) if len(cores) == 1 else None
        for numa, cpu in self._cpus.items():
            cpu.cpus = cores.get(numa, only)
            cpu.arch = {"aarch64": "arm64", "ppc64le": "ppc64"}.get(known(cpus.arch) or "", known(cpus.arch))
            cpu.vendor = known(cpus.vendor)
            cpu.family = _nccl_family(known(cpus.family))
            cpu.model = known(cpus.model)
            if cpu.arch is None:
                self._note(f"the processor is not known ({cpus.arch}); readers take the slowest link between sockets")


def _says_minus_one(device: PciDevice) -> bool:
    return isinstance(device.numa, Unknown) and device.numa.reason is Reason.not_given


def _nccl_family(linux: int | None) -> int | None:
    """Linux adds CPUID's extended family to the base family 15; NCCL shifts it left by 4 first."""
    if linux is None or linux <= 15:
        return linux
    return 15 + ((linux - 15) << 4)


# Transfers/s of a lane with the payload bits and line bits of its coding (docs/fabric.md).
RATES_PER_LANE = ((2.5, 8, 10), (5.0, 8, 10), (8.0, 128, 130), (16.0, 128, 130), (32.0, 128, 130), (64.0, 236, 256))


def _equivalent(Bps: int) -> tuple[float | None, int | None]:
    """A speed and a width that give this rate within 1% (hwloc rounds): the widest such link."""
    for width in (16, 8, 4, 2, 1, 32):
        for speed, payload, line in RATES_PER_LANE:
            if abs(speed * 1e9 * payload / line / 8 * width - Bps) <= 0.01 * Bps:
                return speed, width
    return None, None
