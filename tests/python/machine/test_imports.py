"""Machines from other tools' texts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.errors import ParseError
from railweave.fabric import Fabric
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Known, Unknown, known
from railweave.machine.hwloc import parse_hwloc
from railweave.machine.load import parse_machine, read_text_file
from railweave.machine.lspci_tree import parse_lspci_tree
from railweave.machine.reading import cpu_list, cpu_mask, ranges
from railweave.machine.topo_matrix import parse_topo_matrix

# ---- nvidia-smi topo -m ----

LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def matrix(names: list[str], way: Callable[[int, int], str], tail: Callable[[int], str] = lambda i: "0-15\t0\t\tN/A") -> str:
    """The text as the tool writes it, with tabs."""
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i, name in enumerate(names):
        cells = [" X " if i == j else way(i, j) for j in range(len(names))]
        lines.append("\t".join([name, *cells, *([tail(i)] if name.startswith("GPU") else [])]))
    return "\n".join(lines) + "\n" + LEGEND


def kinds(fabric: Fabric) -> dict[str, int]:
    found: dict[str, int] = {}
    for vertex in fabric.vertices:
        found[vertex.kind.name] = found.get(vertex.kind.name, 0) + 1
    return found


def test_topo_matrix_with_nics_and_legend() -> None:
    names = ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"]
    near = {(0, 4), (1, 4), (2, 5), (3, 5)}

    def way(i: int, j: int) -> str:
        if max(i, j) < 4:
            return "NV12"
        return "PIX" if (min(i, j), max(i, j)) in near else "SYS"

    text = (
        matrix(names, way, lambda i: f"{16 * (i // 2)}-{16 * (i // 2) + 15}\t{i // 2}\t\tN/A")
        + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_3\n"
    )
    machine = parse_topo_matrix(text, "m.txt")
    gpus = known(machine.gpus)
    assert gpus is not None
    assert known(gpus[0].peers) == {1: "NV12", 2: "NV12", 3: "NV12"}
    assert known(gpus[2].nic_paths) == {"mlx5_0": "SYS", "mlx5_3": "PIX"}
    assert known(gpus[3].affinity) == tuple(range(16, 32))
    assert [node.id for node in known(machine.numa) or ()] == [0, 1]
    assert isinstance(gpus[0].bus_id, Unknown) and isinstance(gpus[0].link, Unknown)
    fabric, notes = fabric_of(machine)
    assert kinds(fabric) == {"numa": 2, "pcie_switch": 2, "gpu": 4, "nic": 2, "nvswitch": 1, "leaf": 2}
    assert all(not vertex.bus_id for vertex in fabric.vertices)
    assert any("not in the text" in note for note in notes)
    assert {edge.capacity_Bps for edge in fabric.edges if edge.kind.name == "nvlink"} == {300_000_000_000}
    assert all("assumed" in edge.source for edge in fabric.edges if edge.kind.name in {"pcie", "nvlink"})


@pytest.mark.parametrize(
    ("count", "way", "per_pair"), [(4, "NV6", 150_000_000_000), (2, "NV4", 80_000_000_000)], ids=["mesh of four", "bridge of two"]
)
def test_nvlinks_without_a_switch(count: int, way: str, per_pair: int) -> None:
    fabric, _ = fabric_of(parse_topo_matrix(matrix([f"GPU{i}" for i in range(count)], lambda i, j: way), "m.txt"))
    nvlinks = [edge for edge in fabric.edges if edge.kind.name == "nvlink"]
    assert len(nvlinks) == count * (count - 1) and {edge.capacity_Bps for edge in nvlinks} == {per_pair}


@pytest.mark.parametrize(
    "text",
    [
        matrix(["GPU0"], lambda i, j: "X"),
        matrix(["GPU0", "GPU1"], lambda i, j: "SYS", lambda i: "\t\tN/A"),
        matrix(["GPU0", "GPU1"], lambda i, j: "SOC").replace("\t", "    "),
        "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \t0-3\n",
        "Mon Jan 1\n\n" + matrix(["GPU0", "GPU1", "mlx5_0", "mlx5_bond_0"], lambda i, j: "NODE"),
    ],
    ids=["one GPU", "no affinity", "old word and spaces", "escapes", "text before it"],
)
def test_forms_that_drivers_have_written(text: str) -> None:
    fabric, _ = fabric_of(parse_topo_matrix(text, "m.txt"))
    assert fabric.gpu_count == text.count("GPU0") // 2 + ("GPU1" in text)


def test_lists_of_cores_that_the_tool_cuts_are_not_known() -> None:
    """CPUs that alternate between nodes; the numbers of nodes stand in a column of their own."""
    names = ["GPU0", "GPU1", "GPU2", "GPU3"]
    cells = {0: "1,3,5,7,9,11\t1", 1: "0,2,4,6,8,10\t0", 2: "6,14,22,30\t3", 3: "0-3,8,10,12,14,16\t2"}
    machine = parse_topo_matrix(matrix(names, lambda i, j: "SYS", lambda i: f"{cells[i]}\t\tN/A"), "m.txt")
    gpus = known(machine.gpus) or ()
    assert [known(gpu.affinity) for gpu in gpus] == [None, None, (6, 14, 22, 30), (0, 1, 2, 3, 8, 10, 12, 14, 16)]
    assert str(gpus[0].affinity) == "m.txt:2: not given (CPU affinity 1,3,5,7,9,11 may be cut off)"
    assert [known(gpu.numa) for gpu in gpus] == [1, 0, 3, 2]
    assert {node.id: known(node.cpus) is None for node in known(machine.numa) or ()} == {0: True, 1: True, 2: False, 3: False}
    fabric, _ = fabric_of(machine)
    above = {
        vertex.attributes["gpu.dev"]: fabric.vertex(fabric.edge(edge).dst).attributes["cpu.numaid"]
        for vertex in fabric.vertices
        if vertex.kind.name == "gpu"
        for edge in fabric.out_edges(fabric.gpu(vertex.index))
        if fabric.edge(edge).kind.name == "pcie"
    }
    assert above == {"0": "1", "1": "0", "2": "3", "3": "2"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU0\tGPU1\nGPU0\t X \tPIX\n", "m.txt:1: no row for GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIXNODE\nGPU1\tPIX\t X \n", "m.txt:2: 'PIXNODE' between GPU0 and GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tPIX\t X \n", "m.txt:2: 1 entries in row GPU0"),
        ("\tGPU0\tGPU0\nGPU0\t X \t X \n", "m.txt:1: a column twice"),
        ("\tGPU0\tGPU1\nGPU0\tPIX\tPIX\nGPU1\tPIX\t X \n", "m.txt:2: PIX from GPU0 to itself"),
        ("\tGPU0\nGPU0\t X \t3-1\t0\n", "m.txt:2: '3-1 0' after the ways"),
        ("hello\n", "m.txt: no line of column titles"),
    ],
)
def test_topo_matrix_errors_name_the_line(text: str, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_topo_matrix(text, "m.txt")
    assert str(caught.value).startswith(found) and "; expected " in str(caught.value)


# No deadline: a loaded machine is no defect.
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_number_of_columns_is_read_back(data: st.DataObject) -> None:
    gpus, nics = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 14))
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    size = len(names)
    words = data.draw(st.lists(st.sampled_from(["NV4", "PIX", "PXB", "PHB", "NODE", "SYS"]), min_size=size * size, max_size=size * size))
    machine = parse_topo_matrix(matrix(names, lambda i, j: words[i * size + j]), "m.txt")
    for i, gpu in enumerate(known(machine.gpus) or ()):
        assert known(gpu.peers) == {j: words[i * size + j] for j in range(gpus) if j != i}
        assert known(gpu.nic_paths) == {f"NIC{j}": words[i * size + gpus + j] for j in range(nics)}
    fabric, _ = fabric_of(machine)
    assert (fabric.gpu_count, len(fabric.nics_of(0))) == (gpus, nics)


# ---- lspci -tv ----

TREE = """\
-+-[0000:80]-+-00.0  Intel Corporation Device 09a2
 |           \\-01.0-[81-84]----00.0-[82-84]--+-00.0-[83]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |                                           \\-01.0-[84]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                                        \\-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
 \\-[0000:00]-+-00.0  Intel Corporation Device 09a2
             +-1c.0-[01]----00.0  Broadcom Inc. and subsidiaries NetXtreme BCM5720 Gigabit Ethernet PCIe
             +-1d.0-[02]--
             \\-1f.0  Intel Corporation Device 1b81
