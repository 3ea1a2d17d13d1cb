"""The Python face of fabrics: loading, the JSON schema, link state."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from railweave import fabric
from railweave.errors import FabricError, ParseError
from railweave.fabric import EdgeKind, LinkState, ResourceKind, VertexKind

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "schema" / "fabric.schema.json").read_text())
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("name", fabric.templates())
def test_template_is_named_like_its_file_described_and_valid(name: str) -> None:
    loaded = fabric.load(name, nodes=2)
    assert loaded.name == f"2 x {name}"
    assert fabric.templates()[name]
    jsonschema.validate(json.loads(loaded.to_json()), SCHEMA)
    assert fabric.loads(loaded.to_json()).to_json() == loaded.to_json()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    jsonschema.validate(json.loads(fabric.load(path).to_json()), SCHEMA)


def test_parts_have_kinds_before_their_names_are_asked_for() -> None:
    """The core binds enumerations when they are first needed, here by many threads at once."""
    code = """if True:
        import threading
        from railweave import _native, fabric
        loaded = fabric.load("hgx-h200")
        assert "VertexKind" not in dir(_native)
        parts, found = [loaded.vertex(0), loaded.edge(0), loaded.resources[0]] * 4, []
        together = threading.Barrier(len(parts))
        def ask(part):
            together.wait()
            found.append(part.kind)
        threads = [threading.Thread(target=ask, args=(part,)) for part in parts]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        expected = [fabric.VertexKind.numa, fabric.EdgeKind.socket, fabric.ResourceKind.edge]
        assert sorted(map(str, found)) == sorted(map(str, expected * 4)), found
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"two-h200-nodes", "xe9680-pod", "mixed-tree", "inline-node"}


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"version": 3},
        {"vertices": [{"name": "g", "kind": "gpu", "index": 0}]},
        {"vertices": [{"name": "l", "kind": "leaf", "index": 0, "node": "n"}]},
        {"vertices": [{"name": "g", "kind": "gpu", "index": 0, "node": "n", "egress_Bps": 0}]},
        {"edges": [{"from": "g", "to": "h", "kind": "nvlink", "capacity_Bps": 0, "latency_ns": 0}]},
        {"edges": [{"from": "g", "to": "h", "kind": "wire", "capacity_Bps": 1, "latency_ns": 0}]},
    ],
)
def test_schema_and_reader_refuse_the_same(change: dict[str, object]) -> None:
    gpus = [{"name": name, "kind": "gpu", "node": "n", "index": 0} for name in "gh"]
    document = {"format": "railweave-fabric", "version": 1, "name": "x", "nodes": ["n"], "vertices": gpus, "edges": []}
    jsonschema.validate(document, SCHEMA)
    fabric.loads(json.dumps(document))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | change, SCHEMA)
    with pytest.raises(ParseError):
        fabric.loads(json.dumps(document | change))


def test_graph_as_python_sees_it() -> None:
    xe = fabric.load("xe9680-4hca", nodes=2)
    assert (xe.gpu_count, xe.node_count, xe.node_names) == (16, 2, ["node0", "node1"])
    gpu = xe.gpu(9)
    assert xe.vertices[gpu].name == "node1/gpu1"
    assert xe.node_of(9) == 1
    assert xe.first_gpu(1) == 8
    assert gpu in xe.gpus_of(1)
    nic = xe.find_vertex("node1/nic0")
    leaf = xe.find_vertex("leaf0")
    assert nic is not None
    assert leaf is not None
    rail = xe.find_edge(nic, leaf)
    assert rail is not None
    assert rail in xe.out_edges(nic)
    assert rail in xe.in_edges(leaf)
    assert xe.edge(rail).kind == EdgeKind.rail
    assert xe.edge(rail).capacity_Bps == 50_000_000_000
    assert xe.describe(rail) == "node1/nic0 -> leaf0 (rail)"
    assert xe.vertices[leaf].node is None
    assert xe.vertices[leaf].rail == 0
    assert xe.find_vertex("node2/gpu0") is None
    assert xe.find_edge(gpu, leaf) is None
    memory = xe.vertex_resource(xe.find_vertex("node0/numa0") or 0, ResourceKind.vertex_through)
    assert memory is not None
    assert xe.resources[memory].capacity_Bps == 307_200_000_000
    for call in (xe.vertex, xe.edge, xe.gpu, xe.node_of, xe.gpus_of, xe.out_edges, xe.describe):
        with pytest.raises(IndexError):
            call(10**6)


def test_link_state_follows_measurements() -> None:
    state = LinkState(fabric.load("dgx-1v"))
    state.set_rate(3, 1000)
    state.set_down(4, True)
    assert (state.epoch, state.rate_Bps(3), state.rate_Bps(4), state.is_down(4)) == (2, 1000, 0, True)
    with pytest.raises(FabricError):
        state.set_rate(3, 0)


def test_errors_carry_file_and_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("format: railweave-cluster\nversion: 1\nname: x\nnodes: [{template: dgx-1v, count: 1000000000}]\n")
    with pytest.raises(ParseError, match=r"bad\.yaml:4:\d+: nodes\[0\]\.count: '1000000000'; expected a whole number from 1 to 16384"):
        fabric.load(bad)
    with pytest.raises(ParseError, match="no such file, and no template of that name"):
        fabric.load("dgx-2")


def test_cluster_text_names_files_beside_its_source() -> None:
    text = "format: railweave-cluster\nversion: 1\nname: x\nnodes: [{template: nccl-topo-4xH200-rail-aligned.xml, count: 3}]\n"
    loaded = fabric.loads(text, str(ROOT / "examples" / "made-up.yaml"))
    assert loaded.gpu_count == 12
    assert {v.rail for v in loaded.vertices if v.kind == VertexKind.leaf} == {0, 1, 2, 3}


def test_examples_in_the_documentation_load() -> None:
    text = (ROOT / "docs" / "fabric.md").read_text()
    blocks = re.findall(r"```(?:yaml|json)\n(.*?)```", text, re.DOTALL)
    assert [fabric.loads(block, "docs/fabric.md").gpu_count for block in blocks] == [64, 4, 2]


def test_topology_files_of_a_folder_load() -> None:
    folder = os.environ.get("RAILWEAVE_TOPOLOGY_FILES")
    if folder is None:
        pytest.skip("RAILWEAVE_TOPOLOGY_FILES names no folder of NCCL topology files")
    for path in sorted(Path(folder).glob("*.xml")):
        jsonschema.validate(json.loads(fabric.load(path, nodes=2).to_json()), SCHEMA)


def test_files_and_names_that_are_no_text_are_errors_as_text(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(128, 256)))
    with pytest.raises(ParseError, match=r"noise: not of a kind that is read here"):
        fabric.load(noise)
    noise.write_bytes(b"format: railweave-node\n" + bytes(range(128, 256)))
    with pytest.raises(ParseError, match=r"noise:2:1: unknown key .\\x80"):
        fabric.load(noise)
    with pytest.raises(FabricError, match=r"\\udcff: a name that is not UTF-8"):
        fabric.load("\udcff")
