"""Which NICs each rank uses: the assignment whose predicted bound is least. The core finds it (railweave/planner/nic_mapping.hpp)."""

from __future__ import annotations

from math import comb, prod

from railweave import _native
from railweave.advise.errors import AdviceError
from railweave.advise.host import Distance, Host, Nic
from railweave.records import StrEnum, dataclass

# More steps than this and the search says that it is not exact. Templates need under 100; 10^5 take
# 0.1 s (made-up nodes of 16 GPUs and 12 NICs, 2-core machine).
SEARCH_LIMIT = 100_000


class Workload(StrEnum):
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
    ways = []
    for gpu in host.gpus:
        paths = [host.paths.get((gpu.vertex, nic.vertex)) for nic in nics]
        if not any(paths):
            raise AdviceError(f"{gpu.name} of '{host.fabric.name}' reaches no NIC over PCIe; the fabric lacks a link")
        ways.append([None if path is None else (path.distance, path.latency_ns, path.resources) for path in paths])
    chosen, seconds, bottleneck, nearest_seconds, steps = _native.map_nics(
        host.fabric,
        host.node,
        [(gpu.vertex, bool(gpu.gdr)) for gpu in host.gpus],
        [(nic.vertex, nic.capacity_Bps) for nic in nics],
        ways,
        workload == Workload.latency,
        SEARCH_LIMIT,
    )
    return Mapping(
        nics=tuple(tuple(nics[place] for place in of_rank) for of_rank in chosen),
        seconds_per_byte=seconds,
        bottleneck=host.fabric.describe(bottleneck),
        nearest_seconds_per_byte=nearest_seconds,
        candidates=prod(comb(len(row) - row.count(None), len(of_rank)) for row, of_rank in zip(ways, chosen, strict=True)),
        steps=steps,
        exact=steps < SEARCH_LIMIT,
    )


def distances(host: Host, mapping: Mapping) -> list[Distance | None]:
    """By rank: how far its farthest NIC is; None where that is not known."""
    found = []
    for gpu, nics in zip(host.gpus, mapping.nics, strict=True):
        ways = [host.paths[gpu.vertex, nic.vertex].distance for nic in nics]
        known = [way for way in ways if way is not None]
        found.append(max(known) if len(known) == len(ways) else None)
    return found
