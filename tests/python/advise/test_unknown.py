"""What a description does not tell is shown as unknown, and what it does tell is used: masks, rates, ways."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from railweave import fabric
from railweave.advise import live
from railweave.advise.advice import advise
from railweave.advise.host import Core, by_number, choose_network, read_host
from railweave.advise.text import render
from railweave.machine import nccl_topology
from railweave.machine.discovery import discover
from railweave.machine.fabric_nics import UnknownNicError
from railweave.machine.facts import FLAT_TREE
from railweave.machine.load import parse_machine
from railweave.machine.recording import RecordedSource

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
from crafted import craft
from template_machine import PCI, TemplateMachine

MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPIX\tSYS\t0-3,16-19\t0
GPU1\tNV12\t X \tSYS\tNODE\t4-7,20-23\t1
mlx5_0\tPIX\tSYS\t X \tSYS
mlx5_1\tSYS\tNODE\tSYS\t X
"""
LSPCI = """\
-[0000:80]-+-00.0  Intel Corporation Device 09a2
           \\-01.0-[81-84]----00.0-[82-84]--+-00.0-[83]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
                                           \\-01.0-[84]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
                                                        \\-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
"""
Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_a_guest_with_a_flat_tree_gets_no_distances() -> None:
    made = TemplateMachine("xe9680-4hca")
    made.virtual()
    host, notes = live.host_of(made.machine())
    advice = advise(host)
    assert set(advice.distances) == {None}
    assert any(FLAT_TREE in note for note in notes) and any(FLAT_TREE in note for note in advice.notes)
    text = render(advice)
    assert "PHB" not in text.split("sources")[0].split("GPUDirect RDMA (GDR)")[0] and "every rank's NIC is on" not in text
    assert advice.mapping is not None  # NICs are divided all the same
    assert sorted(len(advice.mapping.ranks_of(nic)) for nic in host.network_nics) == [2, 2, 2, 2]


def test_a_guests_topology_file_gives_distances(tmp_path: Path) -> None:
    made = TemplateMachine("xe9680-4hca")
    made.virtual()
    gpus, nics = ([port.bus_id for port in ports] for ports in (made.gpus, made.nics))
    switches = "".join(
        f'<pci busid="ffff:ff:{n:02x}.0" class="0x060400">'
        + "".join(f'<pci busid="{bus_id}"/>' for bus_id in (gpus[2 * n], gpus[2 * n + 1], nics[n]))
        + "</pci>"
        for n in range(4)
    )
    made.files["/var/run/nvidia-topologyd/virtualTopology.xml"] = f'<system version="1"><cpu numaid="0">{switches}</cpu></system>'
    advice = advise(live.host_of(made.machine())[0])
    assert [None if way is None else way.name for way in advice.distances] == ["PIX"] * 8


def test_a_matrix_gives_cores_and_its_own_words() -> None:
    machine = parse_machine(MATRIX, "topo.txt")
    assert machine is not None
    host, _ = live.host_of(machine)
    advice = advise(host)
    assert [binding.cpus for binding in advice.bindings] == [(0, 1, 2, 3, 16, 17, 18, 19), (4, 5, 6, 7, 20, 21, 22, 23)]
    assert [binding.memory for binding in advice.bindings] == [(0,), (1,)]
    assert [None if way is None else way.name for way in advice.distances] == ["PIX", "NODE"]
    assert [nic.device for nic in host.nics] == ["mlx5_0:1", "mlx5_1:1"]  # without the port only since UCX pull request 11142 (2026)
    assert any("which logical CPUs share a core is not in the file" in note for note in advice.notes)


def test_a_matrix_without_numa_nodes_gives_cores_but_no_memory() -> None:
    lines = [line.rsplit("\t", 1)[0] if line.startswith(("\tGPU", "GPU")) else line for line in MATRIX.splitlines()]
    machine = parse_machine("\n".join(lines) + "\n", "old.txt")
    assert machine is not None
    advice = advise(live.host_of(machine)[0])
    assert [binding.cpus for binding in advice.bindings] == [(0, 1, 2, 3, 16, 17, 18, 19), (4, 5, 6, 7, 20, 21, 22, 23)]
    assert [binding.memory for binding in advice.bindings] == [None, None]


def test_a_gpu_of_a_matrix_without_numa_node_gets_none_of_another() -> None:
    rows = [re.sub(r"\t4-7,20-23\t1.*", "\tN/A\tN/A", line) for line in MATRIX.splitlines()]
    assert rows != MATRIX.splitlines()
    machine = parse_machine("\n".join(rows) + "\n", "topo.txt")
    assert machine is not None
    host, _ = live.host_of(machine)
    assert [gpu.numa for gpu in host.gpus] == [0, None]
    assert [binding.cpus for binding in advise(host).bindings] == [(0, 1, 2, 3, 16, 17, 18, 19), None]