"""


def test_lspci_tree() -> None:
    machine = parse_lspci_tree(TREE, "t.txt")
    places = {device.bus_id: (device.parent, device.root) for device in known(machine.pci) or ()}
    assert places == {
        "0000:80:00.0": (None, "pci0000:80"),
        "0000:80:01.0": (None, "pci0000:80"),
        "0000:81:00.0": ("0000:80:01.0", "pci0000:80"),
        "0000:82:00.0": ("0000:81:00.0", "pci0000:80"),
        "0000:83:00.0": ("0000:82:00.0", "pci0000:80"),
        "0000:82:01.0": ("0000:81:00.0", "pci0000:80"),
        "0000:84:00.0": ("0000:82:01.0", "pci0000:80"),
        "0000:84:00.1": ("0000:82:01.0", "pci0000:80"),
        "0000:00:00.0": (None, "pci0000:00"),
        "0000:00:1c.0": (None, "pci0000:00"),
        "0000:01:00.0": ("0000:00:1c.0", "pci0000:00"),
        "0000:00:1d.0": (None, "pci0000:00"),
        "0000:00:1f.0": (None, "pci0000:00"),
    }
    assert [known(gpu.bus_id) for gpu in known(machine.gpus) or ()] == ["0000:83:00.0"]
    assert [known(nic.bus_id) for nic in known(machine.nics) or ()] == ["0000:84:00.0", "0000:84:00.1", "0000:01:00.0"]
    device = machine.pci_device("0000:83:00.0")
    assert device is not None and isinstance(device.link, Unknown) and isinstance(device.vendor, Unknown)


Tree = list["Function"]
Function = tuple[str, "Tree | None"]  # address on its bus; the bus behind it, if it is a bridge


def draw_tree(data: st.DataObject, depth: int) -> Tree:
    """Functions of a bus, some of them bridges."""
    slots = sorted(data.draw(st.sets(st.integers(0, 31), min_size=1, max_size=3)))
    bridges = [depth < 4 and data.draw(st.booleans()) for _ in slots]
    return [(f"{slot:02x}.0", draw_tree(data, depth + 1) if bridge else None) for slot, bridge in zip(slots, bridges, strict=True)]


class Printer:
    """Writes a tree as lspci does; buses are numbered on the way down."""

    def __init__(self) -> None:
        self.buses = 0
        self.lines: list[str] = []
        self.found: list[tuple[str, str | None]] = []

    def write(self, tree: Tree, bus: str, parent: str | None, head: str, stem: str) -> None:
        """`head` is what stands before the first function, `stem` before the others."""
        alone = len(tree) == 1
        for number, (slot, below) in enumerate(tree):
            last = number == len(tree) - 1
            branch = "---" if alone else "-+-" if number == 0 else "\\-" if last else "+-"
            start = f"{head if number == 0 else stem}{branch}{slot}"
            address = f"0000:{bus}:{slot}"
            self.found.append((address, parent))
            if below is None:
                self.lines.append(f"{start}  Device {slot}")
                continue
            self.buses += 1
            behind = f"{self.buses:02x}"
            start += f"-[{behind}]-"
            onward = stem + (" " if last or alone else "|")
            self.write(below, behind, address, start, onward.ljust(len(start) + 1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_tree_of_lspci_is_read_back(data: st.DataObject) -> None:
    printer = Printer()
    head = "-[0000:00]-"
    printer.write(draw_tree(data, 0), "00", None, head, " " * (len(head) + 1))
    machine = parse_lspci_tree("\n".join(printer.lines) + "\n", "t.txt")
    assert [(device.bus_id, device.parent) for device in known(machine.pci) or ()] == printer.found


def test_lspci_tree_with_ids_and_one_domain() -> None:
    text = "-[0000:00]-+-00.0  Intel [8086:0d57]\n           \\-05.0  NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3]\n"
    machine = parse_lspci_tree(text, "t.txt")
    assert known(machine.gpus) == ()
    device = machine.pci_device("0000:00:05.0")
    assert device is not None and device.vendor == Known(0x10DE, "t.txt:2") and known(device.device) == 0x22A3


@pytest.mark.parametrize(
    ("name", "is_gpu"),
    [
        ("NVIDIA Corporation Device 2335", True),
        ("NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)", True),
        ("NVIDIA Corporation Device 22a3 (rev a1)", False),
        ("NVIDIA Corporation GP102 HDMI Audio Controller", False),
        ("NVIDIA Corporation TU104 USB Type-C UCSI Controller", False),
        ("ASPEED Technology, Inc. ASPEED Graphics Family", False),
    ],
)
def test_gpus_by_name(name: str, is_gpu: bool) -> None:
    assert len(known(parse_lspci_tree(f"-[0000:00]---05.0  {name}\n", "t.txt").gpus) or ()) == is_gpu


@pytest.mark.parametrize(
    ("name", "is_nic"),
    [
        ("Mellanox Technologies MT43244 BlueField-3 integrated ConnectX-7 network controller (rev 01)", True),
        ("Mellanox Technologies MT43244 BlueField-3 SoC Management Interface (rev 01)", False),
        ("Mellanox Technologies NVMe SNAP Controller", False),
        ("Mellanox Technologies MT43244 Family [BlueField-3 SoC PCIe Bridge]", False),
        ("Mellanox Technologies MT28908 Family [ConnectX-6 Virtual Function]", True),
        ("Red Hat, Inc. Virtio network device", True),
        ("Red Hat, Inc. Virtio block device", False),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", True),
    ],
)
def test_nics_by_name(name: str, is_nic: bool) -> None:
    assert len(known(parse_lspci_tree(f"-[0000:00]---05.0  {name}\n", "t.txt").nics) or ()) == is_nic


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "t.txt: no PCI device"),
        ("-[0000:00]-+-00.0  a\n           ?-01.0  b\n", "t.txt:2: '?-01.0  b' at column 12"),
        ("-[0000:00]-+-00.0  a\n           \\-00.0  b\n", "t.txt: 0000:00:00.0 twice"),
    ],
)
def test_lspci_errors(text: str, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_lspci_tree(text, "t.txt")
    assert str(caught.value).startswith(found)


# ---- hwloc ----

HWLOC = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003">
  <info name="Architecture" value="x86_64"/>
  <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000001">
   <info name="CPUVendor" value="AuthenticAMD"/><info name="CPUFamilyNumber" value="25"/><info name="CPUModelNumber" value="17"/>
   <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" local_memory="1024">
    <page_type size="4096" count="1"/><page_type size="2097152" count="3"/></object>
   <object type="L3Cache" cpuset="0x00000003" nodeset="0x00000001">
    <object type="Core" os_index="0" cpuset="0x00000003" nodeset="0x00000001"><object type="PU" os_index="0" cpuset="0x00000001"/>
     <object type="PU" os_index="1" cpuset="0x00000002"/></object></object>
   <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[10-1f]">
    <object type="Bridge" bridge_type="1-1" pci_busid="0000:10:01.1" pci_type="0604 [1022:1483] [0000:0000] 00" pci_link_speed="31.507692">
     <object type="PCIDev" pci_busid="0000:11:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1" pci_link_speed="31.507692">
      <object type="OSDev" name="nvml0" osdev_type="1"><info name="GPUModel" value="NVIDIA A100-SXM4-80GB"/></object></object>
     <object type="PCIDev" pci_busid="0000:12:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00" pci_link_speed="31.507692">
      <object type="OSDev" name="ib0" osdev_type="2"><info name="Address" value="00:00"/></object>
      <object type="OSDev" name="mlx5_0" osdev_type="3"><info name="NodeGUID" value="1:2:3:4"/><info name="Port1State" value="4"/></object>
     </object></object></object></object>
  <object type="Package" os_index="1" cpuset="0x0000000c" nodeset="0x00000002">
   <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" local_memory="1024"/>
   <object type="Core" os_index="1" cpuset="0x0000000c" nodeset="0x00000002"><object type="PU" os_index="2" cpuset="0x4"/></object>
  </object>
 </object>
</topology>
"""


