"""benchmarks/engine/soak.py: what it draws, what it takes for a finding, and a short run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railweave.lab import LabSpec

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "engine" / "soak.py"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    import soak  # type: ignore[import-not-found]

    return soak


def _job(soak: Any, number: int = 0) -> Any:
    job = soak.Job(1, number, 0.0)
    job.spec = LabSpec(2, 2)
    return job


def _ran(soak: Any, works: Any, **done: Any) -> dict[int, Any]:
    """All ranks did all well, but rank 1 on the first exchange."""
    well = {"operations": 1, "bytes": 1, "longest": 0.1, "failed": [], "wrong": [], "broken": None}
    ran = {rank: {"exchanges": [dict(well) for _ in works]} for rank in range(4)}
    ran[1]["exchanges"][0].update(done)
    return ran


def test_all_ranks_draw_the_same(soak: Any) -> None:
    works = soak.soak_work.draw("7/0/0", 4)
    assert works == soak.soak_work.draw("7/0/0", 4)
    assert works != soak.soak_work.draw("7/0/1", 4)
    operations = [operation for number in range(30) for operation in soak.soak_work.each(soak.soak_work.draw(f"7/0/{number}", 4))]
    sizes = {message.bytes for operation in operations for message in operation.messages}
    assert 0 in sizes
    assert max(sizes) > 1 << 20
    assert any(operation.disagrees for operation in operations)
    assert {operation.collective for operation in operations} == {True, False}


def test_deadly_faults_spare_somebody(soak: Any) -> None:
    for number in range(200):
        faults = soak.soak_faults.draw(f"7/{number}", LabSpec(2, 2), deadly=True, cuts=True)
        (deadly,) = [fault for fault in faults if fault.deadly]
        assert deadly.kind == "cut for good" or 0 < len(deadly.ranks) < 4
    assert not any(
        fault.deadly for number in range(200) for fault in soak.soak_faults.draw(str(number), LabSpec(2, 2), deadly=False, cuts=True)
    )


@pytest.mark.parametrize(
    ("done", "says"),
    [
        ({"broken": "Traceback"}, "Traceback"),
        ({"wrong": [[0, 0, "byte 3 of 10 from rank 2"]]}, "byte 3 of 10 from rank 2"),
        ({"failed": [[0, 0, "RankDied", 3, "rank 3 has died"]]}, "it failed without a reason"),
        ({"refused": ["TransportError", "no"]}, "could not be made"),
        ({"refused": ["BootstrapError", "rank 2 is missing"]}, "could not be made"),
    ],
)
def test_what_is_found_without_a_fault(soak: Any, done: dict[str, Any], says: str) -> None:
    works = [soak.Work("main", {}, False, True, ((soak.Operation(True, 0, "u1", ()),),))]
    _job(soak)._judge(works, _ran(soak, works), [])
    with pytest.raises(soak.Finding, match=says):
        _job(soak)._judge(works, _ran(soak, works, **done), [])


def test_an_exchange_is_refused_only_for_ranks_that_are_gone(soak: Any) -> None:
    works = [soak.Work("e0", {}, False, True, ())]
    ran = _ran(soak, works, refused=["BootstrapError", "rank 3 is missing"])
    with pytest.raises(soak.Finding, match="could not be made"):
        _job(soak)._judge(works, ran, [soak.Fault("down", 0.0, 1.0)])
    _job(soak)._judge(works, ran, [soak.Fault("kill", 0.0, 0.0, ranks=(3,))])


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (["RankDied", 3, "rank 3 has died"], None),
        (["RankDied", 2, "rank 2 has died"], "names rank 2, which is not gone"),
        (["ExchangeError", None, "closed"], "an error of another type"),
    ],
)
def test_what_is_found_after_a_death(soak: Any, failure: list[Any], says: str | None) -> None:
    works = [soak.Work("main", {}, False, True, ((soak.Operation(True, 0, "u1", ()),),))]
    ran, killed = _ran(soak, works, failed=[[0, 0, *failure]]), [soak.Fault("kill", 0.0, 0.0, ranks=(3,))]
    if says is None:
        _job(soak)._judge(works, ran, killed)
    else:
        with pytest.raises(soak.Finding, match=says):
            _job(soak)._judge(works, ran, killed)


def test_a_group_without_those_that_died_must_not_fail(soak: Any) -> None:
    message = soak.soak_work.Message(0, 1, 10, 10, 5)
    works = [soak.Work("main", {}, False, True, ((soak.Operation(False, 0, "u1", (message,)),),))]
    ran = _ran(soak, works, failed=[[0, 0, "RankDied", 3, "rank 3 has died"]])
    with pytest.raises(soak.Finding, match="without a message of those that are gone"):
        _job(soak)._judge(works, ran, [soak.Fault("kill", 0.0, 0.0, ranks=(3,))])


def test_a_leak_is_found(soak: Any) -> None:
    job, holds = _job(soak), dict.fromkeys(soak._GROWTH, 10)
    for number in range(4):
        job._compare(0, number, holds)
    with pytest.raises(soak.Finding, match="descriptors"):
        job._compare(0, 4, holds | {"descriptors": 1000})


@pytest.mark.root
def test_a_job_of_a_soak_finds_nothing(nothing_stays: Callable[[], None]) -> None:
    """Two nodes with two ranks: a rail that flaps, then a node that is cut off for a while, and the death of a rank."""
    command = [sys.executable, str(_SCRIPT), "--seed", "26", "--job", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "'kill': 1" in last, last
    assert re.search(r"'operations': \d{2,}", last), last
