"""The evaluation: its command lines for each number of GPUs, what it does when something fails, and what it tells. No GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import click
import numpy as np
import pytest

from railweave.bench import result as lab_result
from railweave.bench.alltoallv import lower_bound
from railweave.bench.gpus import compare
from railweave.bench.gpus.rails import near_and_far
from railweave.bench.gpus.result import Beside, Exchange, Kernel, Layer, Run
from railweave.calibrate import read
from railweave.cli.bench import command
from railweave.lab import LabSpec
from railweave.lab.fabric import of_lab
from railweave.lab.spec import parse_rate
from railweave.matrix import load
from railweave.report import gpus as gpus_report

SCRIPTS = Path(__file__).parents[4] / "benchmarks/gpus"


def script(name: str, folder: Path = SCRIPTS) -> ModuleType:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


evaluate, sections, aims = script("evaluate"), script("sections"), script("aims")


def evaluation(out: Path, gpus: int = 4, **options: Any) -> Any:
    (out / "parts").mkdir(exist_ok=True)
    return evaluate.Evaluation(argparse.Namespace(**{"out": out, "gpus": gpus, "limit": 1000.0, "nccl": None, "exchange": None, **options}))


# --- What runs


@pytest.mark.parametrize("gpus", [1, 2, 4, 6, 8])
def test_every_group_is_a_command_that_parses_and_every_check_exists(gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = tmp_path / "libnccl.so.2"
    newest.touch()
    found = evaluation(tmp_path, gpus, nccl=newest, exchange=newest)
    assert {each.group for each in found.sections} == set(found.groups)
    for group in found.groups.values():
        cases = found.missing(group, [each.name for each in found.sections])
        words = found.command(group, cases, tmp_path / "parts" / f"{group.name}.00")
        assert words[1:4] == ["-m", "railweave", "bench"]
        chosen = command.commands[words[4]]  # type: ignore[attr-defined]
        context = chosen.make_context(words[4], words[5:])
        assert isinstance(context, click.Context)
        assert context.params["json_file"] == tmp_path / "parts" / f"{group.name}.00.json"
        assert bool(context.params.get("shape")) == bool(group.gpus_a_node)
        for name in context.params.get("matrices", ()):
            assert load(name, group.ranks).shape == (group.ranks, group.ranks)
            assert (Path(name).name if Path(name).is_file() else name) in cases, "the name that results have"
    monkeypatch.setattr(found, "_under_mps", lambda: [sys.executable, "under_mps.py"])
    for check in (*sections.checks(gpus), *sections.late_checks(gpus)):
        words = found.check_command(check)
        shares = gpus == 1 and check.name not in ("planning", "check-death", "check-elastic", "kernels")
        assert (words[1] == "under_mps.py") == shares, "a client of MPS that dies takes the others with it"
        words = words[2 * shares :]
        assert Path(words[1]).exists() or words[1:4] == ["-m", "railweave", "calibrate"]


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("check", [*sections.checks(4), *sections.late_checks(4)], ids=lambda check: str(check.name))
def test_every_check_takes_its_arguments(check: Any, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path, gpus, exchange=tmp_path)
    monkeypatch.setattr(found, "_under_mps", lambda: [sys.executable, "under_mps.py"])
    words = found.check_command(check)
    if words[1].endswith("under_mps.py"):
        words = words[2:]
    done = subprocess.run([*words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "unrecognized" not in done.stderr


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize("gpus", [1, 4])
def test_every_section_of_checks_is_run_in_every_way(gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And random groups as many as are wanted under the shim."""
    on_gpus = script("check_on_gpus", SCRIPTS.parent / "nccl")
    found = evaluation(tmp_path, gpus)
    monkeypatch.setattr(found, "_under_mps", lambda: [sys.executable, "under_mps.py"])
    run: dict[tuple[str, str], int] = {}
    for check in (each for each in sections.late_checks(gpus) if each.name.startswith("check-") and each.name != "check-mps"):
        words = found.check_command(check)
        for way in on_gpus.WAYS:
            if option(words, "--ways") in (None, way.name) and option(words, "--without") != way.name:
                run |= {(way.name, section): int(option(words, "--groups") or 0) for section in way.sections if section == words[-1]}
    assert set(run) == {(way.name, section) for way in on_gpus.WAYS for section in way.sections}
    random_groups = {way: groups for (way, section), groups in run.items() if section == "random_groups"}
    assert random_groups.pop("shim") == 10_000
    assert set(random_groups.values()) == {2000}
    (check,) = (each for each in sections.late_checks(gpus) if each.name == "check-random_groups")
    assert check.limit - evaluate._GOODBYE_S > 10_000 * on_gpus._GROUP_S, "it ends them itself, and says which"


