"""Which cores and which memory each rank uses: those of its GPU's NUMA node, dealt evenly among the ranks there.

Cores are dealt whole, so that two ranks never share one through SMT. Where a NUMA node has fewer cores than ranks, as a small sub-NUMA
node may, the ranks also get cores of those nodes of the same package where no rank is at home; several such nodes divide them by ranks.
"""

from __future__ import annotations

from railweave.advise.host import Core, Gpu, Host, Numa
from railweave.records import dataclass


@dataclass(frozen=True)
class Binding:
    """Of one rank: logical CPUs and NUMA nodes, each None where it is not known."""

    memory: tuple[int, ...] | None
    cpus: tuple[int, ...] | None


def bind(host: Host) -> list[Binding]:
    """By rank."""
    homes = _homes(host)
    numas = {numa.number: numa for numa in host.numas}
    cpus = {numa.number: frozenset([cpu for core in numa.cores or () for cpu in core.cpus]) for numa in host.numas}
    bindings = {}
    lent = _lent(homes, numas)
    for number, gpus in homes.items():
        own = numas[number].cores if number in numas else None
        pool = None if own is None else [*own, *lent.get(number, ())] or None
        for gpu, cores in zip(gpus, _deal(pool, len(gpus)), strict=True):
            bindings[gpu.rank] = _binding(number, cores, numas, cpus)
    return [bindings.get(gpu.rank, Binding(None, None)) for gpu in host.gpus]


def _binding(home: int, cores: list[Core] | None, numas: dict[int, Numa], cpus_of: dict[int, frozenset[int]]) -> Binding:
    if cores is None:
        return Binding((home,) if home not in numas or numas[home].numbered else None, None)
    cpus = {cpu for core in cores for cpu in core.cpus}
    owners = [numa for numa in numas.values() if not cpus_of[numa.number].isdisjoint(cpus)]
    memory = tuple(sorted(numa.number for numa in owners)) if all(numa.numbered for numa in owners) else None
    return Binding(memory, tuple(sorted(cpus)))


def _homes(host: Host) -> dict[int, list[Gpu]]:
    """GPUs by NUMA node, of those whose node is known."""
    homes: dict[int, list[Gpu]] = {}
    for gpu in host.gpus:
        if gpu.numa is not None:
            homes.setdefault(gpu.numa, []).append(gpu)
    return homes


def _lent(homes: dict[int, list[Gpu]], numas: dict[int, Numa]) -> dict[int, list[Core]]:
    """To NUMA nodes with fewer cores than ranks: the cores of nodes of their package without ranks."""
    short: dict[int, list[int]] = {}
    for number in sorted(homes):
        numa = numas.get(number)
        if numa is not None and numa.package is not None and numa.cores is not None and len(numa.cores) < len(homes[number]):
            short.setdefault(numa.package, []).append(number)
    lent: dict[int, list[Core]] = {}
    for package, numbers in short.items():
        free = [core for numa in _lenders(package, homes, numas) for core in numa.cores or ()]
        ranks = [number for number in numbers for _ in homes[number]]
        for number, cores in zip(ranks, _deal(free or None, len(ranks)), strict=True):
            lent.setdefault(number, []).extend(core for core in cores or () if core not in lent[number])
    return lent


def _lenders(package: int, homes: dict[int, list[Gpu]], numas: dict[int, Numa]) -> list[Numa]:
    others = (numa for numa in numas.values() if numa.package == package and numa.number not in homes)
    return sorted(others, key=lambda numa: numa.number)


def _deal(cores: list[Core] | None, ranks: int) -> list[list[Core] | None]:
    """Blocks that differ by one core at most; with fewer cores than ranks, ranks share."""
    if cores is None:
        return [None] * ranks
    if len(cores) < ranks:
        return [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    edges = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [cores[edges[rank] : edges[rank + 1]] for rank in range(ranks)]


def bare_nodes(host: Host) -> str:
    """The NUMA nodes with GPUs that are known to have no core for a rank, in words; empty where there is none."""
    homes = _homes(host)
    lent = _lent(homes, {numa.number: numa for numa in host.numas})
    bare = [str(numa.number) for numa in host.numas if numa.number in homes and numa.cores == () and not lent.get(numa.number)]
    has = "has" if len(bare) == 1 else "have"
    return f"NUMA node{'s' * (len(bare) > 1)} {', '.join(bare)} {has} no CPU that is online and not isolated" if bare else ""


def notes(host: Host) -> list[str]:
    """What a reader should know about the cores."""
    found = []
    homes = _homes(host)
    lent = [core for cores in _lent(homes, {numa.number: numa for numa in host.numas}).values() for core in cores]
    # Memory of its own kind (CXL, the HBM of GPUs on Grace) is a node without cores.
    left = [numa for numa in host.numas if numa.number not in homes and numa.cores != ()]
    idle = [numa.number for numa in left if numa.numbered and not any(core in lent for core in numa.cores or ())]
    # A GPU of unknown place may hang from any of them.
    if idle and len(host.numas) > 1 and all(gpu.numa is not None for gpu in host.gpus):
        names = ", ".join(str(number) for number in idle)
        found.append(
            f"no GPU hangs from NUMA node {names}: its cores are left to other work, because from there the way to a GPU is longer"
        )
    packages: dict[int, list[int]] = {}
    for numa in host.numas:
        if numa.package is not None:
            packages.setdefault(numa.package, []).append(numa.number)
    if any(len(numbers) > 1 for numbers in packages.values()):
        found.append(
            "sub-NUMA clustering (SNC or NPS) is on: a rank gets the cores of its GPU's own part of the socket. Test both settings: "
            "off was better on XE9680 (Lee, Shin, Koo), NPS4 on an R7525 (nccl-tests issue 293)"
        )
    if any(numa.cores and not numa.threads_known for numa in host.numas):
        found.append(
            "which logical CPUs share a core is not in the file: halves of a node's list that are alike are taken as first and second "
            "threads, as Linux numbers them"
        )
    if any(gpu.numa is None for gpu in host.gpus):
        found.append("the NUMA node of some GPUs is not known, as in a VM that hides it: those ranks are not bound")
    return found
