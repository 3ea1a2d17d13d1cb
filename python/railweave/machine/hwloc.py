"""hwloc's XML (`lstopo --of xml`, versions 2 and 3) as a machine."""

from __future__ import annotations

import re

from railweave.machine.facts import Core, Cpus, Fact, Gpu, Host, Kernel, Known, Machine, Nic, NumaNode, NvLink, PciDevice, Unknown, known
from railweave.machine.hwloc_distances import Distances, read_distances
from railweave.machine.pci import canonical_bus_id
from railweave.machine.reading import cpu_mask
from railweave.machine.source import Reason
from railweave.machine.xml_tree import Node, fail, parse_xml
from railweave.records import dataclass, field, replace

_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[([0-9a-f]{4}):([0-9a-f]{4})\])?")
_WHAT = "a topology that hwloc exported (lstopo --of xml)"
# PCI ids of GPUs with NVLink by family (pci-ids.ucw.cz): GP100, GV100, GA100, GH100, GB100; MB/s of a link as hwloc counts it.
_NVLINK_MBPS = (
    (0x15F0, 0x15FF, 20_000),
    (0x1DB0, 0x1DFF, 25_000),
    (0x20B0, 0x20FF, 25_000),
    (0x2300, 0x237F, 25_000),
    (0x2900, 0x29FF, 50_000),
)
_MOST_NVLINKS = 36
_PORT_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active"}


def parse_hwloc(text: str, source: str) -> Machine:
    """A machine from the text of the file. Raises ParseError with the line."""
    topology = parse_xml(text, source, "topology", _WHAT)
    machines = [node for node in topology.children if node.tag == "object" and node.get("type") in {"Machine", "System"}]
    if len(machines) != 1:
        raise fail(source, topology.line, f"{len(machines)} objects of type Machine", "one")
    reader = _Reader(source, read_distances(topology, source))
    reader.read(machines[0])
    return reader.machine()


@dataclass
class _Place:
    """What is above an object."""

    package: int | None = None
    numa: int | None = None
    """Of I/O objects: the one NUMA node of the object that they hang from."""
    root: str = "pci"
    bridge: str | None = None
    device: str | None = None
    """PCI function that an OS device belongs to."""


