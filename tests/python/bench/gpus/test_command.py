"""What `railweave bench` refuses before it starts anything on GPUs."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from railweave.bench.errors import BenchError
from railweave.bench.gpus.result import Exchange, Kernel, Run
from railweave.cli import bench_gpus
from railweave.cli.bench import command
from railweave.lab import Lab


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code != 0
    return done.output + str(done.exception)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch")
    module.cuda = SimpleNamespace(device_count=lambda: 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)


def test_a_lab_or_gpus_or_both() -> None:
    assert "give --lab NODESxGPUS, --gpus, or both" in refused("alltoallv")


def test_a_python_without_pytorch_is_told_which_one_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "run railweave with the Python of your PyTorch programs" in refused("alltoallv", "--gpus")


@pytest.mark.usefixtures("two_gpus")
def test_what_cannot_be_measured_is_refused() -> None:
    assert "4 of 2 GPUs that PyTorch sees" in refused("alltoallv", "--gpus", "4")
    assert "1 of 2 GPUs that PyTorch sees" in refused("moe", "--gpus", "1")
    assert "no system 'ucx'" in refused("alltoallv", "--gpus", "--systems", "ucx")
    assert "skew 'steep': expected none, zipf:S or rotating" in refused("moe", "--skew", "steep")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("alltoallv", "--gpus", "--systems", ""), "nothing to run: give --systems"),
        (("moe", "--systems", ","), "nothing to run: give --systems"),
        (("beside", "--systems", " "), "nothing to run: give --systems"),
        (("alltoallv", "--gpus", "--matrix", "balanced:1KiB", "--matrix", "balanced:1KiB"), "--matrix balanced:1KiB is there twice"),
        (("beside", "--work", "gemm", "--work", "gemm"), "--work gemm is there twice; expected each once"),
        (("moe", "--skew", "none", "--skew", "none"), "--skew none is there twice; expected each once"),
        (("moe", "--compute", "1", "--compute", "1.0"), "--compute 1 is there twice; expected each once"),
        (("alltoallv", "--gpus", "--matrix", "balanced:1KiB", "--matrix", "balanced:0"), "balanced:0: nothing to exchange"),
        (("beside", "--matrix", "balanced:0"), "balanced:0: nothing to exchange"),
        (("alltoallv", "--gpus", "--matrix", "x" * 5000), "cannot be read: File name too long"),
    ],
)
def test_what_is_known_beforehand_is_told_before_anything_starts(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*_: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(bench_gpus, "start_probe", starts)
    monkeypatch.setattr(bench_gpus.compare, "Systems", starts)
    assert said in " ".join(refused(*arguments).split())


def test_what_is_no_share_of_compute_is_refused_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "-1 is not in the range 0<x<=1000" in refused("moe", "--compute", "-1").replace(".0", "")
    assert "nan is no number" in refused("moe", "--compute", "nan")
    assert "skew 'steep': expected none, zipf:S or rotating" in refused("moe", "--skew", "steep")
    for skew in ("zipf", "zipf:x", "zipf:nan", "zipf:-1", "zipf:1e9"):
        assert f"skew '{skew}': expected zipf:S with S from 0 to 10" in refused("moe", "--skew", skew)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("more", [(), ("--gpus", "--lab", "2x2"), ("--gpus", "--systems", "nccl"), ("--gpus", "--nccl", __file__)])
def test_a_mesh_compares_railweave_with_itself_on_gpus(more: tuple[str, ...]) -> None:
    assert "--emulate-mesh takes --gpus and compares Railweave with itself" in refused("alltoallv", "--emulate-mesh", "120", *more)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "--peer", "ucx", "--policies", "nimble"), "compares PyTorch's NCCL and Railweave (--systems): no --policies, --peer"),
        (("--lab", "2x2", "--gpus", "--peer", "ucx"), "no --peer"),
        (("--lab", "2x2", "--systems", "nccl", "--nccl", __file__), "compares --policies and --peer: no --systems, --nccl"),
        (("--gpus", "--rate", "1gbit", "--rails", "2"), "this machine's own links: no --rails, --rate"),
        (("--lab", "2x2", "--rails", "0"), "0 is not in the range x>=1"),
        (("--lab", "2x2", "--gpus", "--starts", "5"), "--starts takes --gpus without --lab and --emulate-mesh"),
        (("--gpus", "--emulate-mesh", "120", "--starts", "2"), "--starts takes --gpus without --lab and --emulate-mesh"),
        (("--lab", "2x2", "--starts", "2"), "--starts takes --gpus without --lab and --emulate-mesh"),
        (("--gpus", "--starts", "5", "--repeat", "9"), "--repeat 9 --starts 5: expected as many rounds of each start"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(refused("alltoallv", *arguments).split())


def test_a_layer_on_the_machines_own_links_has_no_rails() -> None:
    assert "own links: no --rails, --rate" in " ".join(refused("moe", "--rate", "8gbit", "--rails", "2").split())


@pytest.mark.usefixtures("two_gpus")
def test_a_mesh_has_three_gpus() -> None:
    assert "a mesh of 2 GPUs; messages go through others from 3 to 8 on" in refused("alltoallv", "--gpus", "--emulate-mesh", "120")


@pytest.mark.usefixtures("two_gpus")
def test_a_layer_runs_on_this_machines_gpus_or_in_a_lab() -> None:
    assert "--lab takes the GPUs that CUDA_VISIBLE_DEVICES names: no --gpus N" in refused("moe", "--lab", "2x2", "--gpus", "2")
    assert "skew 'steep'" in refused("moe", "--lab", "2x2", "--skew", "steep")


class Nothing:
    """Systems and a probe without processes."""

    running: tuple[()] = ()

    def __init__(self, *_: Any) -> None:
        self.calibrated = {"gpu_blocks": "8"}

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self) -> None:
        pass

    def gpu(self) -> str:
        return "A GPU"

    def versions(self) -> dict[str, str]:
        return {"torch": "2.10.0", "nccl": "2.28.9", "cuda": "13.0", "driver": "580.1"}


@pytest.mark.parametrize(("probed", "wanted"), [(1e-3, 1e-3), (1e-9, 2**28 / 840e9)])
def test_nothing_on_a_mesh_is_faster_than_the_gpus_themselves(probed: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []

    def asks(_: Any, bound_of: Any, cases: Any, *__: Any) -> Iterator[list[Exchange]]:
        for name, matrix in cases:
            bounds.append(bound_of(matrix))
            yield [Exchange("single-path", name, 8, 8, [1e-3], [1e-5], [1e-3], [1e-5], 1e-4, None, [], [0.1])]

    module = ModuleType("torch")
    module.cuda = SimpleNamespace(device_count=lambda: 8)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus.compare, "Systems", Nothing)
    monkeypatch.setattr(bench_gpus.compare, "measure_bound", lambda probe, matrix: probed)
    monkeypatch.setattr(bench_gpus.compare, "exchange", asks)
    bench_gpus.run_on_mesh(8, 120, ("hot-pair:256MiB",), 3, None, None)
    assert bounds == [pytest.approx(wanted)]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (("alltoallv", "--gpus"), {"NCCL_MIN_P2P_NCHANNELS": "32", "NCCL_MAX_P2P_NCHANNELS": "32"}),
        (("alltoallv", "--gpus", "--lab", "2x2"), {"NCCL_MIN_P2P_NCHANNELS": "16", "NCCL_NCHANNELS_PER_NET_PEER": "4"}),
        (("moe",), {"NCCL_MIN_P2P_NCHANNELS": "32", "NCCL_MAX_P2P_NCHANNELS": "32"}),
        (("moe", "--lab", "2x2"), {"NCCL_MIN_P2P_NCHANNELS": "16", "NCCL_NCHANNELS_PER_NET_PEER": "4"}),
    ],
)
def test_nccl_is_tuned_for_where_it_runs(arguments: tuple[str, ...], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def starts(systems: Any, *_: Any) -> None:
        started.extend({name: value for name, value in each.environment.items() if name.startswith("NCCL_")} for each in systems)
        raise BenchError("that is enough")

    place = SimpleNamespace(place=None, bound=None)
    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus, "on_rails", lambda *_: contextlib.nullcontext(place))
    monkeypatch.setattr(bench_gpus.compare, "Systems", starts)
    done = CliRunner().invoke(command, [*arguments, "--systems", "nccl-tuned"])
    assert str(done.exception) == "that is enough", done.output
    assert started == [variables]


_NOWHERE = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("arguments", ["alltoallv --gpus", "alltoallv --lab 2x2 --gpus", "moe", "moe --lab 2x2", "beside"])
@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("gettempdir", _NOWHERE, "No usable temporary directory found in ['/tmp', '/var/tmp']"),
        ("mkdtemp", PermissionError(errno.EACCES, "Permission denied", "/tmp/railweave-x"), "Permission denied: /tmp/railweave-x"),
    ],
)
def test_where_no_temporary_file_can_be_is_told_before_a_system_starts(
    arguments: str, name: str, error: OSError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise error

    def starts(*_: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus.compare, "start", starts)
    monkeypatch.setattr(Lab, "up", starts)
    with monkeypatch.context() as nowhere:
        nowhere.setattr(tempfile, name, fails)
        done = CliRunner().invoke(command, arguments.split())
    assert isinstance(done.exception, BenchError), "which ends a command in one line"
    assert str(done.exception) == f"no folder for temporary files: {said}; set TMPDIR to one that can be written"


@pytest.mark.usefixtures("two_gpus")
def test_a_run_that_is_ended_has_left_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measures_two_and_hangs(*_: Any) -> Iterator[list[Exchange]]:
        for matrix in ("hot-pair:1MiB", "balanced:1MiB"):
            yield [Exchange("nccl", matrix, 8, 8, [1e-3], [1e-5], [1e-3], [1e-5], 1e-4, None, [Kernel("nccl", 9, 512)], [0.1])]
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus.compare, "Systems", Nothing)
    monkeypatch.setattr(bench_gpus.compare, "exchange", measures_two_and_hangs)
    path = tmp_path / "run.json"
    done = CliRunner().invoke(command, ["alltoallv", "--gpus", "--systems", "nccl", "--json", str(path)])
    assert done.exit_code != 0  # what the command line as a whole makes of it: test_command_line.py
    assert Run.load(path).matrices() == ["hot-pair:1MiB", "balanced:1MiB"]
    schema = json.loads((Path(__file__).parents[4] / "schema/bench-gpus.schema.json").read_text())["properties"]
    jsonschema.validate(Run.load(path).settings, schema["settings"])
    assert 0 <= Run.load(path).machine["cpu_stolen"] <= 1
    assert Run.load(path).settings["gpu_blocks"] == 8  # by which ranks go because the machine was calibrated


@pytest.mark.usefixtures("two_gpus")
def test_matrices_keep_their_names_and_names_are_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of one name in two folders, whose names rich would take for markup that nothing opened, and an emoji."""

    def measures(_: Any, __: Any, cases: Any, *___: Any) -> Iterator[list[Exchange]]:
        for name, _matrix in cases:
            yield [Exchange("nccl", name, 8, 8, [1e-3], [1e-5], [1e-3], [1e-5], 1e-4, None, [Kernel("nccl", 9, 512)], [0.1])]

    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus.compare, "Systems", Nothing)
    monkeypatch.setattr(bench_gpus.compare, "exchange", measures)
    given: list[str] = []
    for folder in ("a[", "b["):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m]:m:.txt").write_text("0 100\n100 0\n")
        given += ["--matrix", str(tmp_path / folder / "m]:m:.txt")]
    path = tmp_path / "run.json"
    done = CliRunner().invoke(command, ["alltoallv", "--gpus", "--systems", "nccl", *given, "--json", str(path)])
    assert done.exit_code == 0, done.exception
    assert Run.load(path).matrices() == ["a[/m]:m:.txt", "b[/m]:m:.txt"]
    assert "a[/m]:m:.txt  nccl" in done.output


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("option", ["--json", "--report"])
def test_what_was_measured_is_shown_where_the_disk_has_become_full(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measures(*_: Any) -> Iterator[list[Exchange]]:
        yield [Exchange("nccl", "hot-pair:1MiB", 8, 8, [1e-3], [1e-5], [1e-3], [1e-5], 1e-4, None, [Kernel("nccl", 9, 512)], [0.1])]

    monkeypatch.setattr(bench_gpus, "start_probe", lambda _: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(bench_gpus.compare, "Systems", Nothing)
    monkeypatch.setattr(bench_gpus.compare, "exchange", measures)
    done = CliRunner().invoke(command, ["alltoallv", "--gpus", "--systems", "nccl", option, "/dev/full"])
    assert "hot-pair:1MiB" in done.output
    assert str(done.exception) == "/dev/full: cannot be written: No space left on device"


def test_the_page_of_an_earlier_run_is_made_by_what_the_file_is(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "railweave-bench-gpus", "version": 9}')
    done = CliRunner().invoke(command, ["report", str(bad), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert "on GPUs" in str(done.exception)
