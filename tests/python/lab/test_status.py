"""`railweave lab` while labs come and go; needs no lab."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from railweave.cli import lab
from railweave.lab import LabError, wire


def test_a_lab_that_goes_down_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["gone"], []])
    monkeypatch.setattr(lab, "labs", lambda: next(answers))
    monkeypatch.setattr(lab, "foreign_labs", dict)
    done = CliRunner().invoke(lab.status, [])
    assert (done.exit_code, done.output) == (0, "no lab is up\n")


def test_what_starts_a_lab_is_a_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "names", lambda: [])
    with pytest.raises(LabError, match=r"no lab is up; `railweave lab up NAME NODESxGPUS` starts one"):
        wire.request("not-there", "describe")


def test_one_that_stays_and_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "labs", lambda: ["silent"])
    with pytest.raises(LabError, match="silent"):
        CliRunner().invoke(lab.status, [], catch_exceptions=False)


def test_taking_all_down_leaves_out_what_went_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "labs", lambda: ["gone"])
    done = CliRunner().invoke(lab.down, ["--all"])
    assert (done.exit_code, done.output) == (0, "")
    with pytest.raises(LabError, match="no lab named 'gone'"):
        CliRunner().invoke(lab.down, ["gone"], catch_exceptions=False)
