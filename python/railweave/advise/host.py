"""One node, as advice sees it: its GPUs, the NICs of the GPU network, NUMA nodes with their cores, and how far apart they are."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cached_property

from railweave.advise.errors import AdviceError
from railweave.fabric import EdgeKind, Fabric, ResourceKind, VertexKind

# Compute capability by the part's name, from NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus). The first match counts.
_PARTS = (
    (re.compile(r"\bP100\b"), 60),
    (re.compile(r"\bV100"), 70),
    (re.compile(r"\bT4\b"), 75),
    (re.compile(r"\b(A100|A800|A30)\b"), 80),
    (re.compile(r"\b(A40|A10|A16|A2)\b"), 86),
    (re.compile(r"\b(L4|L40S?)\b"), 89),
    (re.compile(r"\b(GH200|H100|H200|H800|H20)\b"), 90),
    (re.compile(r"\b(GB200|B200|B100)\b"), 100),
    (re.compile(r"\b(GB300|B300)\b"), 103),
)


class Distance(enum.IntEnum):
    """How a GPU reaches a NIC, in the words of `nvidia-smi topo -m` and NCCL; lower is nearer."""

    PIX = 0  # one PCIe switch
    PXB = 1  # several PCIe switches
    PHB = 2  # through the CPU's PCIe root
    SYS = 3  # between sockets


@dataclass(frozen=True)
class Core:
    """A core: its logical CPUs, of which there are several with SMT."""

    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Numa:
    """A NUMA node by the operating system's number. `package` and `cores` are None where they are not known."""

    number: int
    package: int | None = None
    cores: tuple[Core, ...] | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU; `rank` is its position on the node, which is the local rank that uses it."""

    rank: int
    vertex: int
    name: str
    model: str
    bus_id: str
    gdr: bool
    numa: int | None
    sm: int | None
    uuid: str | None = None
    minor: int | None = None
    """The N of /dev/nvidiaN."""


@dataclass(frozen=True)
class Nic:
    """A NIC port; `device` is how UCX names it (`mlx5_0:1`), None where it is not known."""

    vertex: int
    name: str
    model: str
    bus_id: str
    on_network: bool
    capacity_Bps: int
    device: str | None = None


@dataclass(frozen=True)
class Path:
    """A way between a GPU and a NIC: distance, latency, and the resources of the fabric that a byte loads when sent or received."""

    distance: Distance
    latency_ns: int
    resources: tuple[int, ...]
    """With repetition where a byte loads something twice."""


@dataclass(frozen=True)
class Host:
    """A node of a fabric with what is known beside the graph."""

    fabric: Fabric
    node: int
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    numas: tuple[Numa, ...]
    gdrcopy: bool | None = None
    """Whether GDRCopy's driver is loaded; None where it is not known."""
    virtual: bool | None = None

    @property
    def network_nics(self) -> tuple[Nic, ...]:
        """NICs that are part of the GPU network."""
        return tuple(nic for nic in self.nics if nic.on_network)

    @cached_property
    def paths(self) -> dict[tuple[int, int], Path]:
        """By GPU and NIC vertex: every pair of the GPU network that PCIe joins."""
        found = {}
        for gpu in self.gpus:
            for nic in self.network_nics:
                path = _path(self.fabric, gpu, nic)
                if path is not None:
                    found[gpu.vertex, nic.vertex] = path
        return found


def read_host(fabric: Fabric, node: int = 0) -> Host:
    """A node of a fabric; cores and device names are then unknown."""
    if not 0 <= node < fabric.node_count:
        raise AdviceError(f"fabric '{fabric.name}' has no node {node}; it has {fabric.node_count}, counted from 0")
    prefix = fabric.node_names[node] + "/"
    vertices = fabric.vertices
    gpus = []
    for rank, vertex_id in enumerate(fabric.gpus_of(node)):
        vertex = vertices[vertex_id]
        numa = _numa_above(fabric, vertex_id)
        gpus.append(
            Gpu(
                rank=rank,
                vertex=vertex_id,
                name=vertex.name.removeprefix(prefix),
                model=vertex.model,
                bus_id=vertex.bus_id,
                gdr=vertex.gdr,
                numa=None if numa is None else vertices[numa].index,
                sm=compute_capability(vertex.model),
            )
        )
    if not gpus:
        raise AdviceError(f"fabric '{fabric.name}' has no GPU on node {node}; there is nothing to advise")
    nics = []
    for vertex_id in fabric.nics_of(node):
        vertex = vertices[vertex_id]
        ports = [fabric.edge(e) for e in fabric.out_edges(vertex_id) if fabric.edge(e).kind == EdgeKind.rail]
        capacity = sum(edge.capacity_Bps for edge in ports)
        nics.append(Nic(vertex_id, vertex.name.removeprefix(prefix), vertex.model, vertex.bus_id, bool(ports), capacity))
    numas = tuple(Numa(v.index) for v in vertices if v.kind == VertexKind.numa and v.node == node)
    return Host(fabric, node, tuple(gpus), tuple(nics), numas)


