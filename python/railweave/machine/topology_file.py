"""The topology file that NCCL is given in a guest (NCCL_TOPO_FILE), whose hypervisor hides the tree: what stands above what."""

from __future__ import annotations

import re
from collections.abc import Mapping

from railweave.errors import ParseError
from railweave.machine.facts import Fact, Machine, PciLink, PlaceInFile, Unknown, known
from railweave.machine.pci import canonical_bus_id, link_speed
from railweave.machine.reading import attempt
from railweave.machine.source import Reason, Source, Unreadable
from railweave.machine.xml_tree import Node, parse_xml

_WHAT = "an NCCL topology file"


def read_topology(source: Source, machine: Machine) -> Fact[Mapping[str, PlaceInFile]]:
    """The places of the file that the job names, else of the one that this machine has for all jobs."""
    environ = known(machine.process.environ) if machine.process is not None else None
    named = (environ or {}).get("NCCL_TOPO_FILE")
    if named is not None and machine.process is not None:
        return _read(source, f"/proc/{machine.process.pid}/root{named}" if named.startswith("/") else named)
    path = machine.host.topology_file
    if isinstance(path, Unknown):
        return path
    if path.value is None:
        return Unknown(Reason.absent, path.evidence, "no topology file")
    return _read(source, path.value)


def _read(source: Source, path: str) -> Fact[Mapping[str, PlaceInFile]]:
    def read() -> Mapping[str, PlaceInFile]:
        try:
            return parse_places(source.read_text(path), path)
        except ParseError as error:
            raise Unreadable(path, Reason.error, str(error)[:200]) from error

    return attempt(path, read)


def parse_places(text: str, source: str) -> Mapping[str, PlaceInFile]:
    """By PCI address. Raises ParseError."""
    places: dict[str, PlaceInFile] = {}
    todo: list[tuple[Node, tuple[str, ...], int | None]] = [(parse_xml(text, source, "system", _WHAT), (), None)]
    while todo:
        node, above, numa = todo.pop()
        if node.tag == "cpu" and re.fullmatch(r"\d{1,6}", node.get("numaid")):
            numa = int(node.get("numaid"))
        if node.tag == "pci":
            try:
                bus_id = canonical_bus_id(node.get("busid"))
            except ValueError:
                continue
            places.setdefault(bus_id, PlaceInFile(above, numa, _link(node)))
            above = (bus_id, *above)
        todo += [(child, above, numa) for child in node.children]
    return places


def _link(node: Node) -> PciLink | None:
    """None where the file leaves it to the reader."""
    try:
        link = PciLink(link_speed(node.get("link_speed")), int(node.get("link_width")))
    except ValueError:
        return None
    return link if 1 <= link.width <= 32 else None