@pytest.mark.parametrize(("gpus", "where"), [(4, "path"), (4, "toolkit"), (4, ""), (1, "path")])
def test_memcheck_is_run_where_it_is_installed_and_ranks_have_gpus(
    gpus: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(evaluate, "_CUDA", tmp_path / "cuda")
    there = tmp_path / ("path" if where == "path" else "cuda/bin") / "compute-sanitizer"
    if where:
        there.parent.mkdir(parents=True)
        there.touch(0o755)
    found = evaluation(tmp_path, gpus, exchange=tmp_path)
    monkeypatch.setattr(found, "_under_mps", list)
    (kernels,) = (each for each in sections.late_checks(gpus) if each.name == "kernels")
    assert option(found.check_command(kernels), "--sanitizer") == (str(there) if where and gpus > 1 else None)


@pytest.mark.parametrize("gpus", [1, 2, 4, 6, 8])
def test_sections_of_labs_have_all_their_calls_and_fit_into_a_command(gpus: int) -> None:
    effort, rivals = compare.Effort(5), 2  # `--lab` has five rounds; with --nccl there are two rivals
    for group in sections.groups(gpus).values():
        if not group.gpus_a_node or group.words[0] != "alltoallv":
            continue
        nodes, a_node = map(int, group.words[2].split("x"))
        spec = LabSpec(nodes, a_node, int(group.words[4]), parse_rate(group.words[6]))
        seconds = 0.0
        for case in (case for section in sections.sections(gpus) if section.group == group.name for case in section.cases):
            matrix = compare.rows_of(sections.matrix_of(case, group.ranks, group.gpus_a_node))
            near, far = near_and_far(matrix, spec, min(gpus, group.ranks))
            bound = max(lower_bound(of_lab(spec), far) if far.any() else 0.0, compare.busiest(near) / 350e9)
            calls = compare._affordable(effort.calls, bound, compare._ENOUGH_S)
            assert calls == effort.calls, (group.name, case, bound)
            # NCCL takes one rail for what goes to another host, and moves 30 GB/s inside a node of several.
            theirs = max(compare.busiest(matrix if a_node > gpus else far) / 1e9, compare.busiest(near) / 30e9)
            single = compare._affordable(effort.single_calls, bound, compare._ENOUGH_SINGLE_S)
            waited = effort.rounds * (single + min(compare._COLD_CALLS, single))
            counted = (1 + effort.rounds) * (calls + 5) + 5 + waited  # with what warms up, and what checks bytes
            others = rivals + ("tuned" in group.name)
            seconds += counted * (1.1 * bound + others * theirs) + waited * (1 + others) * 2 * 300e-6  # the host's part, and the floor
        assert seconds < evaluate._COMMAND_LIMIT_S - evaluate._GOODBYE_S - 90, (group.name, seconds)  # that starts PyTorch on all ranks


def test_what_is_added_to_railweave_is_compared_with_it_alone(tmp_path: Path) -> None:
    newest = tmp_path / "libnccl.so.2"
    found = evaluation(tmp_path, 4, nccl=newest)
    words = {name: found.command(found.groups[name], ["balanced:1KiB"], tmp_path / name) for name in ("interfaces", "watched")}
    assert ("--nccl" in words["interfaces"], "--nccl" in words["watched"]) == (True, False)
    assert str(option(words["interfaces"], "--systems")).startswith("nccl,railweave,railweave-torch")
    assert str(option(words["watched"], "--systems")).startswith("railweave,railweave-counters")


# --- What is there, what failed, what is tried again

_NCCL, _OWN = Kernel("ncclDevKernel_SendRecv", 17, 640), Kernel("railweave::cuda::exchange", 16, 512)


def exchanges(matrix: str, theirs: float, own: float, bound: float = 1e-3) -> list[Exchange]:
    return [
        Exchange(system, matrix, 1 << 20, 1 << 20, [time] * 5, [1e-5] * 5, [time] * 50, [1e-5] * 50, bound, None, [kernel], [0.5] * 5)
        for system, time, kernel in (("nccl", theirs, _NCCL), ("railweave", own, _OWN))
    ]


def run_of(found: list[Exchange], layers: list[Layer] | None = None, beside: list[Beside] | None = None) -> Run:
    versions = {"torch": "2", "cuda": "13.0", "driver": "1", "nccl (nccl)": "2.28.9"}
    return Run(
        lab_result.now(), "bench", {**lab_result.machine(), "gpu": "A GPU"}, versions, 4, {"rounds": 5}, found, layers or [], beside or []
    )


class Program:
    """In the place of `railweave bench`: measures until a case breaks it, or until it is ended (None)."""

    def __init__(self, breaks: dict[str, int | None]) -> None:
        self.breaks, self.calls = breaks, []

    def __call__(self, name: str, words: list[str], log: Path, limit: float) -> int | None:
        log.touch()
        cases = [Path(words[at + 1]).name for at, word in enumerate(words) if word == "--matrix"]
        self.calls.append(cases)
        done: list[Exchange] = []
        status: int | None = 0
        for case in cases:
            if case in self.breaks:
                status = self.breaks[case]
                break
            done += exchanges(case, 2e-3, 1e-3)
        if done:
            Path(words[words.index("--json") + 1]).write_text(json.dumps(run_of(done).to_json()))
        return status


def test_what_fails_costs_itself_alone_and_is_tried_once_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path)
    program = Program({"hot-pair:16MiB:1MiB": 1, "balanced:4MiB": 1})
    monkeypatch.setattr(found, "_program", program)
    assert not found.run(["hot", "balanced"])
    assert [len(cases) for cases in program.calls] == [8, 6, 5], "each goes on without what failed"
    assert program.calls[1][0] == "balanced:4MiB", "and begins with another kind"
    assert found.missing(found.groups["exchanges"], ["hot", "balanced"]) == ["hot-pair:16MiB:1MiB", "balanced:4MiB"]
    again = evaluation(tmp_path)
    better = Program({"balanced:4MiB": 1})
    monkeypatch.setattr(again, "_program", better)
    assert not again.run(["hot", "balanced"])
    assert better.calls == [["hot-pair:16MiB:1MiB", "balanced:4MiB"]], "what is there is not run again"
    again.draw()
    assert len(list((tmp_path / "parts").glob("*.html"))) == 3, "of commands that measured something"
    text = again.results()
    assert "Not run: `balanced:4MiB`" in text
    assert "- `exchanges.00`, nothing of hot-pair:16MiB:1MiB" in text
    assert text.count("| `hot-pair:16MiB:1MiB` | nccl |") == 2, "device time and single calls, once"
    assert f"{again.runs('exchanges')[0].date}, 4 × A GPU, {lab_result.machine()['cpu']}, " in text
    assert "rounds 5.\n\n`bench`\n\nDevice time" in text, "the command"


