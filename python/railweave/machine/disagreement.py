"""A topology file against the machine that it is meant to describe, field by field. What either side does not say is not compared."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from railweave.errors import FabricError
from railweave.machine import nccl_topology
from railweave.machine.fabric_nics import is_virtual
from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, known
from railweave.machine.nccl_contents import WHAT, Contents, Device, read_contents
from railweave.machine.paths import gpu_way, nic_way, pci_way
from railweave.machine.reading import cpu_mask, ranges
from railweave.machine.xml_tree import Node, parse_xml

_Found = Iterator[tuple[int, str]]
_BRIDGE = "0x0604"
_SHOWN = 3
"""Ways of one device that are named; a device in another's place differs in all."""


# ---- NCCL's own format ----


def files(contents: Contents, machine: Machine) -> _Found:
    """Lines and what is wrong there, against the file that would be written for the machine."""
    try:
        live = read_contents(parse_xml(nccl_topology.export(machine).text, machine.origin, "system", WHAT))
    except FabricError:
        return
    where = machine.origin
    yield from _devices(contents.gpus, live.gpus, "GPU", where)
    rdma = {known(nic.bus_id) for nic in nccl_topology.fabric_ports(machine) if known(nic.rdma)}
    # NCCL adds sockets by itself; cards that a file leaves out it cannot place.
    nics = [device for device in live.nics if contents.nics or device.bus_id in rdma]
    yield from _devices(contents.nics, nics, "NIC", where)
    yield from _bridges(contents, live, where)
    yield from _nets(contents, live, machine)
    yield from _cores(contents, live, where)
    if machine.hidden_tree is None or isinstance(machine.topology, Known):
        yield from _places(contents, live, where)


def not_compared(machine: Machine) -> str:
    """What cannot be compared with this machine; empty where all can."""
    hidden = machine.hidden_tree if isinstance(machine.gpus, Known) and machine.gpus.value else None
    return f"places on the PCI bus are not compared: {hidden.detail}" if hidden is not None and not known(machine.topology) else ""


def _devices(file: Sequence[Device], live: Sequence[Device], what: str, where: str) -> _Found:
    there = {device.bus_id: device for device in live}
    here = {device.bus_id for device in file}
    for bus_id in sorted(set(there) - here):
        yield 0, f"{what} {bus_id} of {where} is not in the file"
    for device in file:
        other = there.get(device.bus_id)
        if other is None:
            yield device.node.line, f"{what} {device.bus_id} is not on {where}"
            continue
        if "-1" not in {device.numa, other.numa} and device.numa != other.numa:
            yield device.node.line, f"{what} {device.bus_id} is on NUMA node {device.numa} in the file, {other.numa} on {where}"
        names = ("vendor", "device", "link_speed", "link_width")
        yield from _fields(device.node, other.node, names, f"{what} {device.bus_id}", where)
        if device.gpu is not None and other.gpu is not None:
            yield from _fields(device.gpu, other.gpu, ("dev", "sm"), f"{what} {device.bus_id}", where)
        if device.nvlinks and other.nvlinks and sum(device.nvlinks.values()) != sum(other.nvlinks.values()):
            yield (
                device.node.line,
                f"{sum(device.nvlinks.values())} NVLinks of GPU {device.bus_id} in the file, {sum(other.nvlinks.values())} on {where}",
            )


def _bridges(contents: Contents, live: Contents, where: str) -> _Found:
    """The links above PCIe switches, which all devices below share; one that only one side has may be a matter of how it is told."""
    there = {bus_id: node for bus_id, node in live.pci if node.get("class").startswith(_BRIDGE)}
    for bus_id, node in contents.pci:
        if bus_id in there and node.get("class").startswith(_BRIDGE):
            yield from _fields(node, there[bus_id], ("link_speed", "link_width"), f"bridge {bus_id}", where)


def _fields(file: Node, live: Node, names: Sequence[str], whose: str, where: str) -> _Found:
    for name in names:
        stated, real = file.get(name), live.get(name)
        if stated and real and (name != "link_width" or stated != "0") and _plain(stated) != _plain(real):
            yield file.line, f"{name} of {whose} is {stated!r} in the file, {real!r} on {where}"


def _plain(text: str) -> str:
    """`32.0 GT/s PCIe` and `32 GT/s` are one speed, `0x0a` and `0xa` one number."""
    head = text.split(" ")[0].removesuffix(".0").lower()
    return "0x" + (head[2:].lstrip("0") or "0") if head.startswith("0x") else head


