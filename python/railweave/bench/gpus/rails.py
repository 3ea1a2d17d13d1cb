"""GPUs on a lab's shaped rails: which rank has which GPU, and a topology file that puts each GPU's own rails next to it for NCCL."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from railweave.bench.alltoallv import lower_bound
from railweave.bench.errors import BenchError
from railweave.bench.gpus.compare import Bound, measure_bound
from railweave.bench.gpus.session import Place, Processes, System, folder_for_run, start
from railweave.lab import Lab, LabSpec
from railweave.lab.environment import node_name
from railweave.lab.fabric import of_lab
from railweave.matrix import Matrix

# NCCL calls two GPUs one switch apart when their paths meet below the CPU. Bus numbers of a domain that no machine has.
_SWITCH = {
    "class": "0x060400",
    "vendor": "0x1000",
    "device": "0xc010",
    "subsystem_vendor": "0x1000",
    "subsystem_device": "0xa064",
    "link_speed": "32.0 GT/s PCIe",
    "link_width": "16",
}
_NIC = {**_SWITCH, "class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "subsystem_vendor": "0x15b3", "subsystem_device": "0x0041"}


def visible_gpus(spec: LabSpec, available: Sequence[str]) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each node. Ranks of different nodes share a GPU, by time slices or under MPS, when there are fewer GPUs than
    ranks; ranks of a node, too, when a node has more ranks than that."""
    if spec.gpus > len(available):
        return [",".join(available)] * spec.nodes
    return [",".join(available[(node * spec.gpus + gpu) % len(available)] for gpu in range(spec.gpus)) for node in range(spec.nodes)]


def aligned(dump: str, rails: Sequence[str]) -> str:
    """The topology that NCCL wrote for a node, with each GPU under a PCIe switch of its own beside its share of the rails."""
    root = ET.fromstring(dump)
    parents = {child: parent for parent in root.iter() for child in parent}
    gpus = [pci for pci in root.iter("pci") if (gpu := pci.find("gpu")) is not None and gpu.get("rank") is not None]
    nets = {net.get("name"): net for net in root.iter("net")}
    if not gpus or not set(rails) <= set(nets):
        raise BenchError(
            f"NCCL's topology of a node has {len(gpus)} GPUs and the networks {', '.join(map(str, nets))}; expected {', '.join(rails)}"
        )
    if len(rails) % len(gpus):
        raise BenchError(f"{len(rails)} rails for {len(gpus)} GPUs of a node; expected as many for each GPU")
    for nic in list(root.iter("nic")):
        parents[nic].remove(nic)
    each = len(rails) // len(gpus)
    for number, pci in enumerate(sorted(gpus, key=lambda pci: int(pci.find("gpu").get("dev", "0")))):  # type: ignore[union-attr]
        cpu = parents[pci]
        while cpu.tag != "cpu":
            cpu = parents[cpu]
        parents[pci].remove(pci)
        switch = ET.SubElement(cpu, "pci", {"busid": f"fff0:{number:02x}:00.0", **_SWITCH})
        switch.append(pci)
        for place, rail in enumerate(rails[number * each : (number + 1) * each]):
            nic = ET.SubElement(ET.SubElement(switch, "pci", {"busid": f"fff0:{number:02x}:{place + 1:02x}.0", **_NIC}), "nic")
            nic.append(nets[rail])
    return ET.tostring(root, encoding="unicode")


def near_and_far(matrix: Matrix, spec: LabSpec, gpus: int) -> tuple[Matrix, Matrix]:
    """What stays inside nodes, by GPUs of this machine, and what goes over the rails, by ranks."""
    ranks = np.arange(spec.world)
    inside = ranks[:, None] // spec.gpus == ranks[None, :] // spec.gpus
    near = np.zeros((gpus, gpus), dtype=np.uint64)
    # Between two ranks that share a GPU nothing crosses a link.
    linked = inside & ((ranks[:, None] % gpus != ranks[None, :] % gpus) | (ranks[:, None] == ranks[None, :]))
    np.add.at(near, (ranks[:, None] % gpus, ranks[None, :] % gpus), np.where(linked, matrix, np.uint64(0)))
    return near, np.where(inside, np.uint64(0), matrix)


@dataclasses.dataclass(frozen=True)
class RailsRun:
    """Where ranks run, and what no routing there can beat."""

    place: Place
    bound: Bound


@contextlib.contextmanager
def on_rails(spec: LabSpec, gpus: int, bare: System, probe: Processes | None, step: Callable[[str], None]) -> Iterator[RailsRun]:
    """A lab with GPUs. `bare` is NCCL alone, which writes what it sees of a node before the topology is made from it.

    NCCL refuses two ranks of a host on one GPU: where ranks of a node share one, each rank is a host of its own to it, with its own rails
    near, and what stays inside a node goes over its rails there.

    The bound is the slower one of the planner's, for what goes over the shaped rails, and of the probe's, for what stays inside nodes;
    without a probe only the former.
    """
    available = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")[:gpus]
    visible = visible_gpus(spec, available)
    fabric = of_lab(spec)

    def bound(matrix: Matrix) -> float:
        near, far = near_and_far(matrix, spec, len(available))
        return max(lower_bound(fabric, far) if far.any() else 0.0, measure_bound(probe, near) if probe and near.any() else 0.0)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_for_run())
        step("building the lab")
        lab = stack.enter_context(Lab.up(spec))

        # Ranks of what NCCL takes for a host.
        together = 1 if spec.gpus > len(available) else spec.gpus
        hosts = range(spec.world // together)

        def place(variables: Callable[[int], dict[str, str]]) -> Place:
            environments = []
            for rank in range(spec.world):
                node, host = spec.node_of(rank), rank // together
                environments.append({"CUDA_VISIBLE_DEVICES": visible[node], **variables(host)})
                if together == 1:
                    environments[-1]["NCCL_HOSTID"] = f"{node_name(node)}-{rank}"
            return Place(spec.world, lab, tuple(environments))

        # All ranks of a host have to ask for the file, or they wait for one another; the first one of the host writes it.
        dumps = [folder / f"seen-{host}.xml" for host in hosts]
        step("asking NCCL for the topology")
        asked = place(lambda host: {"NCCL_TOPO_DUMP_FILE": str(dumps[host]), "NCCL_TOPO_DUMP_FILE_RANK": str(host * together)})
        with start(dataclasses.replace(bare, name="topology"), asked, folder) as ranks:
            ranks.ready()
        files = [folder / f"topology-{host}.xml" for host in hosts]
        for host, dump, file in zip(hosts, dumps, files, strict=True):
            if not dump.exists():
                raise BenchError("NCCL wrote no topology (NCCL_TOPO_DUMP_FILE); NCCL_DEBUG=INFO says what it did")
            rails = spec.rails_of(host % spec.gpus) if together == 1 else range(spec.rails)
            file.write_text(aligned(dump.read_text(), [f"rail{rail}" for rail in rails]))
        served = {"RAILWEAVE_GPU_NODES": str(spec.nodes)}
        yield RailsRun(place(lambda host: {"NCCL_TOPO_FILE": str(files[host]), **served}), bound)


__all__ = ["RailsRun", "aligned", "near_and_far", "on_rails", "visible_gpus"]
