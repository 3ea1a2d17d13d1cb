"""Finds contradictions in a topology file: within itself, and with the machine that it is meant to describe (`disagreement`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

from railweave import fabric as fabrics
from railweave.errors import ParseError
from railweave.machine import disagreement
from railweave.machine.facts import Known, Machine, known
from railweave.machine.load import parse_machine, read_text_file
from railweave.machine.nccl_contents import WHAT, Contents, read_contents
from railweave.machine.reading import cpu_mask, ranges
from railweave.machine.xml_tree import parse_xml
from railweave.records import dataclass
from railweave.size import counted


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
        differing = disagreement.descriptions(described, machine) if _has_gpus(machine) else ()
        return [*_lint_machine(described), *(Problem(described.origin, 0, text) for text in differing)]
    is_xml = text.lstrip("\ufeff \t\r\n").startswith("<")
    try:
        fabrics.loads(text, str(path))
    except ParseError as error:  # a contradiction that leaves no fabric, such as two GPUs of one address, hides no other one
        found = lint_nccl(text, str(path), machine) if is_xml else []
        if not found:
            raise
        line, _, what = str(error).removeprefix(f"{path}:").partition(":")
        told = any(str(problem.line) == line for problem in found)
        return found if told or not line.isdecimal() else sorted([*found, Problem(str(path), int(line), what)], key=lambda one: one.line)
    return lint_nccl(text, str(path), machine) if is_xml else []


def lint_nccl(text: str, source: str, machine: Machine | None) -> list[Problem]:
    """Problems of an NCCL topology file; of its disagreements with a machine too, if one with GPUs is given."""
    contents = read_contents(parse_xml(text, source, "system", WHAT))
    found = [Problem(source, line, text) for line, text in (*_masks(contents), *_names(contents), *_nvlinks(contents), *_links(contents))]
    if _has_gpus(machine):
        found += [Problem(source, line, text) for line, text in disagreement.files(contents, machine)]
    return sorted(found, key=lambda problem: problem.line)


def _has_gpus(machine: Machine | None) -> TypeGuard[Machine]:
    """Whether there is a machine to compare with; on one without GPUs a file is judged by itself."""
    return machine is not None and isinstance(machine.gpus, Known) and bool(machine.gpus.value)


# ---- the file ----

_Found = Iterator[tuple[int, str]]


def _masks(contents: Contents) -> _Found:
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


def _names(contents: Contents) -> _Found:
    """What must be there once is there once."""
    yield from _twice([(cpu.get("numaid"), cpu.line) for cpu in contents.cpus], "NUMA node")
    yield from _twice([(bus_id, node.line) for bus_id, node in contents.pci], "busid")
    yield from _twice([(device.gpu.get("dev"), device.gpu.line) for device in contents.gpus if device.gpu is not None], "GPU dev")
    yield from _twice([(net.get("dev"), net.line) for net, _ in contents.nets], "net dev")
    yield from _twice(
        [(f"{net.get('name')} port {net.get('port') or '0'}", net.line) for net, _ in contents.nets if net.get("name")], "net"
    )


def _twice(items: Sequence[tuple[str, int]], what: str) -> _Found:
    first: dict[str, int] = {}
    for value, line in items:
        if value and value in first:
            yield line, f"{what} {value} a second time; first in line {first[value]}"
        first.setdefault(value, line)


def _others_have(count: int) -> str:
    return f"{counted(count, 'other')} {'has' if count == 1 else 'have'}"


def _nvlinks(contents: Contents) -> _Found:
    """Links have two ends and GPUs of a kind have equally many."""
    by_address = {device.bus_id: device for device in contents.gpus}
    linked = [device for device in contents.gpus if device.nvlinks]
    for device in contents.gpus if linked else ():
        if not device.nvlinks:
            yield device.node.line, f"GPU {device.bus_id} has no NVLink, {_others_have(len(linked))}"
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


def _links(contents: Contents) -> _Found:
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
            yield Problem(source, 0, f"GPU{index} has no NVLink, {_others_have(len(linked))}")
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
