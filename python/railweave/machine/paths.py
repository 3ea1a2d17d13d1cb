"""The way between two devices of a machine, in the words of `nvidia-smi topo -m`, from the PCI tree."""

from __future__ import annotations

from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, PlaceInFile, Unknown, known
from railweave.machine.source import Reason

# From near to far.
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
SWITCHED = WAYS[:2]
"""Those that pass PCIe switches alone."""
UNKNOWN_WAY = "?"
MEANING = {
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, not the host's",
    "PHB": "a PCIe host bridge",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}


def pci_way(machine: Machine, a: str, b: str) -> Fact[str]:
    """The way between two PCI functions. A switch is one bridge: its upstream and downstream ports are counted together. In a guest that
    sees a flat tree the way of its topology file; unknown where there is none."""
    first, second = machine.pci_device(a), machine.pci_device(b)
    for bus_id, device in ((a, first), (b, second)):
        if device is None:
            return machine.pci if isinstance(machine.pci, Unknown) else Unknown(Reason.absent, bus_id, "not on the PCI bus")
    assert first is not None
    assert second is not None
    unplaced = first.unplaced or second.unplaced
    if unplaced is not None:
        return _way_in_file(machine, a, b) or unplaced
    hidden = machine.hidden_tree
    if hidden is not None:
        return _way_in_file(machine, a, b) or hidden
    evidence = f"{a} and {b} in the PCI tree"
    if first.root == second.root:
        above_first = [device.bus_id for device in machine.ancestors(a)]
        above_second = [device.bus_id for device in machine.ancestors(b)]
        common = next((bus_id for bus_id in above_first if bus_id in above_second), None)
        same_card = a.rsplit(".", 1)[0] == b.rsplit(".", 1)[0]
        if common is None:
            return Known("PIX" if same_card else "PHB", evidence)
        # Bridges from each device up to the common one. In a switch that is its downstream port, then its upstream port; one bridge, the
        # root port itself or a conventional bridge, where the devices are functions of one card.
        steps = max(above_first.index(common), above_second.index(common))
        return Known("PIX" if steps <= 1 else "PXB", evidence)
    numa_first, numa_second = known(first.numa), known(second.numa)
    if numa_first is None or numa_second is None:
        nodes = known(machine.numa)
        if nodes is not None and len(nodes) == 1:
            return Known("NODE", evidence)
        unsure = first.numa if isinstance(first.numa, Unknown) else second.numa
        assert isinstance(unsure, Unknown)
        return unsure
    return Known("NODE" if numa_first == numa_second else "SYS", f"{evidence}; their numa_node")


def _way_in_file(machine: Machine, a: str, b: str) -> Fact[str] | None:
    """As NCCL reads the file: a pci element around others is a switch, a cpu element a NUMA node. None where it has not both."""
    first, second = place_of(machine, a), place_of(machine, b)
    if first is None or second is None or not isinstance(machine.topology, Known):
        return None
    evidence = f"{a} and {b} in {machine.topology.evidence}"
    common = next((bus_id for bus_id in first.above if bus_id in second.above), None)
    if common is None:
        return Known("PHB" if first.numa == second.numa else "SYS", evidence)
    return Known("PIX" if common == first.above[0] == second.above[0] else "PXB", evidence)


def place_of(machine: Machine, bus_id: str) -> PlaceInFile | None:
    """A function's place in the topology file of a guest; functions of one card have the place of function 0."""
    places = machine.topology.value if isinstance(machine.topology, Known) else {}
    return places.get(bus_id) or places.get(bus_id.rsplit(".", 1)[0] + ".0")


def gpu_way(machine: Machine, gpu: Gpu, other: Gpu) -> str:
    """From GPU to GPU: as the driver says, else from the PCI tree."""
    if gpu.index == other.index:
        return "X"
    stated = (known(gpu.peers) or {}).get(other.index)
    if stated is not None and machine.hidden_tree is not None and not stated.startswith("NV"):
        stated = None  # the driver reads the same tree
    return stated or device_way(machine, gpu.bus_id, other.bus_id)


def nic_way(machine: Machine, gpu: Gpu, nic: Nic) -> str:
    """From GPU to NIC, likewise."""
    stated = (known(gpu.nic_paths) or {}).get(nic.name)
    return stated or device_way(machine, gpu.bus_id, nic.bus_id)


def device_way(machine: Machine, a: Fact[str] | Fact[str | None], b: Fact[str] | Fact[str | None]) -> str:
    """As `pci_way`, `?` where it is not known."""
    first, second = (fact.value if isinstance(fact, Known) else None for fact in (a, b))
    if first is None or second is None:
        return UNKNOWN_WAY
    way = pci_way(machine, first, second)
    return way.value if isinstance(way, Known) else UNKNOWN_WAY
