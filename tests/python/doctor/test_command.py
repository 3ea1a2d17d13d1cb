"""`railweave doctor` without click: it takes a command line as click does, or leaves it to click."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from template_machine import TemplateMachine

from railweave.cli import doctor as definition
from railweave.doctor import command
from railweave.doctor.command import Arguments, plainly

OPTIONS = ["--from", "--json", "--html", "--prometheus", "--fail-on", "--probe", "--pid", "--nics", "--rails"]
VALUES = [
    "a.tar.zst",
    "b",
    "error",
    "info",
    "Error",
    "12",
    "0",
    "-1",
    "x",
    "",
    "/",
    "=",
    "²",
    "1_0",
    "+5",
    "leaf(\\d+)",
    "é",
    "-",
    "--",
    "-h",
]
WORDS = st.one_of(
    st.sampled_from([*OPTIONS, *VALUES, "--help", "--fro", "--jsonx", "-j"]),
    st.builds("{}={}".format, st.sampled_from(OPTIONS), st.sampled_from(VALUES)),
)
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def by_click(words: list[str]) -> Arguments | None:
    """None where click refuses or helps."""
    try:
        with definition.command.make_context("doctor", list(words)) as context:
            given: dict[str, Any] = context.params
    except (click.UsageError, click.exceptions.Exit):
        return None
    files = (*given.pop("recordings"), *given.pop("more"))
    return Arguments(files=files, **given)


@example(["--pid", "12", "--nics=a,b", "x", "--from", "y", "--json", "--fail-on", "error"])
@example(["--pid=1_0"])
@example(["/"])
@example(["--html", "/"])
@given(st.lists(WORDS, max_size=7))
def test_plain_command_lines_mean_what_they_mean_to_click(words: list[str]) -> None:
    arguments = plainly(words)
    if arguments is not None:
        assert arguments == by_click(words)


def test_every_option_can_be_plain() -> None:
    """One that the quick reader does not know would take the slow way unnoticed."""
    for option in definition.command.params:
        if isinstance(option, click.Option):
            value = {"fail_on": "error", "pid": "12"}.get(str(option.name), "x")
            words = [option.opts[0]] if option.is_flag else [option.opts[0], value]
            assert plainly(words) == by_click(words) != Arguments()


def test_a_recording_is_examined_without_click(tmp_path: Path) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst")
    line = f"""
import os, sys
from railweave import __main__
sys.argv[1:] = ["doctor", {str(recording)!r}]
os._exit = lambda status: sys.exit(" ".join(sys.modules))
__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=120, check=False)
    loaded = set(done.stderr.split())
    assert "railweave.doctor.examine" in loaded
    assert not {"click", "inspect", "dataclasses", "pathlib", "textwrap", "tempfile"} & loaded - _editable()


def _editable() -> set[str]:
    """What an editable installation's own finder brings."""
    told = subprocess.run([sys.executable, "-c", "import sys, railweave; print(*sys.modules)"], capture_output=True, text=True, check=True)
    return set(told.stdout.split())


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--help"], 0), (["--foo"], 2), (["--nics", "mlx9", "{}"], 2), (["missing.tar.zst"], 1), (["--pid", "9" * 5000], 2)],
)
def test_help_and_errors_are_those_of_click(words: list[str], status: int, cli: Cli, tmp_path: Path) -> None:
    recording = str(TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst"))
    words = [word.replace("{}", recording) for word in words]
    plain = cli("doctor", *words)
    line = [sys.executable, "-c", "import sys; from railweave.cli import main; main(sys.argv[1:])", "doctor", *words]
    slow = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (plain.returncode, plain.stdout, plain.stderr) == (slow.returncode, slow.stdout, slow.stderr)
    assert plain.returncode == status


def test_wrong_use_is_told_of_a_recording_that_can_be_read_only_once(tmp_path: Path) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst")
    line = [sys.executable, "-m", "railweave", "doctor", "/dev/stdin", "--nics", "mlx9"]
    done = subprocess.run(line, input=recording.read_bytes(), capture_output=True, timeout=120, check=False)
    assert (done.returncode, b"--nics: stdin has no NIC mlx9" in done.stderr) == (2, True)


@pytest.mark.parametrize(("columns", "most"), [(20, 60), (72, 72), (200, 120)])
def test_lines_fit_the_terminal(columns: int, most: int, tmp_path: Path) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst")
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([sys.executable, "-m", "railweave", "doctor", recording], stdout=its), os.fdopen(ours, "rb") as terminal:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends whose last program has gone
            while block := terminal.read1():
                shown += block
    lengths = [len(line) for line in shown.decode().splitlines() if " " in line.strip()]
    assert most - 20 < max(lengths) <= most


def test_a_file_that_cannot_be_written_is_told_before_another_is(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--html", str(tmp_path / "page.html"), "--prometheus", str(tmp_path / "none/x.prom"))
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])


def test_a_reader_that_leaves_ends_it_in_silence(tmp_path: Path) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst")
    line = f"{sys.executable} -m railweave doctor --json {recording} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("{", "")
    assert done.returncode in (0, 1)


def test_a_closed_standard_output_is_no_traceback(tmp_path: Path) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "machine.tar.zst")
    line = f"{sys.executable} -m railweave doctor --fail-on error {recording} >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_cannot_be_written_is_escaped(tmp_path: Path, cli: Cli) -> None:
    recording = TemplateMachine("xe9680-4hca").record(tmp_path / "caf\udce9.tar.zst")
    done = cli("doctor", str(recording), env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("caf\\udce9\n")


def test_levels_are_those_of_findings() -> None:
    from railweave.doctor.finding import Severity

    assert tuple(severity.value for severity in Severity) == command.LEVELS
