"""benchmarks/gpus/planning.py: its figures, and a small run in a lab."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpus" / "planning.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(_SCRIPT), *arguments], capture_output=True, text=True, timeout=600, check=False)


def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    import planning  # type: ignore[import-not-found]

    from railweave.bench.session import Sample

    samples = [Sample(1.0, None, (), (0.0, 5e-6, 7e-6), row * 1e-6) for row in (100, 120, 90)]
    assert planning.rows(samples) == [["planning, a rank", "5.0", "7.0", "7.0"], ["rows, all ranks", "100.0", "120.0", "120.0"]]


@pytest.mark.root
def test_ranks_of_a_lab_plan_with_the_rows_of_others(nothing_stays: None) -> None:
    done = _run("--lab", "2x2", "--rails", "2", "--rate", "1gbit", "--repeat", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 ranks on 2 nodes, 2 rails of 1gbit, 3 exchanges\n")
    for what in ("planning, a rank", "rows, all ranks"):
        found = re.search(rf"\| {what} \| ([\d.]+) \| ([\d.]+) \|", done.stdout)
        assert found
        assert 0 < float(found[1]) <= float(found[2])


def test_one_node_has_nothing_to_plan() -> None:
    done = _run("--lab", "1x2")
    assert done.returncode == 2
    assert "expected nodes between which something is planned" in done.stderr