def test_hwloc() -> None:
    machine = parse_hwloc(HWLOC, "h.xml")
    assert [(device.bus_id, device.parent, known(device.numa)) for device in known(machine.pci) or ()] == [
        ("0000:10:01.1", None, 0),
        ("0000:11:00.0", "0000:10:01.1", 0),
        ("0000:12:00.0", "0000:10:01.1", 0),
    ]
    gpus, nics, nodes = known(machine.gpus), known(machine.nics), known(machine.numa)
    assert gpus and nics and nodes
    assert known(gpus[0].name) == "NVIDIA A100-SXM4-80GB" and isinstance(gpus[0].nvlinks, Unknown)
    assert (nics[0].name, known(nics[0].netdevs), known(nics[0].state)) == ("mlx5_0", ("ib0",), "active")
    assert known(nodes[0].hugepages) == {2 << 20: 3} and known(nodes[1].cpus) == (2, 3)
    assert [(core.package, core.cpus) for core in known(machine.cpus.cores) or ()] == [(0, (0, 1)), (1, (2, 3))]
    assert known(machine.cpus.smt) is True and known(machine.cpus.l3) == ((0, 1),)
    fabric, notes = fabric_of(machine)
    assert {edge.capacity_Bps for edge in fabric.edges if edge.kind.name == "pcie"} == {31_507_692_307}
    assert any("NVLinks of GPU 0 are not known" in note for note in notes)


