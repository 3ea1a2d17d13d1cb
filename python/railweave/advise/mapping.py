"""Which NICs each rank uses: the assignment whose predicted bound is least, found exactly.

The load is that of a balanced exchange between nodes: each rank sends and receives the same bytes over its NICs. The bound is the time of
the busiest resource (load over capacity: PCIe links, links between sockets, host memory, NIC ports), in seconds for each byte of a rank.
A branch and bound over all assignments finds the least; NICs that the wiring makes alike are tried once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import lcm

from railweave.advise.errors import AdviceError
from railweave.advise.host import Distance, Gpu, Host, Nic
from railweave.fabric import EdgeKind, VertexKind
from railweave.records import dataclass

# More steps than this and the search says that it is not exact. Templates need under 100; 10^5 take some ten seconds.
SEARCH_LIMIT = 100_000


class Workload(str, enum.Enum):
    """What a job waits for."""

    bandwidth = "bandwidth"  # large messages: first the bound, then even use of the NICs, then short ways
    latency = "latency"  # small messages: first short ways


@dataclass(frozen=True)
class Mapping:
    """NICs by rank, with how good that is and how it was found."""

    nics: tuple[tuple[Nic, ...], ...]
    seconds_per_byte: float
    """Of a rank; its inverse is the rate that each rank gets when all send and receive at once."""
    bottleneck: str
    nearest_seconds_per_byte: float
    """The same bound if each rank took the nearest NIC, the first one of equals."""
    candidates: int
    """All assignments there are."""
    steps: int
    """Partial assignments that were looked at; the rest was excluded because its bound or a symmetry told the answer."""
    exact: bool

    def ranks_of(self, nic: Nic) -> list[int]:
        """Ranks that use a NIC."""
        return [rank for rank, nics in enumerate(self.nics) if nic in nics]


def map_nics(host: Host, workload: Workload = Workload.bandwidth) -> Mapping | None:
    """The best assignment; None where the node has no NIC on the GPU network. Raises AdviceError when PCIe joins a GPU to none of them."""
    nics = host.network_nics
    if not nics:
        return None
    for gpu in host.gpus:
        if not any((gpu.vertex, nic.vertex) in host.paths for nic in nics):
            raise AdviceError(f"{gpu.name} of '{host.fabric.name}' reaches no NIC over PCIe; the fabric lacks a link")
    search = _Search(host, workload)
    search.run()
    chosen = search.best_choice
    nearest = [
        (min(search.reachable(gpu), key=lambda nic: (_far(host.paths[gpu.vertex, nic.vertex].distance), nic.vertex)),) for gpu in host.gpus
    ]
    z, resource = search.bound(chosen)
    return Mapping(
        nics=tuple(chosen),
        seconds_per_byte=z,
        bottleneck=host.fabric.describe(resource),
        nearest_seconds_per_byte=search.bound(nearest)[0],
        candidates=search.candidates,
        steps=search.steps,
        exact=search.steps < SEARCH_LIMIT,
    )


def _far(distance: Distance | None) -> int:
    """Ways that are not known count as equal: what is left is to divide the NICs evenly."""
    return 0 if distance is None else int(distance)


Choice = tuple[Nic, ...]
Key = tuple[float, ...]


class _Search:
    def __init__(self, host: Host, workload: Workload) -> None:
        self.host = host
        self.workload = workload
        self.symmetry = _Symmetry(host)
        self.capacity = [resource.capacity_Bps for resource in host.fabric.resources]
        # Several NICs a rank only where there are more NICs than ranks; else ranks share.
        self.width = max(1, len(host.network_nics) // len(host.gpus))
        self.nic_capacity = {nic.vertex: nic.capacity_Bps for nic in host.network_nics}
        self.options = [self._options(gpu) for gpu in host.gpus]
        # Bytes are counted in this part of a rank's, so that loads are integers and equal ones compare equal.
        self.unit = lcm(*(len(options[0]) for options in self.options))
        self.least_cost = [0] * (len(host.gpus) + 1)  # of the ranks from here on
        for rank in reversed(range(len(host.gpus))):
            self.least_cost[rank] = self.least_cost[rank + 1] + min(self.cost(host.gpus[rank], choice) for choice in self.options[rank])
        self.even = self._even()
        self.loads = [[self._loads(gpu, choice) for choice in options] for gpu, options in zip(host.gpus, self.options, strict=True)]
        self.unavoidable = [self._unavoidable(loads) for loads in self.loads]
        self.best_key: Key | None = None
        self.best_choice: list[Choice] = []
        self.steps = 0
        self.candidates = 1
        for options in self.options:
            self.candidates *= len(options)

    def reachable(self, gpu: Gpu) -> list[Nic]:
        return [nic for nic in self.host.network_nics if (gpu.vertex, nic.vertex) in self.host.paths]

    def _options(self, gpu: Gpu) -> list[Choice]:
        """Nearest first, so that good assignments are met early."""
        nics = self.reachable(gpu)
        return sorted(combinations(nics, min(self.width, len(nics))), key=lambda choice: self.cost(gpu, choice))

    def cost(self, gpu: Gpu, choice: Choice) -> int:
        """Distance before latency: latencies of templates are partly assumed, distances are not. Below 2^44 ns, checked by the reader."""
        paths = [self.host.paths[gpu.vertex, nic.vertex] for nic in choice]
        return sum((_far(path.distance) << 44) + path.latency_ns for path in paths)

    def _loads(self, gpu: Gpu, choice: Choice) -> dict[int, int]:
        """Units by resource."""
        loads: dict[int, int] = {}
        for nic in choice:
            for resource in self.host.paths[gpu.vertex, nic.vertex].resources:
                loads[resource] = loads.get(resource, 0) + self.unit // len(choice)
        return loads

    def _unavoidable(self, all_loads: list[dict[int, int]]) -> dict[int, int]:
        """What a rank loads whichever NICs it takes: its own link, its switch's uplink, memory."""
        shared = set.intersection(*(set(loads) for loads in all_loads))
        return {resource: min(loads[resource] for loads in all_loads) for resource in shared}

    def bound(self, choices: Sequence[Choice]) -> tuple[float, int]:
        """Seconds for each byte of a rank, and the resource that takes them."""
        load: dict[int, int] = {}
        for gpu, choice in zip(self.host.gpus, choices, strict=True):
            for resource, units in self._loads(gpu, choice).items():
                load[resource] = load.get(resource, 0) + units
        busiest = max(load, key=lambda resource: (load[resource] / self.capacity[resource], -resource))
        return load[busiest] / self.capacity[busiest] / self.unit, busiest

    def key(self, bound: float, busiest_nic: float, cost: int) -> Key:
        """What is minimised, most important first."""
        return (bound, busiest_nic, cost) if self.workload == Workload.bandwidth else (cost, bound, busiest_nic)

    def run(self) -> None:
        """Fills in the best choice."""
        load: dict[int, int] = {}
        for unavoidable in self.unavoidable:
            for resource, units in unavoidable.items():
                load[resource] = load.get(resource, 0) + units
        bound = max((units / self.capacity[resource] for resource, units in load.items()), default=0.0)
        self._descend([], load, max(bound, self.even), {}, 0)

    def _even(self) -> float:
        """The busiest NIC's time if all were used evenly: no assignment does better."""
        nics = self.host.network_nics
        total = self.unit * len(self.host.gpus)
        if self.width == 1 and len({nic.capacity_Bps for nic in nics}) == 1:
            return self.unit * -(-len(self.host.gpus) // len(nics)) / nics[0].capacity_Bps
        return total / sum(nic.capacity_Bps for nic in nics)

    def _descend(self, chosen: list[Choice], load: dict[int, int], bound: float, users: dict[int, int], cost: int) -> None:
        """`load` has what is chosen, and what the other ranks cannot avoid; `bound` is its time, `users` the units by NIC vertex."""
        rank = len(chosen)
        if rank == len(self.host.gpus):
            self.best_key = self.key(bound, max(units / self.nic_capacity[nic] for nic, units in users.items()), cost)
            self.best_choice = list(chosen)
            return
        gpu = self.host.gpus[rank]
        tried: set[tuple[str, ...]] = set()
        orbit = self.symmetry.orbits(chosen)
        for choice, loads in zip(self.options[rank], self.loads[rank], strict=True):
            alike = tuple(sorted(orbit[nic.vertex] for nic in choice))
            if len(choice) == 1 and alike in tried:
                continue
            tried.add(alike)
            if self.steps >= SEARCH_LIMIT and self.best_key is not None:
                return
            self.steps += 1
            new_load, new_bound = dict(load), bound
            for resource, units in loads.items():
                new_load[resource] = new_load.get(resource, 0) + units - self.unavoidable[rank].get(resource, 0)
                new_bound = max(new_bound, new_load[resource] / self.capacity[resource])
            new_users = dict(users)
            for nic in choice:
                new_users[nic.vertex] = new_users.get(nic.vertex, 0) + self.unit // len(choice)
            new_cost = cost + self.cost(gpu, choice)
            busiest_nic = max(self.even, *(units / self.nic_capacity[nic] for nic, units in new_users.items()))
            least = self.key(new_bound, busiest_nic, new_cost + self.least_cost[rank + 1])
            if self.best_key is not None and least >= self.best_key:
                continue
            self._descend([*chosen, choice], new_load, new_bound, new_users, new_cost)


class _Symmetry:
    """Which NICs are alike for the ranks still to be placed: one can be carried to the other by an exchange of equal parts of the PCIe tree
    that leaves every rank that has its NIC, the NICs in use, and the rank in turn where they are."""

    def __init__(self, host: Host) -> None:
        self.host = host
        fabric = host.fabric
        self.parents: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.children: dict[int, list[int]] = {}
        self.members = [i for i, vertex in enumerate(fabric.vertices) if vertex.node == host.node and vertex.kind != VertexKind.nvswitch]
        sockets = set()
        for v in self.members:
            for e in fabric.out_edges(v):
                edge = fabric.edge(e)
                if edge.kind == EdgeKind.socket:
                    sockets.add((edge.capacity_Bps, edge.latency_ns))
                if edge.kind in (EdgeKind.pcie, EdgeKind.c2c) and self._height(v) < self._height(edge.dst):
                    back = fabric.find_edge(edge.dst, v)
                    down = 0 if back is None else fabric.edge(back).capacity_Bps
                    self.parents.setdefault(v, []).append((edge.dst, (edge.capacity_Bps, edge.latency_ns, down)))
                    self.children.setdefault(edge.dst, []).append(v)
        # Only plain trees with equal links between all sockets are known to be symmetric in the way that is used here.
        self.tree = len(sockets) <= 1 and all(len(above) == 1 for above in self.parents.values()) and self._switches_hang()
        self.gpus = {gpu.vertex: gpu for gpu in host.gpus}
        self.nics = {nic.vertex: nic for nic in host.network_nics}
        self.own = {v: self._own(v) for v in self.members} if self.tree else {}
        # Facts that the fabric does not have break its symmetry: PCIe roots, of which it knows the NUMA node alone.
        self.told = {ends: way for ends, way in host.ways.items() if way == Distance.NODE}

    def _height(self, vertex: int) -> int:
        return {VertexKind.numa: 2, VertexKind.pcie_switch: 1}.get(self.host.fabric.vertex(vertex).kind, 0)

    def _switches_hang(self) -> bool:
        """Nested switches have no direction in `_height`; they are left to the plain search."""
        switches = [v for v in self.members if self.host.fabric.vertex(v).kind == VertexKind.pcie_switch]
        return all(v in self.parents for v in switches)

    def orbits(self, chosen: list[Choice]) -> dict[int, str]:
        """By NIC vertex: equal values are alike."""
        if not self.tree:
            return {nic: str(nic) for nic in self.nics}
        fixed = {nic.vertex for choice in chosen for nic in choice} | {gpu.vertex for gpu in self.host.gpus[: len(chosen) + 1]}
        shapes: dict[int, str] = {}
        for v in self.members:
            if v not in self.parents:
                self._shape(v, fixed, shapes)
        waiting = [gpu.vertex for gpu in self.host.gpus[len(chosen) :]]
        return {nic: "/".join([*self._lineage(nic, shapes), *(str(self.told.get((gpu, nic))) for gpu in waiting)]) for nic in self.nics}

    def _shape(self, vertex: int, fixed: set[int], shapes: dict[int, str]) -> str:
        below = sorted(self._shape(child, fixed, shapes) for child in self.children.get(vertex, []))
        shapes[vertex] = f"({self.own[vertex]}{vertex if vertex in fixed else ''}{below})"
        return shapes[vertex]

    def _own(self, vertex: int) -> str:
        """What parts of one shape have alike, but for those below."""
        info = self.host.fabric.vertex(vertex)
        own: list[object] = [info.kind.value, info.egress_Bps, info.ingress_Bps, info.through_Bps]
        own.append([link for _, link in self.parents.get(vertex, [])])
        if vertex in self.gpus:
            own.append(info.gdr)
        if vertex in self.nics:
            own.append(self.nics[vertex].capacity_Bps)
        return repr(own)

    def _lineage(self, vertex: int, shapes: dict[int, str]) -> Iterator[str]:
        yield shapes[vertex]
        for parent, _ in self.parents.get(vertex, []):
            yield from self._lineage(parent, shapes)


def distances(host: Host, mapping: Mapping) -> list[Distance | None]:
    """By rank: how far its farthest NIC is; None where that is not known."""
    found = []
    for gpu, nics in zip(host.gpus, mapping.nics, strict=True):
        ways = [host.paths[gpu.vertex, nic.vertex].distance for nic in nics]
        known = [way for way in ways if way is not None]
        found.append(max(known) if len(known) == len(ways) else None)
    return found
