"""A fabric's host as NCCL's topology XML, and what that format cannot say.

What the fabric was read from a topology file with (`Vertex.attributes`) is written again as it stood there, unless the fabric was changed
since. PCI addresses that the fabric does not have are made up, in domains that no host uses. Written for machines that are described by a
template, a fabric file or a topology file; a live machine or a recording is written from its own facts (`nccl_topology`).
"""

from __future__ import annotations

from collections.abc import Mapping

from railweave.errors import FabricError
from railweave.fabric import Edge, EdgeKind, Fabric, Vertex, VertexKind
from railweave.machine.nccl_document import (
    ANY_CPU,
    ANY_NVSWITCH,
    BRIDGE_CLASS,
    CPU_CLASS,
    ETHERNET_CLASS,
    GPU_CLASS,
    NVSWITCH_CLASS,
    Cpu,
    Net,
    NvLinks,
    Pci,
    render,
)
from railweave.machine.nccl_topology import RATES_PER_LANE, Export
from railweave.records import dataclass, field

_MADE_UP_DOMAIN = 0xFFF0
# Bytes/s of one NVLink in one direction, from this compute capability on (docs/fabric.md has the data sheets); GA102 has slower ones.
_NVLINKS = ((100, 50_000_000_000), (70, 25_000_000_000), (60, 20_000_000_000))
_NVLINK_GA102 = 14_062_500_000
_MODELS_SM = (("P100", 60), ("V100", 70), ("A100", 80), ("H100", 90), ("H200", 90), ("GH200", 90), ("B200", 100))
# Processors by what NCCL gives device traffic between their sockets, bytes/s (src/graph/topo.h): vendor, family, model as NCCL writes them.
_PROCESSORS = {
    6_000_000_000: ("GenuineIntel", 6, 63),
    10_000_000_000: ("GenuineIntel", 6, 85),
    16_000_000_000: ("AuthenticAMD", 175, 17),
    22_000_000_000: ("GenuineIntel", 6, 143),
    40_000_000_000: ("GenuineIntel", 6, 207),
}


def export(fabric: Fabric) -> Export:
    """The topology file of the fabric's first node. Raises FabricError for what NCCL's format has no way to write."""
    return _Writer(fabric).export()