DISTANCES = """\
 <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os"><indexes length="4">0 1 </indexes>
  <u64values length="12">10 32 </u64values><u64values length="12">32 10 </u64values></distances2>
 <distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth"><indexes length="9">OSDev:70 PCIDev:80 Package:0 </indexes>
  <u64values length="9">1000000 300000 50000 300000 1000000 0 50000 0 1000000 </u64values></distances2hetero>
"""


def with_distances(distances: str = DISTANCES) -> str:
    """The machine with a second GPU, and matrices."""
    second = '<object type="PCIDev" gp_index="80" pci_busid="0000:13:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1"/>'
    text = HWLOC.replace('name="nvml0"', 'gp_index="70" name="nvml0"').replace(
        '     <object type="PCIDev" pci_busid="0000:12', f"{second}\\g", 1
    )
    text = text.replace("\\g", '\n     <object type="PCIDev" pci_busid="0000:12')
    return text.replace("</topology>", f"{distances}</topology>")


def test_a_device_that_stands_twice_in_hwloc_is_one() -> None:
    line = next(each for each in HWLOC.splitlines(keepends=True) if 'name="mlx5_0"' in each)
    machine = parse_hwloc(HWLOC.replace(line, line + line), "h.xml")
    assert known(machine.nics) == known(parse_hwloc(HWLOC, "h.xml").nics)


