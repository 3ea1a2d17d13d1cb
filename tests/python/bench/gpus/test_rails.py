"""GPUs on shaped rails: who gets which GPU, the topology that NCCL is given, ranks in a lab. No GPU and no PyTorch."""

from __future__ import annotations

import contextlib
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from railweave import fabric
from railweave.bench.errors import BenchError
from railweave.bench.gpus import rails
from railweave.bench.gpus.session import Place, Processes, System, check_served
from railweave.cli.bench import command
from railweave.fabric import VertexKind
from railweave.lab import Lab, LabSpec

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

_PCI = (
    'class="0x030200" vendor="0x10de" device="0x2335" subsystem_vendor="0x10de" subsystem_device="0x18be" '
    'link_speed="32.0 GT/s PCIe" link_width="16"'
)


def dump(gpus: int, nets: int) -> str:
    """As NCCL writes it of a virtual machine: GPUs at the CPU, all networks in one NIC."""
    cards = "".join(
        f'<pci busid="0000:0{gpu}:00.0" {_PCI}><gpu dev="{gpu}" sm="90" rank="{gpu}" gdr="0"><nvlink target="ffff:ff:ff.0" count="18" '
        'tclass="0x068000"/></gpu></pci>'
        for gpu in reversed(range(gpus))
    )
    net = "".join(
        f'<net name="rail{number}" dev="{number}" speed="10000" port="0" latency="0.000000" guid="0x{number}" maxconn="65536" gdr="0"/>'
        for number in range(nets)
    )
    cpu = 'numaid="0" affinity="00ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
    return f'<system version="1"><cpu {cpu}>{cards}<nic>{net}</nic></cpu></system>'


def ask_for_dumps(monkeypatch: pytest.MonkeyPatch, text: str, writers: list[str]) -> None:
    """In place of ranks under NCCL: all ask for the file of their host; `writers`: by rank, who writes it."""

    class Asked:
        def ready(self) -> None:
            pass

    @contextlib.contextmanager
    def writes_dumps(system: System, place: Place, folder: Path) -> Iterator[Any]:
        assert [each["NCCL_TOPO_DUMP_FILE_RANK"] for each in place.environments] == writers
        for each in place.environments:
            Path(each["NCCL_TOPO_DUMP_FILE"]).write_text(text)
        yield Asked()

    monkeypatch.setattr(rails, "start", writes_dumps)


@pytest.mark.parametrize(
    ("shape", "available", "wanted"),
    [
        ((2, 2), "0123", ["0,1", "2,3"]),
        ((2, 4), "0123", ["0,1,2,3", "0,1,2,3"]),
        ((2, 4), "01234567", ["0,1,2,3", "4,5,6,7"]),
        ((2, 1), "5", ["5", "5"]),
        ((2, 4), "01", ["0,1", "0,1"]),
    ],
)
def test_nodes_have_gpus_of_their_own_while_there_are_enough(shape: tuple[int, int], available: str, wanted: list[str]) -> None:
    assert rails.visible_gpus(LabSpec(*shape), list(available)) == wanted