@dataclass
class _Writer:
    fabric: Fabric
    notes: list[str] = field(default_factory=list)
    elements: dict[int, Pci | Cpu] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)

    def export(self) -> Export:
        fabric = self.fabric
        if fabric.node_count > 1:
            self._note(f"{fabric.node_count} nodes: the file describes {fabric.node_names[0]} alone, and no network")
        self.vertices = [vertex for vertex, one in enumerate(fabric.vertices) if one.node == 0]
        self.attributes = {vertex: fabric.vertex(vertex).attributes for vertex in self.vertices}
        self.gdr_kept = self._gdr_as_in_file()
        self._name_devices()
        roots = [vertex for vertex in self.vertices if fabric.vertex(vertex).kind == VertexKind.numa]
        if not roots:
            raise FabricError(f"{fabric.name} has no NUMA node, and NCCL's format hangs everything from one")
        vendor, family, model = self._processor()
        for root in roots:
            numa = fabric.vertex(root)
            self.elements[root] = Cpu(numa.index, None, "x86_64", vendor, family, model, kept=_kept(self.attributes[root], "cpu"))
            if numa.through_Bps:
                self._note("memory bandwidth of NUMA nodes has no place in the format")
        todo = list(roots)
        while todo:
            todo += self._place_children(todo.pop(0))
        for vertex in self.vertices:
            if vertex not in self.elements and fabric.vertex(vertex).kind in {VertexKind.gpu, VertexKind.nic, VertexKind.pcie_switch}:
                raise FabricError(f"{fabric.vertex(vertex).name} hangs from no NUMA node, and NCCL's format has no other place for it")
        self._add_nvlinks()
        return Export(
            render([cpu for root in roots if isinstance(cpu := self.elements[root], Cpu)], fabric.name, self.notes), tuple(self.notes)
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _name_devices(self) -> None:
        """Addresses: the fabric's own where it has them, and no two devices one; NICs of one card may share theirs."""
        made_up = 0
        for vertex in self.vertices:
            one = self.fabric.vertex(vertex)
            if one.kind not in {VertexKind.gpu, VertexKind.nic, VertexKind.pcie_switch}:
                continue
            if one.bus_id and one.bus_id not in self.addresses.values():
                self.addresses[vertex] = one.bus_id
                continue
            self.addresses[vertex] = f"{_MADE_UP_DOMAIN + (made_up >> 8):04x}:{made_up & 0xFF:02x}:00.0"
            made_up += 1
            if one.kind == VertexKind.gpu:
                self._note("PCI addresses are made up where the fabric has none: NCCL, which finds GPUs by them, cannot use the file")

    def _processor(self) -> tuple[str, int, int]:
        rates = {edge.capacity_Bps for edge in self.fabric.edges if edge.kind == EdgeKind.socket}
        rate = min(rates, default=22_000_000_000)
        if rates and (len(rates) > 1 or rate not in _PROCESSORS):
            self._note(f"{rate / 1e9:g} GB/s between sockets: the format names a processor, and the reader takes NCCL's figure for it")
        return _PROCESSORS[min(_PROCESSORS, key=lambda known: abs(known - rate))]

    def _gdr_as_in_file(self) -> bool:
        """Whether the topology file that the fabric was read from still says of each GPU whether GPUDirect RDMA works (docs/fabric.md)."""
        nets = [self.attributes[vertex] for vertex in self.vertices if self.fabric.vertex(vertex).kind == VertexKind.nic]
        possible = not nets or any(_integer(net, "net.gdr") or "net.dev" not in net for net in nets)
        gpus = [vertex for vertex in self.vertices if self.fabric.vertex(vertex).kind == VertexKind.gpu]
        return all(self.fabric.vertex(gpu).gdr == (possible and _integer(self.attributes[gpu], "gpu.gdr") != 0) for gpu in gpus)

    # ---- the PCI tree ----

    def _place_children(self, vertex: int) -> list[int]:
        """Writes what hangs from a vertex; returns the switches among it."""
        above = self.elements[vertex]
        switches = []
        # A GPU may be joined to its CPU by NVLink or C2C, where that is faster than its PCIe link.
        kinds = {EdgeKind.pcie, EdgeKind.c2c, EdgeKind.nvlink}
        below = [edge for number in self.fabric.in_edges(vertex) if (edge := self.fabric.edge(number)).kind in kinds]
        for edge in sorted(below, key=lambda edge: edge.src):
            child = self.fabric.vertex(edge.src)
            if edge.src in self.elements or self._are_peers(edge.src, vertex):
                continue
            if (isinstance(above, Pci) and above.pci_class != BRIDGE_CLASS) or _is_unplaced(self.attributes[edge.src]):
                net = self._net(edge.src, child)  # a port of the card above, or one that is on no card
                self.elements[edge.src] = above
                above.nets += [net] if net is not None else []
                continue
            element = self._device(edge.src, child, edge)
            if element is None:  # left out, as is said
                self.elements[edge.src] = above
                continue
            above.children.append(element)
            self.elements[edge.src] = element
            if child.kind == VertexKind.pcie_switch:
                switches.append(edge.src)
        return switches

    def _are_peers(self, one: int, other: int) -> bool:
        """Whether two switches are joined sideways (`pcilink`)."""
        ends = ((one, other), (other, one))
        return any(
            link.get("target", "").lower() == self.addresses.get(b) for a, b in ends for _, link in _series(self.attributes[a], "pcilink")
        )

    def _device(self, vertex: int, one: Vertex, edge: Edge) -> Pci | None:
        kept = self._kept_pci(vertex, edge)
        speed, width = (None, None) if kept else self._link(one, edge)
        address = self.addresses[vertex]
        if one.kind == VertexKind.pcie_switch:
            card = kept.get("class", "").startswith("0x02")
            pci_class = ETHERNET_CLASS if card else BRIDGE_CLASS
            return Pci(address, pci_class, {}, speed, width, kept=kept, kept_below=_series(self.attributes[vertex], "pcilink"))
        if one.kind == VertexKind.gpu:
            return self._gpu(vertex, one, Pci(address, GPU_CLASS, {}, speed, width, kept=kept))
        net = self._net(vertex, one)
        if net is None and not self._is_bare(vertex):
            return None
        return Pci(address, ETHERNET_CLASS, {}, speed, width, nets=[] if net is None else [net], kept=kept)

    def _gpu(self, vertex: int, one: Vertex, element: Pci) -> Pci:
        if one.egress_Bps or one.ingress_Bps:
            self._note("what a GPU can inject in all has no place in the format")
        gpus = _series(self.attributes[vertex], "gpu")
        if element.kept and self.gdr_kept:
            element.kept_below = gpus
        elif gpus:
            element.kept_below = [(tag, {**gpu, "gdr": str(int(one.gdr))}) for tag, gpu in gpus]
        else:
            element.gpu = {"dev": one.index, "sm": self._capability(vertex, one), "rank": one.index, "gdr": int(one.gdr)}
        return element

    def _is_bare(self, vertex: int) -> bool:
        """A NIC that its file knows by its class alone, with the port's rate that readers then take."""
        attributes = self.attributes[vertex]
        ports, links = self._edges(vertex, EdgeKind.rail), self._edges(vertex, EdgeKind.pcie)
        known_by_class = "pci.class" in attributes and "net.dev" not in attributes
        return known_by_class and self.gdr_kept and bool(ports) and ports[0].capacity_Bps == links[0].capacity_Bps

    def _edges(self, vertex: int, kind: EdgeKind) -> list[Edge]:
        """Of one kind, that leave a vertex."""
        return [edge for out in self.fabric.out_edges(vertex) if (edge := self.fabric.edge(out)).kind == kind]

    def _net(self, vertex: int, one: Vertex) -> Net | None:
        """The port; None where there is none to write."""
        attributes = self.attributes[vertex]
        if self._is_bare(vertex):
            return None
        ports = self._edges(vertex, EdgeKind.rail)
        if not ports:
            self._note(f"{one.name} is not on the GPU network; NCCL would use it, so it is left out")
            return None
        gdr = any(other.gdr for other in self.fabric.vertices if other.kind == VertexKind.gpu)
        kept = dict(_kept(attributes, "net"))
        if not kept:
            if one.rail is None:
                self._note("NICs without rails: readers give each a rail of its own")
            net = Net(f"nic{one.index}", one.index, 1, ports[0].capacity_Bps // 125_000, gdr, rail=one.rail)
            net.latency_us = self._latency_us(ports[0])
            return net
        if (_integer(attributes, "net.speed") or 10_000) * 125_000 != ports[0].capacity_Bps:
            kept["speed"] = str(ports[0].capacity_Bps // 125_000)
        if _port_latency_ns(attributes) != ports[0].latency_ns:
            kept["latency"] = f"{self._latency_us(ports[0]) or 0:g}"
        if not self.gdr_kept:
            kept["gdr"] = str(int(gdr))
        return Net("", one.index, 0, None, gdr, kept=kept)

    def _latency_us(self, port: Edge) -> float | None:
        if port.latency_ns == 0:
            self._note("a port's latency of 0 has no place in the format, where it means that none is set: readers take their own")
        return port.latency_ns / 1000 or None

    def _kept_pci(self, vertex: int, edge: Edge) -> Mapping[str, str]:
        """As the topology file has the element, with the link that the fabric has. A GPU's may be one that a faster link replaces."""
        kept = dict(_kept(self.attributes[vertex], "pci"))
        speed = kept.get("link_speed", "").split(" ")[0].removesuffix(".0")
        width = _integer(self.attributes[vertex], "pci.link_width") or 0
        rate = _rate(speed, width)
        if kept and edge.kind == EdgeKind.pcie and rate != edge.capacity_Bps:
            GTps, lanes = self._link(self.fabric.vertex(vertex), edge)
            kept["link_speed"], kept["link_width"] = ("" if GTps is None else f"{GTps:.1f} GT/s PCIe"), str(lanes or 0)
        return kept

    def _link(self, one: Vertex, edge: Edge) -> tuple[float | None, int | None]:
        for width in (16, 8, 4, 2, 1, 32):
            for speed, payload, line in RATES_PER_LANE:
                if round(speed * 1e9) * width * payload // line // 8 == edge.capacity_Bps:
                    return speed, width
        self._note(f"{one.name}: {edge.capacity_Bps / 1e9:g} GB/s is no PCIe link; written as unknown, for which readers take 8 GT/s x16")
        return None, None

    # ---- NVLink ----

    def _capability(self, vertex: int, one: Vertex) -> int:
        """From the model's name; else the oldest whose links divide what the GPU has."""
        stated = _integer(self.attributes[vertex], "gpu.sm")
        if stated:
            return stated
        for name, capability in _MODELS_SM:
            if name in one.model:
                return capability
        rates = [edge.capacity_Bps for edge in self._edges(vertex, EdgeKind.nvlink)]
        return next((sm for sm in (60, 70, 100) if rates and all(rate % _nvlink_Bps(sm) == 0 for rate in rates)), 80)

    def _add_nvlinks(self) -> None:
        for vertex in self.vertices:
            element = self.elements.get(vertex)
            if self.fabric.vertex(vertex).kind != VertexKind.gpu or not isinstance(element, Pci):
                continue
            each = _nvlink_Bps(self._capability(vertex, self.fabric.vertex(vertex)))
            if self._links_as_in_file(vertex, each):
                attributes = self.attributes[vertex]
                element.kept_below = [*element.kept_below, *_series(attributes, "nvlink"), *_series(attributes, "c2c")]
                continue
            for edge in self._edges(vertex, EdgeKind.nvlink):
                one = self.fabric.vertex(edge.dst)
                count, rest = divmod(edge.capacity_Bps, each)
                if rest or not count:
                    self._note(f"NVLink {edge.capacity_Bps / 1e9:g} GB/s is no whole number of links; the format counts links")
                    count = max(count, 1)
                element.nvlinks.append(self._nvlink(edge.dst, one, count))
            for edge in self._edges(vertex, EdgeKind.c2c):
                element.kept_below = [*element.kept_below, ("c2c", {"bw": str(edge.capacity_Bps // 1_000_000), "count": "1"})]

    def _links_as_in_file(self, vertex: int, each: int) -> bool:
        """Whether the fabric has the NVLinks and C2C of the topology file that it was read from. Links to GPUs that are not here count for
        none."""
        attributes = self.attributes[vertex]
        known = set(self.addresses.values())
        counted = 0
        for _, link in _series(attributes, "nvlink"):
            if not link.get("tclass", "").startswith("0x03") or link.get("target", "").lower() in known:
                counted += _integer(link, "count") or 0
        c2c = sum((_integer(link, "count") or 0) * (_integer(link, "bw") or 0) for _, link in _series(attributes, "c2c"))
        here = [sum(edge.capacity_Bps for edge in self._edges(vertex, kind)) for kind in (EdgeKind.nvlink, EdgeKind.c2c)]
        return bool(attributes) and here == [counted * each, c2c * 1_000_000]

    def _nvlink(self, vertex: int, one: Vertex, count: int) -> NvLinks:
        if one.kind == VertexKind.gpu:
            return NvLinks(self.addresses[vertex], count, GPU_CLASS)
        if one.kind == VertexKind.nvswitch:
            return NvLinks(ANY_NVSWITCH, count, NVSWITCH_CLASS)
        return NvLinks(ANY_CPU, count, CPU_CLASS)


# ---- attributes ----


def _kept(attributes: Mapping[str, str], element: str) -> dict[str, str]:
    """Of one element."""
    start = f"{element}."
    return {name.removeprefix(start): value for name, value in attributes.items() if name.startswith(start)}


def _series(attributes: Mapping[str, str], tag: str) -> list[tuple[str, Mapping[str, str]]]:
    """Of all elements of a tag: `nvlink`, `nvlink1`, `nvlink2`, ..."""
    found: list[tuple[str, Mapping[str, str]]] = []
    while kept := _kept(attributes, tag if not found else f"{tag}{len(found)}"):
        found.append((tag, kept))
    return found


def _port_latency_ns(attributes: Mapping[str, str]) -> int:
    """As the reader takes it: 1 us where none is set."""
    try:
        latency_us = float(attributes.get("net.latency", ""))
    except ValueError:
        latency_us = 0.0
    return round(latency_us * 1000) if 0 < latency_us <= 1e6 else 1000


def _integer(attributes: Mapping[str, str], name: str) -> int | None:
    """As the reader takes it, which has checked it."""
    text = attributes.get(name, "")
    try:
        return int(text, 16 if text.startswith("0x") else 10)
    except ValueError:
        return None


def _is_unplaced(attributes: Mapping[str, str]) -> bool:
    """A port that its topology file puts on no card."""
    return "net.dev" in attributes and not any(name.startswith("pci.") for name in attributes)


def _rate(speed: str, width: int) -> int:
    """Bytes/s of a link as the reader of topology files takes it: 8 GT/s and 16 lanes where they are no speed and width of PCIe."""
    rates = {f"{GTps:g}": (GTps, payload, line) for GTps, payload, line in RATES_PER_LANE}
    GTps, payload, line = rates.get(speed, rates["8"])
    lanes = width if width in (1, 2, 4, 8, 12, 16, 32) else 16
    return round(GTps * 1e9) * lanes * payload // line // 8


def _nvlink_Bps(capability: int) -> int:  # noqa: N802 - the unit
    """Bytes/s of one NVLink, one direction."""
    if capability == 86:
        return _NVLINK_GA102
    return next((rate for since, rate in _NVLINKS if capability >= since), _NVLINKS[-1][1])
