"""Finds contradictions in a topology file: within itself, and with the machine that it is meant to describe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railweave import fabric as fabrics
from railweave.errors import FabricError
from railweave.machine import nccl_topology
from railweave.machine.facts import Machine, known
from railweave.machine.load import parse_machine, read_text_file
from railweave.machine.pci import canonical_bus_id
from railweave.machine.reading import cpu_mask, ranges
from railweave.machine.xml_tree import Node, parse_xml

_WHAT = "an NCCL topology file, as NCCL_TOPO_DUMP_FILE writes it"


@dataclass(frozen=True)
class Problem:
    """A contradiction, and the line that shows it; 0 where it belongs to the whole file."""

    source: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.text}" if self.line else f"{self.source}: {self.text}"


def lint_file(path: Path, machine: Machine | None) -> list[Problem]:
    """Problems of a file of any kind that describes a topology, in the file's order. Raises ParseError for what is no such file."""
    text = read_text_file(path)
    described = parse_machine(text, str(path))
    if described is not None:
        return list(_lint_machine(described))
    fabrics.loads(text, str(path))
    if not text.lstrip("\ufeff \t\r\n").startswith("<"):
        return []
    return lint_nccl(text, str(path), machine)


def lint_nccl(text: str, source: str, machine: Machine | None) -> list[Problem]:
    """Problems of an NCCL topology file; of its disagreements with a machine too, if one with GPUs is given."""
    contents = _read(parse_xml(text, source, "system", _WHAT))
    found = [Problem(source, line, text) for line, text in (*_masks(contents), *_names(contents), *_nvlinks(contents), *_links(contents))]
    gpus = known(machine.gpus) if machine is not None else None
    if machine is not None and gpus:
        found += [Problem(source, line, text) for line, text in _disagreements(contents, machine)]
    return sorted(found, key=lambda problem: problem.line)


# ---- the file ----


@dataclass
class _Device:
    """A GPU or NIC of the file, and where it stands."""

    node: Node
    bus_id: str
    numa: str
    switch: str
    """Address of the pci element around it; empty below a cpu."""
    gpu: Node | None = None
    nvlinks: dict[tuple[str, str], int] = field(default_factory=dict)
    """By target and class."""


@dataclass
class _Contents:
    cpus: list[Node] = field(default_factory=list)
    pci: list[tuple[str, Node]] = field(default_factory=list)
    gpus: list[_Device] = field(default_factory=list)
    nics: list[_Device] = field(default_factory=list)
    nets: list[tuple[Node, str, str]] = field(default_factory=list)
    """net element, address of its card, NUMA node."""


def _read(system: Node) -> _Contents:
    contents = _Contents()
    todo: list[tuple[Node, str, str]] = [(child, "", "") for child in reversed(system.children)]
    while todo:
        node, numa, switch = todo.pop()
        if node.tag == "cpu":
            contents.cpus.append(node)
            numa = node.get("numaid")
        elif node.tag == "pci":
            bus_id = _address(node.get("busid"))
            contents.pci.append((bus_id, node))
            gpu = next((child for child in node.children if child.tag == "gpu"), None)
            if gpu is not None or node.get("class").startswith("0x03"):
                contents.gpus.append(_Device(node, bus_id, numa, switch, gpu, _count_nvlinks(gpu)))
                continue
            if node.get("class").startswith("0x02") or any(child.tag == "nic" for child in node.children):
                contents.nics.append(_Device(node, bus_id, numa, switch))
            switch = bus_id
        elif node.tag == "net":
            contents.nets.append((node, switch, numa))
        todo.extend((child, numa, switch) for child in reversed(node.children))
    return contents


def _address(text: str) -> str:
    try:
        return canonical_bus_id(text)
    except ValueError:
        return text.lower()


def _count_nvlinks(gpu: Node | None) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for nvlink in (child for child in gpu.children if child.tag == "nvlink") if gpu is not None else ():
        kind = nvlink.get("tclass")
        key = ("" if kind.startswith("0x068000") else _address(nvlink.get("target")), kind[:4] if kind.startswith("0x03") else kind)
        count = nvlink.get("count")
        counts[key] = counts.get(key, 0) + (int(count) if count.isdecimal() and len(count) < 6 else 0)
    return counts


