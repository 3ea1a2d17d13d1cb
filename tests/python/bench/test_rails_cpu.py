"""benchmarks/gpus/rails_cpu.py: its figures, and a small run in a lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpus" / "rails_cpu.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(_SCRIPT), *arguments], capture_output=True, text=True, timeout=600, check=False)


def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    import rails_cpu  # type: ignore[import-not-found]

    from railweave.bench.alltoallv import Case
    from railweave.bench.session import Sample
    from railweave.matrix import generate

    # 1 GB each way between the nodes in half a second, and bytes inside a node that do not count.
    matrix = generate("bidir-pair:1000000000", 4)
    matrix[0, 1] = 5_000_000
    case = Case("case", matrix, 0.4)
    samples = [Sample(0.5, None, ((0.1, 0.3), (0.0, 0.2), (0.2, 0.4), (0.1, 0.1)))] * 3
    fields = rails_cpu.row("", case, samples, 0.25).split()
    assert fields == ["case", "2.00", "0.80", "0.20", "0.50", "0.100", "0.250", "25.0%", "defaults"]
    wrong = [Sample(0.5, "rank 1 got a wrong byte", samples[0].cpu)]
    assert rails_cpu.row("A=1", case, wrong, 0.0).endswith("A=1  WRONG: rank 1 got a wrong byte")


@pytest.mark.root
def test_settings_take_turns_in_a_lab(nothing_stays: None) -> None:
    lab = ["--lab", "2x1", "--rails", "1", "--rate", "1gbit", "--repeat", "1", "--limit", "500"]
    done = _run(*lab, "--matrix", "hot-pair:1MiB", "--set", "", "--set", "RAILWEAVE_CHUNK_BYTES=65536")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [("hot-pair:1MiB", "defaults"), ("hot-pair:1MiB", "RAILWEAVE_CHUNK_BYTES=65536")]


def test_three_nodes_are_refused() -> None:
    done = _run("--lab", "3x1")
    assert done.returncode == 2
    assert "expected two nodes" in done.stderr
