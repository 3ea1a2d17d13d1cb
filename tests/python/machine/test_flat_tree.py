"""A guest whose hypervisor shows a flat PCI tree: paths are unknown, until a topology file tells them."""

from __future__ import annotations

from pathlib import Path

import pytest
from template_machine import PCI, TemplateMachine

from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import FLAT_TREE, Fact, Known, Machine, PciLink, Unknown, known
from railweave.machine.nccl_topology import export
from railweave.machine.paths import pci_way
from railweave.machine.recording import RecordedSource
from railweave.machine.text import render_machine
from railweave.machine.topology_file import parse_places

FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"


def guest() -> TemplateMachine:
    """An XE9680 in a virtual machine."""
    made = TemplateMachine("xe9680-4hca")
    made.virtual()
    return made


def topology(made: TemplateMachine) -> str:
    """The host's tree: GPU 0 shares a switch with NIC 0; GPU 1 hangs from a switch below that; NIC 1 is on the CPU; NIC 2 on the other."""
    gpus, nics = ([port.bus_id for port in ports] for ports in (made.gpus, made.nics))
    return f"""<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="8">
      <pci busid="{gpus[0]}" class="0x030200" link_speed="8 GT/s" link_width="16"/><pci busid="{nics[0]}" class="0x020700"/>
      <pci busid="ffff:ff:02.0" class="0x060400" link_speed="16 GT/s" link_width="16"><pci busid="{gpus[1]}"/></pci></pci>
      <pci busid="{nics[1]}"/></cpu><cpu numaid="1"><pci busid="{nics[2]}"/></cpu></system>"""


def way(machine: Machine, made: TemplateMachine, gpu: int, nic: int) -> Fact[str]:
    return pci_way(machine, made.gpus[gpu].bus_id, made.nics[nic].bus_id)


def test_paths_of_a_flat_tree_are_unknown_and_said_to_be() -> None:
    made = guest()
    machine = made.machine()
    assert isinstance(machine.hidden_tree, Unknown) and machine.hidden_tree.detail == FLAT_TREE
    assert way(machine, made, 0, 0) == machine.hidden_tree
    text = render_machine(machine)
    assert "PHB" not in text and f"?: unknown ({FLAT_TREE})" in text
    _, notes = fabric_of(machine)
    assert any(FLAT_TREE in note for note in notes)


def test_what_the_driver_says_of_pcie_is_the_guests_tree_too() -> None:
    made = guest()
    for gpu in made.nvml["gpus"]:
        gpu["nvlinks"] = [{"state": {"error": "NVML_ERROR_NOT_SUPPORTED"}}] * 18
    assert "PHB" not in render_machine(made.machine())


def test_a_tree_with_switches_is_taken_for_the_hosts() -> None:
    made = TemplateMachine("xe9680-4hca")
    made.files["/proc/cpuinfo"] = str(made.files["/proc/cpuinfo"]).replace("fpu", "fpu hypervisor")
    machine = made.machine()
    assert machine.hidden_tree is None
    assert way(machine, made, 0, 0) == Known("PIX", f"{made.gpus[0].bus_id} and {made.nics[0].bus_id} in the PCI tree")


def test_bare_metal_without_switches_is_no_guest() -> None:
    made = TemplateMachine("kisti-v100-2gpu")
    machine = made.machine()
    assert machine.hidden_tree is None and known(pci_way(machine, made.gpus[0].bus_id, made.gpus[1].bus_id)) is not None


def test_devices_on_root_buses_are_a_guests_even_where_the_processor_was_not_read() -> None:
    made = guest()
    del made.files["/proc/cpuinfo"]
    assert made.machine().hidden_tree is not None


@pytest.mark.parametrize(("said", "virtual"), [("none\n", False), ("kvm\n", True), ("", None)])
def test_where_the_processor_does_not_say_whether_it_is_virtual_systemd_does(said: str, virtual: bool | None) -> None:
    made = TemplateMachine("kisti-v100-2gpu")
    made.files["/proc/cpuinfo"] = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
    made.commands["systemd-detect-virt", "--vm"] = said
    machine = made.machine()
    assert known(machine.host.hypervisor) is virtual
    assert (machine.hidden_tree is not None) == (virtual is True), "root ports alone are a guest's, or a host's"


@pytest.mark.parametrize("by", ["topologyd", "nccl.conf", "the job"])
def test_a_topology_file_tells_the_paths(by: str) -> None:
    made = guest()
    if by == "topologyd":
        made.files[FILE] = topology(made)
    elif by == "nccl.conf":
        made.files |= {"/etc/nccl.conf": "NCCL_TOPO_FILE=/opt/topology.xml\n", "/opt/topology.xml": topology(made)}
    else:
        made.environ(NCCL_TOPO_FILE="/opt/topology.xml")
        made.process("root/opt/topology.xml", topology(made))
    machine = made.machine()
    assert [known(way(machine, made, gpu, nic)) for gpu, nic in ((0, 0), (1, 0), (0, 1), (0, 2))] == ["PIX", "PXB", "PHB", "SYS"]
    assert isinstance(way(machine, made, 2, 0), Unknown), "a GPU that the file does not have"
    fabric, notes = fabric_of(machine)
    assert not any(FLAT_TREE in note for note in notes)
    assert {vertex.bus_id for vertex in fabric.vertices if vertex.kind.name == "pcie_switch"} == {"ffff:ff:01.0", "ffff:ff:02.0"}
    rates = {fabric.vertex(edge.src).bus_id: edge.capacity_Bps for edge in fabric.edges if edge.kind.name == "pcie"}
    assert rates[made.gpus[0].bus_id] == 15_753_846_153, "8 GT/s x16, as the file has it"
    assert f'busid="{made.gpus[1].bus_id}"' in export(machine).text


def test_a_topology_file_that_cannot_be_read_leaves_the_paths_unknown() -> None:
    made = guest()
    made.files[FILE] = "<system><cpu>"
    machine = made.machine()
    assert isinstance(machine.topology, Unknown) and FILE in str(machine.topology)
    assert isinstance(way(machine, made, 0, 0), Unknown)


def test_a_file_that_nests_a_switch_in_itself_is_read() -> None:
    device = '<pci busid="0000:01:00.0" link_width="99"/>'
    nested = f'<pci busid="ffff:ff:01.0"><pci busid="ffff:ff:02.0"><pci busid="ffff:ff:01.0">{device}</pci></pci></pci>'
    places = parse_places(f'<system><cpu numaid="x">{nested}<pci busid="no"/></cpu></system>', "x.xml")
    assert places["ffff:ff:01.0"].above == () and places["0000:01:00.0"].link is None
    assert all(place.numa is None for place in places.values())
    device = '<pci busid="0:01:00.0" link_speed="16.0 GT/s PCIe" link_width="8"/>'
    assert parse_places(f"<system>{device}</system>", "x")["0000:01:00.0"].link == PciLink(16.0, 8)


def test_a_real_guest_with_a_flat_tree() -> None:
    machine = discover(RecordedSource(Path(__file__).parent / "recordings/two-h200-vm.tar.zst"))
    assert machine.hidden_tree is not None and PCI in machine.hidden_tree.path
    assert "NV18" in render_machine(machine)
