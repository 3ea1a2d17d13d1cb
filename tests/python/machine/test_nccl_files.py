"""Export of NCCL topology files, and the lint of them."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from crafted import Crafted, Switch, craft, host
from template_machine import TemplateMachine, WholeSource

from railweave import fabric as fabrics
from railweave.errors import FabricError, ParseError
from railweave.machine import fabric_export, nccl_topology
from railweave.machine.discovery import discover
from railweave.machine.fabric_nics import fabric_nics
from railweave.machine.facts import Known, Machine, known
from railweave.machine.lint import lint_file, lint_nccl
from railweave.machine.nccl_document import Cpu, mask, render
from railweave.machine.reading import cpu_mask, ranges
from railweave.machine.recording import write_recording
from railweave.machine.text import ways_table


def machine_of(crafted: Crafted) -> Machine:
    return discover(WholeSource(crafted.recording))


@pytest.mark.parametrize("name", sorted(fabrics.templates()))
def test_templates_are_read_back_the_same(name: str) -> None:
    fabric = fabrics.load(name)
    exported = fabric_export.export(fabric)
    again = fabrics.loads(exported.text, name)
    no_rails = "NICs without rails: readers give each a rail of its own" in exported.notes
    parts, links = host(fabric)
    parts_again, links_again = host(again)
    if no_rails:
        parts_again = {name: (*part[:3], None) for name, part in parts_again.items()}  # type: ignore[index]
    assert parts_again == parts
    assert links_again == links
    assert lint_nccl(exported.text, name, None) == []


# Every kind of element that the format has: two NVSwitches, C2C, a pcilink, a card with two ports, a port on no card, ranks that share a
# GPU, a NIC known by its class alone.
WHOLE = """\
<system version="1">
  <cpu host_hash="0x1f" numaid="2" affinity="0000000f" arch="arm64" vendor="NVIDIA" familyid="8" modelid="9">
    <pci busid="0002:00:00.0" class="0x060400" vendor="0x15b3" device="0x197b" link_speed="64.0 GT/s PCIe" link_width="16">
      <pcilink target="0003:00:00.0"/>
      <pci busid="0002:01:00.0" class="0x030200" vendor="0x10de" device="0x2342" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="4" gdr="1">
          <nvlink target="0000:05:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="0x9" tclass="0x068000"/>
        </gpu>
        <gpu dev="1" sm="90" rank="5" gdr="1"/>
      </pci>
      <pci busid="0002:02:00.0" class="0x020700" vendor="0x15b3" device="0x1023" link_speed="64.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_7" dev="0" latency="0.5" speed="400000" port="1" guid="0x9aab" maxconn="131072" gdr="1" coll="1" rail="3"/>
          <net name="mlx5_8" dev="1" latency="0.5" speed="200000" port="2" guid="0x9aac" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <pci busid="0003:00:00.0" class="0x060400" link_speed="64.0 GT/s PCIe" link_width="8">
      <pci busid="0003:01:00.0" class="0x020000" vendor="0x1d0f" device="0xefa1" link_speed="16.0 GT/s PCIe" link_width="8"/>
    </pci>
    <pci busid="0009:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="1">
      <gpu dev="0" sm="90" rank="0" gdr="1"><c2c bw="44712" count="10"/></gpu>
    </pci>
    <nic><net name="eth9" dev="2" speed="25000" port="0" guid="0x0" maxconn="65536" gdr="0"/></nic>
  </cpu>
</system>
"""


def contents(element: ElementTree.Element, path: str = "") -> list[tuple[str, dict[str, str]]]:
    """Every element by its place among named ones, with its attributes; the order of elements and the fabric's name mean nothing."""
    here = f"{path}/{element.tag}[{element.get('busid') or element.get('numaid') or element.get('dev') or ''}]"
    attributes = {name: value for name, value in element.attrib.items() if here != "/system[]" or name != "name"}
    found = [(here, attributes), *(item for child in element for item in contents(child, here))]
    return sorted(found, key=lambda item: (item[0], sorted(item[1].items())))


