"""What `railweave bench` refuses before it starts anything on GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from railweave.bench.errors import BenchError
from railweave.cli.bench import command


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code != 0
    return done.output + str(done.exception)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch")
    module.cuda = SimpleNamespace(device_count=lambda: 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)


def test_a_lab_or_gpus_or_both() -> None:
    assert "give --lab NODESxGPUS, --gpus, or both" in refused("alltoallv")


def test_a_python_without_pytorch_is_told_which_one_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "run railweave with the Python of your PyTorch programs" in refused("alltoallv", "--gpus")


@pytest.mark.usefixtures("two_gpus")
def test_what_cannot_be_measured_is_refused() -> None:
    assert "4 of 2 GPUs that PyTorch sees" in refused("alltoallv", "--gpus", "4")
    assert "1 of 2 GPUs that PyTorch sees" in refused("moe", "--gpus", "1")
    assert "no system 'ucx'" in refused("alltoallv", "--gpus", "--systems", "ucx")
    assert "skew 'steep': expected none, zipf:S or rotating" in refused("moe", "--skew", "steep")


def test_the_page_of_an_earlier_run_is_made_by_what_the_file_is(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "railweave-bench-gpus", "version": 9}')
    done = CliRunner().invoke(command, ["report", str(bad), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert "on GPUs" in str(done.exception)
