"""Files in the working directory that are named as what Railweave imports: its own processes, which in labs are root's, never run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from railweave.bench.gpus.session import Processes
from railweave.lab import Lab, LabSpec
from railweave.lab.own_process import own_process

_TRAP = """\
import sys
with open({told!r}, "a") as file:
    file.write("{name} in " + " ".join(sys.orig_argv) + "\\n")
raise SystemExit("ran")
"""
_OTHERS = ("click", "numpy", "pyroute2", "railweave", "rich")
# Written in one piece, as ranks share the output.
_PROGRAM = """\
import mine, sys
sys.stdout.write(f"{mine.WHOSE} {sys.path[0] == sys.argv[1]} {getattr(sys.flags, 'safe_path', False)}\\n")
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is full of such files; those that were run have their names here."""
    told, folder = tmp_path / "told", tmp_path / "traps"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, *_OTHERS):
        (folder / f"{name}.py").write_text(_TRAP.format(told=str(told), name=name))
    (folder / "program.py").write_text(_PROGRAM)
    (folder / "mine.py").write_text("WHOSE = 'its own'\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return told


def railweave(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As the installed script is run, whose own path does not have the working directory. Not by `python -c`, for which Python 3.13
    itself imports linecache from there before it runs anything."""
    return subprocess.run(own_process("railweave", *arguments), capture_output=True, text=True, timeout=500, check=False)


def nothing(told: Path) -> bool:
    assert not told.exists(), told.read_text()
    return True


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_module_runs_as_python_m_runs_it(safe: str, tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").write_text("import json, sys\nprint(json.dumps([__name__, __file__, sys.argv, sys.path]))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", safe)
    done = subprocess.run(own_process("module", "a", "-b", ""), capture_output=True, text=True, check=False)
    assert nothing(told) and done.returncode == 0, done.stderr
    name, file, arguments, path = json.loads(done.stdout)
    assert (name, file, arguments) == ("__main__", str(tmp_path / "module.py"), [str(tmp_path / "module.py"), "a", "-b", ""])
    assert path[0] == str(tmp_path)
    assert not {"", str(Path.cwd()), str(Path(own_process("")[1]).parent)} & set(path)


@pytest.mark.root
def test_of_a_lab(told: Path, nothing_stays: Callable[[], None]) -> None:
    name = f"test-{os.getpid()}"
    up = railweave("lab", "up", name, "2x1")
    assert nothing(told) and up.returncode == 0, up.stderr
    try:
        for option in ([], ["--label"]):
            done = railweave("lab", "exec", name, *option, "--", "true")
            assert nothing(told) and done.returncode == 0, done.stderr
        # The user's own programs find what is beside them, as ever.
        program = [sys.executable, "program.py", str(Path.cwd())]
        done = railweave("lab", "exec", name, "--", *program)
        assert nothing(told) and done.stdout == "its own True False\n" * 2, done.stderr
        if shutil.which("mpirun"):  # daemons and ranks come by agent.sh
            done = railweave("lab", "exec", name, "--node", "0", "--", "mpirun", "-np", "2", "--host", "node0,node1", *program)
            assert nothing(told) and done.stdout == "its own True False\n" * 2, done.stderr
        for arguments in (("status", name), ("fabric", name), ("link", name, "--node", "0", "--rail", "0", "--down")):
            done = railweave("lab", *arguments)
            assert nothing(told) and done.returncode == 0, done.stderr
    finally:
        down = railweave("lab", "down", name)
    assert nothing(told) and down.returncode == 0, down.stderr


@pytest.mark.root
def test_of_a_benchmark_in_a_lab(told: Path, nothing_stays: Callable[[], None]) -> None:
    peers = ["--peer", "openmpi"] if shutil.which("mpicc") else []
    done = railweave("bench", "alltoallv", "--lab", "2x1", "--rate", "1gbit", "--matrix", "balanced:64KiB", "--repeat", "1", *peers)
    assert nothing(told) and done.returncode == 0, done.stderr


def _answer(lab: Lab | None) -> None:
    found = {"PYTHONPATH": str(Path(__file__).parents[1])}
    environments = [{**({} if lab else os.environ), "RANK": str(rank), **found} for rank in range(2)]
    with Processes("tested", "bench.gpus.answering", [], environments, lab) as ranks:
        ranks.ready()
        assert [each["rank"] for each in ranks.ask(60, "echo")] == [0, 1]


def test_of_ranks_on_gpus(told: Path) -> None:
    try:
        _answer(None)
    finally:
        assert nothing(told)


@pytest.mark.root
def test_of_ranks_on_gpus_in_a_lab(told: Path, nothing_stays: Callable[[], None]) -> None:
    try:
        with Lab.up(LabSpec(2, 1)) as lab:
            _answer(lab)
    finally:
        assert nothing(told)
