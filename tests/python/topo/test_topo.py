"""`railweave topo`: the tree, the picture, the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from railweave import fabric
from railweave.cli.topo import command
from railweave.errors import ParseError
from railweave.fabric import VertexKind
from railweave.output import OutputError
from railweave.topo.hierarchy import alike, port_rate, rate, read_hosts
from railweave.topo.marks import COLOURS, Mark
from railweave.topo.picture import render_svg
from railweave.topo.tree import render_tree

sys.path.insert(0, str(Path(__file__).parents[1]))
from template_machine import PCI, TemplateMachine

SVG = "{http://www.w3.org/2000/svg}"
GOLDENS = Path(__file__).parent / "goldens"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def drawn_texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("value", "text"), [(450 * 10**9, "450 GB/s"), (15_753_846_153, "15.8 GB/s"), (1_250_000, "1.25 MB/s"), (7, "7 B/s")]
)
def test_rates_read_like_data_sheets(value: int, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(("value", "text"), [(50 * 10**9, "400 Gbit/s"), (50 * 10**6, "400 Mbit/s"), (10**12, "8 Tbit/s")])
def test_port_rates_are_bits(value: int, text: str) -> None:
    assert port_rate(value) == text


@pytest.mark.parametrize("name", ["dgx-1v", "xe9680-4hca", "charisma-c"])
def test_tree_golden(name: str) -> None:
    """RAILWEAVE_UPDATE_GOLDENS=1 writes them again."""
    text = render_tree(fabric.load(name, nodes=2))
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("RAILWEAVE_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", fabric.templates())
def test_tree_names_every_part_of_a_node(name: str) -> None:
    loaded = fabric.load(name)
    text = render_tree(loaded)
    for vertex in loaded.vertices:
        if vertex.kind != VertexKind.nvswitch:
            assert re.search(rf"\b{vertex.name.removeprefix('node0/')}\b", text), vertex.name


def test_alike_hosts_are_told_from_others() -> None:
    text = "format: railweave-cluster\nversion: 1\nname: x\nnodes: [{template: dgx-1v, count: 3}]\n"
    assert [len(kind.hosts) for kind in alike(read_hosts(fabric.loads(text)))] == [3]
    changed = text + "overrides: [{from: node1/gpu0, to: node1/switch0, capacity: 1GB/s, source: lspci}]\n"
    assert [len(kind.hosts) for kind in alike(read_hosts(fabric.loads(changed)))] == [2, 1]
    assert "node0, node2 (2 alike)" in render_tree(fabric.loads(changed))


@pytest.mark.parametrize("name", fabric.templates())
@pytest.mark.parametrize("nodes", [1, 2, 9])
def test_picture_shows_every_part_without_overlap(name: str, nodes: int) -> None:
    loaded = fabric.load(name, nodes=nodes)
    svg = render_svg(loaded)
    texts = drawn_texts(svg)
    hosts = 2 if nodes == 2 else 1
    assert sum(text.startswith("GPU ") for text in texts) == hosts * loaded.gpu_count // nodes
    assert sum(text.startswith("NIC ") for text in texts) == hosts * len(loaded.nics_of(0))
    assert sum(text.startswith("CPU ") for text in texts) == hosts * sum(v.kind == VertexKind.numa and v.node == 0 for v in loaded.vertices)
    if nodes == 9:
        assert "node0 · 9 nodes alike" in texts
    boxes = filled_boxes(svg)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{a} and {b} overlap"


def filled_boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of the parts' boxes (corner radius 7)."""
    boxes = []
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        if rect.get("rx") == "7":
            x, y, width, height = (float(rect.get(key, "0")) for key in ("x", "y", "width", "height"))
            boxes.append((x, y, x + width, y + height))
    return boxes


def test_picture_stays_inside_its_page() -> None:
    for name in fabric.templates():
        svg = render_svg(fabric.load(name, nodes=2))
        root = ET.fromstring(svg)
        width, height = float(root.get("width", "0")), float(root.get("height", "0"))
        for left, top, right, bottom in filled_boxes(svg):
            assert left >= 0
            assert top >= 0
            assert right <= width
            assert bottom <= height


def test_line_widths_follow_capacity() -> None:
    svg = render_svg(fabric.load("hgx-h100", nodes=2))
    widths = {path.get("stroke"): float(path.get("stroke-width", "0")) for path in ET.fromstring(svg).iter(f"{SVG}path")}
    assert widths["#5f9a15"] > widths["#8a97a3"] > widths["#b7791f"], "NVLink > PCIe > between sockets"


