"""What `railweave lab` takes for its own and what for the program's, and what it says of a lab; needs no lab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pytest
from click.testing import CliRunner

from railweave.cli import lab
from railweave.lab import LabError, LabSpec


def given(words: Sequence[str]) -> dict[str, Any]:
    """The command's options, and the program."""
    return lab.exec_.make_context("exec", list(words)).params


@pytest.mark.parametrize(
    "program",
    [
        "echo --rank 0 foo",
        "echo --node 1 foo",
        "echo --label hi",
        "ls -lh /",
        "ls -l",
        "df -h",
        "python3 --help",
        "echo --rank=x",
        "./train.py --rank 3 -- --node",
        "true",
        "sh -c -- -x",
    ],
)
def test_options_after_the_program_are_its_own(program: str) -> None:
    words = program.split()
    for before in ([], ["--"]):
        assert given(["demo", *before, *words]) == {"name": "demo", "rank": (), "node": None, "label": False, "program": tuple(words)}
        mixed = given(["--rank", "1", "demo", "--rank=2", "--label", *before, *words])
        assert mixed == {"name": "demo", "rank": (1, 2), "node": None, "label": True, "program": tuple(words)}
        assert given(["demo", "--node", "1", *before, *words])["node"] == 1
    assert given(["--", "demo", *words])["program"] == tuple(words)


@pytest.mark.parametrize("words", [["--rnak", "0", "--", "true"], ["--rnak", "0", "true"], ["-l", "true"], ["--rank", "x", "true"], []])
def test_its_own_options_stand_before_the_program(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        given(["demo", *words])


def test_help_is_the_commands_before_the_program() -> None:
    done = CliRunner().invoke(lab.exec_, ["demo", "--help"])
    assert (done.exit_code, "Run a program on all ranks" in done.output) == (0, True)


def test_an_empty_program_is_wrong_use() -> None:
    done = CliRunner().invoke(lab.exec_, ["demo", ""])
    assert (done.exit_code, "the program is an empty word" in done.output) == (2, True)


def test_an_empty_rate_changes_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.Lab, "find", lambda name: pytest.fail(f"asked {name}"))
    done = CliRunner().invoke(lab.link, ["demo", "--node", "0", "--rail", "0", "--rate", ""])
    assert isinstance(done.exception, LabError) and "rate ''" in str(done.exception)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (LabSpec(2, 4), "2 nodes × 4 ranks, 4 rails at 400 mbit each way, isolation gpu"),
        (LabSpec(1, 1), "1 node × 1 rank, 1 rail at 400 mbit each way, isolation gpu"),
        (
            LabSpec(16, 2, rate=8 * 10**9),
            "16 nodes × 2 ranks, 2 rails at 8000 mbit each way, spine 32000 mbit a leaf (4:1 oversubscribed), isolation gpu",
        ),
        (
            LabSpec(2, 2, spine_rate=10**8),
            "2 nodes × 2 ranks, 2 rails at 400 mbit each way, spine 100 mbit a leaf (8:1 oversubscribed), isolation gpu",
        ),
        (LabSpec(4, 2, rate=8 * 10**9), "4 nodes × 2 ranks, 2 rails at 8000 mbit each way, isolation gpu"),
        (LabSpec(16, 1, rate=8 * 10**9), "16 nodes × 1 rank, 1 rail at 8000 mbit each way, isolation gpu"),
    ],
)
def test_a_lab_is_told_in_a_line(spec: LabSpec, says: str) -> None:
    assert lab._summary(spec) == says
