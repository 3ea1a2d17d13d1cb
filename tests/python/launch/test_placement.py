"""The kept form of advice: round trip, damage, the cache."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave import fabric
from railweave.advise.advice import advise
from railweave.advise.document import document
from railweave.advise.host import read_host
from railweave.launch import cache
from railweave.launch.errors import LaunchError
from railweave.launch.placement import cpu_set, cpu_text, read, read_advice, write


def advice_text(name: str = "kisti-v100-8gpu") -> str:
    return json.dumps(document(advise(read_host(fabric.load(name)))))


@given(st.frozensets(st.integers(0, 4095)))
def test_cpu_sets_survive(cpus: frozenset[int]) -> None:
    assert cpu_set(cpu_text(cpus)) == cpus


@pytest.mark.parametrize("name", fabric.templates())
def test_advice_survives(name: str) -> None:
    parsed = json.loads(advice_text(name))
    parsed["ranks"][0]["cpus"] = "0-3,8"
    parsed["ranks"][0]["environment"]["ODD"] = "a=b c"
    found = read_advice(json.dumps(parsed), "advice.json")
    assert [gpu.environment for gpu in found] == [rank["environment"] for rank in parsed["ranks"]]
    assert [sorted(gpu.memory) for gpu in found] == [rank["memory"] for rank in parsed["ranks"]]
    assert found[0].cpus == {0, 1, 2, 3, 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(format="x"), "not version 1 of railweave-advice"),
        (lambda a: a.update(version=2), "not version 1"),
        (lambda a: a.pop("ranks"), "KeyError at 'ranks'"),
        (lambda a: a["ranks"][0].pop("gpu"), "KeyError at 'gpu'"),
        (lambda a: a["ranks"][0].update(cpus="4-x"), "expected CPUs such as 0-3,8"),
        (lambda a: a["ranks"][0]["environment"].update({"A": "1\nenv LD_PRELOAD=/x"}), "cannot be set"),
        (lambda a: a["ranks"][0]["environment"].update({"A B": "1"}), "cannot be set"),
        (lambda a: a.update(ranks=3), "TypeError"),
        (lambda a: a.update(ranks=[]), "no GPU"),
        (lambda a: a["ranks"][0].update(cpus="0-99999999999"), "expected CPUs such as 0-3,8"),
        (lambda a: a["ranks"][0]["gpu"].update(name="x\nenv LD_PRELOAD=/x"), "expected a text of one line"),
        (lambda a: a["ranks"][0].update(memory=[-1]), "expected CPUs such as 0-3,8"),
        (lambda a: a["ranks"][0]["environment"].update({"A": 1}), "cannot be set"),
    ],
)
def test_bad_advice_is_named(change: Callable[[dict[str, object]], object], message: str) -> None:
    parsed = json.loads(advice_text())
    change(parsed)
    with pytest.raises(LaunchError) as caught:
        read_advice(json.dumps(parsed), "advice.json")
    assert str(caught.value).startswith(("advice.json: ", "advice: "))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_what_is_no_advice_is_named(text: str) -> None:
    with pytest.raises(LaunchError, match=r"^advice.json: .*; expected what `railweave advise --format json` writes"):
        read_advice(text, "advice.json")


@given(st.data())
def test_a_cut_or_changed_file_is_an_error_or_whole(data: st.DataObject) -> None:
    text = write(json.loads(advice_text("xe9680-4hca")))
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(LaunchError):
        read(text[:cut].rstrip("\n"), "x")
    position = data.draw(st.integers(0, len(text) - 1))
    changed = text[:position] + data.draw(st.characters()) + text[position + 1 :]
    try:
        read(changed, "x")
    except LaunchError as error:
        assert str(error).startswith("x:")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "FOR_ALL", str(tmp_path / "nobody" / "can make it"))
    return tmp_path


TEXT = "railweave-placement 1\ngpu\nname gpu0\n"


def test_what_was_worked_out_is_kept_for_that_workload(runtime: Path) -> None:
    asked: list[str] = []

    def work_out(workload: str) -> str:
        asked.append(workload)
        return TEXT

    for workload in ("bandwidth", "bandwidth", "latency", "bandwidth"):
        assert [gpu.name for gpu in cache.placements(workload, work_out)] == ["gpu0"]
    assert asked == ["bandwidth", "latency"]
    assert {path.stat().st_mode & 0o077 for path in runtime.rglob("*")} <= {0o0, 0o044}
    assert next(runtime.iterdir()).stat().st_mode & 0o777 == 0o700


def test_another_machine_state_is_worked_out_anew(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.placements("bandwidth", lambda _: TEXT)
    monkeypatch.setattr(cache, "key", lambda workload: "another boot")
    assert [gpu.name for gpu in cache.placements("bandwidth", lambda _: TEXT.replace("gpu0", "gpu9"))] == ["gpu9"]


def test_a_damaged_file_is_replaced(runtime: Path) -> None:
    cache.placements("bandwidth", lambda _: TEXT)
    [kept] = (path for path in runtime.rglob("placement-*") if path.suffix != ".lock")
    kept.write_text(kept.read_text()[:-3])
    assert cache.placements("bandwidth", lambda _: TEXT)[0].name == "gpu0"
    assert kept.read_text().endswith(TEXT)


def test_a_folder_that_others_can_write_is_not_trusted(runtime: Path) -> None:
    planted = runtime / f"railweave-{os.geteuid()}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    assert list(cache.folders()) == []
    assert cache.placements("bandwidth", lambda _: TEXT)[0].name == "gpu0"
    assert list(planted.iterdir()) == []
    planted.rmdir()
    planted.symlink_to("/tmp")
    assert list(cache.folders()) == []


def test_where_nothing_can_be_written_it_is_worked_out(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the right owner that is mounted read-only, or on a full disk; another one may do."""
    place = runtime / f"railweave-{os.geteuid()}"
    lock = place / "placement-bandwidth.lock"
    lock.mkdir(parents=True)  # which nobody can open for writing, root included
    place.chmod(0o700)
    (place / "placement-bandwidth").write_text("of before\n" + TEXT)
    assert [gpu.name for gpu in cache.placements("bandwidth", lambda _: TEXT.replace("gpu0", "gpu9"))] == ["gpu9"]
    assert sorted(path.name for path in place.iterdir()) == ["placement-bandwidth", lock.name]
    (place / "calibration").mkdir()
    assert cache.keep_text("calibration", "text") is None
    other = runtime / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "folders", lambda: iter([str(place), str(other)]))
    assert [gpu.name for gpu in cache.placements("bandwidth", lambda _: TEXT)] == ["gpu0"]
    assert (other / "placement-bandwidth").read_text().endswith(TEXT)
    assert cache.keep_text("calibration", "text") == str(other / "calibration")
    assert sorted(path.name for path in place.iterdir()) == ["calibration", "placement-bandwidth", lock.name]