def test_names_from_files_are_text_in_the_picture() -> None:
    document = fabric.load("kisti-v100-2gpu").to_json().replace('"kisti-v100-2gpu"', '"<script>&\\"x\\""')
    assert '<script>&"x"' in drawn_texts(render_svg(fabric.loads(document)))


def test_long_names_are_cut_off_where_they_would_not_be_readable() -> None:
    loaded = fabric.load("kisti-v100-2gpu")
    document = loaded.to_json().replace('"kisti-v100-2gpu"', f'"{"n" * 300}"').replace("V100", "V" * 100)
    root = ET.fromstring(render_svg(fabric.loads(document)))
    cut = [text for text in root.iter(f"{SVG}text") if (text.text or "").endswith("…")]
    assert [(text.text or "")[0] for text in cut] == ["V", "V", "n"]
    for text in cut:
        room = float(text.get("textLength", "inf"))
        assert room <= float(root.get("width", "0"))
        assert room / len(text.text or "") >= 0.3 * float(text.get("font-size", "0"))


MARKS = [
    Mark(("node0/gpu0",), "info", "information about one GPU"),
    Mark(("node0/gpu0", "node0/nic0"), "error", "a path that is <broken> & long " + "word " * 60),
    Mark((), "warning", "the machine as a whole"),
    Mark(("node7/gpu3",), "warning", "a node that is not drawn"),
]


@pytest.mark.parametrize("name", fabric.templates())
def test_findings_stand_at_their_parts_and_in_the_list(name: str) -> None:
    svg = render_svg(fabric.load(name, nodes=9), MARKS)
    root = ET.fromstring(svg)
    discs = [(float(c.get("cx", "0")), float(c.get("cy", "0")), c.get("fill")) for c in root.iter(f"{SVG}circle")]
    # The gravest is number 1: on a GPU, on a NIC, in the list; 2 and 3 in the list only; 4 on the GPU, in the list.
    assert [fill for _, _, fill in discs].count(COLOURS["error"]) == 3
    assert [fill for _, _, fill in discs].count(COLOURS["warning"]) == 2
    assert [fill for _, _, fill in discs].count(COLOURS["info"]) == 2
    corners = {(right, top) for _, top, right, _ in filled_boxes(svg)}
    assert sum((x, y) in corners for x, y, _ in discs) == 2, "first badges stand on the corners of GPU 0 and NIC 0"
    texts = drawn_texts(svg)
    assert "machine: the machine as a whole" in texts
    assert "node7/gpu3: a node that is not drawn" in texts
    assert "information about one GPU" in texts
    assert [text for text in texts if text.isdigit()].count("1") == 3
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    listed = [(float(t.get("x", "0")), float(t.get("y", "0")), t.text or "") for t in root.iter(f"{SVG}text") if t.get("font-size") == "13"]
    assert all(x + 0.56 * 13 * len(text) <= width for x, _, text in listed if "word" in text), "long texts are wrapped"
    assert max(y for _, y, _ in listed) < height


def test_findings_find_parts_by_pci_address() -> None:
    machine = json.loads(fabric.load("kisti-v100-2gpu").to_json())
    next(v for v in machine["vertices"] if v["name"] == "node0/nic0")["bus_id"] = "0000:3b:00.0"
    svg = render_svg(fabric.loads(json.dumps(machine)), [Mark(("0000:3b:00.0",), "error", "x")])
    assert svg.count("<circle") == 2


def test_many_findings_on_one_part_are_counted() -> None:
    svg = render_svg(fabric.load("hgx-h100"), [Mark(("node0/gpu0",), "info", f"finding {n}") for n in range(20)])
    texts = drawn_texts(svg)
    assert "+16" in texts
    assert sum(text.startswith("finding ") for text in texts) == 20
    with pytest.raises(ValueError, match="severity 'bad'"):
        render_svg(fabric.load("hgx-h100"), [Mark((), "bad", "x")])


def test_a_fabric_without_cpus_or_network_is_drawn() -> None:
    gpus = [{"name": f"g{index}", "kind": "gpu", "node": "n", "index": index} for index in (0, 1)]
    links = [{"from": f"g{a}", "to": f"g{b}", "kind": "nvlink", "capacity_Bps": 9, "latency_ns": 0} for a, b in ((0, 1), (1, 0))]
    document = {"format": "railweave-fabric", "version": 1, "name": "bare", "nodes": ["n"], "vertices": gpus, "edges": links}
    bare = fabric.loads(json.dumps(document))
    assert "GPU 1" in drawn_texts(render_svg(bare))
    assert "g0" in render_tree(bare)