@pytest.mark.parametrize("text", [MATRIX.split("NIC Legend")[0].replace("mlx5_", "NIC"), LSPCI], ids=["matrix without legend", "lspci"])
def test_a_nic_without_device_name_is_not_made_a_setting(text: str) -> None:
    machine = parse_machine(text, "machine.txt")
    assert machine is not None
    host, _ = live.host_of(machine)
    advice = advise(host)
    assert {nic.device for nic in host.nics} == {None}
    assert all("UCX_NET_DEVICES" not in advice.environment(rank) for rank in range(len(advice.bindings)))
    assert "UCX_NET_DEVICES and NCCL_IB_HCA: the RDMA device names of" in render(advice)


def test_gpudirect_of_a_matrix_is_unknown(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX)
    machine = parse_machine(MATRIX, "topo.txt")
    assert machine is not None
    host, _ = live.host_of(machine)
    assert [gpu.gdr for gpu in host.gpus] == [None, None]
    assert any("whether GPUDirect RDMA is usable is not known" in note for note in advise(host).notes)
    shown = cli("topo", str(path)).stdout
    assert "GPUDirect RDMA unknown" in shown and "no GPUDirect RDMA" not in shown


def test_masks_of_a_topology_file_are_used(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "topology.xml"
    made = cli("topo", "--from", str(TemplateMachine("xe9680-4hca").record(tmp_path / "node.tar.zst")), "--nccl-xml", str(path))
    assert made.returncode == 0, made.stderr
    by_file, by_facts = advise(read_host(fabric.load(path))), advise(live.recorded_host(tmp_path / "node.tar.zst")[0])
    assert [binding.cpus for binding in by_file.bindings] == [binding.cpus for binding in by_facts.bindings]
    assert [binding.memory for binding in by_file.bindings] == [binding.memory for binding in by_facts.bindings]
    assert all(binding.cpus for binding in by_file.bindings)


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [
        ((0, 1, 8, 9), ((0, 8), (1, 9))),
        ((0, 1, 2, 3), ((0,), (1,), (2,), (3,))),
        ((0, 1, 2, 8), ((0,), (1,), (2,), (8,))),  # no halves that are alike: nothing is paired
        ((0, 1, 4, 5, 8, 9), ((0,), (1,), (4,), (5,), (8,), (9,))),
        ((1, 3, 5, 7), ((1, 5), (3, 7))),  # CPUs that alternate between two nodes
        ((0, 2, 4), ((0,), (2,), (4,))),
        ((0, 1, 4, 5, 16, 17, 20, 21), ((0, 16), (1, 17), (4, 20), (5, 21))),
        ((0, 2), ((0, 2),)),
    ],
)
def test_cores_by_number(cpus: tuple[int, ...], cores: tuple[tuple[int, ...], ...]) -> None:
    assert by_number(cpus) == tuple(Core(threads) for threads in cores)


def test_ranks_of_a_file_whose_cpus_alternate_between_nodes_share_none(tmp_path: Path) -> None:
    path = tmp_path / "topology.xml"
    text = nccl_topology.export(TemplateMachine("xe9680-4hca").machine()).text
    even, odd = ('affinity="55555555,55555555"', 'affinity="aaaaaaaa,aaaaaaaa"')
    path.write_text(re.sub('affinity="0000ff00"', odd, re.sub('affinity="000000ff"', even, text)))
    bindings = [set(binding.cpus or ()) for binding in advise(read_host(fabric.load(path))).bindings]
    assert [len(cpus) for cpus in bindings] == [8] * 8
    assert set.union(*bindings) == set(range(64)), "each CPU serves one rank"


def test_slower_nics_are_left_to_storage_and_said_so() -> None:
    crafted = craft()
    crafted.file("/sys/class/infiniband/mlx5_7/ports/1/rate", "100 Gb/sec (2X HDR)")
    machine = discover(RecordedSource(crafted.recording))
    host, _ = live.host_of(machine)
    assert [nic.device for nic in host.network_nics] == [f"mlx5_{n}:1" for n in range(7)]
    assert "1 slower ones serve something else; --nics names others" in host.network_why
    advice = advise(host)
    assert host.network_why in render(advice)
    assert {s.name: s.values for s in advice.settings}["NCCL_IB_HCA"] == ("=" + ",".join(f"mlx5_{n}" for n in range(7)),)
    named, _ = live.host_of(machine, ["mlx5_6", "mlx5_7"])
    assert [nic.device for nic in named.network_nics] == ["mlx5_6:1", "mlx5_7:1"] and named.network_why.endswith("named")
    with pytest.raises(UnknownNicError, match="no NIC mlx5_70 here; there are mlx5_0"):
        live.host_of(machine, ["mlx5_70"])


