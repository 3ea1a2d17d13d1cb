"""A recording of a virtual machine with two H200 (benchmarks/machine/live.sh made it), and NCCL 2.28.3's own dump there."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave import fabric as fabrics
from railweave.fabric import Fabric
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Machine, PciLink, known
from railweave.machine.hwloc import parse_hwloc
from railweave.machine.lint import lint_nccl
from railweave.machine.nccl_topology import export
from railweave.machine.paths import gpu_way
from railweave.machine.recording import RecordedSource
from railweave.machine.topo_matrix import parse_topo_matrix

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(scope="module")
def source() -> RecordedSource:
    return RecordedSource(RECORDINGS / "two-h200-vm.tar.zst")


@pytest.fixture(scope="module")
def machine(source: RecordedSource) -> Machine:
    return discover(source)


def links(fabric: Fabric) -> set[tuple[str, str, str, int]]:
    names = [f"{vertex.kind.name} {vertex.bus_id}" for vertex in fabric.vertices]
    return {
        (names[edge.src], names[edge.dst], edge.kind.name, edge.capacity_Bps)
        for edge in fabric.edges
        if not {"nic", "leaf"} & {fabric.vertex(end).kind.name for end in (edge.src, edge.dst)}
    }


def test_whole_recording_is_read(source: RecordedSource, machine: Machine) -> None:
    assert source.recording.damage == ""
    gpus = known(machine.gpus)
    assert gpus is not None
    assert [(known(gpu.bus_id), known(gpu.name), known(gpu.sm)) for gpu in gpus] == [
        ("0000:00:06.0", "NVIDIA H200", 90),
        ("0000:00:07.0", "NVIDIA H200", 90),
    ]
    assert {len(known(gpu.nvlinks) or ()) for gpu in gpus} == {18}
    assert {known(link.version) for gpu in gpus for link in known(gpu.nvlinks) or ()} == {4}
    assert {known(gpu.nvlink_slots) for gpu in gpus} == {18}
    assert {known(gpu.link_max) for gpu in gpus} == {PciLink(32.0, 16)}
    assert known(machine.host.hypervisor) is True and known(machine.kernel.nvidia_open) is True
    assert known(machine.kernel.nvidia_driver) == "580.159.04"


def test_ways_are_those_of_nvidia_smi(source: RecordedSource, machine: Machine) -> None:
    said = known(parse_topo_matrix(source.command(("nvidia-smi", "topo", "-m")).stdout, "topo -m").gpus)
    gpus = known(machine.gpus)
    assert said and gpus
    for gpu in said:
        assert {other: gpu_way(machine, gpus[gpu.index], gpus[other]) for other in known(gpu.peers) or {}} == known(gpu.peers)
        assert known(gpu.affinity) == known(gpus[gpu.index].affinity)


def test_fabric_is_that_of_nccls_own_dump(machine: Machine) -> None:
    fabric, _ = fabric_of(machine)
    assert links(fabric) == links(fabrics.load(RECORDINGS / "two-h200-vm-nccl.xml"))


def test_nccls_dump_and_the_export_agree_with_the_machine(machine: Machine) -> None:
    for text in ((RECORDINGS / "two-h200-vm-nccl.xml").read_text(), export(machine).text):
        assert lint_nccl(text, "x.xml", machine) == []


def test_hwloc_saw_the_same_pci_devices_and_cores(source: RecordedSource, machine: Machine) -> None:
    seen = parse_hwloc(source.library("hwloc"), "hwloc")
    assert known(seen.cpus.online) == known(machine.cpus.online)
    for device in known(seen.pci) or ():
        own = machine.pci_device(device.bus_id)
        assert own is not None and (own.parent, known(own.vendor), known(own.device)) == (
            device.parent,
            known(device.vendor),
            known(device.device),
        )