@dataclass
class _Reader:
    source: str
    distances: list[Distances]
    pci: list[PciDevice] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    numa: list[NumaNode] = field(default_factory=list)
    cores: list[Core] = field(default_factory=list)
    l3: list[tuple[int, ...]] = field(default_factory=list)
    online: set[int] = field(default_factory=set)
    info: dict[str, str] = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    """What matrices name `TYPE:INDEX`: address of a PCI function, or empty for a processor."""
    osdevs: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Name, PCI function, infos."""

    def read(self, machine: Node) -> None:
        todo = [(machine, _Place())]
        while todo:
            node, place = todo.pop()
            below = self._object(node, place)
            todo.extend((child, below) for child in reversed(node.children) if child.tag == "object")

    def _fail(self, node: Node, attribute: str, expected: str) -> Exception:
        return fail(self.source, node.line, f"{attribute}={node.get(attribute)[:60]!r}", expected)

    def _object(self, node: Node, place: _Place) -> _Place:
        kind = node.get("type")
        infos = {child.get("name"): child.get("value") for child in node.children if child.tag == "info"}
        nodes = self._set(node, "nodeset")
        if nodes is not None and kind not in {"Bridge", "PCIDev", "OSDev"}:
            place = replace(place, numa=nodes[0] if len(nodes) == 1 else None)
        if kind in {"Machine", "System", "Package"}:
            self.info.update(infos)
        self._name(node, place)
        if kind == "Package":
            return replace(place, package=self._index(node))
        if kind == "NUMANode":
            self._numa_node(node)
        elif kind == "L3Cache":
            self.l3.append(self._set(node, "cpuset") or ())
        elif kind == "Core":
            self.cores.append(Core(place.package, self._set(node, "cpuset") or ()))
        elif kind == "PU":
            self.online.add(self._index(node))
        elif kind == "Bridge":
            return self._bridge(node, place, infos)
        elif kind == "PCIDev":
            self._pci_device(node, place, infos)
            return replace(place, device=self.pci[-1].bus_id)
        elif kind == "OSDev" and place.device is not None:
            self.osdevs.append((node.get("name"), place.device, infos))
        return place

    def _name(self, node: Node, place: _Place) -> None:
        """Names of an object in matrices. OS devices stand for the function they belong to."""
        address = node.get("pci_busid") or place.device or ""
        for number in (node.get("gp_index"), node.get("os_index")):
            if number:
                self.index.setdefault(f"{node.get('type')}:{number}", address)

    def _index(self, node: Node) -> int:
        try:
            return int(node.get("os_index"))
        except ValueError as error:
            raise self._fail(node, "os_index", "a number") from error

    def _set(self, node: Node, attribute: str) -> tuple[int, ...] | None:
        if not node.get(attribute):
            return None
        try:
            return cpu_mask(node.get(attribute))
        except ValueError as error:
            raise self._fail(node, attribute, "a finite set, such as 0x0000000f") from error

    def _numa_node(self, node: Node) -> None:
        at = f"{self.source}:{node.line}"
        pages = {}
        for page in (child for child in node.children if child.tag == "page_type"):
            try:
                pages[int(page.get("size"))] = int(page.get("count") or "0")
            except ValueError as error:
                raise self._fail(page, "size", "a number") from error
        memory = node.get("local_memory")
        if memory and not memory.isdecimal():
            raise self._fail(node, "local_memory", "a number of bytes")
        smallest = min(pages, default=0)
        self.numa.append(
            NumaNode(
                id=self._index(node),
                cpus=Known(self._set(node, "cpuset") or (), at),
                memory_B=Known(int(memory), at) if memory else Unknown(Reason.not_given, at),
                distances=Unknown(Reason.not_given, at, "no matrix of latencies"),
                hugepages=Known({size: count for size, count in pages.items() if size != smallest}, at),
            )
        )

    def _bridge(self, node: Node, place: _Place, infos: dict[str, str]) -> _Place:
        if node.get("bridge_type").startswith("0"):
            found = re.match(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-[0-9a-f]{2}\]", node.get("bridge_pci"))
            if found is None:
                raise self._fail(node, "bridge_pci", "a range of buses, such as 0000:[00-05]")
            return replace(place, root=f"pci{found[1]}:{found[2]}")
        self._pci_device(node, place, infos)
        return replace(place, bridge=self.pci[-1].bus_id)

    def _pci_device(self, node: Node, place: _Place, infos: dict[str, str]) -> None:
        at = f"{self.source}:{node.line}"
        try:
            bus_id = canonical_bus_id(node.get("pci_busid"))
        except ValueError as error:
            raise self._fail(node, "pci_busid", "a PCI address, such as 0000:1b:00.0") from error
        if bus_id in self.addresses:
            raise self._fail(node, "pci_busid", "an address that no other device has")
        self.addresses.add(bus_id)
        found = _PCI_TYPE.match(node.get("pci_type"))
        if found is None:
            raise self._fail(node, "pci_type", "class and ids, such as '0302 [10de:2335] [10de:18bf] a1'")
        # hwloc writes class and subclass; the third byte, the programming interface, is left out.
        numbers = [int(group or "0", 16) for group in found.groups()]
        name = " ".join(word for word in (infos.get("PCIVendor"), infos.get("PCIDevice")) if word)
        self.pci.append(
            PciDevice(
                bus_id=bus_id,
                parent=place.bridge,
                root=place.root,
                vendor=Known(numbers[1], at),
                device=Known(numbers[2], at),
                pci_class=Known(numbers[0] << 8, at),
                subsystem_vendor=Known(numbers[3], at),
                subsystem_device=Known(numbers[4], at),
                name=Known(name, at) if name else Unknown(Reason.not_given, at),
                numa=Known(place.numa, at) if place.numa is not None else Unknown(Reason.not_given, at, "hangs from several NUMA nodes"),
                rate_Bps=self._rate(node, at),
            )
        )

    def _rate(self, node: Node, at: str) -> Fact[int]:
        """hwloc's link speed is GB/s of the link as it is now, coding taken off; an idle GPU's is low."""
        text = node.get("pci_link_speed")
        if not text:
            return Unknown(Reason.not_given, at)
        if re.fullmatch(r"\d{1,6}(\.\d{1,12})?", text) is None:
            raise self._fail(node, "pci_link_speed", "GB/s")
        Bps = round(float(text) * 1e9)
        return Known(Bps, at) if Bps else Unknown(Reason.not_given, at, "0 GB/s")

    # ---- the machine ----

    def _nodes(self) -> tuple[NumaNode, ...]:
        """With the latencies between them, where there are any."""
        nodes = sorted(self.numa, key=lambda node: node.id)
        matrix = next((one for one in self.distances if one.type == "NUMANode" and "Latency" in one.name), None)
        if matrix is None or set(matrix.objects) != {str(node.id) for node in nodes}:
            return tuple(nodes)
        at = f"{self.source}:{matrix.line}"
        return tuple(
            replace(node, distances=Known({int(other): value for other, value in matrix.row(str(node.id)).items()}, at)) for node in nodes
        )

    def _nvlinks(self, device: PciDevice) -> Fact[tuple[NvLink, ...]]:
        """Counts from the matrix of bandwidths, which holds MB/s of all links to an end together."""
        at = _evidence(device.vendor)
        matrix = next((one for one in self.distances if one.name == "NVLinkBandwidth"), None)
        own = next((name for name in matrix.objects if self.index.get(name) == device.bus_id), None) if matrix else None
        each = _rate_of_nvlink(device)
        if matrix is None or own is None or each is None:
            why = "no matrix of NVLink bandwidths with this GPU" if own is None else "a part whose NVLinks are not known"
            return Unknown(Reason.not_given, at, why)
        links: list[NvLink] = []
        version: Fact[int] = Unknown(Reason.not_given, at, "hwloc gives rates of NVLinks, not versions")
        for name, MBps in matrix.row(own).items():
            address = self.index.get(name)
            if name == own or address is None or not MBps:
                continue
            if MBps % each or MBps > each * _MOST_NVLINKS:
                raise fail(self.source, matrix.line, f"{MBps} MB/s from {own} to {name}", f"a multiple of {each}, for whole NVLinks")
            other = self._pci(address)
            remote = "cpu" if not address else "gpu" if other is not None and other.is_class(0x03, 2) else "switch"
            end: Fact[str] = Known(address, at) if address else Unknown(Reason.not_given, at, "a processor")
            links += [NvLink(len(links) + number, version, remote, end) for number in range(MBps // each)]
        return Known(tuple(links), f"{self.source}:{matrix.line}")

    def _pci(self, bus_id: str) -> PciDevice | None:
        return next((device for device in self.pci if device.bus_id == bus_id), None)

    def machine(self) -> Machine:
        at = self.source
        cpus = Cpus(
            arch=self._info("Architecture"),
            vendor=self._info("CPUVendor"),
            model_name=self._info("CPUModel"),
            family=self._number("CPUFamilyNumber"),
            model=self._number("CPUModelNumber"),
            online=Known(tuple(sorted(self.online)), at),
            cores=Known(tuple(self.cores), at) if self.cores else Unknown(Reason.not_given, at, "no objects of type Core"),
            l3=Known(tuple(self.l3), at) if self.l3 else Unknown(Reason.not_given, at, "no objects of type L3Cache"),
            smt=Known(any(len(core.cpus) > 1 for core in self.cores), at) if self.cores else Unknown(Reason.not_given, at),
        )
        return Machine(
            origin=self.source,
            pci=Known(tuple(self.pci), at),
            gpus=Known(self._gpus(), at),
            nics=Known(self._nics(), at),
            numa=Known(self._nodes(), at),
            cpus=cpus,
            kernel=Kernel(release=self._info("OSRelease")),
            host=Host(vendor=self._info("DMISysVendor"), product=self._info("DMIProductName"), bios=self._info("DMIBIOSVersion")),
        )

    def _info(self, name: str) -> Fact[str]:
        return Known(self.info[name], self.source) if self.info.get(name) else Unknown(Reason.not_given, self.source, f"no info {name}")

    def _number(self, name: str) -> Fact[int]:
        text = self.info.get(name, "")
        return (
            Known(int(text), self.source)
            if text.isdecimal() and len(text) < 10
            else Unknown(Reason.not_given, self.source, f"no info {name}")
        )

    def _gpus(self) -> tuple[Gpu, ...]:
        """By NVML's number where hwloc asked NVML, else by address."""
        found = [device for device in self.pci if device.is_class(0x03, 2) and device.vendor == Known(0x10DE, _evidence(device.vendor))]
        by_nvml = {bus_id: int(name[4:]) for name, bus_id, _ in self.osdevs if re.fullmatch(r"nvml\d{1,4}", name)}
        numbered = len({by_nvml.get(device.bus_id) for device in found} - {None}) == len(found)
        ordered = sorted(found, key=lambda device: (by_nvml[device.bus_id] if numbered else 0, device.bus_id))
        infos = {bus_id: infos for name, bus_id, infos in self.osdevs if name.startswith(("nvml", "cuda"))}
        gpus = []
        for index, device in enumerate(ordered):
            at = _evidence(device.vendor)
            named = infos.get(device.bus_id, {}).get("GPUModel")
            name = Known(named, at) if named else device.name
            gpus.append(Gpu(index, Known(device.bus_id, at), name=name, nvlinks=self._nvlinks(device)))
        return tuple(gpus)

    def _nics(self) -> tuple[Nic, ...]:
        nics = []
        for device in self.pci:
            if not device.is_class(0x02, 2):
                continue
            own: dict[str, dict[str, str]] = {}
            for name, place, infos in self.osdevs:
                if place == device.bus_id:
                    own.setdefault(name, infos)  # one that stands twice is one
            rdma = [(name, infos) for name, infos in own.items() if "NodeGUID" in infos]
            netdevs = tuple(name for name, infos in own.items() if "Address" in infos)
            at = _evidence(device.vendor)
            bus_id: Fact[str | None] = Known(device.bus_id, at)
            names: Fact[tuple[str, ...]] = Known(netdevs, at)
            for name, infos in rdma:
                state = _PORT_STATES.get(infos.get("Port1State", ""))
                nics.append(
                    Nic(
                        name,
                        1,
                        bus_id,
                        rdma=Known(name, at),
                        netdevs=names,
                        guid=Known(infos["NodeGUID"], at),
                        state=Known(state, at) if state else Unknown(Reason.not_given, at, "no info Port1State"),
                    )
                )
            if not rdma:
                nics.append(Nic(netdevs[0] if netdevs else device.bus_id, 1, bus_id, rdma=Unknown(Reason.not_given, at), netdevs=names))
        return tuple(nics)


def _rate_of_nvlink(device: PciDevice) -> int | None:
    """What hwloc counts for one NVLink of a part, known by its PCI id; it takes NVLink 2 to 4 as equal (topology-nvml.c)."""
    number = known(device.device) or 0
    return next((MBps for first, last, MBps in _NVLINK_MBPS if first <= number <= last), None)


def _evidence(fact: Fact[int]) -> str:
    return fact.evidence if isinstance(fact, Known) else fact.path