def test_a_kind_that_fails_keeps_no_other_from_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path, gpus=8)
    inside = [case for case in next(each for each in found.sections if each.name == "rails").cases if "inside-" in case]
    monkeypatch.setattr(found, "_program", Program(dict.fromkeys(inside, 1)))
    assert not found.run(["rails"])
    assert set(found.missing(found.groups["rails"], ["rails"])) == set(inside)


def test_a_case_that_used_up_the_time_does_not_keep_the_others_from_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path)
    program = Program({"hot-pair:64MiB:4MiB": None})
    monkeypatch.setattr(found, "_program", program)
    assert not found.run(["hot"])
    assert program.calls == [["hot-pair:4MiB:256KiB", "hot-pair:16MiB:1MiB", "hot-pair:64MiB:4MiB", "hot-pair:256MiB:16MiB"],
                             ["hot-pair:64MiB:4MiB", "hot-pair:256MiB:16MiB"], ["hot-pair:256MiB:16MiB"]]  # fmt: skip


@pytest.mark.parametrize(("status", "how"), [(0, "under MPS"), (3, "by time slices")])
def test_ranks_share_gpus_under_mps_where_it_serves(status: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path, gpus=2)
    started: list[tuple[str, list[str]]] = []

    def program(name: str, words: list[str], log: Path, limit: float) -> int:
        started.append((name, [Path(word).name for word in words[1:5]]))
        if name == "mps":
            return status
        log.touch()
        settings = {"rounds": 5, "mps": 1} if "under_mps.py" in started[-1][1] else {"rounds": 5}
        done = [each for at, word in enumerate(words) if word == "--matrix" for each in exchanges(Path(words[at + 1]).name, 2e-3, 1e-3)]
        Path(words[words.index("--json") + 1]).write_text(json.dumps(replace(run_of(done), settings=settings).to_json()))
        return 0

    monkeypatch.setattr(found, "_program", program)
    assert found.run(["nodes", "shared", "rails"])
    assert found.run(["shared", "rails"]), "all of it is there"
    before = ["under_mps.py", Path(sys.executable).name] if status == 0 else []
    bench = ["-m", "railweave", "bench", "alltoallv"]
    assert [name for name, _ in started] == ["nodes", "mps", "shared", "rails"]
    assert [words for name, words in started if name != "mps"] == [bench, [*before, *bench][:4], [*before, *bench][:4]]
    text = found.results()
    assert text.count("Ranks share GPUs") == text.count(f"Ranks share GPUs {how}.") == 2
    assert "2 nodes × 2 GPUs on 4 rails of 8 Gbit/s; ranks of different nodes share GPUs\n" in text
    assert "2 nodes × 4 GPUs on 4 rails of 8 Gbit/s; ranks of different nodes share GPUs, those of a node as well, and each" in text
    assert "| rails 2×4, one pair | ≥ 3.8 GB/s |" in text


def test_where_nothing_starts_two_commands_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path)
    program = Program({f"hot-pair:{size}:{rest}": 1 for size, rest in (("4MiB", "256KiB"), ("16MiB", "1MiB"), ("64MiB", "4MiB"))})
    monkeypatch.setattr(found, "_program", program)
    assert not found.run(["hot"])
    assert [len(cases) for cases in program.calls] == [4, 3]


def test_nothing_begins_that_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path, limit=10.0)
    program = Program({})
    monkeypatch.setattr(found, "_program", program)
    assert found.run([each.name for each in (*sections.checks(4), *found.sections)])
    assert program.calls == []
    assert "not run" in found.results()


def test_exchanges_come_before_checks_of_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, started = evaluation(tmp_path, exchange=tmp_path), []

    def program(name: str, words: list[str], log: Path, limit: float) -> int:
        started.append(name)
        return Program({})(name, words, log, limit) if "alltoallv" in words else log.write_text("== status 0\n") * 0

    monkeypatch.setattr(evaluate, "_calibrated", lambda: True)
    monkeypatch.setattr(found, "_program", program)
    late = [check.name for check in sections.late_checks(4)]
    found.run(["calibrate", *late, *(each.name for each in found.sections if each.group in ("exchanges", "rails", "tuned-rails"))])
    started.remove("mps")  # asks whether there is one
    assert started == ["calibrate", "exchanges", "rails", "tuned-rails", *late]