@pytest.mark.root
@pytest.mark.parametrize("runtime_folder", [False, True], ids=["a service", "a login"])
def test_what_root_keeps_is_for_all_users(runtime_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime_folder:  # which goes when root logs out
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "FOR_ALL", str(tmp_path / "run"))
    before = os.umask(0o077)
    try:
        cache.keep("bandwidth", TEXT)
    finally:
        os.umask(before)
    kept = tmp_path / "run" / "placement-bandwidth"
    assert (kept.parent.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o755, 0o644)
    assert cache.keep_text("calibration", "text") == str(kept.parent / "calibration")
    assert list(tmp_path.iterdir()) == [kept.parent]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))  # as another user reads it

    def work_out(workload: str) -> str:
        raise AssertionError(workload)

    assert [gpu.name for gpu in cache.placements("bandwidth", work_out)] == ["gpu0"]
    (tmp_path / "user").mkdir()
    kept.parent.chmod(0o777)  # anybody may have put it there
    assert [gpu.name for gpu in cache.placements("bandwidth", lambda _: TEXT.replace("gpu0", "gpu9"))] == ["gpu9"]
    kept.parent.chmod(0o755)
    os.chown(kept.parent, 12345, 12345)
    assert [gpu.name for gpu in cache.placements("bandwidth", lambda _: TEXT)] == ["gpu9"]


def _ask(folder: str, log: str, start: object) -> None:
    os.environ["XDG_RUNTIME_DIR"] = folder
    cache.FOR_ALL = f"{folder}/nobody/can make it"

    def work_out(workload: str) -> str:
        with Path(log).open("a") as file:
            file.write("worked\n")
        return TEXT

    start.wait()  # type: ignore[attr-defined]
    assert cache.placements("bandwidth", work_out)[0].name == "gpu0"


def test_ranks_that_start_together_work_it_out_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    log = tmp_path / "log"
    ranks = [context.Process(target=_ask, args=(str(tmp_path), str(log), start)) for _ in range(8)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * 8
    assert log.read_text() == "worked\n"


def test_a_port_or_driver_that_comes_up_later_makes_new_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"/sys/class/infiniband": ["mlx5_0"], "/sys/class/infiniband/mlx5_0/ports": ["1"]}
    state = "1: DOWN"
    monkeypatch.setattr(cache, "_names", lambda path: folders.get(path, []))
    monkeypatch.setattr(cache, "_text", lambda path: state if path == "/sys/class/infiniband/mlx5_0/ports/1/state" else "")
    at_boot = cache.key("bandwidth")
    assert cache.key("bandwidth") == at_boot
    state = "4: ACTIVE"
    up = cache.key("bandwidth")
    assert up != at_boot
    monkeypatch.setattr(cache.os.path, "isdir", lambda path: path == "/sys/module/nvidia_peermem")
    assert cache.key("bandwidth") != up


def test_the_boot_services_commands_are_ones_that_keep_advice(
    cli: Callable[..., subprocess.CompletedProcess[str]], request: pytest.FixtureRequest
) -> None:
    unit = (request.config.rootpath / "examples" / "railweave-advise.service").read_text()
    commands = [line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert [command[1] for command in commands] == ["advise", "advise"]
    for _, *arguments in commands:
        assert cli(*arguments, "--help").returncode == 0