def test_virtual_functions_are_the_network_of_a_pod_that_has_nothing_else() -> None:
    made = TemplateMachine("xe9680-4hca")
    for nic in made.nics[:2]:
        made.links[f"{PCI}/{nic.bus_id}/physfn"] = "../0000:ff:00.0"
    whole = live.host_of(made.machine())[0]
    assert [nic.device for nic in whole.network_nics] == ["mlx5_2:1", "mlx5_3:1"]
    for nic in made.nics[2:]:
        made.links[f"{PCI}/{nic.bus_id}/physfn"] = "../0000:ff:00.0"
    pod = live.host_of(made.machine())[0]
    assert [nic.device for nic in pod.network_nics] == [f"mlx5_{n}:1" for n in range(4)]


def test_virtual_functions_that_are_named_beside_physical_ones_are_not_called_down() -> None:
    made = TemplateMachine("xe9680-4hca")
    made.virtual_functions(0, 2)
    host = live.host_of(made.machine(), ["mlx5_0v1", "mlx5_0v2"])[0]
    assert host.network_why == "none: named; mlx5_0v1, mlx5_0v2: virtual, their physical functions are the fabric's NICs"
    assert [nic.device for nic in live.host_of(made.machine())[0].network_nics] == [f"mlx5_{n}:1" for n in range(4)]


def test_libraries_are_kept_from_virtual_devices_beside_their_nic() -> None:
    """They would be second NICs of full rate to NCCL and UCX, which take all devices."""
    made = TemplateMachine("xe9680-4hca")
    assert "NCCL_IB_HCA" not in {setting.name for setting in advise(live.host_of(made.machine())[0]).settings}
    made.virtual_functions(0, 2)
    made.subfunction(1)
    set_to = {setting.name: setting for setting in advise(live.host_of(made.machine())[0]).settings}
    assert set_to["NCCL_IB_HCA"].values == ("=mlx5_0,mlx5_1,mlx5_2,mlx5_3",)
    assert set_to["NCCL_IB_HCA"].why.startswith("virtual devices (3, such as mlx5_0v1) share the wires of physical ones; ")
    for device in ("mlx5_0v1", "mlx5_0v2", "mlx5_1s1"):
        made.files[f"/sys/class/infiniband/{device}/ports/1/state"] = "1: DOWN"
    assert "NCCL_IB_HCA" not in {setting.name for setting in advise(live.host_of(made.machine())[0]).settings}


def test_ucx_is_kept_from_a_virtual_function_beside_the_only_nic() -> None:
    made = TemplateMachine("kisti-v100-2gpu")
    assert "UCX_NET_DEVICES" not in {setting.name for setting in advise(live.host_of(made.machine())[0]).settings}
    made.virtual_functions(0, 1)
    set_to = {setting.name: setting.values for setting in advise(live.host_of(made.machine())[0]).settings}
    assert set_to["UCX_NET_DEVICES"] == ("mlx5_0:1",)


def test_nics_of_a_fabric_are_chosen_alike(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "topology.xml"
    text = Path(__file__).parents[3].joinpath("examples/nccl-topo-4xH200-rail-aligned.xml").read_text()
    path.write_text(text.replace('dev="3" latency="0" speed="10000"', 'dev="3" latency="0" speed="1000"'))
    host = read_host(fabric.load(path))
    assert [nic.name for nic in host.network_nics] == ["nic0", "nic1", "nic2"]
    assert "nic3 is slower and taken for storage or management" in host.network_why
    assert [nic.name for nic in choose_network(host, ["rail3", "nic0"]).network_nics] == ["nic0", "nic3"]
    with pytest.raises(UnknownNicError, match="no NIC rail9"):
        choose_network(host, ["rail9"])
    typo = cli("advise", str(path), "--nics", "rail4")
    assert typo.returncode == 2 and "--nics: no NIC rail4 in 'topology'; there are nic0, nic1" in typo.stderr
    for empty in ("", " , "):
        refused = cli("advise", str(path), "--nics", empty)
        assert refused.returncode == 2 and f"--nics: '{empty}' names no NIC; expected a list such as mlx5_0,mlx5_1." in refused.stderr
    done = cli("advise", str(path), "--nics", "nic0, rail3")
    assert done.returncode == 0 and "GPU network: nic0, nic3: named" in done.stdout


def test_a_file_without_rates_leaves_none_out() -> None:
    nics = "".join(f'<pci busid="0000:0{n}:00.0" class="0x020000" link_width="{width}"/>' for n, width in ((2, 16), (3, 8)))
    text = f'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/>{nics}</cpu></system>'
    host = read_host(fabric.loads(text, "x.xml"))
    assert len(host.network_nics) == 2 and "rates are assumed" in host.network_why