def test_a_check_that_takes_longer_than_it_may_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def program(name: str, words: list[str], log: Path, limit: float) -> int | None:
        limits.append(limit)
        log.write_text(f"so far\n== status none, ended after {limit:.0f} s\n")
        return None

    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=lambda: 7.0))  # no time passes between the call's begin and the check's
    for limit in (50.0, 1000.0, 1000.0):
        found = evaluation(tmp_path, limit=limit)
        monkeypatch.setattr(found, "_program", program)
        found.run(["check-graphs"])
    assert limits == [50, 120], "cut short by the call's limit it is begun again, by its own it is not"
    text = found.results()
    assert "so far\n== status none, ended after 120 s" in text.partition("## Captured graphs")[2]


@pytest.mark.parametrize("before", [False, True])
def test_each_machine_is_calibrated_once_before_anything_is_measured(before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated = before
    started: list[tuple[str, bool]] = []

    def program(name: str, words: list[str], log: Path, limit: float) -> int:
        nonlocal calibrated
        started.append((name, "--show" in words))
        calibrated = True
        log.write_text("GB/s of a pair\n== status 0\n")
        return 0

    monkeypatch.setattr(evaluate, "_calibrated", lambda: calibrated)
    for another_machine in (False, False, True):
        calibrated = calibrated and not another_machine
        found = evaluation(tmp_path)
        monkeypatch.setattr(found, "_program", program)
        found.run(["calibrate", "check-death"])
    assert started == [("calibrate", before), ("check-death", False), ("calibrate", False)]
    assert found.with_calibration(["check-death"]) == ["check-death"]
    assert found.with_calibration(["hot", "check-death"]) == ["hot", "check-death", "calibrate"], "something is measured"


def test_what_failed_is_told_with_why(tmp_path: Path) -> None:
    found = evaluation(tmp_path)
    why = "railweave: nccl, queued: rank 1 ended with status 1; the last they said:"
    parts = {
        "exchanges.00": "a table\n== status 0",
        "mesh.00": "a\n" * 30
        + "railweave: nccl, queued: rank 1 ended with status 1; the last they said:\n"
        + "deep\n" * 30
        + "no room\n== status 1\n== nothing of balanced:64MiB",
        "moe.00": "layer 1\n== status none, ended after 480 s",
        "moe.01": "layer 2",
        "rails.00": "== status 3",
    }
    for name, text in parts.items():
        (tmp_path / "parts" / f"{name}.log").write_text(f"{text}\n")
    told = found.results().partition("## What failed\n\n")[2].partition("## ")[0]
    assert told.count("\n- ") + told.startswith("- ") == 4
    assert "- `rails.00`, status 3; it said nothing\n" in told
    assert f"- `mesh.00`, status 1, nothing of balanced:64MiB:\n\n```\n{why}\ndeep" in told
    assert told.count("deep") == 11
    assert "no room\n```" in told
    assert "- `moe.00`, status none, ended after 480 s:\n\n```\nlayer 1\n```" in told
    assert "- `moe.01`, runs, or was cut off:\n\n```\nlayer 2\n```" in told


def test_what_the_time_ended_is_no_failure(tmp_path: Path) -> None:
    found = evaluation(tmp_path)
    command = "railweave bench alltoallv --gpus 4 --matrix hot-pair:4MiB --matrix balanced:4MiB --matrix balanced:16MiB --json out.json"
    measured = [*exchanges("hot-pair:4MiB", 2e-3, 1e-3), *exchanges("balanced:4MiB", 2e-3, 1e-3)]
    moe = "railweave bench moe --gpus 4 --compute 0.5 --compute 1"
    layers = [Layer(system, "none", 0.5, 640, [1e-3] * 5, [1]) for system in ("nccl", "railweave")]
    parts(
        tmp_path,
        exchanges=replace(run_of(measured), command=command),
        mesh=replace(run_of(measured[:2]), command=command),
        moe=replace(run_of([], layers), command=moe),
        rails=replace(run_of([*measured[:3], replace(measured[3], wrong="rank 1 got a wrong byte")]), command=command),
    )
    (tmp_path / "check-memory.txt").write_text("so far\n")
    logs = {
        "exchanges.00": "",  # two of three
        "exchanges.01": "",  # none
        "mesh.00": "== nothing of balanced:4MiB\n",  # what it began with took too long
        "moe.00": "",  # one of five skews of the first layer
        "check-graphs": "",  # had less time than it may take
        "check-memory": "",  # took longer, and is not run again
        "mps": "",
        "rails.00": "",  # has wrong bytes
    }
    for name, notes in logs.items():
        (tmp_path / "parts" / f"{name}.log").write_text(f"so far\n== status none, ended after 309 s\n{notes}")
    failed, _, ended = found.results().partition("## What failed\n\n")[2].partition("## What was ended as its time was over\n\n")
    assert ended.partition("\n\n## ")[0].splitlines() == [
        "- `check-graphs`, ended after 309 s: the next call begins it again",
        "- `exchanges.00`, ended after 309 s: 2 of 3 measured, which are kept",
    ]
    wrong = "wrong:\nbalanced:4MiB, railweave: rank 1 got a wrong byte"
    assert f"- `rails.00`, status none, ended after 309 s, 1 of 3 measured, which are kept:\n\n```\n{wrong}\n```\n" in failed
    failures = ["check-memory", "exchanges.01", "mesh.00", "moe.00", "mps", "rails.00"]
    assert re.findall(r"^- `(\S+)`", failed, re.MULTILINE) == failures
    for name in failures:
        (tmp_path / "parts" / f"{name}.log").unlink()
    assert "What failed" not in found.results()
    assert "## What was ended as its time was over\n\n- `check-graphs`" in found.results()


def test_a_machine_without_what_a_run_needs_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(out), "--gpus", "62"])
    with pytest.raises(SystemExit) as ended:
        evaluate.main()
    assert ended.value.code == 2
    assert re.search(r"has no PyTorch|--gpus 62, and this machine has \d+ of NVIDIA's", capsys.readouterr().err)
    assert not out.exists()
    monkeypatch.setattr(evaluate.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [Path(f"/dev/nvidia{i}") for i in range(4)])
    for said, lacking in (("0,1,2,3", ""), ("0,2", "--gpus 4, and CUDA_VISIBLE_DEVICES=0,2 shows 2"), ("-1", "shows 0"), ("", "shows 0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
        assert lacking in evaluate._lacking(4)
        assert bool(lacking) == bool(evaluate._lacking(4))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_runs_ends_with_the_evaluation(how: signal.Signals, tmp_path: Path) -> None:
    held = tmp_path / "fifo"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    bench = f"import os, time; os.write(os.open({str(held)!r}, os.O_WRONLY), b'begun'); time.sleep(1000)"
    script = f"""if True:
        import sys
        sys.path.insert(0, {str(SCRIPTS)!r})
        import evaluate
        evaluate._lacking = lambda gpus: ""
        evaluate.Evaluation.command = lambda *_: [sys.executable, "-c", {bench!r}]
        sys.argv = ["evaluate.py", {str(tmp_path / "out")!r}, "hot"]
        sys.exit(evaluate.main())
    """
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    try:
        assert read_from(reader) == b"begun"
        process.send_signal(how)
        assert read_from(reader) == b"", "no writer is left"
        assert process.wait() == (128 + how if how == signal.SIGTERM else -how)
    finally:
        os.close(reader)
        process.kill()


def read_from(fifo: int) -> bytes:
    """What comes next; nothing when all that wrote have ended."""
    select.select([fifo], [], [])
    return os.read(fifo, 100)


def test_a_program_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_GOODBYE_S", 0.5)
    held = tmp_path / "fifo"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # A child that takes no notice of Ctrl-C and holds the pipe as long as it lives.
        words = ["sh", "-c", f"trap '' INT; sleep 1000 > {held} & echo begun > {held}; wait"]
        assert evaluation(tmp_path)._program("hangs", words, tmp_path / "log", 1.5) is None
        while True:
            try:
                if os.read(reader, 100) == b"":
                    break  # no writer is left
            except BlockingIOError:
                time.sleep(0.01)
    finally:
        os.close(reader)


# --- What is told


def test_aims_are_told_as_reached_missed_or_not_run() -> None:
    layers = [Layer(system, "zipf:1.0", 0.5, 640, [time] * 5, [1]) for system, time in (("nccl", 2e-3), ("railweave", 1e-3))]
    others = [
        Beside(system, work, "balanced:64MiB", [1e-3] * 5, [time] * 5, 9, [equal] * 5, [9e-3] * 5)
        for work, own in (("gemm", 1.9e-3), ("all-reduce", 2.1e-3))
        for system, time, equal in (("nccl", 2e-3, 2e-3), ("railweave", 3e-3, own))
    ]
    others += [Beside(system, "gemm", "incast:64MiB", [1e-3] * 5, [1e-3] * 5) for system in ("nccl", "railweave")]
    found = {
        "exchanges": [
            run_of([*exchanges("hot-pair:4MiB:256KiB", 3e-3, 1e-3), *exchanges("hot-pair:16MiB:1MiB", 1.3e-3, 1e-3)]),
            run_of(exchanges("incast:16MiB", 1.2e-3, 1e-3)),
        ],
        "small": [run_of([*exchanges("hot-pair:1KiB", 1e-3, 1e-3), *exchanges("hot-pair:1MiB", 1.4e-3, 1e-3)])],
        "rails": [run_of(exchanges("hot-pair:64MiB", 1e-3, (1 << 20) / 3.85e9))],
        "moe-rails": [run_of([], layers)],
        "beside": [run_of([], None, others)],
    }
    told = {each.what: each for each in aims.lines(found, 4)}

    def became(what: str) -> bool | None:
        return told[what].reached

    assert became("hot pair + 1/16, `hot-pair:4MiB:256KiB`") is True
    assert became("hot pair + 1/16, `hot-pair:16MiB:1MiB`") is False
    assert became("hot pair + 1/16, `hot-pair:64MiB:4MiB`") is None
    assert became("any pattern, 64KiB to 2MiB: least gain") is False
    assert told["any pattern, 64KiB to 2MiB: least gain"].seen == "1.40×, `hot-pair:1MiB`, of 1; 1.40× at the bound"
    assert became("any pattern, to 64KiB: p99 of single calls, least gain") is True
    assert became("0 bytes: p50 of single calls") is True
    assert became("incast, outcast, Zipf 1.0, rotating hotspots, 16 to 256 MiB") is True
    assert became("rails 2×4, one pair") is True
    assert {each.what: each for each in aims.lines(found, 8)}["rails 2×4, one pair"].reached is False, "3.9 GB/s on eight"
    assert became("mixture-of-experts layer over the rails, Zipf 1.0") is True
    assert became("gemm beside `balanced:64MiB`") is True, "though exchanges that outlast it slow it more"
    assert told["gemm beside `balanced:64MiB`"].seen == (
        "1.90× its time alone, under NCCL 2.00×: 1.05×, 1.00× until both are over; beside exchanges that outlast it 3.00×, under NCCL 2.00×"
    )
    assert became("all-reduce beside `balanced:64MiB`") is False
    assert became("gemm beside `incast:64MiB`") is None, "of a run from before the equal number was measured"
    assert became("processors that a rank's threads take beside the one that queues") is True
    measured = read(str(Path(__file__).parents[2] / "calibrate/4xH200-2026-11-22.json"))
    kernels = "a communicator of 8 ranks takes 9.5 MiB of the device\na communicator of 8 ranks takes 42.0 MiB of the device\n"
    of_all = {each.what: each for each in aims.lines(found, 8, measured, kernels)}
    (memory,) = (each for name, each in of_all.items() if "memory" in name)
    (grants,) = (each for name, each in of_all.items() if "rows inside a node" in name)
    assert (memory.seen, memory.reached) == ("42.0 MiB with 8 ranks", True)
    assert (grants.seen, grants.reached) == ("7.4 us, 16 KiB of a pair", True)
    slow = replace(measured, sizes=[replace(measured.sizes[0], balanced_packets_ns=9000, balanced_granted_ns=41000)])
    assert next(each for each in aims.lines(found, 8, slow) if "rows inside" in each.what).seen == "41.0 us, 16 KiB of all pairs"
    assert [each.reached for each in aims.lines(found, 8) if "within a node of 4×2" in each.what] == [None] * 3
    assert "| hot pair + 1/16, `hot-pair:4MiB:256KiB` | ≥ 2× | 3.00×; 1.0 against 0.3 GB/s | reached |" in aims.table(found, 4)
    assert "| rails 2×4, one pair | ≥ 3.8 GB/s | 3.85 GB/s; NCCL 1.05 | reached |" in aims.table(found, 4)


def test_on_one_gpu_nccl_is_a_rival_where_it_has_the_same_rails() -> None:
    found = {
        "rails": [run_of(exchanges("hot-pair:64MiB", 1e-3, (1 << 20) / 3.85e9))],
        "rails-8": [run_of(exchanges("hot-pair:64MiB", 1e-3, 1e-3, bound=0.96e-3))],
        "shared": [run_of(exchanges("balanced:4MiB", 1e-3, 2e-3))],
        "hosts": [run_of([*exchanges("balanced:4MiB", 1e-3, 1e-3), *exchanges("balanced:16KiB", 0.9e-3, 1e-3)])],
    }
    told = {each.what: each for each in aims.lines(found, 1, kernels="a communicator of 4 ranks takes 80.0 MiB of the device\n")}
    assert told["rails 2×4, one pair"].reached is True
    assert (told["rails 2×4, eight of them, one pair"].seen, told["rails 2×4, eight of them, one pair"].reached) == ("0.96", True)
    assert told["rails 4×1, balanced, `balanced:4MiB`"].reached is True
    assert told["rails 4×1, balanced, `balanced:16KiB`"].reached is False
    assert told["rails 2×2, two of them, balanced, `balanced:4MiB`"].reached is None
    memory = told["memory of a GPU that a communicator takes"]
    assert (memory.seen, memory.reached) == ("20.0 MiB with 4 ranks, 4 a GPU", True)
    assert not any("inside" in name or "layer" in name for name in told)


def test_an_aim_that_the_bound_misses_too_says_so() -> None:
    def told(what: str, bound: float) -> aims.Line:
        rows = {"exchanges": "two-pairs-64MiB", "small": "balanced:64KiB"}
        runs = {group: [run_of(exchanges(matrix, 1.3e-3, 1e-3, bound))] for group, matrix in rows.items()}
        return next(each for each in aims.lines(runs, 4) if what in each.what)

    for what in ("two-pairs-64MiB", "64KiB to 2MiB"):
        beyond, within = told(what, 0.95e-3), told(what, 0.8e-3)
        assert beyond.seen.endswith("; 1.37× at the bound")
        assert "bound" not in within.seen
        assert (beyond.reached, within.reached) == (False, False)
    assert "bound" not in told("p50 of single calls, least", 2e-3).seen
    nearly = aims.lines({"exchanges": [run_of(exchanges("hot-pair:4MiB:256KiB", 3e-3, 1e-3, 0.949e-3))]}, 4)
    assert next(each for each in nearly if each.wanted == "≥ 0.95 of the bound").seen == "0.949", "not 0.95, which it falls short of"


def test_rows_with_more_ctas_than_nccl_are_named() -> None:
    def told(**found: list[Exchange]) -> Any:
        return next(each for each in aims.lines({name: [run_of(rows)] for name, rows in found.items()}, 4) if "CTAs" in each.what)

    few = [
        replace(each, kernels=[replace(each.kernels[0], ctas=3 if each.system == "nccl" else 8)])
        for each in exchanges("incast:16MiB", 2, 1)
    ]
    own = [replace(each, system="single-path" if each.system == "nccl" else each.system) for each in few]
    good = exchanges("balanced:16MiB", 2, 1)
    assert told().reached is None
    assert (told(exchanges=good, mesh=own).seen, told(exchanges=good, mesh=own).reached) == ("more in 0 of 1", True)
    bad = told(exchanges=[*good, *few], rails=few, nodes=good)
    assert (bad.seen, bad.reached) == ("more in 2 of 4: `incast:16MiB` 8, NCCL 3; `incast:16MiB` (rails) 8, NCCL 3", False)
    untraced = [replace(each, kernels=[]) for each in good]
    assert told(exchanges=untraced).reached is None, "nobody saw a kernel"


def test_the_busiest_rank_of_all_is_told() -> None:
    def busy(cores: float) -> list[Exchange]:
        return [replace(each, busy_cores=[cores]) for each in exchanges("hot-pair:64MiB", 2, 1)]

    found = {"exchanges": [run_of(busy(1.25))], "rails": [run_of(busy(0.9))], "rails-8": [run_of(busy(1.5))]}
    told = next(each for each in aims.lines(found, 8) if "processors" in each.what)
    assert (told.seen, told.reached) == ("1.50 at most, `hot-pair:64MiB` (rails-8)", False)
    del found["rails-8"]
    told = next(each for each in aims.lines(found, 8) if "processors" in each.what)
    assert told.seen == "1.25 at most, `hot-pair:64MiB`", "which a lab has, too"


def test_an_aim_of_intervals_is_not_reached_without_them() -> None:
    def told(theirs: float, rounds: int) -> aims.Line:
        found = [replace(each, seconds=each.seconds[:rounds]) for each in exchanges("incast:16MiB", theirs, 1e-3)]
        return next(each for each in aims.lines({"exchanges": [run_of(found)]}, 4) if each.what.startswith("incast, outcast"))

    assert (told(1.2e-3, 5).seen, told(1.2e-3, 5).reached) == ("1.20×, intervals from 1.20× (1 of 12)", True)
    assert (told(1.2e-3, 4).seen, told(1.2e-3, 4).reached) == ("1.20×, 1 of 1 without intervals, which take 5 rounds", None)
    assert told(1.1e-3, 4).reached is False, "the mean tells"


def test_single_calls_of_all_small_rows_are_told_together() -> None:
    """Beside the least row, whose p99 a few calls decide."""

    def told(*gains: Sequence[float]) -> aims.Line:
        """`gains`: of a row, in each of its rounds, of 10 calls; a p99 is the slowest of all."""
        rows = []
        for number, rounds in enumerate(gains):
            for each in exchanges(f"balanced:{1 << number}KiB", 1.0, 1.0):
                slower = [max(1.0, gain if each.system == "nccl" else 1 / gain) for gain in rounds]
                times = [time for time in slower for _ in range(10)]
                rows.append(replace(each, seconds=[1.0] * len(rounds), call_seconds=times))
        rows += exchanges("balanced:128KiB", 1.0, 9.0)  # a larger one
        lines = {each.what: each for each in aims.lines({"small": [run_of(rows)]}, 4)}
        assert list(lines)[list(lines).index(f"{least}, least gain") + 1] == f"{least}, geometric mean"
        return lines[f"{least}, geometric mean"]

    least = "any pattern, to 64KiB: p99 of single calls"
    assert (told().seen, told().reached) == ("", None)
    good = told([4.0] * 5, [1.0] * 5, [0.5] * 9)
    assert (good.seen, good.reached) == ("1.26×, of 3", True)
    bad = told([0.9] * 5, [0.9] * 5)
    assert (bad.seen, bad.reached) == ("0.90×, of 2", False)
    lucky, unlucky = told([0.81] * 5, [1.5, 1.0, 1.0, 1.0, 1.0]), told([1.0] * 5, [0.5, 1.2, 1.2, 1.2, 1.2])
    assert (lucky.seen, lucky.reached) == ("1.10× (0.90–1.10), of 2, with an interval that holds 0.98", True)
    assert (unlucky.seen, unlucky.reached) == ("0.77× (0.77–1.10), of 2, with an interval that holds 0.98", False)
    few = told([1.1] * 4, [1.1] * 5)
    without = "1.10×, of 2; without an interval, which takes 5 rounds of each, or starts where there are several"
    assert (few.seen, few.reached) == (without, True)


def test_other_work_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    others = [Beside(system, "gemm", "incast:64MiB", [1e-3] * 5, [1e-3] * 5) for system in ("nccl", "railweave")]
    (tmp_path / "parts" / "beside.00.json").write_text(json.dumps(run_of([], None, others).to_json()))
    evaluation(tmp_path).draw()
    assert "Other work beside exchanges" in (tmp_path / "parts" / "beside.00.html").read_text()


def parts(out: Path, **runs: Run) -> None:
    (out / "parts").mkdir(exist_ok=True)
    for name, run in runs.items():
        (out / "parts" / f"{name.replace('_', '-')}.00.json").write_text(json.dumps(run.to_json()))


def test_pictures_have_the_gains_of_a_section_and_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [
        Layer(system, skew, 0.5, 640, [time] * 5, [1])
        for skew in ("none", "zipf:1.0")
        for system, time in (("nccl", 2e-3), ("railweave", 1.6e-3))
    ]
    hot = [*exchanges("hot-pair:16MiB:1MiB", 1.3e-3, 1e-3), *exchanges("hot-pair:4MiB:256KiB", 9e-3, 1e-3, bound=0.5e-3)]
    parts(tmp_path, exchanges=run_of(hot), small=run_of(exchanges("balanced:64KiB", 2e-3, 1e-3)), moe_rails=run_of([], layers))
    again = run_of(exchanges("hot-pair:4MiB:256KiB", 3e-3, 1e-3, bound=0.5e-3))
    (tmp_path / "parts" / "exchanges.01.json").write_text(json.dumps(again.to_json()))
    parts(tmp_path, rails=run_of(exchanges("hot-pair:64MiB", 1e-3, (1 << 20) / 3.85e9)))
    drawn: dict[str, list[Any]] = {}
    draws = gpus_report.gains_picture

    def notes(rows: Any, rival: str, name: str) -> str:
        drawn[name] = [(row.name, round(row.ratios["railweave"].value, 3), row.wanted and round(row.wanted, 3)) for row in rows]
        return str(draws(rows, rival, name))

    monkeypatch.setattr(gpus_report, "gains_picture", notes)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(tmp_path), "--tables"])
    assert evaluate.main() == 0
    assert drawn == {
        # In the order of the section; of two aims of a row the one that wants more, here 0.95 of the bound: 1.3 × 0.95 and 3 × 2 × 0.95.
        "A hot pair with 1/16 of it between all others": [("hot-pair:4MiB:256KiB", 3.0, 5.7), ("hot-pair:16MiB:1MiB", 1.3, 1.4)],
        "Small messages, balanced": [("balanced:64KiB", 2.0, 1.5)],
        "2 nodes × 4 GPUs on 4 rails of 8 Gbit/s; ranks of different nodes share GPUs": [("hot-pair:64MiB", 3.672, 3.624)],
        "A mixture-of-experts layer over rails": [("skew none, compute 0.5×", 1.25, None), ("skew zipf:1.0, compute 0.5×", 1.25, 1.35)],
    }
    text = (tmp_path / "results.md").read_text()
    linked = re.findall(r"!\[[^\]]*nccl[^\]]*\]\((\S+)\)", text)
    assert sorted(linked) == ["gains-hot.svg", "gains-moe-rails.svg", "gains-rails.svg", "gains-small-balanced.svg"]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == sorted(linked)
    for name in linked:
        picture = ElementTree.parse(tmp_path / name).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert "Gains over nccl: " in picture.attrib["aria-label"]