def _nets(contents: Contents, live: Contents, machine: Machine) -> _Found:
    where = machine.origin
    there = {_net(node): (node, card) for node, card in live.nets}
    here = {_net(node) for node, _ in contents.nets}
    # NCCL's own files have them beside their physical functions.
    virtual = {nic.name for nic in known(machine.nics) or () if is_virtual(machine, nic)}
    names = ["speed"]
    if isinstance(nccl_topology.gpudirect_rdma(machine), Known):
        names.append("gdr")
    if where != "a recording":  # which has stand-ins
        names.append("guid")
    for node, card in contents.nets:
        found = there.get(_net(node))
        if found is None:
            if node.get("name") and node.get("name") not in virtual and there:
                yield node.line, f"net {_told(_net(node))} is none of {where}, which has {', '.join(sorted(_told(one) for one in there))}"
            continue
        other, place = found
        if card and card != place:
            yield node.line, f"net {_told(_net(node))} is on {card} in the file, on {place or 'no card'} on {where}"
        yield from _fields(node, other, names, f"net {_told(_net(node))}", where)
    for net, (_, card) in there.items():
        if contents.nets and net not in here:
            yield 0, f"net {_told(net)} of {where} (on {card or 'no card'}) is not in the file"


def _net(node: Node) -> tuple[str, str]:
    """Name and port; the first port is 1, for sockets 0, or not stated."""
    return node.get("name"), "" if node.get("port") in ("0", "1") else node.get("port")


def _told(net: tuple[str, str]) -> str:
    name, port = net
    return f"{name} port {port}" if port else name


def _cores(contents: Contents, live: Contents, where: str) -> _Found:
    masks = {cpu.get("numaid"): cpu for cpu in live.cpus}
    for cpu in contents.cpus:
        other = masks.get(cpu.get("numaid"))
        if other is None or not cpu.get("affinity") or not other.get("affinity"):
            continue
        try:
            here, there = cpu_mask(cpu.get("affinity")), cpu_mask(other.get("affinity"))
        except ValueError:
            continue
        if here != there:
            yield cpu.line, f"NUMA node {cpu.get('numaid')} has cores {ranges(here)} in the file, {ranges(there)} on {where}"


def _places(contents: Contents, live: Contents, where: str) -> _Found:
    """Devices that keep their address and stand elsewhere, as when two were exchanged: by the ways between them."""
    there = {device.bus_id: device for device in (*live.gpus, *live.nics)}
    gpus = [gpu for gpu in contents.gpus if gpu.bus_id in there]
    nics = [nic for nic in contents.nics if nic.bus_id in there]
    pairs = [*itertools.combinations(gpus, 2), *itertools.product(nics, gpus)]
    differing = []
    for one, other in pairs:
        here, real = _way(one, other), _way(there[one.bus_id], there[other.bus_id])
        if here and real and here != real:
            differing.append((one, other, here, real))
    # A device in the wrong place differs to most others, each of which differs to few: it is the one to name.
    counts = Counter(device.bus_id for one, other, _, _ in differing for device in (one, other))
    of: dict[str, list[str]] = {}
    for one, other, here, real in differing:
        named, rest = (one, other) if counts[one.bus_id] >= counts[other.bus_id] else (other, one)
        what = "GPU" if rest in gpus else "NIC"
        of.setdefault(named.bus_id, []).append(f"{here} to {what} {rest.bus_id} ({real} on {where})")
    for device in (*gpus, *nics):
        texts = of.get(device.bus_id, [])
        if texts:
            more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            what = "GPU" if device in gpus else "NIC"
            yield device.node.line, f"{what} {device.bus_id} stands elsewhere in the file: {', '.join(texts[:_SHOWN])}{more}"


def _way(one: Device, other: Device) -> str:
    """As NCCL reads the file: a pci element around others is a switch, a cpu element a NUMA node."""
    common = next((bus_id for bus_id in one.above if bus_id in other.above), None)
    if common is not None:
        return "PIX" if common == one.above[0] == other.above[0] else "PXB"
    if "-1" in {one.numa, other.numa} and one.numa != other.numa:
        return ""
    return "PHB" if one.numa == other.numa else "SYS"


# ---- descriptions by other tools ----


