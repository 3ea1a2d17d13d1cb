"""The benchmark for real: small labs, both kinds of session, and what happens when something dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from railweave.bench import session as sessions
from railweave.bench.alltoallv import Case, lower_bound, run, steps
from railweave.bench.errors import BenchError
from railweave.bench.result import Result, Run
from railweave.bench.session import MpiSession, PolicySession, build_peer
from railweave.bench.worker import Worker
from railweave.cli.bench import command
from railweave.lab import Lab, LabError, LabSpec, labs, syscalls, wire
from railweave.lab.fabric import of_lab
from railweave.matrix import generate

SPEC = LabSpec(2, 2, rate=1_000_000_000)


def cases(*names: str) -> list[Case]:
    return [Case(name, matrix, lower_bound(of_lab(SPEC), matrix)) for name in names for matrix in [generate(name, SPEC.world)]]


class Loopback:
    """An exchange of one rank with itself that a test can make faulty."""

    def __init__(self) -> None:
        self.damage: list[int] = []

    def empty(self, size: int, dtype: type) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.zeros(size, dtype=dtype)

    def all_to_all_v(
        self,
        send: np.ndarray,  # type: ignore[type-arg]
        recv: np.ndarray,  # type: ignore[type-arg]
        send_counts: list[int],
        recv_counts: list[int],
    ) -> SimpleNamespace:
        recv[:] = send
        for place in self.damage:
            recv[place] ^= 1
        return SimpleNamespace(plan_seconds=0.0, row_wait_seconds=0.0, rows_missing=0)


def test_worker_finds_a_wrong_byte_and_stale_ones() -> None:
    loopback = Loopback()
    worker = Worker(0, loopback)  # type: ignore[arg-type]
    worker.prepare(1, [[1000]])
    worker.go(0.0)
    assert worker.check() == {"wrong": None}
    worker.prepare(2, [[1000]])
    assert worker.check() == {"wrong": [0, 0]}  # what the repetition before left there
    loopback.damage = [700]
    worker.go(0.0)
    assert worker.check() == {"wrong": [0, 700]}


@pytest.mark.parametrize(
    ("name", "spec", "seconds"),
    [
        ("hot-pair:32MiB", LabSpec(2, 4, rate=400_000_000), (32 << 20) / 200e6),  # all four rails of a node
        ("incast:8MiB", LabSpec(2, 4, rate=400_000_000), (32 << 20) / 200e6),
        ("balanced:4MiB", LabSpec(2, 4, rate=400_000_000), (64 << 20) / 200e6),
        ("hot-pair:32MiB", LabSpec(2, 4, 2, rate=400_000_000), (32 << 20) / 100e6),
    ],
)
def test_bounds(name: str, spec: LabSpec, seconds: float) -> None:
    assert lower_bound(of_lab(spec), generate(name, spec.world)) == pytest.approx(seconds)


@pytest.mark.root
def test_policies_in_turn(nothing_stays: None) -> None:
    heard: list[str] = []
    chosen = cases("hot-pair:2MiB:1KiB", "random:300000:1")
    kept: list[str] = []
    results = run(
        SPEC,
        of_lab(SPEC),
        chosen,
        ["single-path", "railweave"],
        [],
        2,
        heard.append,
        lambda some: kept.extend(f"{each.matrix} before {len(heard)}" for each in some),
    )
    assert kept == [f"{chosen[0].name} before 9"] * 2 + [f"{chosen[1].name} before 15"] * 2, "each matrix as soon as it is measured"
    assert [(each.matrix, each.policy) for each in results] == [
        (case.name, policy) for case in chosen for policy in ("single-path", "railweave")
    ]
    assert all(each.wrong is None and len(each.seconds) == 2 for each in results)
    assert len(heard) == steps(2, 2, 2)
    # The turn goes round: each repetition starts with the next session.
    assert [text.split(", ")[1] for text in heard if text.startswith("hot-pair")] == [
        *("single-path", "railweave"),
        *("railweave", "single-path"),
        *("single-path", "railweave"),
    ]
    single = results[0].rails
    assert single[0].tx_bytes > 2 << 20  # the hot pair's own rail; the other carries background and acknowledgements
    assert single[1].tx_bytes < 1 << 18


@pytest.mark.root
@pytest.mark.parametrize("isolation", ["node", "gpu"])
@pytest.mark.parametrize("rails", [1, 4])
def test_fewer_and_more_rails_than_ranks(rails: int, isolation: str, nothing_stays: None) -> None:
    spec = LabSpec(2, 2, rails, rate=1_000_000_000, isolation=isolation)
    single, balanced = run(spec, of_lab(spec), cases("hot-pair:2MiB", "balanced:1MiB"), ["railweave"], [], 1, lambda _: None)
    assert (single.wrong, balanced.wrong) == (None, None)
    carried = [each.tx_bytes for each in single.rails if each.node == 0]
    assert len(carried) == rails
    assert min(carried) > (2 << 20) / rails / 2  # all of the node's rails carry the pair


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no OpenMPI")
@pytest.mark.parametrize("isolation", ["node", "gpu"])
@pytest.mark.parametrize("peer", sessions.PEERS)
def test_peers(peer: str, isolation: str, nothing_stays: None) -> None:
    spec = LabSpec(2, 2, rate=1_000_000_000, isolation=isolation)
    (result,) = run(spec, of_lab(spec), cases("random:300001:1"), [], [peer], 1, lambda _: None)
    assert result.wrong is None
    assert sum(nic.tx_bytes for nic in result.rails) > result.bytes // 2  # half and more crosses nodes


@pytest.fixture
def lab(nothing_stays: None) -> Iterator[Lab]:
    with Lab.up(SPEC) as lab:
        yield lab


def _worker_of_rank(rank: int) -> int:
    """Its pid. Tests that run beside this one have workers as well, and those end while one looks at them."""
    wanted = {f"RANK={rank}".encode(), f"RAILWEAVE_TEST={os.environ['RAILWEAVE_TEST']}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            started = b"railweave.bench.worker" in (folder / "cmdline").read_bytes()
            if started and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                return int(folder.name)
    raise AssertionError(f"no worker of rank {rank}")


@pytest.mark.root
def test_worker_that_dies_is_named(lab: Lab) -> None:
    with PolicySession("railweave", lab, of_lab(SPEC), 0) as session:
        matrix = generate("balanced:64KiB", 4)
        assert session.exchange(matrix, 0, 120.0).wrong is None
        os.kill(_worker_of_rank(3), signal.SIGKILL)
        select.select([session._job.events], [], [])  # it is dead before it is asked for anything
        with pytest.raises(BenchError, match=r"railweave, .*rank 3 \(node1\) was killed by signal 9"):
            session.exchange(matrix, 1, 120.0)


@pytest.mark.root
def test_a_lab_that_goes_down_is_named(nothing_stays: None) -> None:
    with (
        pytest.raises(LabError, match="the lab went down"),
        Lab.up(SPEC) as lab,
        PolicySession("railweave", lab, of_lab(SPEC), 0) as session,
        PolicySession("single-path", lab, of_lab(SPEC), 1),
    ):
        os.kill(wire.supervisor(lab.name), signal.SIGKILL)
        select.select([session._job.events], [], [])
        session.exchange(generate("balanced:64KiB", 4), 0, 120.0)


@pytest.mark.root
def test_policy_that_does_not_start_says_why(lab: Lab) -> None:
    with pytest.raises(BenchError, match=r"(?s)no-such-policy, starting: rank \d .*no-such-policy"):
        PolicySession("no-such-policy", lab, of_lab(SPEC), 0)


@pytest.mark.root
def test_time_limit_names_the_ranks(lab: Lab) -> None:
    # Minutes for what it sends over this rail, which is not given up for that: its bytes would take the other one and 4 s.
    with PolicySession("single-path", lab, of_lab(SPEC), 0, {"RAILWEAVE_RAIL_TIMEOUT_MS": "600000"}) as session:
        lab.set_link(1, 0, rate=400_000)
        with pytest.raises(BenchError, match=r"single-path, exchanging: no answer from rank 0.* within 1 s"):
            session.exchange(generate("hot-pair:8MiB", 4), 0, 1.0)


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no OpenMPI")
def test_peer_that_fails_says_why(lab: Lab, tmp_path: Path) -> None:
    with MpiSession("openmpi", lab, build_peer(lab)) as session, pytest.raises(BenchError, match="rank 0 sends 3221225472 bytes"):
        session.exchange(generate("hot-pair:3GiB", 4), 0, 120.0)
    program = tmp_path / "peer"
    program.write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    program.chmod(0o755)
    for first_asked_when_all_is_over in (False, True):
        with MpiSession("openmpi", lab, program) as session:
            if first_asked_when_all_is_over:
                session._job._process.wait()
            with pytest.raises(BenchError, match=r"(?s)openmpi, filling.*mpirun ended with status 3.*no luck"):
                session.exchange(generate("balanced:1KiB", 4), 0, 120.0)


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no OpenMPI")
def test_an_mpirun_that_is_killed_says_by_what(lab: Lab, tmp_path: Path) -> None:
    program = tmp_path / "peer"
    program.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" != 0 ] || kill -KILL $PPID\nexec sleep 1000\n')
    program.chmod(0o755)
    with (
        MpiSession("openmpi", lab, program) as session,
        pytest.raises(BenchError, match=r"mpirun was killed by signal 9 \(SIGKILL: by some"),
    ):
        session.exchange(generate("balanced:1KiB", 4), 0, 120.0)


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no OpenMPI")
def test_a_peer_that_does_not_build_says_why(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_CC", "gcc -DMPI_Alltoallv=no_such_function -Werror")
    with pytest.raises(BenchError, match=r"(?s)mpicc cannot build .*mpi_alltoallv\.c:\n.*no_such_function"):
        build_peer(lab)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="apt-get install"):
        build_peer(lab)


@pytest.fixture
def no_programs(tmp_path: Path) -> Iterator[Path]:
    """A file system of which no program can be started."""
    target = tmp_path / "noexec"
    target.mkdir()
    syscalls.mount("none", str(target), "tmpfs", syscalls.MS_NOEXEC)
    yield target
    # Processes that are just ending hold files there for a moment.
    for _ in range(600):
        if subprocess.run(["umount", str(target)], check=False).returncode == 0:
            return
        time.sleep(0.05)
    pytest.fail(f"{target} stays busy")


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no OpenMPI")
def test_a_peer_needs_no_temporary_folder_and_leaves_nothing_there(no_programs: Path, nothing_stays: None) -> None:
    before = set(labs())
    command = [sys.executable, "-m", "railweave", "bench", "alltoallv", "--lab", "2x1", "--policies", "", "--peer", "openmpi"]
    process = subprocess.Popen(
        [*command, "--matrix", "balanced:1MiB", "--repeat", "1000"],
        env={**os.environ, "TMPDIR": str(no_programs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert _exchanges(process, before), process.communicate()[0]
    process.terminate()
    process.communicate(timeout=500)
    assert process.returncode == -signal.SIGTERM
    assert list(no_programs.iterdir()) == []


@pytest.mark.root
def test_no_folder_need_be_writable(nothing_stays: None) -> None:
    # The working directory is the last that Python tries.
    read_only = (
        "for folder in /tmp /var/tmp /usr/tmp; do"
        " [ ! -d $folder ] || { mount --bind $folder $folder && mount -o remount,bind,ro $folder; } || exit 77; done"
    )
    peers = ["--peer", "openmpi"] if shutil.which("mpicc") else []
    command = [
        sys.executable,
        "-m",
        "railweave",
        "bench",
        "alltoallv",
        "--lab",
        "2x1",
        "--matrix",
        "balanced:1MiB",
        "--repeat",
        "1",
        *peers,
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", read_only + '; cd /proc && exec "$@"', "sh", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"folders cannot be made read-only: {done.stderr}")
    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_command(nothing_stays: None, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    matrix = tmp_path / "mine.txt"
    matrix.write_text("0 100000\n200000 0\n")
    command = [sys.executable, "-m", "railweave", "bench", "alltoallv", "--lab", "2x1", "--rate", "1gbit", "--repeat", "1"]
    files = ["--json", str(tmp_path / "r.json"), "--report", str(tmp_path / "r.html")]
    done = subprocess.run([*command, "--matrix", str(matrix), *files], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "mine.txt" in done.stdout
    value = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(value, json.loads((Path(request.config.rootpath) / "schema" / "bench.schema.json").read_text()))
    assert [(each["bytes"], each["bytes_ok"]) for each in value["results"]] == [(300_000, True)] * 2
    assert "<svg" in (tmp_path / "r.html").read_text()


def _exchanges(process: subprocess.Popen[str], before: set[str]) -> bool:
    """Waits until exchanges have begun in the lab that is not among those `before`. False where the command ends without."""
    while process.poll() is None:
        with contextlib.suppress(LabError):  # it goes down
            for name in set(labs()) - before:
                if max(link["tx_bytes"] for link in Lab.find(name).links()) >= 1 << 20:
                    return True
        time.sleep(0.05)
    return False


@pytest.mark.root
def test_ctrl_c_leaves_nothing(nothing_stays: None) -> None:
    before = set(labs())
    command = [sys.executable, "-m", "railweave", "bench", "alltoallv", "--lab", "2x2", "--matrix", "balanced:1MiB", "--repeat", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert _exchanges(process, before)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "railweave: interrupted"
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lab", "2"], "NODESxGPUS"),
        (["--lab", "2x4", "--matrix", "nothing:1"], "no generator 'nothing'"),
        (["--lab", "2x4", "--policies", "fastest"], "no policy 'fastest'"),
        (["--lab", "2x4", "--peer", "mpich"], "no peer 'mpich'"),
        (["--lab", "2x4", "--policies", ""], "nothing to run"),
        (["--lab", "2x4", "--matrix", "balanced:1KiB", "--matrix", "balanced:1KiB"], "--matrix balanced:1KiB is there twice"),
        (["--lab", "2x3", "--fabric", "h100-4gpu-ndr", "--rails", "3"], "expected 3 GPUs"),
        (["--lab", "2x4", "--rate", "fast"], "rate 'fast'"),
        # As of variables that are not set.
        (["--lab", "2x4", "--fabric", ""], "no such file, and no template of that name"),
        (["--lab", "2x4", "--spine-rate", ""], "rate ''"),
    ],
)
def test_bad_arguments(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "railweave", "bench", "alltoallv", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("matrix", "written"), [("balanced:1KiB", "balanced:1KiB"), ("caf\udce9.txt", "caf\\udce9.txt")])
def test_a_run_that_is_ended_has_left_what_it_measured(matrix: str, written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measures_one_and_is_ended(*arguments: Any) -> None:
        keep = arguments[-1]
        keep([Result("railweave", matrix, [1e-3], 4096, 1e-4, None, [])])
        raise KeyboardInterrupt

    monkeypatch.setattr("railweave.bench.alltoallv.run", measures_one_and_is_ended)
    path = tmp_path / "run.json"
    done = CliRunner().invoke(command, ["alltoallv", "--lab", "2x2", "--policies", "railweave", "--json", str(path)])
    assert done.exit_code != 0  # what the command line as a whole makes of it: test_command_line.py
    assert Run.load(path).matrices() == [written]
    machine = Run.load(path).machine
    assert 0 <= machine["cpu_stolen"] <= 1
    assert "cpu_others" not in machine  # the ranks, which have not ended, would be among them


def test_who_is_not_root_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Lab:
        raise LabError("a lab needs root")

    monkeypatch.setattr("railweave.lab.Lab.up", refused)
    done = CliRunner().invoke(command, ["alltoallv", "--lab", "2x2"])
    assert (done.output, str(done.exception)) == ("", "a lab needs root")
