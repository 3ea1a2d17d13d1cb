"""Results as JSON, table and figures."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from railweave.bench import result, table
from railweave.bench.alltoallv import Case, time_limit
from railweave.bench.alltoallv import run as run_cases
from railweave.bench.errors import BenchError, how_it_ended
from railweave.bench.result import RailBytes, Result, Run
from railweave.cli.bench import BenchProgress, command, titled
from railweave.lab import LabSpec
from railweave.lab.fabric import of_lab
from railweave.output import OutputError
from railweave.report.exchange import page


def make_run(wrong: str | None = None) -> Run:
    """A run of two matrices under two policies on a small lab."""
    spec = LabSpec(2, 2)

    def rails(*sent: int) -> list[RailBytes]:
        return [RailBytes(node, rail, sent[rail] if node == 0 else 0, sent[rail] if node == 1 else 0) for node in (0, 1) for rail in (0, 1)]

    results = [
        Result("single-path", "hot-pair:32MiB", [0.70, 0.68, 0.69], 32 << 20, 0.336, None, rails(33_700_000, 1000)),
        Result("railweave", "hot-pair:32MiB", [0.36, 0.35, 0.37], 32 << 20, 0.336, wrong, rails(16_900_000, 16_900_000)),
        Result("single-path", "balanced:4MiB", [0.2, 0.2, 0.2], 48 << 20, 0.16, None, rails(8_000_000, 8_000_000)),
        Result("railweave", "balanced:4MiB", [0.2, 0.2, 0.2], 48 << 20, 0.16, None, rails(8_000_000, 8_000_000)),
    ]
    versions = {"railweave": "0", "python": "3"}
    return Run(result.now(), "railweave bench", result.machine(), versions, spec.to_json(), "lab 2x2", results)


def test_figures() -> None:
    hot = make_run().results[1]
    assert hot.seconds_median == 0.36
    assert hot.gbps == pytest.approx((32 << 20) / 0.36 / 1e9)
    assert hot.bound_fraction == pytest.approx(0.336 / 0.36)


def test_json_follows_the_schema_and_survives(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    schema = json.loads((Path(request.config.rootpath) / "schema" / "bench.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    run = make_run()
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run.to_json()))
    jsonschema.validate(json.loads(path.read_text()), schema)
    assert Run.load(path) == run


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"text"',
        "{}",
        "[" * 200_000,
        '{"a":' * 200_000,
    ],
)
def test_what_is_no_result_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"run\.json: .*; expected a result of `railweave bench`$"):
        Run.load(path)


def put(*place: str | int, value: object) -> Callable[[dict[str, Any]], object]:
    """An edit that puts the value there."""

    def edit(document: Any) -> None:
        for name in place[:-1]:
            document = document[name]
        document[place[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (put("version", value=2), "version: 2; expected version 1 of a "),
        (lambda document: document.pop("date"), "the whole: no date; expected format, version, date, command, machine, versions, lab,"),
        (put("place", value="here"), 'the whole: "place"; expected only format, version, date,'),
        (put("date", value=1), "date: 1; expected text"),
        (put("machine", value=None), "machine: null; expected an object"),
        (lambda document: document["machine"].pop("kernel"), "machine: no kernel; expected cpu, cores, memory_bytes, kernel"),
        (put("machine", "memory_bytes", value="much"), 'machine.memory_bytes: "much"; expected a whole number from 0'),
        (put("machine", "cores", value=True), "machine.cores: true; expected a whole number from 1"),
        (put("machine", "cpu_stolen", value=math.nan), "machine.cpu_stolen: NaN; expected a share from 0 to 1"),
        (put("versions", value=[]), "versions: []; expected an object"),
        (put("versions", "python", value=3), "versions.python: 3; expected text"),
        (put("lab", value=None), "lab: null; expected an object"),
        (put("lab", "nodes", value=10**400), "lab.nodes: 1000"),
        (put("lab", "isolation", value=[[[]]]), "lab.isolation: a list of 1; expected one of node, gpu"),
        (put("results", value=[]), "results: []; expected a list of 1 or more"),
        (put("results", value={"a": 1}), "results: an object; expected a list of 1 or more"),
        (put("results", 1, value=None), "results[1]: null; expected an object"),
        (lambda document: document["results"][1].pop("rails"), "results[1]: no rails; expected policy, matrix, seconds,"),
        (put("results", 3, "seconds", value=[]), "results[3].seconds: []; expected a list of 1 or more"),
        (put("results", 3, "seconds", value=0.5), "results[3].seconds: 0.5; expected a list of 1 or more"),
        (put("results", 3, "seconds", value=["x"]), 'results[3].seconds[0]: "x"; expected a positive number'),
        (put("results", 3, "seconds", value=[0.0]), "results[3].seconds[0]: 0.0; expected a positive number"),
        (put("results", 3, "seconds", 2, value=-1), "results[3].seconds[2]: -1; expected a positive number"),
        (put("results", 3, "seconds", 2, value=math.inf), "results[3].seconds[2]: Infinity; expected a positive number"),
        (put("results", 3, "seconds", 2, value=5e-324), "results[3].seconds[2]: 5e-324; expected a positive number"),
        (put("results", 0, "bytes", value=-1), "results[0].bytes: -1; expected a whole number from 0"),
        (put("results", 0, "bound_seconds", value=None), "results[0].bound_seconds: null; expected 0 or a positive number"),
        (put("results", 0, "policy", value=["railweave"]), "results[0].policy: a list of 1; expected text"),
        (put("results", 0, "wrong", value=False), "results[0].wrong: false; expected text"),
        (put("results", 0, "rails", value={}), "results[0].rails: {}; expected a list of 0 or more"),
        (put("results", 0, "rails", 1, "node", value=2), "results[0].rails[1].node: 2; expected a whole number from 0 to 1"),
        (lambda document: document["results"][0]["rails"][1].pop("tx_bytes"), "results[0].rails[1]: no tx_bytes; expected node, rail,"),
        (lambda document: document["results"].pop(3), 'results: none for matrix "balanced:4MiB" under "railweave"; expected every policy'),
        (put("results", 0, "matrix", value="x"), 'results: none for matrix "x" under "railweave"; expected every policy'),
        (put("results", 0, "policy", value="x"), 'results: none for matrix "hot-pair:32MiB" under "single-path"; expected every policy'),
    ],
)
def test_what_is_damaged_says_where(edit: Callable[[dict[str, Any]], object], said: str, tmp_path: Path) -> None:
    document = json.loads(json.dumps(make_run().to_json()))
    edit(document)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    done = CliRunner().invoke(command, ["report", str(path), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert str(done.exception).startswith(f"{path}: {said}")
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_what_other_versions_write_is_read(tmp_path: Path) -> None:
    document = json.loads(json.dumps(make_run().to_json()))
    document["machine"] |= {"cpu_stolen": 0, "of a later version": 1}
    document["lab"]["of a later version"] = 1
    twice = [*document["results"], document["results"][0]]  # a matrix that was given twice
    document["results"] = [{"of a later version": 1, **each} for each in twice]
    for each in document["results"]:
        del each["gbps"]  # follows from the rest
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert Run.load(path).results == [*make_run().results, make_run().results[0]]


def test_bytes_that_are_no_result_say_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(bytes(range(128, 256)))
    done = CliRunner().invoke(command, ["report", str(tmp_path / "run.json"), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_matrix_that_no_memory_holds_is_refused_before_the_lab() -> None:
    case = Case("all", np.array([[0, 2**62], [2**62, 0]], dtype=np.uint64), 1.0)
    with pytest.raises(BenchError, match="matrix 'all': 9223372036854775808 bytes to send and as many to receive"):
        run_cases(LabSpec(2, 1), of_lab(LabSpec(2, 1)), [case], ["railweave"], [], 1, lambda _: None)


def test_every_policy_and_peer_needs_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("all", np.array([[0, 50], [50, 0]], dtype=np.uint64), 1.0)
    monkeypatch.setattr(result, "machine", lambda: {"memory_bytes": 599})
    with pytest.raises(BenchError, match="100 bytes to send and as many to receive, for each of 3 policies and peers"):
        run_cases(LabSpec(2, 1), of_lab(LabSpec(2, 1)), [case], ["railweave", "single-path"], ["openmpi"], 1, lambda _: None)


def render(run: Run) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table.table(run))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_table_fits_a_terminal() -> None:
    text = render(make_run())
    assert "hot-pair:32MiB" in text
    assert "…" not in text
    assert "1.92" in text  # 0.69 s over 0.36 s
    assert "very byte on every rank was right" in text


def test_tiny_times_and_rates_are_not_shown_as_none() -> None:
    run = make_run()
    assert "  ms   ±   MB/s " in render(run)
    tiny = [replace(each, seconds=[second * 1e-5 for second in each.seconds], bytes=8) for each in run.results]
    text = render(replace(run, results=tiny))
    assert "  us   ±  MB/s " in text
    assert "  6.90  1%  1.16 " in text and "  2.00  0%  4.00 " in text


def test_one_of_anything_is_told_as_one() -> None:
    assert "all-to-allv, 2 nodes × 2 ranks, 2 rails of 400 mbit each way" in render(make_run())
    few = replace(make_run(), lab={**make_run().lab, "nodes": 1, "gpus": 1, "rails": 1})
    assert "all-to-allv, 1 node × 1 rank, 1 rail of 400 mbit each way" in render(few)
    assert "between 1 rank on 1 node with 1 rail of 400 Mbit/s each way" in page(few)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (3, "ended with status 3"),
        (-9, "was killed by signal 9 (SIGKILL: by somebody, or by the kernel as memory ran out, which `dmesg` on the host tells)"),
        (-15, "was killed by signal 15 (SIGTERM: somebody asked it to end)"),
        (-11, "was killed by signal 11 (SIGSEGV: a fault in the program; `dmesg` on the host tells where)"),
        (-6, "was killed by signal 6 (SIGABRT: Aborted)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_a_signal_is_told_in_words(status: int, told: str) -> None:
    assert how_it_ended(status) == told


def test_table_shouts_about_wrong_bytes() -> None:
    text = render(make_run(wrong="repetition 1: rank 2 got a wrong byte from rank 0 at 17"))
    assert "WRONG" in text


def test_busiest_node_shows_what_is_uneven() -> None:
    senders = [RailBytes(0, rail, 8_000, 0) for rail in range(4)]
    receiver = [RailBytes(1, rail, 0, 32_000 if rail == 0 else 0) for rail in range(4)]
    assert table.busiest_node(Result("p", "incast", [1.0], 1, 1.0, None, senders + receiver)) == [32_000, 0, 0, 0]


def test_one_repetition_has_no_spread() -> None:
    once = replace(make_run(), results=[replace(each, seconds=each.seconds[:1]) for each in make_run().results])
    assert "1%" in render(make_run()) and "%" not in render(once)


def test_any_name_is_text() -> None:
    """As rich would take it: markup that nothing opened, markup that vanishes."""
    run = make_run()
    text = render(replace(run, results=[replace(each, matrix=f"m[/x][y]{each.matrix[:4]}") for each in run.results]))
    assert "m[/x][y]hot-" in text and "m[/x][y]bala" in text


def test_what_runs_now_is_text_and_nothing_where_nobody_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    with BenchProgress(2) as progress:
        progress.step("m[/x].txt, railweave")
    assert capfd.readouterr().err == ""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr("rich.console.Console", lambda **_: terminal)
        with BenchProgress(2) as progress:
            progress.step("m[/x].txt, railweave")
    assert isinstance(terminal.file, io.StringIO)
    assert "m[/x].txt, railweave" in terminal.file.getvalue()


def test_a_result_is_read_from_a_pipe(tmp_path: Path) -> None:
    pipe, page = tmp_path / "pipe", tmp_path / "page.html"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(make_run().to_json())))
    writer.start()
    done = CliRunner().invoke(command, ["report", str(pipe), str(page)])
    writer.join()
    assert done.exit_code == 0, done.exception
    assert page.read_text().count("<svg") == 2


@pytest.mark.parametrize("name", ["run.json", "../{}/run.json", "symbolic", "hard"])
def test_a_page_is_not_written_over_its_result(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(make_run().to_json()))
    (tmp_path / "symbolic").symlink_to("run.json")
    (tmp_path / "hard").hardlink_to(path)
    page = tmp_path / name.format(tmp_path.name)
    done = CliRunner().invoke(command, ["report", str(path), str(page)])
    assert isinstance(done.exception, OutputError)
    assert str(done.exception) == f"{page}: named for the result and for its page; expected a file for each"
    assert Run.load(path) == Run.parse(page.read_text(), page)
    shutil.copy(path, tmp_path / "page.html")  # what is there already is no reason
    assert CliRunner().invoke(command, ["report", str(path), str(tmp_path / "page.html")]).exit_code == 0


def test_what_is_no_regular_file_is_read_and_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("{}"), daemon=True)  # should nobody open the pipe
    writer.start()
    done = CliRunner().invoke(command, ["report", str(pipe), str(pipe)])
    writer.join(120)
    assert str(done.exception).startswith(f"{pipe}: no format "), done.exception


def test_a_result_that_nobody_measured_is_told_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("w") as file:
        file.truncate(20 << 30)
    done = CliRunner().invoke(command, ["report", str(path), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert str(done.exception) == f"{path}: more than 268435456 characters; expected a result of `railweave bench`"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_matrix_that_mpi_cannot_count_is_refused_before_the_lab() -> None:
    case = Case("all", np.array([[0, 2**31], [0, 0]], dtype=np.uint64), 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "machine", lambda: {"memory_bytes": 0})
        with pytest.raises(BenchError, match=r"matrix 'all' under ucx: rank 0 sends 2147483648 bytes; MPI_Alltoallv counts to 2\^31"):
            run_cases(LabSpec(2, 1), of_lab(LabSpec(2, 1)), [case], ["railweave"], ["ucx"], 1, lambda _: None)


@pytest.mark.parametrize(("rails", "bounds"), [(1, 20), (4, 20), (10, 20), (16, 32), (64, 128)])
def test_the_time_limit_leaves_time_to_what_takes_one_rail(rails: int, bounds: int) -> None:
    case = Case("hot", np.zeros((8, 8), dtype=np.uint64), 3.0)
    assert time_limit(case, rails) == bounds * 3.0 + 30 + 8 * 5


def test_files_are_named_by_as_much_of_their_path_as_tells_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a/x/m.txt", "b/x/m.txt", "b/n.txt", "c/balanced:1KiB"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    given = [*names, str(tmp_path / "n.txt"), "balanced:1KiB", "nowhere.txt", "x" * 5000]
    assert [title for title, _ in titled(given)] == ["a/x/m.txt", "b/x/m.txt", "n.txt", "c/balanced:1KiB", *given[4:]]
    assert [name for _, name in titled(given)] == given
    for twice in (["balanced:1KiB"] * 2, ["b/n.txt", "./b/../b/n.txt"]):
        with pytest.raises(click.UsageError, match=r"--matrix .*(balanced:1KiB|/b/n\.txt) is there twice; expected each once"):
            titled([*names[:1], *twice])
