"""Railweave's C++ core: fabric, planner, model and engine."""

from collections.abc import Mapping, Sequence
import enum
import os
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Error(Exception):
    pass

class ParseError(Error):
    pass

class FabricError(Error):
    pass

class DemandError(Error):
    pass

class UnreachableError(Error):
    pass

class Vertex:
    """
    A GPU, NIC, switch, NUMA node, leaf or spine. Capacities are bytes/s, 0 where it has none of its own.
    """

    @property
    def kind(self) -> VertexKind: ...

    @property
    def node(self) -> int | None:
        """Number of its host; None for leaf and spine."""

    @property
    def index(self) -> int:
        """Position among the vertices of its kind on its node."""

    @property
    def rail(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    @property
    def egress_Bps(self) -> int: ...

    @property
    def ingress_Bps(self) -> int: ...

    @property
    def through_Bps(self) -> int: ...

    @property
    def gdr(self) -> bool: ...

    @property
    def model(self) -> str: ...

    @property
    def bus_id(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def attributes(self) -> dict[str, str]:
        """
        What a topology file says of it beyond that, by element and attribute: "cpu.affinity", "net.guid".
        """

    def __repr__(self) -> str: ...

class Edge:
    """One direction of a link: vertex ids, bytes/s, nanoseconds."""

    @property
    def src(self) -> int: ...

    @property
    def dst(self) -> int: ...

    @property
    def kind(self) -> EdgeKind: ...

    @property
    def capacity_Bps(self) -> int: ...

    @property
    def latency_ns(self) -> int: ...

    @property
    def source(self) -> str: ...

    def __repr__(self) -> str: ...

class Resource:
    """
    Anything that can be the bottleneck: an edge, or a vertex's own capacity.
    """

    @property
    def kind(self) -> ResourceKind: ...

    @property
    def id(self) -> int:
        """Edge id or vertex id, by kind."""

    @property
    def capacity_Bps(self) -> int: ...

class Fabric:
    """What a machine or a cluster can carry: an immutable directed graph."""

    @property
    def name(self) -> str: ...

    @property
    def gpu_count(self) -> int: ...

    @property
    def node_count(self) -> int: ...

    @property
    def node_names(self) -> list[str]: ...

    @property
    def vertices(self) -> list[Vertex]:
        """All vertices; a vertex id is a position in this list."""

    @property
    def edges(self) -> list[Edge]:
        """All edges; an edge id is a position in this list."""

    @property
    def resources(self) -> list[Resource]:
        """Edges first, then the vertices' own capacities."""

    def vertex(self, id: int) -> Vertex: ...

    def edge(self, id: int) -> Edge: ...

    def out_edges(self, vertex: int) -> list[int]: ...

    def in_edges(self, vertex: int) -> list[int]: ...

    def find_edge(self, src: int, dst: int) -> int | None: ...

    def find_vertex(self, name: str) -> int | None: ...

    def vertex_resource(self, vertex: int, kind: ResourceKind) -> int | None: ...

    def describe(self, resource: int) -> str:
        """A resource in words, e.g. 'node0/nic1 -> leaf1 (rail)'."""

    def gpu(self, gpu: int) -> int:
        """Vertex id of a GPU by its number, which is its rank."""

    def node_of(self, gpu: int) -> int: ...

    def first_gpu(self, node: int) -> int: ...

    def gpus_of(self, node: int) -> list[int]:
        """Vertex ids of a node's GPUs."""

    def nics_of(self, node: int) -> list[int]:
        """Vertex ids of a node's NICs."""

    def numas_of(self, node: int) -> list[int]:
        """Vertex ids of a node's NUMA nodes."""

    def ports_of(self, nic: int) -> list[int]:
        """Ids of the edges from a NIC to the network."""

    def to_json(self) -> str:
        """The versioned JSON form (docs/fabric.md)."""

    @staticmethod
    def from_json(text: str, source: str = '<string>') -> Fabric:
        """Reads the JSON form. Raises ParseError with line, column and path."""

    def __repr__(self) -> str: ...

def load_fabric(what: str, nodes: int, template_dirs: Sequence[str | os.PathLike]) -> Fabric:
    """
    A file of any kind, or a node template by name; nodes 0: as the file says.
    """

def parse_fabric(text: str, source: str, nodes: int, template_dirs: Sequence[str | os.PathLike], described_by: str) -> Fabric:
    """The same from the text of a file."""

def template_names(template_dirs: Sequence[str | os.PathLike]) -> list[str]: ...

def template_description(name: str, template_dirs: Sequence[str | os.PathLike]) -> str: ...

def numa_above(fabric: Fabric, device: int) -> int | None:
    """The NUMA node at the root of a device's PCIe tree."""

def nic_ways(fabric: Fabric, gpus: Sequence[tuple[int, bool]], nics: Sequence[int]) -> list[list[tuple[int, int, list[int]] | None]]:
    """
    By GPU and NIC: distance, latency in ns and resources that a byte loads of the way between them; None where there is none. GPUs are vertices, with whether NICs reach their memory.
    """

def map_nics(fabric: Fabric, node: int, gpus: Sequence[tuple[int, bool]], nics: Sequence[tuple[int, int]], ways: Sequence[Sequence[tuple[int | None, int, Sequence[int]] | None]], shortest_first: bool, most_steps: int) -> tuple[list[list[int]], float, int, float, int]:
    """
    The assignment of NICs (vertices with their bytes/s) to GPUs that has the least bound: positions of NICs by rank, seconds for each byte of a rank, the resource that takes them, the same seconds with the nearest NICs, and steps of the search.
    """

class VertexKind(enum.Enum):
    gpu = 0

    nic = 1

    pcie_switch = 2

    numa = 3

    nvswitch = 4

    leaf = 5

    spine = 6

class EdgeKind(enum.Enum):
    nvlink = 0

    c2c = 1

    pcie = 2

    socket = 3

    rail = 4

    uplink = 5

class ResourceKind(enum.Enum):
    edge = 0

    vertex_egress = 1

    vertex_ingress = 2

    vertex_through = 3

class LinkState:
    """
    What is known at run time about a fabric's links: measured rates, links that are down.
    """

    def __init__(self, fabric: Fabric) -> None:
        """All links up, at their nominal rate, epoch 0."""

    @property
    def epoch(self) -> int: ...

    def is_down(self, edge: int) -> bool: ...

    def rate_Bps(self, edge: int) -> int:
        """bytes/s that the edge gives now; 0 when down."""

    def set_rate(self, edge: int, measured_Bps: int) -> None: ...

    def set_down(self, edge: int, down: bool) -> None: ...

    def adopt(self, other: LinkState) -> None:
        """Takes over what another rank reported, with its epoch."""

    def __eq__(self, arg: LinkState, /) -> bool: ...

class Demand:
    """Bytes from each rank to each rank; row = sender, column = receiver."""

    def __init__(self, ranks: int) -> None:
        """An empty matrix of ranks x ranks."""

    @staticmethod
    def from_numpy(matrix: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> Demand:
        """
        From a C-contiguous uint64 array of shape [n, n], bytes. Raises DemandError when it is not square or the total reaches 2**63.
        """

    def to_numpy(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None, None))]:
        """A uint64 copy of shape [n, n], bytes."""

    def set(self, src: int, dst: int, bytes: int) -> None: ...

    def at(self, src: int, dst: int) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def total(self) -> int:
        """Sum of all entries in bytes."""

    @property
    def skew(self) -> float:
        """Busiest endpoint / mean endpoint."""

    def __eq__(self, arg: Demand, /) -> bool: ...

def parse_demand(text: str, source: str) -> Demand:
    """Reads nccl-tests' matrix format. Raises ParseError with the line."""

def format_demand(demand: Demand) -> str: ...

def check_fits(demand: Demand, fabric: Fabric) -> None:
    """
    Raises DemandError when the matrix does not have one row for each GPU of the fabric.
    """

class Route:
    """
    One way from a GPU to another. GPUs are ranks, NICs are vertex ids; None where there is none.
    """

    @property
    def kind(self) -> str: ...

    @property
    def src(self) -> int: ...

    @property
    def dst(self) -> int: ...

    @property
    def relay_src(self) -> int | None: ...

    @property
    def relay_dst(self) -> int | None: ...

    @property
    def nic_src(self) -> int | None: ...

    @property
    def nic_dst(self) -> int | None: ...

    @property
    def relays(self) -> int:
        """GPUs that lend memory and links: 0, 1 or 2."""

    def __eq__(self, arg: Route, /) -> bool: ...

    def __hash__(self) -> int: ...

class Path:
    """A route with everything it loads."""

    @property
    def route(self) -> Route: ...

    @property
    def latency_ns(self) -> int: ...

    @property
    def edges(self) -> list[int]:
        """Edge ids in order; one may appear twice."""

    @property
    def resources(self) -> list[int]:
        """Resource ids that a byte loads; repeated if loaded twice."""

class Share:
    """Bytes of one demand that take a route."""

    @property
    def route(self) -> Route: ...

    @property
    def bytes(self) -> int: ...

class Bound:
    """
    Why no plan can end earlier; links: no plan over the routes that the planner considers.
    """

    @property
    def kind(self) -> str:
        """sender, receiver, node-out, node-in, links or none"""

    @property
    def seconds(self) -> float: ...

    @property
    def at(self) -> int | None:
        """Rank or node; None for links."""

class Plan:
    """Which bytes of which demand take which way."""

    @property
    def policy(self) -> str: ...

    @property
    def id(self) -> int:
        """Equal inputs give equal ids."""

    @property
    def link_epoch(self) -> int: ...

    @property
    def shares(self) -> list[Share]:
        """Ordered by sender and receiver."""

    @property
    def load(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
        """Bytes on each resource of the fabric, uint64."""

    @property
    def z_seconds(self) -> float:
        """
        Load over capacity of the busiest resource: the plan's time in the fluid limit.
        """

    @property
    def bottleneck(self) -> int | None:
        """The resource where z_seconds is reached."""

    @property
    def bound(self) -> Bound: ...

class PlannerSettings:
    def __init__(self) -> None: ...

    @property
    def policy(self) -> str: ...

    @policy.setter
    def policy(self, arg: str, /) -> None: ...

    @property
    def multipath_min_bytes(self) -> int:
        """
        Demands of at most this many bytes take one path; of rails below 50 GB/s as many as take as long.
        """

    @multipath_min_bytes.setter
    def multipath_min_bytes(self, arg: int, /) -> None: ...

    @property
    def chunk_bytes(self) -> int:
        """Parts of a split demand are multiples of this, but for one."""

    @chunk_bytes.setter
    def chunk_bytes(self, arg: int, /) -> None: ...

    @property
    def pxn_level(self) -> int:
        """Policy nccl: 0, 1 or 2."""

    @pxn_level.setter
    def pxn_level(self, arg: int, /) -> None: ...

    @property
    def ucx_rails(self) -> int:
        """Policy ucx-rails: NICs that a sender stripes over."""

    @ucx_rails.setter
    def ucx_rails(self, arg: int, /) -> None: ...

    @property
    def hysteresis_permille(self) -> int:
        """
        By how much a new plan for the same demand must win to replace the one in force.
        """

    @hysteresis_permille.setter
    def hysteresis_permille(self, arg: int, /) -> None: ...

class Planner:
    """Routes demands over one fabric."""

    def __init__(self, fabric: Fabric, settings: PlannerSettings = ...) -> None: ...

    def plan(self, demand: Demand, links: LinkState) -> Plan:
        """
        Routes every byte between different GPUs. Raises DemandError or UnreachableError; the previous plan then still holds.
        """

    def shares(self, src: int, dst: int) -> list[Share]:
        """Shares of one pair in the last plan."""

    def plan_microseconds(self, demand: Demand, links: LinkState, repeat: int = 5) -> float:
        """Median time that planning this demand anew takes."""

    def candidates(self, src: int, dst: int, links: LinkState) -> list[Route]:
        """Usable routes of a pair, best first."""

    def split_min_bytes(self, src: int, dst: int) -> int:
        """Demands of fewer bytes take one path, under the last plan's links."""

    def expand(self, route: Route) -> Path:
        """The edges and resources of a route."""

def policy_names() -> list[str]: ...

class Flows:
    """Flows over resources with capacities: what the model simulates."""

    def __len__(self) -> int: ...

    @staticmethod
    def from_arrays(capacities_Bps: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], bytes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], resources: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], start_ns: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], latency_ns: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Flows:
        """
        Flow i loads resources[offsets[i]:offsets[i + 1]]; one that is listed twice is loaded at twice its rate. Capacities in bytes/s. Raises DemandError or UnreachableError, naming the flow.
        """

    def resources(self, flow: int) -> list[int]:
        """Resources that a flow loads, ascending."""

    @property
    def capacities_Bps(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    @property
    def bytes(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    @property
    def start_ns(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    @property
    def latency_ns(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

class Simulation:
    """What the model says happens; times in seconds, amounts in bytes."""

    @property
    def seconds(self) -> float:
        """When the last flow ended."""

    @property
    def load_bound_seconds(self) -> float:
        """max over resources of load / capacity."""

    @property
    def finish_seconds(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """Per flow: arrival of its last byte."""

    @property
    def bytes(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """Per resource: bytes carried."""

    @property
    def waited_seconds(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """Per resource: time it held flows back, summed over the flows."""

    @property
    def last_held(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """Per resource: how many flows it held back when they ended."""

    def waits(self, flow: int) -> list:
        """What held a flow back: list of (begin in seconds, resource), in order."""

    def carried_bytes(self, resource: int) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """
        Bytes carried in each slice of slice_seconds; empty for a resource without load.
        """

    @property
    def slice_seconds(self) -> float: ...

    @property
    def slices(self) -> int: ...

    @property
    def batching_loss_seconds(self) -> float:
        """Time that the worst hit resource lost by batching."""

    @property
    def solves(self) -> int:
        """How often rates were shared out."""

def plan_flows(plan: Plan, planner: Planner, chunk_bytes: int, fabric: Fabric, links: LinkState) -> Flows:
    """
    A plan as flows: flow i is share i, its resources are the fabric's at the rates of `links`, and its latency includes the time that relays take to fill the pipeline with chunks.
    """

def plan_share(plan: Plan, share: int) -> Share:
    """One share of a plan, without a copy of the million others."""

def simulate(flows: Flows, batching: float = 0.0) -> Simulation:
    """
    Simulates max-min fair sharing. Above 0, `batching` is the part of the time that a resource may lose to late sharing before rates are shared out again; because that has a least distance, many small flows can cost a resource more: Simulation.batching_loss_seconds says how much. 0 is exact.
    """

class SettingsError(Error):
    pass

class BootstrapError(Error):
    pass

class TransportError(Error):
    pass

class ExchangeError(Error):
    pass

class RankDied(ExchangeError):
    pass

def exchange_settings() -> list:
    """
    The settings table: name, environment variable, default, unit, help, measurement.
    """

def exchange_settings_markdown() -> str:
    """The settings table as docs/settings.md has it."""

def calibration_fingerprint(library: str) -> str:
    """
    What a calibration depends on, in one line; `library` is the path of librailweave_cuda.so.
    """

def find_calibration(library: str, for_all: str) -> dict:
    """
    The kept calibration that holds: path (empty: none), settings that follow, and what is wrong with one that does not.
    """

class ExchangeHandle:
    def wait_for(self, seconds: float) -> bool: ...

    def test(self) -> bool: ...

    def report(self) -> dict: ...

class ExchangeGroup:
    def send(self, arg0: int, arg1: int, arg2: int, /) -> None: ...

    def recv(self, arg0: int, arg1: int, arg2: int, /) -> None: ...

    def end(self) -> ExchangeHandle: ...

class ExchangeBuffer:
    @property
    def address(self) -> int: ...

    @property
    def bytes(self) -> int: ...

class Exchange:
    def __init__(self, rank: int, world: int, rendezvous: str, fabric: str | None, settings: dict) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def fabric_json(self) -> str: ...

    def links_down(self) -> list[str]: ...

    def all_to_all_v(self, arg0: int, arg1: Sequence[int], arg2: Sequence[int], arg3: int, arg4: Sequence[int], arg5: Sequence[int], arg6: int, /) -> ExchangeHandle: ...

    def group(self, communicator: int) -> ExchangeGroup: ...

    def allocate(self, bytes: int) -> ExchangeBuffer: ...

    def close(self) -> None: ...

def device_library_file(name: str) -> str:
    """The file of a device library that the loader finds by its name."""

class DeviceLog:
    """What a device library tells."""

    def __init__(self) -> None: ...

    def take(self) -> list[tuple[bool, str]]:
        """
        What was told since the last call: whether it is a warning, and its text.
        """

    def close(self) -> None:
        """After the communicator is no more."""

class DeviceCommunicator:
    def __init__(self, log: DeviceLog, library: str, rank: int, world: int, device: int, rendezvous: str, settings: Mapping[str, str]) -> None: ...

    def check(self) -> None: ...

    def all_to_all_v(self, arg0: int, arg1: Sequence[int], arg2: int, arg3: Sequence[int], arg4: int, /) -> None: ...

    def enqueue(self, arg0: Sequence[tuple[bool, int, int, int]], arg1: int, /) -> None: ...

    def register(self, arg0: int, arg1: int, /) -> int: ...

    def deregister(self, arg: int, /) -> None: ...

    def counters(self) -> tuple[int, int, int, int, list[int]]: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...