def test_command_prints_tree_json_and_list() -> None:
    assert run("dgx-1v").output == render_tree(fabric.load("dgx-1v"))
    assert fabric.loads(run("dgx-1v", "--nodes", "3", "--json").output).node_count == 3
    listing = run("--list").output
    assert all(name in listing for name in fabric.templates())


def test_command_writes_the_picture_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "fabric.svg"
    assert run("dgx-1v", "--svg", str(target)).exit_code == 0
    assert target.read_text() == render_svg(fabric.load("dgx-1v"))
    assert [path.name for path in tmp_path.iterdir()] == ["fabric.svg"]
    failed = run("dgx-1v", "--svg", str(tmp_path / "missing" / "fabric.svg"))
    assert failed.exit_code == 1
    assert isinstance(failed.exception, OutputError)


def test_picture_of_a_machine_has_doctors_findings_on_the_spot(tmp_path: Path) -> None:
    made = TemplateMachine("xe9680-4hca")
    recording, target = made.record(tmp_path / "node.tar.zst"), tmp_path / "node.svg"
    assert run("--from", str(recording), "--svg", str(target)).exit_code == 0
    before = ET.parse(target).getroot()
    made.files[f"{PCI}/{made.nics[2].bus_id}/max_link_speed"] = "32.0 GT/s PCIe"
    made.files[f"{PCI}/{made.nics[2].bus_id}/current_link_speed"] = "8.0 GT/s PCIe"
    made.record(recording)
    assert run("--from", str(recording), "--svg", str(target)).exit_code == 0
    svg = target.read_text()
    corners = {(right, top) for _, top, right, _ in filled_boxes(svg)}
    discs = [(float(c.get("cx", "0")), float(c.get("cy", "0"))) for c in ET.fromstring(svg).iter(f"{SVG}circle")]
    assert len(discs) > len(list(before.iter(f"{SVG}circle")))
    assert any(disc in corners for disc in discs)
    texts = drawn_texts(svg)
    assert any("PCIe link" in text for text in texts) and {f"mlx5_{n}" for n in range(4)} <= set(texts)


def test_picture_of_a_guest_that_sees_a_flat_tree_says_so(tmp_path: Path) -> None:
    made = TemplateMachine("xe9680-4hca")
    made.virtual()
    recording, target = made.record(tmp_path / "node.tar.zst"), tmp_path / "node.svg"
    assert run("--from", str(recording), "--svg", str(target)).exit_code == 0
    assert "machine: PCIe paths are unknown (guest sees a flat tree); devices are drawn below the CPU" in drawn_texts(target.read_text())


def test_a_finding_on_what_is_not_drawn_stands_at_the_switch_above(tmp_path: Path) -> None:
    made = TemplateMachine("xe9680-4hca")
    made.files["/sys/class/infiniband/mlx5_1/ports/1/state"] = "1: DOWN"
    recording, target = made.record(tmp_path / "node.tar.zst"), tmp_path / "node.svg"
    assert run("--from", str(recording), "--svg", str(target)).exit_code == 0
    svg = target.read_text()
    texts = drawn_texts(svg)
    assert "mlx5_1" not in texts and "Fabric NIC is down: mlx5_1" in texts
    root = ET.fromstring(svg)
    labels = {t.text: (float(t.get("x", "0")), float(t.get("y", "0"))) for t in root.iter(f"{SVG}text")}
    x, y = labels["PCIe switch 1"]
    [corner] = [(right, top) for left, top, right, bottom in filled_boxes(svg) if left < x < right and top < y < bottom]
    assert corner in {(float(c.get("cx", "0")), float(c.get("cy", "0"))) for c in root.iter(f"{SVG}circle")}


@pytest.mark.parametrize(
    "arguments", [["dgx-1v", "--nodes", "0"], ["dgx-1v", "--json", "--svg", "x.svg"], ["dgx-1v", "--from", "x.tar.zst"], ["--salt", "x"]]
)
def test_command_explains_wrong_use(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error" in result.output


def test_known_errors_are_one_line_without_traceback() -> None:
    result = subprocess.run([sys.executable, "-m", "railweave", "topo", "no-such-machine"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("railweave: no-such-machine: no such file")
    assert result.stderr.count("\n") == 1


def test_a_name_that_no_file_can_have_is_an_error_as_text() -> None:
    done = run("x" * 300)
    assert isinstance(done.exception, ParseError)
    assert "x: cannot be read: File name too long; expected a readable file" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n", "2 GPUs"),
        (fabric.load("hgx-h100").to_json(), "hgx-h100"),
    ],
    ids=["machine", "fabric"],
)
def test_what_comes_through_a_pipe_is_read(text: str, shown: str) -> None:
    line = [sys.executable, "-m", "railweave", "topo", "/dev/stdin"]
    done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
