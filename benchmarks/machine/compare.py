"""Compares what live.sh collected, field by field; exits 1 where railweave and another tool differ."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import replay
from table import Row, link_text, report

from railweave import fabric as fabrics
from railweave.fabric import Fabric
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Machine, known
from railweave.machine.hwloc import parse_hwloc
from railweave.machine.paths import gpu_way, nic_way
from railweave.machine.recording import RecordedSource
from railweave.machine.source import LiveSource, Unreadable
from railweave.machine.topo_matrix import parse_topo_matrix


def by_nvidia_smi(machine: Machine, out: Path) -> list[Row]:
    """Ways of `topo -m`, and the fields of --query-gpu."""

    def of_driver(ours: str, way: str) -> str:
        """Of a flat tree the driver shows a way as a fact, railweave says that it is unknown: no difference in what was read."""
        return way if machine.hidden_tree is not None and ours == "?" else ours

    rows = []
    matrix = parse_topo_matrix((out / "topo-m.txt").read_text(), "topo-m.txt")
    ours = {gpu.index: gpu for gpu in known(machine.gpus) or ()}
    nics = {nic.name: nic for nic in known(machine.nics) or ()}
    for gpu in known(matrix.gpus) or ():
        mine = ours[gpu.index]
        for other, way in (known(gpu.peers) or {}).items():
            rows.append((f"gpu{gpu.index} to gpu{other}", "nvidia-smi topo -m", of_driver(gpu_way(machine, mine, ours[other]), way), way))
        for nic, way in (known(gpu.nic_paths) or {}).items():
            rows.append((f"gpu{gpu.index} to {nic}", "nvidia-smi topo -m", of_driver(nic_way(machine, mine, nics[nic]), way), way))
        rows.append((f"gpu{gpu.index} cores", "nvidia-smi topo -m", str(known(mine.affinity)), str(known(gpu.affinity))))
    for line in (out / "gpus.csv").read_text().splitlines():
        index, bus_id, name, capability, generation, width, clock = [word.strip() for word in line.split(",")]
        gpu = ours[int(index)]
        link = known(gpu.link_max)
        rows += [
            (f"gpu{index} address", "nvidia-smi", str(known(gpu.bus_id)), bus_id.lower()[-12:]),
            (f"gpu{index} name", "nvidia-smi", str(known(gpu.name)), name),
            (f"gpu{index} capability", "nvidia-smi", str(known(gpu.sm)), capability.replace(".", "")),
            (f"gpu{index} PCIe at most", "nvidia-smi", str(link), link_text(generation, width)),
            (f"gpu{index} SM clock at most", "nvidia-smi", str(known(gpu.sm_clock_max_MHz)), clock),
        ]
    return rows


def edges(fabric: Fabric) -> dict[tuple[str, str, str], int]:
    """Capacities between devices that have addresses, PCIe and NVLink."""
    names = [f"{vertex.kind.name} {vertex.bus_id or vertex.index}" for vertex in fabric.vertices]
    kinds = {"pcie", "nvlink", "socket", "c2c"}
    return {(names[edge.src], names[edge.dst], edge.kind.name): edge.capacity_Bps for edge in fabric.edges if edge.kind.name in kinds}


def by_nccl(machine: Machine, out: Path) -> list[Row]:
    """The fabric of the machine against that of NCCL's own dump, and attribute by attribute what NCCL kept of the exported file."""
    rows = []
    mine, _ = fabric_of(machine)
    ours, theirs = edges(mine), edges(fabrics.load(out / "nccl-own.xml"))
    for key in sorted({key for key in set(ours) | set(theirs) if not {"nic"} & {name.split(" ")[0] for name in key[:2]}}):
        rows.append((" - ".join(key), "NCCL's own dump", str(ours.get(key)), str(theirs.get(key))))
    written, read = (elements(out / name) for name in ("exported.xml", "nccl-read.xml"))
    for key, attributes in written.items():
        rows += [(f"{key} {name}", "NCCL reading ours", value, read.get(key, {}).get(name, "absent")) for name, value in attributes.items()]
    own, with_ours = (graph(out / name) for name in ("nccl-own.log", "nccl-read.log"))
    rows += [
        (f"log: {line}", "NCCL's paths, its own against ours", str(line in with_ours), str(line in own)) for line in sorted(own | with_ours)
    ]
    return rows


def elements(path: Path) -> dict[str, dict[str, str]]:
    """Attributes by what identifies an element; NCCL writes them in another order than it read them."""
    found: dict[str, dict[str, str]] = {}
    todo = [(ElementTree.parse(path).getroot(), "")]
    names = {"cpu": "numaid", "pci": "busid", "gpu": "dev", "net": "name", "nvlink": "target"}
    while todo:
        element, above = todo.pop()
        key = f"{above} {element.tag} {element.get(names.get(element.tag, ''), '')}".strip()
        found[key] = {name: value for name, value in element.attrib.items() if element.tag != "system"}
        todo += [(child, key if element.tag == "gpu" else "") for child in element]
    return found


def graph(log: Path) -> set[str]:
    """What the GRAPH subsystem says of paths between GPUs and of channels."""
    return set(re.findall(r"NCCL INFO (GPU/\S+ :.*?|Pattern \d.*?)\s*$", log.read_text(), re.MULTILINE))


def by_hwloc(machine: Machine) -> list[Row]:
    """The PCI tree and the cores as hwloc sees them."""
    try:
        other = parse_hwloc(LiveSource().library("hwloc"), "hwloc")
    except Unreadable as error:
        print(f"hwloc: {error}")
        return []
    rows = [(f"numa{node.id} cores", "hwloc", str(known(node.cpus)), "") for node in known(machine.numa) or ()]
    theirs = {node.id: str(known(node.cpus)) for node in known(other.numa) or ()}
    rows = [(field, tool, ours, theirs.get(int(field.split(" ")[0][4:]), "")) for field, tool, ours, _ in rows]
    for device in known(other.pci) or ():
        mine = machine.pci_device(device.bus_id)
        rows.append((f"{device.bus_id} parent", "hwloc", str(mine.parent if mine else None), str(device.parent)))
    return rows


def main() -> int:
    """Prints the table; the exit status."""
    out = Path(sys.argv[1])
    machine = discover(LiveSource())
    replayed = (out / "replayed.json").read_text().replace("a recording", "this machine")
    rows = [("fabric", "its own recording", "same" if replayed == (out / "live.json").read_text() else "other", "same")]
    rows += by_nvidia_smi(machine, out) + by_hwloc(machine) + by_nccl(machine, out)
    return report(rows + replay.rows(machine, discover(RecordedSource(out / "machine.tar.zst"))))


if __name__ == "__main__":
    sys.exit(main())