def topology_files() -> list[Path]:
    return sorted(Path(os.environ.get("RAILWEAVE_TOPOLOGY_FILES", "/nonexistent")).glob("*.xml"), key=str)


@pytest.mark.parametrize("text", [WHOLE, *topology_files()], ids=lambda value: value.name if isinstance(value, Path) else "every element")
def test_topology_file_is_written_again_as_it_was(text: str | Path) -> None:
    text = text.read_text() if isinstance(text, Path) else text
    fabric = fabrics.loads(text, "x.xml")
    for read in (fabric, fabrics.Fabric.from_json(fabric.to_json(), "x.json")):
        exported = fabric_export.export(read)
        assert contents(ElementTree.fromstring(exported.text)) == contents(ElementTree.fromstring(text))
        assert host(fabrics.loads(exported.text, "y.xml")) == host(fabric)
        assert exported.notes == ()


@pytest.mark.parametrize(
    ("override", "old", "new"),
    [
        ("{from: node0/nic0, to: leaf0, capacity: 100Gbit/s, source: ethtool}", 'speed="400000"', 'speed="100000"'),
        ("{from: node0/nic0, to: leaf0, latency: 1500ns, source: measured}", 'speed="400000"', 'speed="400000" latency="1.5"'),
        ("{from: node0/gpu0, to: node0/switch0, capacity: 31507692307B/s, source: lspci}",
         '11:00.0" class="0x030200" link_speed="32.0 GT/s', '11:00.0" class="0x030200" link_speed="16.0 GT/s'),
        ("{from: node0/gpu0, to: node0/gpu1, capacity: 100GB/s, source: nvidia-smi}", 'count="6"', 'count="4"'),
        ("{vertex: node0/gpu0, gdr: false, source: doctor}", 'rank="0" gdr="1"', 'rank="0" gdr="0"'),
    ],
)  # fmt: skip
def test_what_was_changed_in_the_fabric_is_written_as_it_is_now(tmp_path: Path, override: str, old: str, new: str) -> None:
    flat = re.sub(r">\s+<", "><", CLEAN)
    (tmp_path / "t.xml").write_text(flat)
    head = "format: railweave-cluster\nversion: 1\nname: changed\nnodes: [{template: t.xml, count: 1}]\noverrides:\n  - "
    (tmp_path / "c.yaml").write_text(head + override + "\n")
    fabric = fabrics.load(tmp_path / "c.yaml")
    exported = fabric_export.export(fabric).text
    assert contents(ElementTree.fromstring(exported)) == contents(ElementTree.fromstring(flat.replace(old, new)))
    assert host(fabrics.loads(exported, "again.xml")) == host(fabric)


def test_what_the_format_cannot_say_is_said() -> None:
    notes = fabric_export.export(fabrics.load("xe9680-4hca", 2)).notes
    assert notes[0] == "2 nodes: the file describes node0 alone, and no network"
    assert "memory bandwidth of NUMA nodes has no place in the format" in notes


def test_a_port_latency_of_0_is_left_out_and_said() -> None:
    head = "format: railweave-node\nversion: 1\nname: n\ndescription: d\nlinks: {p: {pcie: gen4 x16, latency: 0ns, source: test}}\n"
    parts = "numa: {count: 1}\ngpus: [{model: A100, link: p, gdr: true, at: [numa0]}]\nnics: [{model: C, link: p, port: p, at: [numa0]}]"
    exported = fabric_export.export(fabrics.loads(head + parts, "n.yaml"))
    assert "latency=" not in exported.text
    assert any(note.startswith("a port's latency of 0 has no place in the format") for note in exported.notes)


