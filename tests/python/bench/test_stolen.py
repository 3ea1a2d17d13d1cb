"""What a host took from a virtual machine while it measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.test_result import make_run
from rich.console import Console

from railweave.bench import table
from railweave.bench.stolen import StolenTime, warning
from railweave.report.exchange import page


@pytest.mark.parametrize(
    ("after", "share"),
    [
        ("cpu  130 10 50 400 5 5 5 40 0 0", 0.0),  # hardware
        ("cpu  190 10 50 400 5 5 5 60 0 0", 0.25),
        ("cpu  130 10 50 900 9 5 5 40 0 0", 0.0),  # idle
        ("cpu  129 10 50 400 5 5 5 39 0 0", 0.0),  # counters that go back
    ],
)
def test_share_of_what_was_wanted(tmp_path: Path, after: str, share: float) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  130 10 50 400 5 5 5 40 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    with StolenTime(stat) as stolen:
        stat.write_text(after + "\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    assert stolen.share == share


def test_this_machine_has_one() -> None:
    with StolenTime() as stolen:
        pass
    assert 0 <= stolen.share <= 1


@pytest.mark.parametrize(
    ("machine", "said"), [({}, False), ({"cpu_stolen": 0.0}, False), ({"cpu_stolen": 0.049}, False), ({"cpu_stolen": 0.25}, True)]
)
def test_table_and_page_say_what_figures_are_worth(machine: dict[str, float], said: bool) -> None:
    run = make_run()
    run.machine.update(machine)
    console = Console(width=200, record=True)
    console.print(table.table(run))
    for text in (console.export_text(), page(run)):
        assert ("took 25% of the CPU time" in text) is said
    assert bool(warning(run.machine)) is said