@pytest.mark.parametrize(("gpus", "nets"), [(2, 2), (4, 4), (2, 4), (1, 4)])
def test_each_gpu_has_its_rails_beside_it(gpus: int, nets: int, tmp_path: Path) -> None:
    text = rails.aligned(dump(gpus, nets), [f"rail{rail}" for rail in range(nets)])
    root = ET.fromstring(text)
    for switch in root.findall("./cpu/pci"):
        number = int(switch.find("./pci/gpu").get("dev"))  # type: ignore[union-attr, arg-type]
        own = [net.get("name") for net in switch.findall("./pci/nic/net")]
        assert own == [f"rail{rail}" for rail in range(number * nets // gpus, (number + 1) * nets // gpus)]
    assert len({pci.get("busid") for pci in root.iter("pci")}) == len(list(root.iter("pci"))), "each bus number once"
    (tmp_path / "topology.xml").write_text(text)
    read = fabric.load(str(tmp_path / "topology.xml"), 1)
    kinds = [vertex.kind for vertex in read.vertices]
    assert (kinds.count(VertexKind.gpu), kinds.count(VertexKind.nic)) == (gpus, nets), "and Railweave reads it as NCCL does"


def test_what_stays_inside_nodes_is_told_from_what_goes_over_rails() -> None:
    matrix = np.arange(16, dtype=np.uint64).reshape(4, 4)
    near, far = rails.near_and_far(matrix, LabSpec(2, 2), 4)
    assert near.tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [0, 0, 10, 11], [0, 0, 14, 15]]
    assert (near + far).tolist() == matrix.tolist()
    shared, _ = rails.near_and_far(matrix, LabSpec(2, 2), 2)
    assert shared.tolist() == [[10, 12], [18, 20]], "both nodes on the same two GPUs"


def test_a_topology_without_the_rails_is_refused() -> None:
    with pytest.raises(BenchError, match="2 GPUs and the networks rail0, rail1; expected rail0, rail1, rail2, rail3"):
        rails.aligned(dump(2, 2), ["rail0", "rail1", "rail2", "rail3"])
    with pytest.raises(BenchError, match="3 rails for 2 GPUs"):
        rails.aligned(dump(2, 3), ["rail0", "rail1", "rail2"])


def test_a_communicator_left_to_nccl_is_an_error_with_the_shims_reason(tmp_path: Path) -> None:
    log = tmp_path / "railweave.log.17"
    log.write_text("railweave h:17 INFO communicator a (1 ranks, this is rank 0): left to NCCL: it has one rank\n")
    check_served("railweave", tmp_path)
    log.write_text("railweave h:17 WARN communicator b (4 ranks, this is rank 0): left to NCCL: rank 2: runs on another node\n")
    with pytest.raises(BenchError, match="railweave: NCCL serves its exchanges, not Railweave: rank 2: runs on another node"):
        check_served("railweave", tmp_path)


def test_a_lab_with_gpus_takes_neither_a_number_nor_a_fabric() -> None:
    for extra in (["--gpus", "4"], ["--gpus", "--fabric", "x.xml"]):
        done = CliRunner().invoke(command, ["alltoallv", "--lab", "2x2", *extra])
        assert "--lab with --gpus takes the GPUs that CUDA_VISIBLE_DEVICES names" in done.output


@ROOT
@pytest.mark.root
def test_ranks_in_a_lab_answer_and_are_ended() -> None:
    folder = str(Path(__file__).parents[2])
    with Lab.up(LabSpec(2, 2, rate=40_000_000, isolation="node")) as lab:
        places = Place(4, lab, tuple({"SEEN": f"rank {rank}", "PYTHONPATH": folder} for rank in range(4)))
        environments = [places.environment(rank) for rank in range(4)]
        with Processes("tested", "bench.gpus.answering", [], environments, lab) as ranks:
            ranks.ready()
            assert ranks.hello == {"up": 0, "seen": "rank 0"}
            assert [each["rank"] for each in ranks.ask(60, "echo")] == [0, 1, 2, 3]
        with (
            pytest.raises(BenchError, match=r"tested, die: rank 1 ended with status 3; the last they said:\n    rank 1 has had enough"),
            Processes("tested", "bench.gpus.answering", [], environments, lab) as ranks,
        ):
            ranks.ready()
            ranks.ask(60, "die")


@ROOT
@pytest.mark.root
def test_ranks_get_their_nodes_topology_and_the_bound_is_the_rails(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_dumps(monkeypatch, dump(2, 2), ["0", "0", "2", "2"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = LabSpec(2, 2, rate=40_000_000, isolation="node")
    monkeypatch.setattr(rails, "measure_bound", lambda probe, matrix: float(matrix.sum()) / 4e8)
    probe: Any = "a probe"
    with rails.on_rails(spec, 4, System("nccl", {}), probe, lambda _: None) as run:
        assert [each["CUDA_VISIBLE_DEVICES"] for each in run.place.environments] == ["0,1", "0,1", "2,3", "2,3"]
        for each in run.place.environments:
            assert "rail1" in Path(each["NCCL_TOPO_FILE"]).read_text()
            assert each["RAILWEAVE_GPU_NODES"] == "2"
        matrix = np.zeros((4, 4), dtype=np.uint64)
        matrix[0, 2] = 1_000_000
        assert run.bound(matrix) == pytest.approx(0.1, rel=0.02), "both rails of 5 MB/s"
        matrix[0, 1] = 4_000_000
        assert run.bound(matrix) == pytest.approx(0.1, rel=0.02), "inside the node it takes 10 ms meanwhile"
        matrix[0, 1] = 80_000_000
        assert run.bound(matrix) == pytest.approx(0.2), "which only the probe knows"


@ROOT
@pytest.mark.root
def test_ranks_of_a_node_that_share_a_gpu_are_hosts_to_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_dumps(monkeypatch, dump(1, 4), ["0", "1", "2", "3"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    spec = LabSpec(2, 2, rails=4, rate=40_000_000, isolation="node")
    with rails.on_rails(spec, 1, System("nccl", {}), None, lambda _: None) as run:
        environments = [run.place.environment(rank) for rank in range(4)]
        assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["3"] * 4
        assert [each["NCCL_HOSTID"] for each in environments] == ["node0-0", "node0-1", "node1-2", "node1-3"]
        for rank, each in enumerate(environments):
            own = {net.get("name") for net in ET.parse(each["NCCL_TOPO_FILE"]).iter("net")}
            assert own == ({"rail0", "rail1"} if rank % 2 == 0 else {"rail2", "rail3"})
