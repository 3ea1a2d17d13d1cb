"""CPU time that was taken from a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.test_result import make_run
from rich.console import Console

from railweave.bench import table, taken
from railweave.bench.taken import TakenTime, warning
from railweave.report.exchange import page


@pytest.mark.parametrize(
    ("after", "stolen", "others"),
    [
        ("cpu  130 10 50 400 5 5 5 40 0 0", 0.0, 0.0),
        ("cpu  190 10 50 400 5 5 5 60 0 0", 0.25, 0.75),
        ("cpu  130 10 50 900 9 5 5 40 0 0", 0.0, 0.0),  # idle
        ("cpu  130 20 70 500 5 5 15 40 0 0", 0.0, 30 / 140),
        ("cpu  129 10 50 400 5 5 5 39 0 0", 0.0, 0.0),  # counters that go back
    ],
)
def test_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, stolen: float, others: float) -> None:
    monkeypatch.setattr(taken, "_own_seconds", lambda: 7.0)
    stat = tmp_path / "stat"
    stat.write_text("cpu  130 10 50 400 5 5 5 40 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    with TakenTime(stat) as span:
        stat.write_text(after + "\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    assert span.stolen == stolen
    assert span.others == pytest.approx(others)


def test_what_this_process_and_its_children_use_is_their_own(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    with TakenTime(stat) as span:
        subprocess.run([sys.executable, "-c", burn], check=True)
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        stat.write_text(f"cpu  {0.5 * os.sysconf('SC_CLK_TCK'):.0f} 0 0 1000 0 0 0 0 0 0\n")
    assert span.others == 0, "0.5 s were used, 0.6 s of them or more by this process"


def test_this_machine_has_both() -> None:
    with TakenTime() as span:
        pass
    assert 0 <= span.stolen <= 1
    assert 0 <= span.others <= 1


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({}, ()),
        ({"cpu_stolen": 0.0, "cpu_others": 0.0}, ()),
        ({"cpu_stolen": 0.049, "cpu_others": 0.049}, ()),
        ({"cpu_stolen": 0.25, "cpu_others": 0.01}, ("took 25% of the CPU time",)),
        ({"cpu_stolen": 0.01, "cpu_others": 0.4}, ("Other programs had 40% of",)),
        ({"cpu_stolen": 0.25, "cpu_others": 0.4}, ("took 25% of the CPU time", "Other programs had 40% of")),
    ],
)
def test_table_and_page_say_what_figures_are_worth(machine: dict[str, float], said: tuple[str, ...]) -> None:
    run = make_run()
    run.machine.update(machine)
    console = Console(width=240, record=True)
    console.print(table.table(run))
    for text in (console.export_text(), page(run), warning(run.machine)):
        for each in ("took 25% of the CPU time", "Other programs had 40% of"):
            assert (each in " ".join(text.split())) is (each in said)
    assert bool(warning(run.machine)) is bool(said)