def test_hwloc_distances() -> None:
    machine = parse_hwloc(with_distances(), "h.xml")
    nodes, gpus = known(machine.numa), known(machine.gpus)
    assert nodes and gpus and known(nodes[1].distances) == {0: 32, 1: 10}
    ends = [(link.remote, known(link.remote_bus_id)) for link in known(gpus[0].nvlinks) or ()]
    assert ends == [("gpu", "0000:13:00.0")] * 12 + [("cpu", None)] * 2
    fabric, _ = fabric_of(machine)
    first, second = fabric.gpus_of(0)
    edge = fabric.find_edge(first, second)
    assert edge is not None and fabric.edge(edge).capacity_Bps == 300_000_000_000


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("300000 50000", "300001 50000", "300001 MB/s from OSDev:70 to PCIDev:80; expected a multiple of 25000"),
        ("10 32 ", "10 x ", "4 values of distances; expected 4 numbers"),
        ("10 32 ", "10 ", "3 values of distances"),
        ("OSDev:70 PCIDev:80", "OSDev:70 OSDev:70", "3 indexes of distances"),
    ],
)
def test_hwloc_distances_that_cannot_be(old: str, new: str, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_hwloc(with_distances(DISTANCES.replace(old, new, 1)), "h.xml")
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("0000:11:00.0", "0000:11:0"), "pci_busid='0000:11:0'"),
        (('"0000:12:00.0"', '"0000:11:00.0"'), "pci_busid='0000:11:00.0'"),
        (("0302 [10de", "3D [10de"), "pci_type="),
        (('cpuset="0x00000003" nodeset="0x00000001" local', 'cpuset="0xf...f" nodeset="0x00000001" local'), "cpuset='0xf...f'"),
        (('os_index="1" cpuset="0x0000000c"', 'os_index="-" cpuset="0x0000000c"'), "os_index='-'"),
        (("0000:[10-1f]", "0000"), "bridge_pci='0000'"),
        (("</topology>", ""), "not XML"),
        (('<topology version="2.0">', '<topology version="2.0"></topology><x>'), "not XML"),
        (('SYSTEM "hwloc2.dtd"', '[<!ENTITY a "b">]'), "an entity declaration"),
    ],
)
def test_hwloc_errors_name_the_line(change: tuple[str, str], found: str) -> None:
    before, change_at, _ = HWLOC.partition(change[0])
    assert change_at
    with pytest.raises(ParseError) as caught:
        parse_hwloc(HWLOC.replace(*change, 1), "h.xml")
    _, line, text = str(caught.value).split(":", 2)
    assert text.strip().startswith(found)
    assert int(line) == (before.count("\n") + 1 if found != "not XML" or "<x>" in change[1] else HWLOC.count("\n") + 1)