def test_nic_that_is_no_part_of_the_network_is_left_out_and_named() -> None:
    nics = "nics: [{model: CX-7, link: p, port: p, at: [numa0, numa0]}, {model: CX-4, link: p, port: p, rails: none, at: [numa0]}]"
    head = "format: railweave-node\nversion: 1\nname: n\ndescription: d\nlinks: {p: {pcie: gen4 x16, source: test}}\nnuma: {count: 1}\n"
    exported = fabric_export.export(fabrics.loads(head + "gpus: [{model: A100, link: p, gdr: true, at: [numa0]}]\n" + nics, "n.yaml"))
    assert "node0/nic2 is not on the GPU network; NCCL would use it, so it is left out" in exported.notes
    again = fabrics.loads(exported.text, "n.xml")
    assert [vertex.name for vertex in again.vertices if "nic" in vertex.name] == ["node0/nic0", "node0/nic1"]


def test_machine_is_read_back_as_its_fabric() -> None:
    machine = machine_of(craft())
    exported = nccl_topology.export(machine)
    assert exported.notes == () and lint_nccl(exported.text, "x.xml", machine) == []
    assert 'affinity="000000ff"' in exported.text and 'familyid="6" modelid="143"' in exported.text
    assert 'class="0x020700" vendor="0x15b3" device="0x1021"' in exported.text
    assert exported.text.count('name="mlx5_') == 8 and exported.text.count('gdr="1"') == 16


def test_port_that_is_down_is_left_out_and_named() -> None:
    crafted = craft()
    crafted.file("/sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN")
    exported = nccl_topology.export(machine_of(crafted))
    assert exported.notes == ("mlx5_2 port 1 is down; left out, as NCCL does",)
    assert 'name="mlx5_2"' not in exported.text and exported.text.count("<net ") == 7


def test_virtual_machine_without_a_tree() -> None:
    crafted = craft((Switch(0, 2, 0),))
    devices = [bus_id for bus_id in crafted.recording.folders["/sys/bus/pci/devices"] if bus_id in crafted.gpus]
    crafted.folder("/sys/bus/pci/devices", devices)
    for bus_id in devices:
        crafted.recording.links[f"/sys/bus/pci/devices/{bus_id}"] = f"../../../devices/pci0000:00/{bus_id}"
        crafted.file(f"/sys/bus/pci/devices/{bus_id}/numa_node", "-1")
        crafted.file(f"/sys/bus/pci/devices/{bus_id}/max_link_width", "0")
    exported = nccl_topology.export(machine_of(crafted))
    assert 'numaid="-1"' in exported.text and "<nic" not in exported.text
    assert any("PCIe link" in note and "0 lanes" in note for note in exported.notes)
    assert fabrics.loads(exported.text, "vm").gpu_count == 2


def test_file_is_written_as_nccl_reads_it() -> None:
    """NCCL has an XML reader of its own: no references, no space before `/>`, both link attributes on every device."""
    crafted = craft()
    crafted.absent(f"/sys/bus/pci/devices/{crafted.nics[0]}/max_link_width")
    del crafted.recording.files[f"/sys/bus/pci/devices/{crafted.nics[0]}/max_link_width"]
    text = nccl_topology.export(machine_of(crafted), name='<"a" & b>' + "x" * 300).text
    assert " />" not in text and "&" not in text
    assert text.count("<pci ") == text.count(" link_speed=") == text.count(" link_width=") == 20
    assert text.count('link_speed="" link_width="0"') == 1
    assert max(len(value) for value in re.findall(r'"([^"]*)"', text)) == 254
    assert fabrics.loads(text, "x.xml").gpu_count == 8


def test_machine_without_gpus_has_no_topology() -> None:
    with pytest.raises(FabricError, match="has no GPU"):
        machine = machine_of(craft((Switch(0, 2, 2),)))
        assert isinstance(machine.gpus, Known)
        nccl_topology.export(dataclasses.replace(machine, gpus=dataclasses.replace(machine.gpus, value=())))


@pytest.mark.parametrize("cpus", [(0,), (31, 32), (0, 63, 64), tuple(range(192))])
def test_masks_are_read_back(cpus: tuple[int, ...]) -> None:
    assert cpu_mask(mask(cpus)) == cpus


def test_mask_that_nccl_has_no_room_for_is_left_out() -> None:
    assert "affinity" in render([Cpu(0, range(896))], "large") and "affinity" not in render([Cpu(0, range(1024))], "larger")


