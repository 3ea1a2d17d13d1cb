"""Processes that answer, and how PyTorch's are started. No GPU and no PyTorch."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from railweave.bench.errors import BenchError
from railweave.bench.gpus import session
from railweave.bench.gpus.session import SYSTEMS, LocalRanks, Processes, calibrated, systems, under_mps
from railweave.nccl import library


def start() -> Processes:
    folder = str(Path(__file__).parents[2])
    ranks = [{**os.environ, "RANK": str(rank), "SEEN": "yes", "PYTHONPATH": folder} for rank in range(3)]
    return Processes("tested", "bench.gpus.answering", [], ranks)


def test_all_ranks_answer_in_their_order() -> None:
    with start() as ranks:
        ranks.ready()
        assert ranks.hello == {"up": 0, "seen": "yes"}
        for number in range(3):
            assert ranks.ask(60, "echo", number=number) == [{"rank": rank, "do": "echo", "number": number} for rank in range(3)]


def test_a_rank_that_ends_is_named_with_what_was_said_last() -> None:
    with (
        pytest.raises(BenchError, match=r"tested, die: rank 1 ended with status 3; the last they said:\n    rank 1 has had enough"),
        start() as ranks,
    ):
        ranks.ready()
        ranks.ask(60, "die")


def _pid_of_rank_1(ranks: Processes) -> int:
    assert isinstance(ranks._ranks, LocalRanks)
    return ranks._ranks._processes[1].pid


def test_a_rank_that_died_before_it_was_asked_is_named() -> None:
    with pytest.raises(BenchError, match=r"tested, echo: rank 1 was killed by signal 9"), start() as ranks:
        ranks.ready()
        os.kill(_pid_of_rank_1(ranks), signal.SIGKILL)
        while not ranks._ranks.ended():
            time.sleep(0.01)
        ranks.ask(60, "echo")


def test_a_rank_that_dies_with_a_question_unread_is_named() -> None:
    with pytest.raises(BenchError, match=r"tested, echo: rank 1 was killed by signal 9"), start() as ranks:
        ranks.ready()
        ranks.ask(60, "stop")  # and reads no more
        while " T " not in Path(f"/proc/{_pid_of_rank_1(ranks)}/stat").read_text():
            time.sleep(0.01)
        killed = threading.Timer(0.3, os.kill, (_pid_of_rank_1(ranks), signal.SIGKILL))
        killed.start()
        ranks.ask(60, "echo")


def test_a_rank_that_says_why_it_failed_is_quoted_without_anything_else() -> None:
    with pytest.raises(BenchError) as failed, start() as ranks:
        ranks.ready()
        ranks.ask(60, "fill")
    assert str(failed.value) == "tested, fill: rank 1: CUDA out of memory. Tried to allocate 2 TiB."


def test_silence_is_an_error_after_its_time() -> None:
    with pytest.raises(BenchError, match=r"tested, sleep: no answer from rank 0, 1, 2 within 0 s"), start() as ranks:
        ranks.ready()
        ranks.ask(0.05, "sleep")


def test_rivals_run_without_the_shim_and_with_whatever_else_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = str(library())
    monkeypatch.setenv("LD_PRELOAD", f"{shim}:/other.so")
    monkeypatch.setattr(session, "_cupti", lambda: "/libcupti.so.13")
    found = {each.name: each.environment for each in systems(SYSTEMS, Path("/newest/libnccl.so.2"))}
    assert found["nccl"]["LD_PRELOAD"] == "/other.so"
    assert found["railweave"]["LD_PRELOAD"] == f"{shim}:/other.so"
    assert found["nccl-tuned"]["LD_PRELOAD"] == "/other.so"
    assert int(found["nccl-tuned"]["NCCL_MIN_P2P_NCHANNELS"]) > 1
    assert found["nccl-shim-off"] == {"LD_PRELOAD": found["railweave"]["LD_PRELOAD"], "RAILWEAVE_SHIM": "off"}
    assert found["nccl-other"]["LD_PRELOAD"] == "/newest/libnccl.so.2:/other.so"
    interfaces = {name: each["BENCH_INTERFACE"] for name, each in found.items() if "BENCH_INTERFACE" in each}
    assert interfaces == {"railweave-torch": "plain", "railweave-torch-registered": "registered", "railweave-torch-async": "async"}
    assert {found[name]["LD_PRELOAD"] for name in interfaces} == {"/other.so"}, "NCCL alone carries what is not exchanged"
    watched = {name: {**each, **found["railweave"]} for name, each in found.items() if each["LD_PRELOAD"] == f"{shim}:/other.so"}
    assert watched.keys() == {"nccl-shim-off", "railweave", "railweave-counters", "railweave-checksums", "railweave-nvtx"}
    assert found["railweave-nvtx"]["NVTX_INJECTION64_PATH"] == "/libcupti.so.13"
    monkeypatch.delenv("LD_PRELOAD")
    assert [each.environment["LD_PRELOAD"] for each in systems(["nccl", "railweave"], None)] == ["", shim]


def test_counters_are_written_to_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(session, "Processes", lambda name, module, arguments, environments, lab: started.extend(environments))
    session.start(systems(["railweave-counters"], None)[0], session.Place(2), tmp_path)
    assert [each["RAILWEAVE_METRICS"] for each in started] == [f"{tmp_path}/counters"] * 2


@pytest.mark.parametrize("where", ["PyTorch", "CUDA", None])
def test_what_listens_to_ranges_is_found_or_missed_before_anything_starts(
    where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, toolkit = tmp_path / "nvidia" / "cu13" / "lib", tmp_path / "cupti"
    for folder in (wheel, toolkit):
        folder.mkdir(parents=True)
    monkeypatch.setattr(session, "_CUDA_CUPTI", toolkit)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(wheel.parents[1])]))
    if where is None:
        with pytest.raises(BenchError, match=r"railweave-nvtx: no libcupti\.so"):
            systems(["railweave-nvtx"], None)
        assert systems(["railweave"], None), "which needs none"
        return
    library = (wheel if where == "PyTorch" else toolkit) / "libcupti.so.13"
    library.touch()
    assert systems(["railweave-nvtx"], None)[0].environment["NVTX_INJECTION64_PATH"] == str(library)


def test_more_channels_are_those_that_help_where_nccl_runs() -> None:
    (here,), (over_rails,) = (systems(["nccl-tuned"], None, over_rails) for over_rails in (False, True))
    assert {name: value for name, value in here.environment.items() if name.startswith("NCCL_")} == {
        "NCCL_MIN_P2P_NCHANNELS": "32",
        "NCCL_MAX_P2P_NCHANNELS": "32",
    }
    assert {name: value for name, value in over_rails.environment.items() if name.startswith("NCCL_")} == {
        "NCCL_MIN_P2P_NCHANNELS": "16",
        "NCCL_NCHANNELS_PER_NET_PEER": "4",
    }


_HEAD = "railweave host:1 INFO communicator 1f (2 ranks, this is rank 0): "


def test_what_ranks_go_by_because_the_machine_was_calibrated_is_read_from_their_logs(tmp_path: Path) -> None:
    assert calibrated("railweave", tmp_path) == {}
    line = _HEAD + "as calibrated (/run/kept (1)): gpu_blocks 8, gpu_relays 1; set otherwise: RAILWEAVE_GPU_HOST_SHARE=0\n"
    (tmp_path / "railweave.log.1").write_text(f"{_HEAD}served: all\n{line}")
    (tmp_path / "railweave.log.2").write_text(line)
    (tmp_path / "other.log.1").write_text(_HEAD + "as calibrated (/run/kept): nothing; set otherwise: RAILWEAVE_GPU_BLOCKS=4\n")
    assert calibrated("railweave", tmp_path) == {"gpu_blocks": "8", "gpu_relays": "1"}
    assert calibrated("other", tmp_path) == {}


def test_a_calibration_of_another_machine_is_passed_over_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "railweave.log.1"
    log.write_text(_HEAD + "not as calibrated: /run/kept does not hold here (another boot)\n")
    assert calibrated("railweave", tmp_path) == {}
    log.write_text(_HEAD.replace("INFO", "WARN") + "not as calibrated: /run/kept:2:1: not JSON\n")
    with pytest.raises(BenchError, match="railweave: its ranks cannot go by the calibration of this machine: /run/kept:2:1: not JSON"):
        calibrated("railweave", tmp_path)


def test_a_service_is_where_its_socket_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not under_mps()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "control"))
        assert under_mps()