def descriptions(file: Machine, machine: Machine) -> Iterator[str]:
    """What differs between another tool's description (`nvidia-smi topo -m`, hwloc, lspci) and the machine."""
    where = machine.origin
    gpus, nics = _matched_gpus(file, machine), _matched_nics(file, machine)
    yield from _unmatched("GPU", [_gpu_name(gpu) for gpu, other in gpus if other is None], f"is not on {where}")
    here = {id(other) for _, other in gpus}
    yield from _unmatched(
        "GPU", [_gpu_name(gpu) for gpu in known(machine.gpus) or () if id(gpu) not in here], f"of {where} is not in the file"
    )
    if isinstance(file.nics, Known) and isinstance(machine.nics, Known):
        yield from _unmatched("NIC", [nic.name for nic, other in nics if other is None], f"is not on {where}")
        here = {id(other) for _, other in nics}
        ports = [nic.name for nic in nccl_topology.fabric_ports(machine) if known(nic.rdma) and id(nic) not in here]
        yield from _unmatched("NIC", ports, f"of {where} is not in the file")
    pairs = [(gpu, other) for gpu, other in gpus if other is not None]
    for place, (gpu, other) in enumerate(pairs):
        ways = [(_gpu_name(peer), *_gpu_ways(file, gpu, peer, machine, other, there)) for peer, there in pairs[place + 1 :]]
        ways += [(nic.name, nic_way(file, gpu, nic), nic_way(machine, other, there)) for nic, there in nics if there is not None]
        differing = [
            f"{stated} to {name} ({real} on {where})" for name, stated, real in ways if "?" not in (stated, real) and stated != real
        ]
        if differing:
            more = f", and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
            yield f"{_gpu_name(gpu)}: {', '.join(differing[:_SHOWN])}{more}"
        yield from _affinities(file, gpu, machine, other)
    yield from _nodes(file, machine)


def _matched_gpus(file: Machine, machine: Machine) -> list[tuple[Gpu, Gpu | None]]:
    """By address; by number where the file has none."""
    there = known(machine.gpus) or ()
    by_address: Mapping[str | None, Gpu] = {known(gpu.bus_id): gpu for gpu in there}
    by_number = {gpu.index: gpu for gpu in there}
    return [
        (gpu, by_number.get(gpu.index) if known(gpu.bus_id) is None else by_address.get(known(gpu.bus_id)))
        for gpu in known(file.gpus) or ()
    ]


def _matched_nics(file: Machine, machine: Machine) -> list[tuple[Nic, Nic | None]]:
    there = known(machine.nics) or ()
    by_name = {nic.name: nic for nic in reversed(there)}
    by_address: Mapping[str | None, Nic] = {known(nic.bus_id): nic for nic in reversed(there)}
    return [
        (nic, by_name.get(nic.name) if known(nic.bus_id) is None else by_address.get(known(nic.bus_id))) for nic in known(file.nics) or ()
    ]


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU{gpu.index}"


def _unmatched(what: str, names: Sequence[str], text: str) -> Iterator[str]:
    for name in names:
        yield f"{what if not name.startswith(what) else ''} {name} {text}".strip()


def _gpu_ways(file: Machine, one: Gpu, other: Gpu, machine: Machine, here: Gpu, there: Gpu) -> tuple[str, str]:
    """The driver's words with NVLink where the file has them, else those of the PCI trees."""
    if isinstance(one.peers, Known) and one.peers.value:
        return gpu_way(file, one, other), gpu_way(machine, here, there)
    return _tree_way(file, one.bus_id, other.bus_id), _tree_way(machine, here.bus_id, there.bus_id)


def _tree_way(machine: Machine, a: Fact[str], b: Fact[str]) -> str:
    if not isinstance(a, Known) or not isinstance(b, Known):
        return "?"
    return known(pci_way(machine, a.value, b.value)) or "?"


def _affinities(file: Machine, gpu: Gpu, machine: Machine, other: Gpu) -> Iterator[str]:
    stated, real = known(gpu.affinity), known(other.affinity)
    device = machine.pci_device(known(other.bus_id) or "")
    if real is None and device is not None:
        real = known(device.local_cpus)
    if stated and real and set(stated) != set(real):
        yield f"{_gpu_name(gpu)} is near to cores {ranges(stated)} in the file, {ranges(real)} on {machine.origin}"
    here = file.pci_device(known(gpu.bus_id) or "")
    numa, there = (known(one.numa) if one is not None else None for one in (here, device))
    if numa is not None and there is not None and numa != there:
        yield f"{_gpu_name(gpu)} is on NUMA node {numa} in the file, {there} on {machine.origin}"


def _nodes(file: Machine, machine: Machine) -> Iterator[str]:
    there = {node.id: known(node.cpus) for node in known(machine.numa) or ()}
    for node in known(file.numa) or ():
        stated, real = known(node.cpus), there.get(node.id)
        if stated and real and set(stated) != set(real):
            yield f"NUMA node {node.id} has cores {ranges(stated)} in the file, {ranges(real)} on {machine.origin}"
