"""One node, as advice sees it: its GPUs, the NICs of the GPU network, NUMA nodes with their cores, and how far apart they are."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property

from railweave.advise.errors import AdviceError
from railweave.fabric import Edge, EdgeKind, Fabric, ResourceKind, Vertex, VertexKind
from railweave.machine.fabric import GDR_UNKNOWN, NUMBERS_MADE_UP
from railweave.machine.fabric_nics import UnknownNicError
from railweave.machine.reading import cpu_mask
from railweave.records import dataclass, field, replace

# Compute capability by the part's name, from NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus).
_PARTS = {
    "P100": 60,
    **dict.fromkeys(("V100", "V100S"), 70),
    "T4": 75,
    **dict.fromkeys(("A100", "A800", "A30"), 80),
    **dict.fromkeys(("A40", "A10", "A16", "A2"), 86),
    **dict.fromkeys(("L4", "L40", "L40S"), 89),
    **dict.fromkeys(("GH200", "H100", "H200", "H800", "H20"), 90),
    **dict.fromkeys(("GB200", "B200", "B100"), 100),
    **dict.fromkeys(("GB300", "B300"), 103),
}


class Distance(enum.IntEnum):
    """How a GPU reaches a NIC, in the words of `nvidia-smi topo -m` and NCCL; lower is nearer."""

    PIX = 0  # one PCIe switch
    PXB = 1  # several PCIe switches
    PHB = 2  # through the CPU's PCIe root; of a fabric, which does not tell roots apart, NODE as well
    NODE = 3  # between PCIe roots of one NUMA node
    SYS = 4  # between NUMA nodes


@dataclass(frozen=True)
class Core:
    """A core: its logical CPUs, of which there are several with SMT."""

    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Numa:
    """A NUMA node. `package` and `cores` are None where they are not known."""

    number: int
    package: int | None = None
    cores: tuple[Core, ...] | None = None
    numbered: bool = True
    """Whether the number is the operating system's, so that memory can be asked for by it."""
    threads_known: bool = True
    """Whether it is known which logical CPUs share a core; else `cores` pairs them as Linux numbers them."""


@dataclass(frozen=True)
class Gpu:
    """A GPU; `rank` is its position on the node, which is the local rank that uses it."""

    rank: int
    vertex: int
    name: str
    model: str
    bus_id: str
    gdr: bool | None
    """Whether GPUDirect RDMA is usable; None where it is not known."""
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
    """A way between a GPU and a NIC: distance (None where it is not known), latency, and the resources of the fabric that a byte loads when
    sent or received."""

    distance: Distance | None
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
    network_why: str = ""
    """Which NICs were taken for the GPU network, and why."""
    ways: Mapping[tuple[int, int], Distance | None] = field(default_factory=dict)
    """By GPU and NIC vertex, where facts tell more than the fabric does."""
    gdr_why: str = ""
    """Why it is not known whether GPUDirect RDMA is usable."""
    ways_why: str = ""
    """Why ways between GPUs and NICs are not known."""

    @property
    def network_nics(self) -> tuple[Nic, ...]:
        """NICs that are part of the GPU network."""
        return tuple(nic for nic in self.nics if nic.on_network)

    @cached_property
    def paths(self) -> dict[tuple[int, int], Path]:
        """By GPU and NIC vertex: every pair of the GPU network that PCIe joins."""
        found = {}
        ways, nics = _Ways(self.fabric), self.network_nics
        for gpu in self.gpus:
            for nic in nics:
                path = ways.path(gpu, nic)
                if path is not None:
                    ends = (gpu.vertex, nic.vertex)
                    found[ends] = replace(path, distance=self.ways[ends]) if ends in self.ways else path
        return found


