"""One node, as advice sees it: its GPUs, the NICs of the GPU network, NUMA nodes with their cores, and how far apart they are."""

from __future__ import annotations

from railweave import _native
from railweave.advise.errors import AdviceError
from railweave.machine.fabric import GDR_UNKNOWN, NUMBERS_MADE_UP
from railweave.machine.fabric_nics import UnknownNicError
from railweave.machine.reading import cpu_mask
from railweave.records import IntEnum, cached_property, dataclass, field, replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.fabric import Edge, Fabric, Vertex

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


class Distance(IntEnum):
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
    virtual_nics: tuple[str, ...] = ()
    """RDMA devices that share the wires of physical NICs, which libraries use beside them: virtual functions, sub-functions."""
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
        nics = [nic.vertex for nic in self.network_nics]
        # Without GPUDirect RDMA the bytes are staged in the rank's own memory, which is that of the GPU's NUMA node.
        ways = _native.nic_ways(self.fabric, [(gpu.vertex, bool(gpu.gdr)) for gpu in self.gpus], nics)
        for gpu, of_gpu in zip(self.gpus, ways, strict=True):
            for nic, way in zip(nics, of_gpu, strict=True):
                if way is not None:
                    distance, latency_ns, resources = way
                    ends = (gpu.vertex, nic)
                    told = self.ways[ends] if ends in self.ways else Distance(distance)
                    found[ends] = Path(told, latency_ns, tuple(resources))
        return found


def read_host(fabric: Fabric, node: int = 0) -> Host:
    """A node of a fabric; cores and device names are then known where the fabric was read from a topology file."""
    if not 0 <= node < fabric.node_count:
        raise AdviceError(f"fabric '{fabric.name}' has no node {node}; it has {fabric.node_count}, counted from 0")
    prefix = fabric.node_names[node] + "/"
    numas = _numas(fabric, fabric.numas_of(node))
    gdr_why = ""
    gpus = []
    for rank, vertex_id in enumerate(fabric.gpus_of(node)):
        vertex = fabric.vertex(vertex_id)
        attributes = vertex.attributes
        numa = _native.numa_above(fabric, vertex_id)
        unknown = attributes.get(GDR_UNKNOWN, "")
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
                sm=_integer(attributes.get("gpu.sm", "")) or compute_capability(vertex.model),
            )
        )
    if not gpus:
        raise AdviceError(f"fabric '{fabric.name}' has no GPU on node {node}; there is nothing to advise")
    nics = []
    for vertex_id in fabric.nics_of(node):
        vertex = fabric.vertex(vertex_id)
        ports = _ports(fabric, vertex_id)
        capacity = sum(edge.capacity_Bps for edge in ports)
        nics.append(Nic(vertex_id, vertex.name.removeprefix(prefix), vertex.model, vertex.bus_id, bool(ports), capacity))
    return choose_network(Host(fabric, node, tuple(gpus), tuple(nics), tuple(numas.values()), gdr_why=gdr_why))


def choose_network(host: Host, named: Sequence[str] = ()) -> Host:
    """With those NICs on the GPU network that are named, by the fabric's names, RDMA devices or topology file's names; else those of the
    fastest rate, because slower ones carry storage. A rate that its source calls assumed counts as fast."""
    fabric = host.fabric
    if named:
        names = {name: nic.vertex for nic in host.nics for name in _names(nic, fabric.vertex(nic.vertex))}
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
    return [fabric.edge(e) for e in fabric.ports_of(nic)]


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
    ones, so halves that are alike (`0-7,16-23`; `0,2,4,6`, where CPUs alternate between nodes) are the threads of the same cores. Where
    that is wrong, because a core's threads are neighbours or it has one, they still go to one rank, but at the edges."""
    ordered = sorted(set(cpus))
    half = len(ordered) // 2
    pairs = list(zip(ordered[:half], ordered[half:], strict=False))
    in_a_row = not ordered or ordered[-1] - ordered[0] < len(ordered)
    if in_a_row or len(ordered) % 2 or len({second - first for first, second in pairs}) != 1:
        return tuple(Core((cpu,)) for cpu in ordered)
    return tuple(Core(pair) for pair in pairs)


def compute_capability(model: str) -> int | None:
    """90 for an H100; None for a name that is not in the list."""
    return next((sm for word in model.replace("-", " ").split() if (sm := _PARTS.get(word))), None)