def test_pictures_are_there_with_the_tables_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation(tmp_path)
    monkeypatch.setattr(found, "_program", Program({}))
    assert found.run(["hot"])
    assert "](gains-hot.svg)" in (tmp_path / "results.md").read_text(), "also where the next program is ended"


def test_a_damaged_result_is_told_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluation(tmp_path)
    (tmp_path / "parts" / "exchanges.00.json").write_text('{"format": ')
    (tmp_path / "parts" / "exchanges.00.log").write_text("== status none, ended after 480 s\n")
    monkeypatch.setattr(found, "_program", Program({}))
    assert found.run(["hot"])
    assert not found.missing(found.groups["exchanges"], ["hot"])
    assert capsys.readouterr().err.count("exchanges.00.json") == 1
    assert (tmp_path / "parts" / "exchanges.00.json").read_text() == '{"format": ', "somebody may want to look at it"


def test_without_matplotlib_there_are_tables_without_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "railweave.report.gpus", None)
    found = evaluation(tmp_path)
    monkeypatch.setattr(found, "_program", Program({}))
    assert found.run(["hot"])
    text = (tmp_path / "results.md").read_text()
    assert "| `hot-pair:16MiB:1MiB` | nccl |" in text
    assert "](gains-" not in text
    assert not list(tmp_path.glob("*.svg"))


