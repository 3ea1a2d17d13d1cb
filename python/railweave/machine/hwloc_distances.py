"""Distances in hwloc's XML: latencies between NUMA nodes, and NVLink bandwidths between GPUs, NVSwitches and processors."""

from __future__ import annotations

from collections.abc import Mapping

from railweave.machine.xml_tree import Node, fail
from railweave.records import dataclass

# More objects than any host has; the matrix is their square.
_OBJECTS = 1024


@dataclass(frozen=True)
class Distances:
    """A square matrix over objects, each named `TYPE:INDEX` as the file does, or by its index where all are of one type."""

    name: str
    type: str
    """Empty where the objects are of several types."""
    objects: tuple[str, ...]
    values: tuple[int, ...]
    line: int

    def row(self, first: str) -> Mapping[str, int]:
        """From one object to all."""
        at = self.objects.index(first) * len(self.objects)
        return dict(zip(self.objects, self.values[at : at + len(self.objects)], strict=True))


def read_distances(topology: Node, source: str) -> list[Distances]:
    """All matrices of a file. Raises ParseError with the line."""
    nodes = [node for node in topology.walk() if node.tag in {"distances2", "distances2hetero"}]
    return [_matrix(node, source) for node in nodes]


def _matrix(node: Node, source: str) -> Distances:
    objects = _words(node, "indexes")
    if len(objects) > _OBJECTS or len(set(objects)) != len(objects):
        raise fail(source, node.line, f"{len(objects)} indexes of distances", f"at most {_OBJECTS}, each once")
    values = _words(node, "u64values")
    if len(values) != len(objects) ** 2 or not all(value.isdecimal() and len(value) < 20 for value in values):
        raise fail(source, node.line, f"{len(values)} values of distances", f"{len(objects) ** 2} numbers, for {len(objects)} objects")
    return Distances(node.get("name"), node.get("type"), tuple(objects), tuple(map(int, values)), node.line)


def _words(node: Node, tag: str) -> list[str]:
    return [word for child in node.children if child.tag == tag for word in child.text.split()]