# ---- lint ----

CLEAN = """\
<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:21:00.0" count="6" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:21:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:11:00.0" count="6" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""


def test_clean_file_has_no_contradiction() -> None:
    assert lint_nccl(CLEAN, "x.xml", None) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "found"),
    [
        ("000000f0", "000000f8", 12, "overlap in cores 3"),
        ("000000f0", "000000e0", 2, "no mask has cores 4"),
        ("000000f0", "xyz", 12, "no mask of words"),
        ("000000f0", "0", 12, "has no core"),
        (' affinity="000000f0"', "", 12, "has no mask, others have"),
        ('numaid="1"', 'numaid="0"', 12, "NUMA node 0 a second time; first in line 2"),
        ('busid="0000:12:00.0"', 'busid="0000:10:00.0"', 7, "busid 0000:10:00.0 a second time; first in line 3"),
        ('dev="1" sm', 'dev="0" sm', 14, "GPU dev 0 a second time"),
        ('target="0000:11:00.0" count="6"', 'target="0000:11:00.0" count="4"', 4, "6 NVLinks from 0000:11:00.0 to 0000:21:00.0, but 4"),
        ('<nvlink target="0000:11:00.0" count="6" tclass="0x030200"/>', "", 13, "GPU 0000:21:00.0 has no NVLink, 1 other has"),
        ('target="0000:21:00.0"', 'target="0000:31:00.0"', 4, "which is no GPU of this file"),
        ('32.0 GT/s PCIe" link_width="16">\n        <nic', '33 GT/s" link_width="16">\n        <nic', 7, "no speed of PCIe"),
        (' link_width="16">\n        <nic', ">\n        <nic", 7, "no link_width of 0000:12:00.0"),
        ('link_width="16">\n        <nic', 'link_width="7">\n        <nic', 7, "no width of PCIe"),
    ],
)  # fmt: skip
def test_each_contradiction_is_found_at_its_line(old: str, new: str, line: int, found: str) -> None:
    assert old in CLEAN
    problems = lint_nccl(CLEAN.replace(old, new, 1), "x.xml", None)
    assert any(problem.line == line and found in problem.text for problem in problems), problems


def test_contradictions_that_leave_no_fabric_hide_no_others(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_text(CLEAN.replace("000000f0", "000000e0").replace('busid="0000:21:00.0"', 'busid="0000:11:00.0"'))
    with pytest.raises(ParseError, match="of a second GPU"):
        fabrics.load(path)
    problems = [str(problem) for problem in lint_file(path, None)]
    assert f"{path}:13: busid 0000:11:00.0 a second time; first in line 4" in problems
    assert any(problem.startswith(f"{path}:2: no mask has cores 4") for problem in problems)
    # What only the reader of fabrics minds stands among the others, in its line.
    path.write_text(CLEAN.replace("000000f0", "000000e0").replace('dev="1" sm="90"', 'dev="1" sm="many"'))
    assert [problem.line for problem in lint_file(path, None)] == [2, 14]
    path.write_text(CLEAN.replace('dev="1" sm="90"', 'dev="1" sm="many"'))
    with pytest.raises(ParseError, match=r"x\.xml:14:"):
        lint_file(path, None)


def test_unequal_nvlinks_to_the_switch() -> None:
    text = CLEAN.replace('target="0000:21:00.0" count="6" tclass="0x030200"', 'target="fffffff:ffff:ff" count="18" tclass="0x068000"')
    text = text.replace('target="0000:11:00.0" count="6" tclass="0x030200"', 'target="fffffff:ffff:ff" count="17" tclass="0x068000"')
    assert [str(problem) for problem in lint_nccl(text, "x.xml", None)] == [
        "x.xml:13: 17 NVLinks from 0000:21:00.0 to the NVSwitch, other GPUs have 18"
    ]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('busid="0000:1d:00.0"', 'busid="0000:99:00.0"', "GPU 0000:99:00.0 is not on a recording"),
        ('busid="0000:1d:00.0"', 'busid="0000:99:00.0"', "GPU 0000:1d:00.0 of a recording is not in the file"),
        ("mlx5_3", "mlx5_9", "net mlx5_9 is none of a recording"),
        ('affinity="000000ff"', 'affinity="0000007f"', "cores 0-6 in the file, 0-7 on a recording"),
        ('count="18"', 'count="16"', "16 NVLinks of GPU 0000:1d:00.0 in the file, 18"),
        ('link_width="16">\n        <gpu', 'link_width="8">\n        <gpu', "link_width of GPU 0000:1d:00.0 is '8' in the file, '16'"),
        ('link_width="16">\n      <pci', 'link_width="8">\n      <pci', "link_width of bridge 0000:12:00.0 is '8' in the file, '16'"),
        (
            'speed="400000" port="1" guid',
            'speed="200000" port="1" guid',
            "speed of net mlx5_0 is '200000' in the file, '400000' on a recording",
        ),
        ('sm="90"', 'sm="80"', "sm of GPU 0000:1d:00.0 is '80' in the file, '90' on a recording"),
        ('device="0x1021"', 'device="0x101d"', "device of NIC 0000:25:00.0 is '0x101d' in the file, '0x1021' on a recording"),
        ('gdr="1"/>', 'gdr="0"/>', "gdr of net mlx5_0 is '0' in the file, '1' on a recording"),
        ('dev="0" sm', 'dev="1" sm', "dev of GPU 0000:1d:00.0 is '1' in the file, '0' on a recording"),
    ],
)
def test_disagreement_with_the_machine(old: str, new: str, found: str) -> None:
    machine = machine_of(craft())
    text = nccl_topology.export(machine).text
    assert old in text
    problems = [str(problem) for problem in lint_nccl(text.replace(old, new, 1), "x.xml", machine)]
    assert any(found in problem for problem in problems), problems


def exchanged(text: str, one: str, other: str) -> str:
    return text.replace(one, "\0").replace(other, one).replace("\0", other)


def test_devices_in_one_anothers_place() -> None:
    crafted = craft()
    machine = machine_of(crafted)
    text = nccl_topology.export(machine).text
    for what, devices in (("NIC", crafted.nics), ("GPU", crafted.gpus)):
        first, last = devices[0], devices[-1]
        problems = [problem.text for problem in lint_nccl(exchanged(text, f'"{first}"', f'"{last}"'), "x.xml", machine)]
        found = [text for text in problems if text.startswith(f"{what} {first} stands elsewhere in the file: ")]
        assert len(found) == 1 and "on a recording" in found[0], problems
        assert any(text.startswith(f"{what} {last}") for text in problems)


def test_nets_in_one_anothers_place_and_missing_ones() -> None:
    crafted = craft()
    machine = machine_of(crafted)
    text = nccl_topology.export(machine).text
    problems = [problem.text for problem in lint_nccl(exchanged(text, '"mlx5_0"', '"mlx5_7"'), "x.xml", machine)]
    assert f"net mlx5_0 is on {crafted.nics[7]} in the file, on {crafted.nics[0]} on a recording" in problems
    without = re.sub(r"<nic>\s*<net name=.mlx5_3.*?</nic>", "", text, flags=re.DOTALL)
    problems = [problem.text for problem in lint_nccl(without, "x.xml", machine)]
    assert f"net mlx5_3 of a recording (on {crafted.nics[3]}) is not in the file" in problems
    alone = re.sub(r'<pci busid="[^"]*" class="0x0207.*?</pci>', "", text, flags=re.DOTALL)
    problems = [problem.text for problem in lint_nccl(alone, "x.xml", machine)]
    assert [text for text in problems if "NIC" in text] == [f"NIC {bus_id} of a recording is not in the file" for bus_id in crafted.nics]


@pytest.mark.parametrize("name", sorted(fabrics.templates()))
def test_other_tools_descriptions_of_a_machine_agree_with_it(tmp_path: Path, name: str) -> None:
    machine = TemplateMachine(name).machine()
    for file, text in (("m.txt", matrix_of(machine)), ("t.xml", nccl_topology.export(machine).text)):
        (tmp_path / file).write_text(text)
        assert [str(problem) for problem in lint_file(tmp_path / file, machine)] == []


def matrix_of(machine: Machine) -> str:
    """As `nvidia-smi topo -m` would write it."""
    rows = ways_table(machine)
    gpus = known(machine.gpus) or ()
    near = {f"GPU{gpu.index}": machine.pci_device(known(gpu.bus_id) or "") for gpu in gpus}
    lines = ["\t".join([*(cell.replace("gpu", "GPU") for cell in rows[0]), "CPU Affinity", "NUMA Affinity"])]
    for row in rows[1:]:
        title = row[0].replace("gpu", "GPU")
        device = near.get(title)
        rest = [] if device is None else [ranges(known(device.local_cpus) or ()), str(known(device.numa))]
        lines.append("\t".join([title, *row[1:], *rest]))
    return "\n".join(lines) + "\n"


def test_matrix_against_the_machine(tmp_path: Path) -> None:
    machine = TemplateMachine("xe9680-4hca").machine()
    path = tmp_path / "m.txt"
    lines = matrix_of(machine).splitlines()

    def lint(*changed: str) -> list[str]:
        path.write_text("\n".join(changed) + "\n")
        return [problem.text for problem in lint_file(path, machine)]

    cells = lines[1].split("\t")
    assert cells[9] == "PIX"
    assert lint(lines[0], "\t".join([*cells[:9], "SYS", *cells[10:]]), *lines[2:]) == [
        f"GPU0: SYS to {lines[0].split(chr(9))[9]} (PIX on a recording)"
    ]
    found = lint(lines[0], "\t".join([*cells[:-2], "0-1", cells[-1]]), *lines[2:])
    assert any(text.startswith("GPU0 is near to cores 0-1 in the file, ") for text in found)
    fewer = ["\t".join(line.split("\t")[:8] + line.split("\t")[9:]) for line in lines if not line.startswith("GPU7")]
    assert lint(*fewer) == ["GPU7 of a recording is not in the file"]


def test_places_are_not_compared_in_a_guest_that_sees_none(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    made = TemplateMachine("xe9680-4hca")
    tree = nccl_topology.export(made.machine()).text
    made.virtual()
    (tmp_path / "host.xml").write_text(tree)
    recording = made.record(tmp_path / "guest.tar.zst")
    done = cli("topo", "--lint", str(tmp_path / "host.xml"), "--from", str(recording))
    assert "stands elsewhere" not in done.stdout
    assert "places on the PCI bus are not compared: guest sees a flat tree" in done.stderr
    flat = cli("topo", "--from", str(recording), "--nccl-xml", str(tmp_path / "flat.xml"))
    assert flat.returncode == 0 and "guest sees a flat tree" in flat.stderr
    assert (tmp_path / "flat.xml").read_text().startswith("<!-- PCIe paths are unknown (guest sees a flat tree)")
    assert fabrics.load(tmp_path / "flat.xml").gpu_count == 8


def test_options_that_would_be_ignored_are_refused(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    for arguments in (
        ("hgx-h100", "--lint", "x.xml"),
        ("hgx-h100", "--record", str(tmp_path / "r.tar.zst")),
        ("hgx-h100", "--list"),
        ("--lint", "x.xml", "--nodes", "2"),
        ("--record", str(tmp_path / "r.tar.zst"), "--from", "x.tar.zst"),
    ):
        done = cli("topo", *arguments)
        assert done.returncode == 2 and "exclude each other" in done.stderr, arguments
    assert not list(tmp_path.iterdir())


def test_matrix_has_too_little_for_nccl(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    path, out = tmp_path / "m.txt", tmp_path / "t.xml"
    path.write_text(matrix_of(TemplateMachine("xe9680-4hca").machine()))
    done = cli("topo", str(path), "--nccl-xml", str(out))
    assert done.returncode == 1 and not out.exists()
    assert "topo -m has no addresses" in done.stderr and "railweave topo --nccl-xml" in done.stderr
    assert done.stdout == ""


def test_lint_of_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV6\tPIX\nGPU1\tNV4\t X \tSYS\nGPU2\tPIX\tSYS\t X \n")
    assert [problem.text for problem in lint_file(path, None)] == ["GPU0 to GPU1 is NV6, but NV4 back", "GPU2 has no NVLink, 2 others have"]
    path.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV6\nGPU1\tSYS\t X \n")
    assert [problem.text for problem in lint_file(path, None)] == ["GPU0 to GPU1 is NV6, but SYS back", "GPU1 has no NVLink, 1 other has"]


def test_command_line_lints_and_exports(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    recording, exported = tmp_path / "r.tar.zst", tmp_path / "t.xml"
    write_recording(craft().recording, recording)
    made = cli("topo", "--from", str(recording), "--nccl-xml", str(exported))
    assert made.returncode == 0, made.stderr
    clean = cli("topo", "--lint", str(exported), "--from", str(recording))
    assert (clean.returncode, clean.stdout) == (0, f"{exported}: no contradiction found\n")
    exported.write_text(exported.read_text().replace('count="18"', 'count="12"', 1))
    found = cli("topo", "--lint", str(exported), "--from", str(recording))
    assert found.returncode == 1 and f"{exported}:" in found.stdout and "12 NVLinks" in found.stdout
    template = cli("topo", "dgx-1v", "--nccl-xml", str(tmp_path / "dgx.xml"))
    assert template.returncode == 0 and fabrics.load(tmp_path / "dgx.xml").gpu_count == 8


@pytest.mark.parametrize("path", topology_files())
def test_files_of_real_machines_have_no_contradiction(path: Path) -> None:
    assert lint_file(path, None) == []


def test_virtual_functions_bring_no_wires_of_their_own() -> None:
    made = TemplateMachine("xe9680-4hca")
    without = nccl_topology.export(made.machine()).text
    addresses = made.virtual_functions(0, 8)
    machine = made.machine()
    assert nccl_topology.export(machine).text == without
    assert len(known(machine.nics) or ()) == len(made.nics) + 8
    # NCCL's own file has them as further nets of the card, which is no contradiction.
    of_nccl = without.replace('<net name="mlx5_0"', '<net name="mlx5_0v8" dev="9" speed="400000" port="1"/><net name="mlx5_0"', 1)
    assert of_nccl != without and lint_nccl(of_nccl, "x.xml", machine) == []
    assert addresses[-1].endswith(":01.0")


def test_subfunctions_bring_no_wires_of_their_own() -> None:
    made = TemplateMachine("xe9680-4hca")
    before = made.machine()
    made.subfunction(0)
    machine = made.machine()
    assert nccl_topology.export(machine).text == nccl_topology.export(before).text
    assert [nic.name for nic in fabric_nics(machine)[0]] == [nic.name for nic in fabric_nics(before)[0]]
    # Both hang from one PCI function, and each has a netdevice of its own.
    netdevs = {nic.name: known(nic.netdevs) for nic in known(machine.nics) or ()}
    assert (netdevs["mlx5_0"], netdevs["mlx5_0s1"]) == (("rail0",), ("enp0s1",))


def test_virtual_functions_of_a_pod_are_on_the_card_of_their_physical_function() -> None:
    made = TemplateMachine("xe9680-4hca")
    made.virtual_functions(0, 8)
    made.files = {path: content for path, content in made.files.items() if not re.match(r"/sys/class/infiniband/mlx5_\d/", path)}
    made.links = {path: target for path, target in made.links.items() if not re.fullmatch(r"/sys/class/infiniband/mlx5_\d", path)}
    system = ElementTree.fromstring(nccl_topology.export(made.machine()).text)
    cards = {
        pci.get("busid"): [net.get("name") for net in pci.findall("nic/net")] for pci in system.iter("pci") if pci.find("nic") is not None
    }
    assert cards == {made.nics[0].bus_id: [f"mlx5_0v{number}" for number in range(1, 9)]}