_Found = Iterator[tuple[int, str]]


def _masks(contents: _Contents) -> _Found:
    """Every core belongs to one NUMA node."""
    owner: dict[int, str] = {}
    stated = 0
    for cpu in contents.cpus:
        if not cpu.get("affinity"):
            continue
        stated += 1
        try:
            cores = cpu_mask(cpu.get("affinity"))
        except ValueError:
            yield cpu.line, f"affinity={cpu.get('affinity')[:60]!r} of NUMA node {cpu.get('numaid')} is no mask of words of 32 bits"
            continue
        if not cores:
            yield cpu.line, f"the mask of NUMA node {cpu.get('numaid')} has no core"
        twice: dict[str, list[int]] = {}
        for core in cores:
            if core in owner:
                twice.setdefault(owner[core], []).append(core)
            owner.setdefault(core, cpu.get("numaid"))
        for other, shared in twice.items():
            yield cpu.line, f"the masks of NUMA nodes {other} and {cpu.get('numaid')} overlap in cores {ranges(shared)}"
    if stated and stated == len(contents.cpus):
        missing = sorted(set(range(max(owner, default=-1) + 1)) - set(owner))
        if missing:
            yield contents.cpus[0].line, f"no mask has cores {ranges(missing)}, though cores up to {max(owner)} are in masks"
    elif stated:
        without = next(cpu for cpu in contents.cpus if not cpu.get("affinity"))
        yield without.line, f"NUMA node {without.get('numaid')} has no mask, others have"


def _names(contents: _Contents) -> _Found:
    """What must be there once is there once."""
    yield from _twice([(cpu.get("numaid"), cpu.line) for cpu in contents.cpus], "NUMA node")
    yield from _twice([(bus_id, node.line) for bus_id, node in contents.pci], "busid")
    yield from _twice([(device.gpu.get("dev"), device.gpu.line) for device in contents.gpus if device.gpu is not None], "GPU dev")
    yield from _twice([(net.get("dev"), net.line) for net, _, _ in contents.nets], "net dev")
    yield from _twice(
        [(f"{net.get('name')} port {net.get('port') or '0'}", net.line) for net, _, _ in contents.nets if net.get("name")], "net"
    )


def _twice(items: Sequence[tuple[str, int]], what: str) -> _Found:
    first: dict[str, int] = {}
    for value, line in items:
        if value and value in first:
            yield line, f"{what} {value} a second time; first in line {first[value]}"
        first.setdefault(value, line)


def _nvlinks(contents: _Contents) -> _Found:
    """Links have two ends and GPUs of a kind have equally many."""
    by_address = {device.bus_id: device for device in contents.gpus}
    linked = [device for device in contents.gpus if device.nvlinks]
    for device in contents.gpus if linked else ():
        if not device.nvlinks:
            yield device.node.line, f"GPU {device.bus_id} has no NVLink, {len(linked)} others have"
    for device in linked:
        for (target, kind), count in device.nvlinks.items():
            if kind != "0x03":
                continue
            other = by_address.get(target)
            back = other.nvlinks.get((device.bus_id, kind), 0) if other is not None else 0
            if other is None:
                yield device.node.line, f"{count} NVLinks from {device.bus_id} to {target}, which is no GPU of this file"
            elif other is device:
                yield device.node.line, f"{count} NVLinks from {device.bus_id} to itself"
            elif back != count and (back == 0 or device.bus_id < target):
                yield device.node.line, f"{count} NVLinks from {device.bus_id} to {target}, but {back} back"
    to_switch = {device.bus_id: sum(n for (_, kind), n in device.nvlinks.items() if kind == "0x068000") for device in linked}
    most = max(to_switch.values(), default=0)
    for bus_id, count in to_switch.items():
        if count != most:
            yield by_address[bus_id].node.line, f"{count} NVLinks from {bus_id} to the NVSwitch, other GPUs have {most}"