def read_host(fabric: Fabric, node: int = 0) -> Host:
    """A node of a fabric; cores and device names are then known where the fabric was read from a topology file."""
    if not 0 <= node < fabric.node_count:
        raise AdviceError(f"fabric '{fabric.name}' has no node {node}; it has {fabric.node_count}, counted from 0")
    prefix = fabric.node_names[node] + "/"
    vertices = fabric.vertices
    numas = _numas(fabric, [v for v, vertex in enumerate(vertices) if vertex.kind == VertexKind.numa and vertex.node == node])
    gdr_why = ""
    gpus = []
    for rank, vertex_id in enumerate(fabric.gpus_of(node)):
        vertex = vertices[vertex_id]
        numa = _numa_above(fabric, vertex_id)
        unknown = vertex.attributes.get(GDR_UNKNOWN, "")
        gdr_why = gdr_why or unknown
        gpus.append(
            Gpu(
                rank=rank,
                vertex=vertex_id,
                name=vertex.name.removeprefix(prefix),
                model=vertex.model,
                bus_id=vertex.bus_id,
                gdr=None if unknown else vertex.gdr,
                numa=None if numa is None else numas[numa].number,
                sm=_integer(vertex.attributes.get("gpu.sm", "")) or compute_capability(vertex.model),
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
    return choose_network(Host(fabric, node, tuple(gpus), tuple(nics), tuple(numas.values()), gdr_why=gdr_why))


def choose_network(host: Host, named: Sequence[str] = ()) -> Host:
    """With those NICs on the GPU network that are named, by the fabric's names, RDMA devices or topology file's names; else those of the
    fastest rate, because slower ones carry storage. A rate that its source calls assumed counts as fast."""
    fabric, vertices = host.fabric, host.fabric.vertices
    if named:
        names = {name: nic.vertex for nic in host.nics for name in _names(nic, vertices[nic.vertex])}
        missing = [name for name in named if name not in names]
        if missing:
            raise UnknownNicError(
                f"no NIC {', '.join(missing)} in '{fabric.name}'; there are {', '.join(nic.name for nic in host.nics) or 'none'}"
            )
        chosen = {names[name] for name in named}
        off = [nic.name for nic in host.nics if nic.vertex in chosen and not nic.capacity_Bps]
        if off:
            raise AdviceError(f"{', '.join(off)} of '{fabric.name}' has no link to the network; the fabric says it is not part of it")
        nics = tuple(replace(nic, on_network=nic.vertex in chosen) for nic in host.nics)
        return replace(host, nics=nics, network_why=f"{_listed(nics)}: named")
    candidates = [nic for nic in host.nics if nic.on_network]
    assumed = {nic.vertex for nic in candidates if any(_is_assumed(edge) for edge in _ports(fabric, nic.vertex))}
    fastest = max((nic.capacity_Bps for nic in candidates if nic.vertex not in assumed), default=0)
    nics = tuple(replace(nic, on_network=nic.on_network and (nic.vertex in assumed or nic.capacity_Bps == fastest)) for nic in host.nics)
    left = [nic.name for nic, other in zip(nics, host.nics, strict=True) if other.on_network and not nic.on_network]
    if not candidates:
        return replace(host, nics=nics, network_why="")
    slower = f"; {', '.join(left)} {'is' if len(left) == 1 else 'are'} slower and taken for storage or management" if left else ""
    rate = "rates are assumed" if not fastest else f"the fastest rate, {fastest / 125e6:g} Gbit/s"
    return replace(host, nics=nics, network_why=f"{_listed(nics)}: {rate}{slower}; --nics names others")


def _is_assumed(port: Edge) -> bool:
    """As the reader of topology files words it where a file has no rate."""
    return port.source.startswith("assumed: ") or "Mbit/s assumed" in port.source


def _listed(nics: Sequence[Nic]) -> str:
    return ", ".join(nic.name for nic in nics if nic.on_network) or "none"


def _names(nic: Nic, vertex: Vertex) -> list[str]:
    given = [nic.name, nic.device or "", (nic.device or "").split(":")[0], vertex.attributes.get("net.name", "")]
    return [name for name in given if name]


def _ports(fabric: Fabric, nic: int) -> list[Edge]:
    return [edge for e in fabric.out_edges(nic) if (edge := fabric.edge(e)).kind == EdgeKind.rail]


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _numas(fabric: Fabric, members: Sequence[int]) -> dict[int, Numa]:
    """By vertex. A topology file has the operating system's numbers, -1 for the only node of a guest, and masks of logical CPUs."""
    found = {}
    for vertex_id in members:
        vertex = fabric.vertex(vertex_id)
        attributes = vertex.attributes
        number = _integer(attributes.get("cpu.numaid", ""))
        try:
            cpus = cpu_mask(attributes.get("cpu.affinity", ""))
        except ValueError:  # `railweave topo --lint` says so
            cpus = ()
        found[vertex_id] = Numa(
            vertex.index if number is None else number,
            cores=by_number(cpus) if cpus else None,
            numbered=NUMBERS_MADE_UP not in attributes and (number is not None or "cpu.numaid" not in attributes),
            threads_known=not cpus,
        )
    return found


def by_number(cpus: Sequence[int]) -> tuple[Core, ...]:
    """Logical CPUs as cores where it is not known which share one. Linux numbers first the first threads of all cores, then the second
    ones, so ranges of equal length are the threads of the same cores. Where that is wrong, because a core's threads are neighbours, they
    still go to one rank, but at the edges."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    if len({len(one) for one in ranges}) == 1:
        return tuple(Core(threads) for threads in zip(*ranges, strict=True))
    return tuple(Core((cpu,)) for one in ranges for cpu in one)


def compute_capability(model: str) -> int | None:
    """90 for an H100; None for a name that is not in the list."""
    return next((sm for word in model.replace("-", " ").split() if (sm := _PARTS.get(word))), None)


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


class _Ways:
    """Ways of a fabric through switches and CPUs. Each vertex and edge is asked of the fabric once: a host has hundreds of ways."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._kinds: dict[int, VertexKind] = {}
        self._ports: dict[int, list[int]] = {}
        self._out: dict[int, list[tuple[int, Edge]]] = {}
        self._trees: dict[int, dict[int, tuple[int, Edge]]] = {}
        self._loaded: dict[int, tuple[int, ...]] = {}

    def path(self, gpu: Gpu, nic: Nic) -> Path | None:
        """Without GPUDirect RDMA the bytes are staged in the rank's own memory, which is that of the GPU's NUMA node."""
        direct = self._walk(gpu.vertex, nic.vertex)
        if direct is None:
            return None
        there, back = direct, self._walk(nic.vertex, gpu.vertex) or []
        memory = None if gpu.gdr else _numa_above(self.fabric, gpu.vertex)
        if memory is not None:
            there = self._staged(gpu.vertex, memory, nic.vertex) or there
            back = self._staged(nic.vertex, memory, gpu.vertex) or back
        edges = [*(e for e, _ in there), *self._port(nic.vertex), *(e for e, _ in back)]
        return Path(
            distance=self._distance(direct),
            latency_ns=sum(edge.latency_ns for _, edge in there),
            resources=tuple(resource for e in edges for resource in self._loads(e)),
        )

    def _port(self, nic: int) -> list[int]:
        """A NIC's edges to and from the network, where it has them."""
        if nic not in self._ports:
            ends = (self.fabric.out_edges(nic), self.fabric.in_edges(nic))
            self._ports[nic] = [e for edges in ends for e in [e for e in edges if self.fabric.edge(e).kind == EdgeKind.rail][:1]]
        return self._ports[nic]

    def _kind(self, vertex: int) -> VertexKind:
        if vertex not in self._kinds:
            self._kinds[vertex] = self.fabric.vertex(vertex).kind
        return self._kinds[vertex]

    def _steps(self, vertex: int) -> list[tuple[int, Edge]]:
        if vertex not in self._out:
            edges = ((e, self.fabric.edge(e)) for e in self.fabric.out_edges(vertex))
            self._out[vertex] = [(e, edge) for e, edge in edges if edge.kind in _DOMAIN]
        return self._out[vertex]

    def _tree(self, start: int) -> dict[int, tuple[int, Edge]]:
        """By vertex, the last edge of the shortest way to it, the widest first among equals."""
        if start in self._trees:
            return self._trees[start]
        came: dict[int, tuple[int, Edge]] = {}
        level = [start]
        while level:
            steps = [step for vertex in level for step in self._steps(vertex)]
            level = []
            for step in sorted(steps, key=lambda step: -step[1].capacity_Bps):
                vertex = step[1].dst
                if vertex in came or vertex == start:
                    continue
                came[vertex] = step
                if self._kind(vertex) in _INNER:
                    level.append(vertex)
        self._trees[start] = came
        return came

    def _walk(self, start: int, goal: int) -> list[tuple[int, Edge]] | None:
        """Edges of the way; None where there is none."""
        came = self._tree(start)
        if start != goal and goal not in came:
            return None
        way = []
        at = goal
        while at != start:
            way.append(came[at])
            at = came[at][1].src
        return way[::-1]

    def _staged(self, start: int, memory: int, goal: int) -> list[tuple[int, Edge]] | None:
        first, second = self._walk(start, memory), self._walk(memory, goal)
        return None if first is None or second is None else first + second

    def _distance(self, way: Sequence[tuple[int, Edge]]) -> Distance:
        inner = [self._kind(edge.dst) for _, edge in way[:-1]]
        if any(edge.kind == EdgeKind.socket for _, edge in way):
            return Distance.SYS
        if VertexKind.numa in inner:
            return Distance.PHB
        return Distance.PIX if len(inner) <= 1 else Distance.PXB

    def _loads(self, edge_id: int) -> tuple[int, ...]:
        """An edge and the capacities of its ends, counted as the planner counts them."""
        if edge_id not in self._loaded:
            edge = self.fabric.edge(edge_id)
            ends = (
                (edge.src, ResourceKind.vertex_egress),
                (edge.src, ResourceKind.vertex_through),
                (edge.dst, ResourceKind.vertex_ingress),
                (edge.dst, ResourceKind.vertex_through),
            )
            capacities = (self.fabric.vertex_resource(vertex, kind) for vertex, kind in ends)
            self._loaded[edge_id] = (edge_id, *(resource for resource in capacities if resource is not None))
        return self._loaded[edge_id]
