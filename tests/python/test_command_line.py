"""What every command does when its output or its user ends it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from railweave import __main__ as command_line
from railweave import fabric as fabrics


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("topo", "--list"), ("topo", "hgx-h200"), ("advise", "hgx-h200"), ("run", "--help")])
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "railweave", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "railweave: standard output: cannot be written: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["matrix balanced:1MiB --ranks 64", "topo hgx-h200 --json", "advise hgx-h200 --format json"])
def test_a_disk_with_room_for_a_part_is_one_line(arguments: str, unbuffered: str, tmp_path: Path) -> None:
    line = f"ulimit -f 2; exec {sys.executable} -m railweave {arguments} > {tmp_path / 'part'}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", line], env=environment, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "railweave: standard output: cannot be written: File too large\n")


LATIN = {**os.environ, "PYTHONIOENCODING": "latin-1"}


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "ascii:surrogateescape"])
@pytest.mark.parametrize("line", ["topo dgx-1v", "--help", "bench alltoallv --help", "simulate --fabric dgx-1v --matrix hot-pair:1MiB"])
def test_a_pipe_of_another_encoding_gets_what_it_can(line: str, encoding: str) -> None:
    run = [sys.executable, "-m", "railweave", *line.split()]
    whole, less = (
        subprocess.run(run, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": name}, capture_output=True, timeout=120)
        for name in ("utf-8", encoding)
    )
    assert (whole.returncode, less.returncode, less.stderr) == (0, 0, whole.stderr)
    assert len(less.stdout.splitlines()) == len(whole.stdout.splitlines())


def test_a_fabric_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps({**json.loads(fabrics.load("dgx-1v").to_json()), "name": "Zürich │"}))
    done = subprocess.run([sys.executable, "-m", "railweave", "topo", str(file), "--json"], env=LATIN, capture_output=True, timeout=120)
    assert json.loads(done.stdout)["name"] == "Zürich │", done.stderr


def test_a_terminal_of_another_encoding_shows_what_it_can() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "railweave", "topo", "dgx-1v"], env=LATIN, stdout=its), os.fdopen(ours, "rb") as terminal:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends whose last program has gone
            while block := terminal.read1():
                shown += block
    assert b" gpu7  V100 SXM2" in shown


@pytest.mark.parametrize("arguments", ["run --help", "topo hgx-h200", "doctor --help"])
def test_a_reader_that_leaves_is_told_nothing(arguments: str) -> None:
    line = f"{sys.executable} -m railweave {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


@pytest.mark.parametrize("command", ["run", "topo"])
def test_an_interrupt_before_the_command_runs_is_no_traceback(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("railweave.launch.start.main", interrupted)
    monkeypatch.setattr("railweave.cli.main", interrupted)
    monkeypatch.setattr(sys, "argv", ["railweave", command])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 130


@pytest.mark.parametrize("command", [("topo", "--list"), ("matrix", "balanced:1MiB", "--ranks", "2"), ("bench", "report", "a", "b")])
def test_an_interrupted_command_says_so_in_one_line(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Command, "invoke", interrupted)
    monkeypatch.setattr(sys, "argv", ["railweave", *command])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "railweave: interrupted\n")


@pytest.mark.parametrize("group", ["", "lab", "bench"])
def test_lists_of_commands_are_told_to_the_end(group: str) -> None:
    done = subprocess.run([sys.executable, "-m", "railweave", *group.split(), "--help"], capture_output=True, text=True, timeout=120)
    listed = done.stdout.partition("Commands:")[2]
    assert listed.count("\n") > 3 and "..." not in listed


def test_a_solver_that_greets_does_not_spoil_what_is_written() -> None:
    line = [sys.executable, "-m", "railweave", "plan", "--fabric", "h100-4gpu-ndr", "--nodes", "2", "--matrix", "hot-pair:1MiB", "--exact"]
    done = subprocess.run([*line, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "gap" in json.loads(done.stdout)
