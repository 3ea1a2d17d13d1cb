"""The topology of a machine of which only the ways between devices are known (`nvidia-smi topo -m`).

The text has no rates: PCIe links are left open, for which readers take NCCL's 8 GT/s x16, and NVLinks are taken as the oldest of which
a GPU has so many. Addresses are made up, so NCCL itself cannot use it; `fabric` takes them out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from railweave.errors import FabricError
from railweave.machine.facts import Gpu, Known, Machine, known
from railweave.machine.nccl_document import (
    ANY_NVSWITCH,
    BRIDGE_CLASS,
    ETHERNET_CLASS,
    GPU_CLASS,
    NVSWITCH_CLASS,
    Cpu,
    Net,
    NvLinks,
    Pci,
    render,
)
from railweave.machine.nccl_topology import Export

MADE_UP_DOMAIN = "ffff"
# The most NVLinks of a GPU by compute capability: P100, V100, A100, H100.
_MOST_NVLINKS = ((60, 4), (70, 6), (80, 12), (90, 18))
_SWITCH, _HOST, _NODE = {"PIX"}, {"PIX", "PXB"}, {"PIX", "PXB", "PHB", "NODE"}


def export_ways(machine: Machine) -> Export:
    """The topology file. Raises FabricError where the ways are not known either."""
    gpus = known(machine.gpus) or ()
    if not gpus or any(known(gpu.peers) is None for gpu in gpus):
        raise FabricError(f"{machine.origin} has neither addresses of its GPUs nor the ways between them")
    return _Writer(machine, gpus).export()


def _groups(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """First member of the connected part that each name is in."""
    first = {name: name for name in names}
    for a, b in pairs:
        one, other = sorted((first[a], first[b]), key=names.index)
        first = {name: one if group == other else group for name, group in first.items()}
    return first


class _Writer:
    def __init__(self, machine: Machine, gpus: tuple[Gpu, ...]) -> None:
        self._machine = machine
        self._gpus = gpus
        nics = [nic.name for nic in known(machine.nics) or ()]
        self._names = [f"gpu{gpu.index}" for gpu in gpus] + nics
        self._ways = {(f"gpu{gpu.index}", f"gpu{other}"): way for gpu in gpus for other, way in (known(gpu.peers) or {}).items()}
        self._ways |= {(f"gpu{gpu.index}", nic): way for gpu in gpus for nic, way in (known(gpu.nic_paths) or {}).items() if nic in nics}
        self._address = {name: f"{MADE_UP_DOMAIN}:{number >> 5:02x}:{number & 31:02x}.0" for number, name in enumerate(self._names)}
        self._made_up = 0

    def _near(self, ways: set[str]) -> dict[str, str]:
        return _groups(self._names, (pair for pair, way in self._ways.items() if way in ways))

    def export(self) -> Export:
        self._node_of = node_of = self._numa_nodes()
        switch_of, host_of = self._near(_SWITCH), self._near(_HOST)
        cpus: dict[int, Cpu] = {}
        bridges: dict[tuple[str, str], Pci] = {}
        for name in self._names:
            below = cpus.setdefault(node_of[name], Cpu(node_of[name])).children
            for level, group in (("host", host_of), ("switch", switch_of)):
                members = {switch_of[other] if level == "host" else other for other in self._names if group[other] == group[name]}
                if len(members) < 2:
                    continue  # alone: it hangs from what is above
                if (level, group[name]) not in bridges:
                    bridges[level, group[name]] = self._bridge()
                    below.append(bridges[level, group[name]])
                below = bridges[level, group[name]].children
            below.append(self._device(name))
        self._describe(cpus)
        notes = (
            "rates are not in the text: PCIe links are taken as 8 GT/s x16, as NCCL does, NIC ports as 10 Gbit/s",
            f"NVLinks are taken as those of compute capability {self._capability()}, the oldest that has so many",
        )
        return Export(render([cpus[node] for node in sorted(cpus)], self._machine.origin), notes if self._nvlinked() else notes[:1])

    def _bridge(self) -> Pci:
        self._made_up += 1
        return Pci(f"{MADE_UP_DOMAIN}:{0x80 + (self._made_up >> 5):02x}:{self._made_up & 31:02x}.0", BRIDGE_CLASS)

    def _numa_nodes(self) -> dict[str, int]:
        """From the GPUs' rows where they have one; the rest goes with what it is near to."""
        near = self._near(_NODE)
        stated: dict[str, int] = {}
        for gpu in self._gpus:
            number = known(gpu.numa)
            if number is not None:
                stated.setdefault(near[f"gpu{gpu.index}"], number)
        for node in known(self._machine.numa) or ():
            cores = set(known(node.cpus) or ())
            for gpu in self._gpus:
                own = known(gpu.affinity)
                if own and set(own) <= cores:
                    stated.setdefault(near[f"gpu{gpu.index}"], node.id)
        free = (number for number in range(len(self._names) + len(stated)) if number not in stated.values())
        return {
            name: stated.setdefault(group, -1) if group in stated else stated.setdefault(group, next(free)) for name, group in near.items()
        }

    def _device(self, name: str) -> Pci:
        number = self._names.index(name)
        if number >= len(self._gpus):
            return Pci(self._address[name], ETHERNET_CLASS, nets=[Net(name, number - len(self._gpus), 1, None, False)])
        gpu = self._gpus[number]
        element = Pci(self._address[name], GPU_CLASS, gpu={"dev": gpu.index, "sm": self._capability(), "rank": gpu.index, "gdr": 0})
        element.nvlinks = self._nvlinks(gpu)
        return element

    # ---- NVLink ----

    def _counts(self, gpu: Gpu) -> dict[int, int]:
        return {other: int(way[2:]) for other, way in (known(gpu.peers) or {}).items() if way.startswith("NV")}

    def _nvlinked(self) -> bool:
        return any(self._counts(gpu) for gpu in self._gpus)

    def _is_switched(self, gpu: Gpu) -> bool:
        """More links to all others together than any GPU has: each pair's are the same ones, through an NVSwitch."""
        return sum(self._counts(gpu).values()) > _MOST_NVLINKS[-1][1]

    def _capability(self) -> int:
        used = [
            max(counts.values()) if self._is_switched(gpu) else sum(counts.values()) for gpu in self._gpus if (counts := self._counts(gpu))
        ]
        return next((sm for sm, most in _MOST_NVLINKS if max(used, default=0) <= most), _MOST_NVLINKS[-1][0])

    def _nvlinks(self, gpu: Gpu) -> list[NvLinks]:
        counts = self._counts(gpu)
        if self._is_switched(gpu):
            return [NvLinks(ANY_NVSWITCH, max(counts.values()), NVSWITCH_CLASS)]
        return [NvLinks(self._address[f"gpu{other}"], count, GPU_CLASS) for other, count in counts.items()]

    def _describe(self, cpus: dict[int, Cpu]) -> None:
        """Cores of NUMA nodes; where the text names no node, those of the GPUs in it."""
        for node in known(self._machine.numa) or ():
            if node.id in cpus and isinstance(node.cpus, Known):
                cpus[node.id].cpus = node.cpus.value
        cores: dict[int, set[int]] = {}
        for gpu in self._gpus:
            cores.setdefault(self._node_of[f"gpu{gpu.index}"], set()).update(known(gpu.affinity) or ())
        for number, of_gpus in cores.items():
            if not cpus[number].cpus and of_gpus:
                cpus[number].cpus = sorted(of_gpus)