def _links(contents: _Contents) -> _Found:
    """PCIe links are of a speed and a width that exist."""
    for bus_id, node in contents.pci:
        for name in ("link_speed", "link_width"):
            if name not in node.attributes:
                yield node.line, f"no {name} of {bus_id}; NCCL ends with an internal error unless its sysfs shows the device"
        speed, width = node.get("link_speed"), node.get("link_width")
        if speed and speed.split(" ")[0] not in {"2.5", "5", "5.0", "8", "8.0", "16", "16.0", "32", "32.0", "64", "64.0"}:
            yield node.line, f"link_speed={speed[:40]!r} of {bus_id} is no speed of PCIe; NCCL takes 8 GT/s"
        if width and width not in {"0", "1", "2", "4", "8", "12", "16", "32"}:
            yield node.line, f"link_width={width[:40]!r} of {bus_id} is no width of PCIe"


# ---- the machine ----


def _disagreements(contents: _Contents, machine: Machine) -> _Found:
    """Field by field against the file that would be written for the machine."""
    try:
        live = _read(parse_xml(nccl_topology.export(machine).text, machine.origin, "system", _WHAT))
    except FabricError:
        return
    yield from _devices_disagree(contents.gpus, live.gpus, "GPU", machine.origin)
    if contents.nics:
        yield from _devices_disagree(contents.nics, live.nics, "NIC", machine.origin)
    names = {net.get("name") for net, _, _ in live.nets}
    for net, _, _ in contents.nets:
        if net.get("name") and names and net.get("name") not in names:
            yield net.line, f"net {net.get('name')} is none of {machine.origin}, which has {', '.join(sorted(names))}"
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
            yield cpu.line, f"NUMA node {cpu.get('numaid')} has cores {ranges(here)} in the file, {ranges(there)} on {machine.origin}"


def _devices_disagree(file: Sequence[_Device], live: Sequence[_Device], what: str, origin: str) -> _Found:
    there = {device.bus_id: device for device in live}
    here = {device.bus_id for device in file}
    for bus_id in sorted(set(there) - here):
        yield 0, f"{what} {bus_id} of {origin} is not in the file"
    for device in file:
        other = there.get(device.bus_id)
        if other is None:
            yield device.node.line, f"{what} {device.bus_id} is not on {origin}"
            continue
        if "-1" not in {device.numa, other.numa} and device.numa != other.numa:
            yield device.node.line, f"{what} {device.bus_id} is on NUMA node {device.numa} in the file, {other.numa} on {origin}"
        for name in ("link_speed", "link_width"):
            stated, real = device.node.get(name), other.node.get(name)
            if stated and real and stated != "0" and _number(stated) != _number(real):
                yield device.node.line, f"{name} of {what} {device.bus_id} is {stated!r} in the file, {real!r} on {origin}"
        if device.nvlinks and other.nvlinks and sum(device.nvlinks.values()) != sum(other.nvlinks.values()):
            yield (
                device.node.line,
                f"{sum(device.nvlinks.values())} NVLinks of GPU {device.bus_id} in the file, {sum(other.nvlinks.values())} on {origin}",
            )


def _number(text: str) -> str:
    head = text.split(" ")[0]
    return head.removesuffix(".0")


# ---- descriptions by other tools ----


def _lint_machine(machine: Machine) -> Iterator[Problem]:
    source = machine.origin
    gpus = known(machine.gpus) or ()
    ways = {gpu.index: known(gpu.peers) or {} for gpu in gpus}
    for first, row in ways.items():
        for second, way in row.items():
            back = ways.get(second, {}).get(first)
            if first < second and back is not None and back != way:
                yield Problem(source, 0, f"GPU{first} to GPU{second} is {way}, but {back} back")
    linked = [index for index, row in ways.items() if any(way.startswith("NV") for way in row.values())]
    for index in ways if linked else ():
        if index not in linked:
            yield Problem(source, 0, f"GPU{index} has no NVLink, {len(linked)} others have")
    owner: dict[int, int] = {}
    for node in known(machine.numa) or ():
        shared = [cpu for cpu in known(node.cpus) or () if cpu in owner]
        if shared:
            yield Problem(source, 0, f"NUMA nodes {owner[shared[0]]} and {node.id} overlap in cores {ranges(shared)}")
        owner.update(dict.fromkeys(known(node.cpus) or (), node.id))
    addresses: set[str] = set()
    for device in known(machine.pci) or ():
        if device.bus_id in addresses:
            yield Problem(source, 0, f"PCI address {device.bus_id} twice")
        addresses.add(device.bus_id)
