"""The evaluation's command lines, for each number of GPUs: all of them parse, and no section is longer than its limit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from railweave.cli.bench import command

SCRIPT = Path(__file__).parents[4] / "benchmarks/gpus/evaluate.py"


@pytest.fixture(scope="module")
def evaluate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluate", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["evaluate"] = module
    spec.loader.exec_module(module)
    return module


def test_on_two_gpus_a_pattern_is_measured_once(evaluate: ModuleType) -> None:
    fans = next(section for section in evaluate.SECTIONS if section.name == "fans")
    assert evaluate._matrices(fans, 2) == [], "an incast of one is a pair"
    assert evaluate._matrices(fans, 4) == list(fans.matrices)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_every_section_is_a_command_that_parses(evaluate: ModuleType, gpus: int, tmp_path: Path) -> None:
    newest = tmp_path / "libnccl.so.2"
    newest.touch()
    seen = set()
    for section in evaluate.SECTIONS:
        assert section.seconds <= evaluate._SECTION_LIMIT_S
        words = evaluate._command(section, gpus, tmp_path, newest)
        if section.name == "check":
            assert subprocess.run([*words, "no-such-section"]).returncode == 0, "which runs nothing"
            continue
        assert words[1:4] == ["-m", "railweave", "bench"]
        chosen = command.commands[words[4]]  # type: ignore[attr-defined]
        context = chosen.make_context(words[4], words[5:])
        assert context.params["json_file"] == tmp_path / f"{section.name}.json"
        assert context.params["gpus"] == (0 if section.name == "rails" else gpus)
        assert isinstance(context, click.Context)
        seen.add(words[4])
    assert seen == {"alltoallv", "moe", "beside"}


def test_what_is_there_is_not_run_again_and_what_does_not_fit_is_left(
    evaluate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(evaluate, "_run", lambda section, *_: bool(ran.append(section.name)) or True)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(tmp_path), "--gpus", "4", "--limit", "100"])
    assert evaluate.main() == 0
    assert "hot" in ran
    assert "check" not in ran, "150 s"
    assert "moe" not in ran, "150 s"
