"""Joins what a machine's facts know beside the graph: cores, device names, drivers."""

from __future__ import annotations

from dataclasses import replace

from railweave.advise.host import Core, Gpu, Host, Nic, Numa
from railweave.machine import facts
from railweave.machine.facts import Known, Machine, known
from railweave.machine.source import Reason


def with_machine(host: Host, machine: Machine) -> Host:
    """The same host with all that the facts know. GPUs and NICs are found by their PCI address; what is unknown stays so."""
    return replace(
        host,
        gpus=tuple(_gpu(gpu, machine) for gpu in host.gpus),
        nics=_nics(host.nics, machine),
        numas=_numas(host.numas, machine),
        gdrcopy=_loaded(machine.kernel.gdrcopy),
        virtual=known(machine.host.hypervisor),
    )


def _loaded(driver: facts.Fact[str]) -> bool | None:
    if isinstance(driver, Known):
        return True
    return False if driver.reason == Reason.absent else None


def _gpu(gpu: Gpu, machine: Machine) -> Gpu:
    fact = next((g for g in known(machine.gpus) or () if gpu.bus_id and known(g.bus_id) == gpu.bus_id), None)
    device = machine.pci_device(gpu.bus_id) if gpu.bus_id else None
    numa = None if device is None else known(device.numa)
    if fact is None:
        return replace(gpu, numa=gpu.numa if numa is None else numa)
    return replace(
        gpu,
        numa=gpu.numa if numa is None else numa,
        model=gpu.model or known(fact.name) or "",
        sm=known(fact.sm) or gpu.sm,
        uuid=known(fact.uuid),
    )


def _nics(nics: tuple[Nic, ...], machine: Machine) -> tuple[Nic, ...]:
    """Ports of one card share its address; both the fabric and the facts list them in order."""
    ports: dict[str, list[facts.Nic]] = {}
    for port in known(machine.nics) or ():
        bus_id = known(port.bus_id)
        if bus_id is not None:
            ports.setdefault(bus_id, []).append(port)
    found: list[Nic] = []
    for nic in nics:
        same_card = ports.get(nic.bus_id, [])
        found.append(replace(nic, device=_device(same_card.pop(0))) if same_card else nic)
    return tuple(found)


def _device(port: facts.Nic) -> str:
    """UCX names an RDMA port `mlx5_0:1` and a netdevice by its name."""
    rdma = known(port.rdma)
    return f"{rdma}:{port.port}" if rdma else port.name


def _numas(numas: tuple[Numa, ...], machine: Machine) -> tuple[Numa, ...]:
    cores = known(machine.cpus.cores)
    nodes = known(machine.numa)
    if cores is None or nodes is None:
        return numas
    found: list[Numa] = []
    for node in nodes:
        cpus = known(node.cpus)
        if cpus is None:
            found.append(Numa(node.id))
            continue
        own = [core for core in cores if set(core.cpus) & set(cpus)]
        packages = {core.package for core in own}
        found.append(Numa(node.id, packages.pop() if len(packages) == 1 else None, tuple(Core(core.cpus) for core in own)))
    return tuple(found)
