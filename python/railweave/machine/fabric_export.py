"""A fabric's host as NCCL's topology XML, and what that format cannot say.

PCI addresses that the fabric does not have are made up, in domains that no host uses. Written for machines that are described by a template
or a fabric file; a live machine or a recording is written from its own facts (`nccl_topology`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

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

_MADE_UP_DOMAIN = 0xFFF0
# Bytes/s of one NVLink in one direction, by the compute capability that NCCL derives it from (docs/fabric.md has the data sheets).
_NVLINKS = ((60, 20_000_000_000), (70, 25_000_000_000), (80, 25_000_000_000), (90, 25_000_000_000), (100, 50_000_000_000))
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
        vertices = [vertex for vertex, one in enumerate(fabric.vertices) if one.node == 0]
        self._name_devices(vertices)
        roots = [vertex for vertex in vertices if fabric.vertex(vertex).kind == VertexKind.numa]
        if not roots:
            raise FabricError(f"{fabric.name} has no NUMA node, and NCCL's format hangs everything from one")
        vendor, family, model = self._processor()
        for root in roots:
            numa = fabric.vertex(root)
            self.elements[root] = Cpu(numa.index, None, "x86_64", vendor, family, model)
            if numa.through_Bps:
                self._note("memory bandwidth of NUMA nodes has no place in the format")
        todo = list(roots)
        while todo:
            todo += self._place_children(todo.pop(0))
        for vertex in vertices:
            if vertex not in self.elements and fabric.vertex(vertex).kind in {VertexKind.gpu, VertexKind.nic, VertexKind.pcie_switch}:
                raise FabricError(f"{fabric.vertex(vertex).name} hangs from no NUMA node, and NCCL's format has no other place for it")
        self._add_nvlinks(vertices)
        return Export(render([cpu for root in roots if isinstance(cpu := self.elements[root], Cpu)], fabric.name), tuple(self.notes))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _name_devices(self, vertices: list[int]) -> None:
        """Addresses: the fabric's own where it has them, and no two devices one; NICs of one card may share theirs."""
        made_up = 0
        for vertex in vertices:
            one = self.fabric.vertex(vertex)
            if one.kind not in {VertexKind.gpu, VertexKind.nic, VertexKind.pcie_switch}:
                continue
            if one.bus_id and one.bus_id not in self.addresses.values():
                self.addresses[vertex] = one.bus_id
                continue
            self.addresses[vertex] = f"{_MADE_UP_DOMAIN + (made_up >> 8):04x}:{made_up & 0xFF:02x}:00.0"
            made_up += 1

    def _processor(self) -> tuple[str, int, int]:
        rates = {edge.capacity_Bps for edge in self.fabric.edges if edge.kind == EdgeKind.socket}
        rate = min(rates, default=22_000_000_000)
        if rates and (len(rates) > 1 or rate not in _PROCESSORS):
            self._note(f"{rate / 1e9:g} GB/s between sockets: the format names a processor, and the reader takes NCCL's figure for it")
        return _PROCESSORS[min(_PROCESSORS, key=lambda known: abs(known - rate))]

    # ---- the PCI tree ----

    def _place_children(self, vertex: int) -> list[int]:
        """Writes what hangs from a vertex; returns the switches among it."""
        above = self.elements[vertex]
        switches = []
        below = [self.fabric.edge(edge) for edge in self.fabric.in_edges(vertex)]
        for edge in sorted((edge for edge in below if edge.kind == EdgeKind.pcie), key=lambda edge: edge.src):
            child = self.fabric.vertex(edge.src)
            if edge.src in self.elements:
                continue
            element = self._device(edge.src, child, edge)
            if element is None:
                continue
            above.children.append(element)
            self.elements[edge.src] = element
            if child.kind == VertexKind.pcie_switch:
                switches.append(edge.src)
        return switches

    def _device(self, vertex: int, one: Vertex, edge: Edge) -> Pci | None:
        speed, width = self._link(one, edge)
        address = self.addresses[vertex]
        if one.kind == VertexKind.pcie_switch:
            return Pci(address, BRIDGE_CLASS, {}, speed, width)
        if one.kind == VertexKind.gpu:
            if one.egress_Bps or one.ingress_Bps:
                self._note("what a GPU can inject in all has no place in the format")
            gpu = {"dev": one.index, "sm": self._capability(vertex, one), "rank": one.index, "gdr": int(one.gdr)}
            return Pci(address, GPU_CLASS, {}, speed, width, gpu=gpu)
        ports = [self.fabric.edge(out) for out in self.fabric.out_edges(vertex) if self.fabric.edge(out).kind == EdgeKind.rail]
        gdr = any(other.gdr for other in self.fabric.vertices if other.kind == VertexKind.gpu)
        if one.rail is None:
            self._note("NICs without rails: readers give each a rail of its own")
        net = Net(f"nic{one.index}", one.index, 1, None, gdr, rail=one.rail)
        if ports:
            net.Mbps, net.latency_us = ports[0].capacity_Bps // 125_000, ports[0].latency_ns / 1000
        else:
            self._note(f"{one.name} is not on the GPU network; NCCL would use it, so it is left out")
            return None
        return Pci(address, ETHERNET_CLASS, {}, speed, width, nets=[net])

    def _link(self, one: Vertex, edge: Edge) -> tuple[float | None, int | None]:
        for width in (16, 8, 4, 2, 1, 32):
            for speed, payload, line in RATES_PER_LANE:
                if round(speed * 1e9) * width * payload // line // 8 == edge.capacity_Bps:
                    return speed, width
        self._note(f"{one.name}: {edge.capacity_Bps / 1e9:g} GB/s is no PCIe link; written as unknown, for which readers take 8 GT/s x16")
        return None, None

    # ---- NVLink ----

    def _nvlink_edges(self, vertex: int) -> list[Edge]:
        return [edge for out in self.fabric.out_edges(vertex) if (edge := self.fabric.edge(out)).kind == EdgeKind.nvlink]

    def _capability(self, vertex: int, one: Vertex) -> int:
        """From the model's name; else the oldest whose links divide what the GPU has."""
        for name, capability in _MODELS_SM:
            if name in one.model:
                return capability
        rates = [edge.capacity_Bps for edge in self._nvlink_edges(vertex)]
        return next((sm for sm, each in _NVLINKS if rates and all(rate % each == 0 for rate in rates)), 80)

    def _add_nvlinks(self, vertices: list[int]) -> None:
        each = dict(_NVLINKS)
        for vertex in vertices:
            element = self.elements.get(vertex)
            if not isinstance(element, Pci) or element.gpu is None:
                continue
            for edge in self._nvlink_edges(vertex):
                one = self.fabric.vertex(edge.dst)
                count, rest = divmod(edge.capacity_Bps, each[element.gpu["sm"]])
                if rest or not count:
                    self._note(f"NVLink {edge.capacity_Bps / 1e9:g} GB/s is no whole number of links; the format counts links")
                    count = max(count, 1)
                element.nvlinks.append(self._nvlink(edge.dst, one, count))

    def _nvlink(self, vertex: int, one: Vertex, count: int) -> NvLinks:
        if one.kind == VertexKind.gpu:
            return NvLinks(self.addresses[vertex], count, GPU_CLASS)
        if one.kind == VertexKind.nvswitch:
            return NvLinks(ANY_NVSWITCH, count, NVSWITCH_CLASS)
        return NvLinks(ANY_CPU, count, CPU_CLASS)