def compute_capability(model: str) -> int | None:
    """90 for an H100; None for a name that is not in the list."""
    return next((sm for pattern, sm in _PARTS if pattern.search(model)), None)


def _numa_above(fabric: Fabric, vertex: int) -> int | None:
    """The NUMA node at the root of a device's PCIe tree."""
    seen = {vertex}
    level = [vertex]
    while level:
        above = []
        for v in level:
            for e in fabric.out_edges(v):
                edge = fabric.edge(e)
                if edge.kind not in (EdgeKind.pcie, EdgeKind.c2c) or edge.dst in seen:
                    continue
                kind = fabric.vertex(edge.dst).kind
                if kind == VertexKind.numa:
                    return edge.dst
                if kind == VertexKind.pcie_switch:
                    seen.add(edge.dst)
                    above.append(edge.dst)
        level = above
    return None


_INNER = (VertexKind.pcie_switch, VertexKind.numa)
_DOMAIN = (EdgeKind.pcie, EdgeKind.c2c, EdgeKind.socket)


def _walk(fabric: Fabric, start: int, goal: int) -> list[int] | None:
    """Edges of the shortest way through switches and CPUs, the widest first among equals; None where there is none."""
    if start == goal:
        return []
    came: dict[int, int] = {}  # vertex: edge that led there
    level = [start]
    seen = {start}
    while level and goal not in came:
        edges = [e for v in level for e in fabric.out_edges(v) if fabric.edge(e).kind in _DOMAIN]
        level = []
        for e in sorted(edges, key=lambda e: -fabric.edge(e).capacity_Bps):
            edge = fabric.edge(e)
            if edge.dst in seen or (edge.dst != goal and fabric.vertex(edge.dst).kind not in _INNER):
                continue
            seen.add(edge.dst)
            came[edge.dst] = e
            level.append(edge.dst)
    if goal not in came:
        return None
    way = []
    at = goal
    while at != start:
        way.append(came[at])
        at = fabric.edge(came[at]).src
    return way[::-1]


def _path(fabric: Fabric, gpu: Gpu, nic: Nic) -> Path | None:
    """Without GPUDirect RDMA the bytes are staged in the rank's own memory, which is that of the GPU's NUMA node."""
    direct = _walk(fabric, gpu.vertex, nic.vertex)
    if direct is None:
        return None
    there, back = direct, _walk(fabric, nic.vertex, gpu.vertex) or []
    memory = _numa_above(fabric, gpu.vertex)
    if not gpu.gdr and memory is not None:
        there = _staged(fabric, gpu.vertex, memory, nic.vertex) or there
        back = _staged(fabric, nic.vertex, memory, gpu.vertex) or back
    port_out = [e for e in fabric.out_edges(nic.vertex) if fabric.edge(e).kind == EdgeKind.rail]
    port_in = [e for e in fabric.in_edges(nic.vertex) if fabric.edge(e).kind == EdgeKind.rail]
    edges = [*there, *port_out[:1], *port_in[:1], *back]
    return Path(
        distance=_distance(fabric, direct),
        latency_ns=sum(fabric.edge(e).latency_ns for e in there),
        resources=tuple(resource for e in edges for resource in _loaded(fabric, e)),
    )


def _staged(fabric: Fabric, start: int, memory: int, goal: int) -> list[int] | None:
    first, second = _walk(fabric, start, memory), _walk(fabric, memory, goal)
    return None if first is None or second is None else first + second


def _distance(fabric: Fabric, edges: list[int]) -> Distance:
    inner = [fabric.vertex(fabric.edge(e).dst).kind for e in edges[:-1]]
    if any(fabric.edge(e).kind == EdgeKind.socket for e in edges):
        return Distance.SYS
    if VertexKind.numa in inner:
        return Distance.PHB
    return Distance.PIX if len(inner) <= 1 else Distance.PXB


def _loaded(fabric: Fabric, edge_id: int) -> list[int]:
    """An edge and the capacities of its ends, counted as the planner counts them."""
    edge = fabric.edge(edge_id)
    ends = (
        (edge.src, ResourceKind.vertex_egress),
        (edge.src, ResourceKind.vertex_through),
        (edge.dst, ResourceKind.vertex_ingress),
        (edge.dst, ResourceKind.vertex_through),
    )
    capacities = (fabric.vertex_resource(vertex, kind) for vertex, kind in ends)
    return [edge_id, *(resource for resource in capacities if resource is not None)]