def test_the_rival_is_the_best_nccl_with_its_defaults() -> None:
    found = exchanges("balanced:16MiB", 2e-3, 1e-3)
    for system, seconds in (("nccl-other", 1.1e-3), ("nccl-tuned", 0.5e-3), ("railweave-torch", 0.5e-3)):
        found.append(Exchange(system, "balanced:16MiB", 1, 1, [seconds] * 5, [1e-5] * 5, [seconds], [1e-5], 1e-3, None, [_NCCL]))
    told = {each.what: each for each in aims.lines({"exchanges": [run_of(found)]}, 4)}
    assert told["balanced, `balanced:16MiB`"].seen.startswith("1.10×")
    times = (("nccl", 2e-3), ("nccl-other", 1.5e-3), ("railweave", 1e-3), ("nccl-tuned", 0.5e-3))
    layers = [Layer(system, "zipf:1.0", 0.5, 640, [time] * 5, [1]) for system, time in times]
    others = [Beside(system, "gemm", "balanced:64MiB", [1e-3] * 5, [time] * 5, 9, [time] * 5, [time] * 5) for system, time in times]
    told = {each.what: each for each in aims.lines({"moe-rails": [run_of([], layers)], "beside": [run_of([], None, others)]}, 4)}
    assert told["mixture-of-experts layer over the rails, Zipf 1.0"].seen.startswith("1.50×")
    assert ", under NCCL 1.50×: 1.50×" in told["gemm beside `balanced:64MiB`"].seen
    assert not np.isnan(run_of(found).exchanges[0].gbps)
