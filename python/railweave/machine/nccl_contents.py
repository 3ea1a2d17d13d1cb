"""What stands in an NCCL topology file, before any reader makes sense of it: devices with their places, for those who judge the file."""

from __future__ import annotations

from railweave.machine.pci import canonical_bus_id
from railweave.machine.xml_tree import Node
from railweave.records import dataclass, field

WHAT = "an NCCL topology file, as NCCL_TOPO_DUMP_FILE writes it"


@dataclass
class Device:
    """A GPU or NIC of the file, and where it stands."""

    node: Node
    bus_id: str
    numa: str
    above: tuple[str, ...]
    """Addresses of the pci elements around it, nearest first."""
    gpu: Node | None = None
    nvlinks: dict[tuple[str, str], int] = field(default_factory=dict)
    """By target and class."""


@dataclass
class Contents:
    """What a file has, in its order."""

    cpus: list[Node] = field(default_factory=list)
    pci: list[tuple[str, Node]] = field(default_factory=list)
    gpus: list[Device] = field(default_factory=list)
    nics: list[Device] = field(default_factory=list)
    nets: list[tuple[Node, str]] = field(default_factory=list)
    """net element, and the address of its card; empty where it is on none."""


def read_contents(system: Node) -> Contents:
    """From the root element."""
    contents = Contents()
    todo: list[tuple[Node, str, tuple[str, ...]]] = [(child, "", ()) for child in reversed(system.children)]
    while todo:
        node, numa, above = todo.pop()
        if node.tag == "cpu":
            contents.cpus.append(node)
            numa = node.get("numaid")
        elif node.tag == "pci":
            bus_id = _address(node.get("busid"))
            contents.pci.append((bus_id, node))
            gpu = next((child for child in node.children if child.tag == "gpu"), None)
            if gpu is not None or node.get("class").startswith("0x03"):
                contents.gpus.append(Device(node, bus_id, numa, above, gpu, _count_nvlinks(gpu)))
                continue
            if node.get("class").startswith("0x02") or any(child.tag == "nic" for child in node.children):
                contents.nics.append(Device(node, bus_id, numa, above))
            above = (bus_id, *above)
        elif node.tag == "net":
            contents.nets.append((node, above[0] if above else ""))
        todo.extend((child, numa, above) for child in reversed(node.children))
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
