"""What placing ranks needs of a machine, and no more: of a large one a tenth of the files that a whole discovery reads."""

from __future__ import annotations

from railweave.machine import facts, pci
from railweave.machine.facts import Gpu, Known, Machine, known
from railweave.machine.network import read_ports
from railweave.machine.processors import read_cores, read_nodes
from railweave.machine.reading import folder
from railweave.machine.source import Source
from railweave.machine.system import read_guest, read_peer_access
from railweave.records import replace

DRIVER = "/proc/driver/nvidia/gpus"


def read_wiring(source: Source) -> Machine:
    """The driver's GPUs, the ports, how the PCI bus joins them, cores, and what decides on GPUDirect RDMA. No facts that NVML alone has."""
    gpus = sorted(name for name in folder(source, DRIVER))
    nics = read_ports(source)
    ends = {*gpus, *(bus_id for nic in known(nics) or () if (bus_id := known(nic.bus_id)))}
    machine = Machine(
        origin="this machine",
        pci=pci.read_wiring(source, sorted(ends)),
        gpus=Known(tuple(Gpu(index, Known(bus_id, DRIVER)) for index, bus_id in enumerate(gpus)), DRIVER) if gpus else facts.NOT_ASKED,
        nics=nics,
        numa=read_nodes(source),
        cpus=read_cores(source),
        kernel=read_peer_access(source),
        host=read_guest(source),
    )
    if machine.hidden_tree is None:
        return machine
    from railweave.machine.topology_file import read_topology

    return replace(machine, topology=read_topology(source, machine))
