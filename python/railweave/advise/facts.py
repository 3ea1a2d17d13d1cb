"""Joins what a machine's facts know beside the graph: cores, device names, drivers, ways that the graph does not tell apart."""

from __future__ import annotations

from railweave.advise.host import Core, Distance, Gpu, Host, Nic, Numa, choose_network
from railweave.machine import facts
from railweave.machine.fabric_nics import fabric_nics, is_down, is_virtual
from railweave.machine.facts import Known, Machine, known
from railweave.machine.paths import nic_way
from railweave.machine.source import Reason
from railweave.records import replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence


def with_machine(host: Host, machine: Machine, named: Sequence[str] = ()) -> Host:
    """The same host with all that the facts know; what is unknown stays so. `named` are the NICs of the GPU network; without it they are
    inferred as `railweave doctor` does."""
    gpus = {gpu.vertex: _gpu_fact(host, gpu, machine) for gpu in host.gpus}
    ports = {nic.vertex: _port(host, nic, machine) for nic in host.nics}
    hidden = machine.hidden_tree
    joined = replace(
        host,
        gpus=tuple(_gpu(gpu, gpus[gpu.vertex], host, machine) for gpu in host.gpus),
        nics=tuple(nic if (port := ports[nic.vertex]) is None else replace(nic, device=_device(port)) for nic in host.nics),
        numas=_numas(host.numas, machine),
        gdrcopy=_loaded(machine.kernel.gdrcopy),
        virtual=known(machine.host.hypervisor),
        ways={
            (gpu, nic): Distance.__members__.get(nic_way(machine, of_gpu, of_nic))
            for gpu, of_gpu in gpus.items()
            for nic, of_nic in ports.items()
            if of_gpu is not None and of_nic is not None
        },
        ways_why="their places on the PCI bus are not known" if hidden is None else hidden.detail,
    )
    return _with_network(joined, ports, machine, named)


def _with_network(host: Host, ports: dict[int, facts.Nic | None], machine: Machine, named: Sequence[str]) -> Host:
    rates = any(known(nic.rdma) is not None and isinstance(nic.rate_bps, Known) for nic in known(machine.nics) or ())
    if not rates:  # netdevices, or a description that does not tell
        return choose_network(host, named)
    chosen, why = fabric_nics(machine, named)
    names = {(nic.name, nic.port) for nic in chosen}
    here = {vertex for vertex, port in ports.items() if port is not None and (port.name, port.port) in names}
    absent = [nic for nic in chosen if (nic.name, nic.port) not in {(port.name, port.port) for port in ports.values() if port}]
    virtual = [nic.name for nic in absent if is_virtual(machine, nic)]
    down = [nic.name for nic in absent if nic.name not in virtual]
    left_out = f"; {', '.join(down)} {'is' if len(down) == 1 else 'are'} down" if down else ""
    left_out += f"; {', '.join(virtual)}: virtual, their physical functions are the fabric's NICs" if virtual else ""
    nics = tuple(replace(nic, on_network=nic.vertex in here) for nic in host.nics)
    beside = [nic.name for nic in known(machine.nics) or () if known(nic.rdma) and is_virtual(machine, nic) and not is_down(nic)]
    in_fabric = {port.name for port in ports.values() if port is not None}
    return replace(
        host,
        nics=nics,
        virtual_nics=tuple(name for name in beside if name not in in_fabric),
        network_why=f"{', '.join(nic.name for nic in nics if nic.on_network) or 'none'}: {why}{left_out}",
    )


def _loaded(driver: facts.Fact[str]) -> bool | None:
    if isinstance(driver, Known):
        return True
    return False if driver.reason == Reason.absent else None


def _gpu_fact(host: Host, gpu: Gpu, machine: Machine) -> facts.Gpu | None:
    """By address; where the fabric has none, by the driver's number."""
    number = host.fabric.vertex(gpu.vertex).attributes.get("gpu.dev", "")
    for fact in known(machine.gpus) or ():
        if known(fact.bus_id) == gpu.bus_id if gpu.bus_id else str(fact.index) == number:
            return fact
    return None


def _gpu(gpu: Gpu, fact: facts.Gpu | None, host: Host, machine: Machine) -> Gpu:
    gpu = replace(gpu, numa=_numa(gpu, host, machine))
    if fact is None:
        return gpu
    return replace(gpu, model=gpu.model or known(fact.name) or "", sm=known(fact.sm) or gpu.sm, uuid=known(fact.uuid))


def _numa(gpu: Gpu, host: Host, machine: Machine) -> int | None:
    """The kernel's word; else that of a topology file, unless the file's number is none of the kernel's."""
    device = machine.pci_device(gpu.bus_id) if gpu.bus_id else None
    stated = None if device is None else known(device.numa)
    if stated is not None:
        return stated
    nodes = known(machine.numa)
    if nodes is None:
        return gpu.numa
    # The only node of a machine; `nvidia-smi topo -m`, which names nodes of GPUs alone, may leave a GPU's out.
    if len(nodes) == 1 and isinstance(machine.pci, Known):
        return nodes[0].id
    numbered = {numa.number for numa in host.numas if numa.numbered}
    return gpu.numa if gpu.numa in numbered & {node.id for node in nodes} else None


def _port(host: Host, nic: Nic, machine: Machine) -> facts.Nic | None:
    """By the name and port that the machine's fabric was made with."""
    attributes = host.fabric.vertex(nic.vertex).attributes
    for port in known(machine.nics) or ():
        if (port.name, str(port.port)) == (attributes.get("net.name"), attributes.get("net.port")):
            return port
    return None


def _device(port: facts.Nic) -> str | None:
    """UCX names an RDMA port `mlx5_0:1` and a netdevice by its name; None where it is not known which of both a NIC is."""
    if isinstance(port.rdma, facts.Unknown):
        return None
    return f"{port.rdma.value}:{port.port}" if port.rdma.value else port.name


def _numas(numas: tuple[Numa, ...], machine: Machine) -> tuple[Numa, ...]:
    cores = known(machine.cpus.cores)
    nodes = known(machine.numa)
    if cores is None or nodes is None:
        return numas
    found: list[Numa] = []
    isolated = known(machine.cpus.isolated) or ()
    for node in nodes:
        cpus = known(node.cpus)
        if cpus is None:
            found.append(Numa(node.id))
            continue
        here = frozenset(cpus)
        free = here.difference(isolated)
        own = [core for core in cores if not here.isdisjoint(core.cpus)]
        packages = {core.package for core in own}
        found.append(Numa(node.id, packages.pop() if len(packages) == 1 else None, _cores(own, free)))
    return tuple(found)


def _cores(cores: Sequence[facts.Core], free: frozenset[int]) -> tuple[Core, ...]:
    """With the logical CPUs that ranks may have."""
    left = (tuple(cpu for cpu in core.cpus if cpu in free) for core in cores)
    return tuple(Core(cpus) for cpus in left if cpus)