def test_declared_encoding_does_not_matter() -> None:
    assert parse_hwloc(HWLOC.replace("UTF-8", "UTF-00.08"), "h.xml") == parse_hwloc(HWLOC, "h.xml")


# ---- kinds, sets ----


@pytest.mark.parametrize("text", ["", "<system version='1'/>", '{"format": 1}', "format: railweave-node\n", "hello"])
def test_other_texts_are_left_to_their_readers(text: str) -> None:
    assert parse_machine(text, "x") is None


@pytest.mark.parametrize("text", [matrix(["GPU0"], lambda i, j: "X"), TREE, HWLOC])
def test_command_shows_each_kind(text: str, cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    path = tmp_path / "described"
    path.write_text(text)
    shown = cli("topo", str(path))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"{path}: ") and "1 GPU" in shown.stdout and "Traceback" not in shown.stderr


@pytest.mark.parametrize("text", [matrix(["GPU0", "GPU1"], lambda i, j: "X" if i == j else "NV4"), TREE, HWLOC])
def test_plans_are_made_for_each_kind(text: str, cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    path = tmp_path / "described"
    path.write_text(text)
    expected = json.loads(cli("topo", str(path), "--json").stdout)["name"]
    for command in (("plan", "--json"), ("simulate", "--json")):
        made = cli(*command, "--fabric", str(path), "--matrix", "balanced:1MiB")
        fabric = json.loads(made.stdout)["fabric"]
        assert (fabric if command[0] == "plan" else fabric["name"]) == expected, made.stderr


@pytest.mark.parametrize("command", [("topo", "{}"), ("advise", "{}"), ("plan", "--matrix", "balanced:1", "--fabric", "{}")])
def test_a_file_of_no_kind_is_told_all_kinds(
    command: tuple[str, ...], cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = tmp_path / "other"
    path.write_text("hello")
    told = cli(*(argument.format(path) for argument in command)).stderr
    for kind in ("not of a kind that is read here", "NCCL topology file", "fabric JSON", "hwloc XML", "nvidia-smi topo -m", "lspci -tv"):
        assert kind in told


def test_another_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "described"
    path.write_bytes(HWLOC.encode("utf-16"))
    with pytest.raises(ParseError, match="described: UTF-16 text; expected UTF-8"):
        read_text_file(path)


@settings(deadline=None)
@given(st.sets(st.integers(0, 2047)))
def test_lists_of_cpus_are_read_back(cpus: set[int]) -> None:
    assert cpu_list(ranges(sorted(cpus))) == tuple(sorted(cpus))


@pytest.mark.parametrize(("text", "cpus"), [("00000001,00000001", (0, 32)), ("ff", tuple(range(8))), ("0x00000001,,0x1", (0, 64))])
def test_masks(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_mask(text) == cpus


@pytest.mark.parametrize("text", ["0xf...f", "-1", "0,123456789", "z", "0x0x1"])
def test_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError):
        cpu_mask(text)
