"""The exchange whose rail goes down: what is told of ranks that go on without it, wait for it, damage bytes, never end. No GPU, no lab."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from railweave.bench.errors import BenchError
from railweave.lab import LabSpec

SCRIPTS = Path(__file__).parents[4] / "benchmarks/gpus"


@pytest.fixture(scope="module")
def rail_down() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("rail_down")
    finally:
        sys.path.remove(str(SCRIPTS))


class Lab:
    """Four rails of a node; which of them is up."""

    def __init__(self) -> None:
        self.spec = LabSpec(2, 2, 4)
        self.up, self.changes = threading.Event(), []
        self.up.set()
        self.sent = [0, 0, 0, 0]

    def set_link(self, node: int, rail: int, *, up: bool) -> None:
        self.changes.append((node, rail, up))
        (self.up.set if up else self.up.clear)()

    def links(self) -> list[dict[str, int]]:
        return [{"node": node, "rail": rail, "tx_bytes": self.sent[rail] * (1 - node)} for node in (1, 0) for rail in (3, 1, 0, 2)]


class Ranks:
    """An exchange takes the rails that are up, or waits for the first change; its k-th one may damage a byte, or never end."""

    def __init__(self, lab: Lab, waits: bool, shares: list[int], wrong_at: int = 0, hangs_at: int = 0) -> None:
        self.name, self.lab, self.waits, self.shares, self.wrong_at, self.hangs_at = "tested", lab, waits, shares, wrong_at, hangs_at
        self.checks = 0

    def ready(self) -> None:
        pass

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        if do == "prepare":
            assert command["matrix"][0][2] > 0
            return [{"ready": True}] * 4
        self.checks += 1
        if self.checks == self.hangs_at:
            raise BenchError(f"no answer from rank 2 within {timeout:.0f} s")
        if self.checks == 3:
            while len(self.lab.changes) < (2 if self.waits else 1):
                threading.Event().wait(0.001)
        for rail, share in enumerate(self.shares):
            self.lab.sent[rail] += share
        return [{"wrong": None}, {"wrong": [0, 17] if self.checks == self.wrong_at else None}, {"wrong": None}, {"wrong": None}]


def set_clock(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """Its own: the clock of all would be asked by the test runner's threads, too."""
    clock = iter(times)
    monkeypatch.setattr(rail_down, "time", SimpleNamespace(monotonic=lambda: next(clock)))


def measured(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch, **ranks: Any) -> tuple[dict[str, Any], Lab]:
    lab, found = Lab(), {"system": "tested"}
    # Time is what the test says: an exchange that waits for the rail's return counts as one that took longer than it was down.
    set_clock(rail_down, monkeypatch, 0.0, 1.5, 10.0, 10.0 + (13.0 if ranks["waits"] else 2.6), 40.0, 41.5)
    rail_down.measure(Ranks(lab, **ranks), lab, 4, 4096, found, pause=lambda _: None)
    return found, lab


def test_ranks_that_go_on_over_the_other_rails(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found, lab = measured(rail_down, monkeypatch, waits=False, shares=[25, 25, 25, 25])
    assert lab.changes == [(0, 0, False), (0, 0, True)]
    assert found == {
        "system": "tested",
        "healthy_s": 1.5,
        "rail": 0,
        "share_of_the_rail": 0.25,
        "with_the_rail_down_s": 2.6,
        "ended_while_the_rail_was_down": True,
        "afterwards_s": 1.5,
        "share_of_the_rail_afterwards": 0.25,
        "used_again": True,
        "wrong": None,
    }


def test_the_rail_that_the_system_uses_goes_down_and_its_ranks_wait_for_it(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found, lab = measured(rail_down, monkeypatch, waits=True, shares=[5, 0, 95, 0])
    assert lab.changes == [(0, 2, False), (0, 2, True)]
    assert (found["rail"], found["share_of_the_rail"], found["share_of_the_rail_afterwards"]) == (2, 0.95, 0.95)
    assert (found["with_the_rail_down_s"], found["ended_while_the_rail_was_down"]) == (13.0, False)


def test_a_rail_that_is_not_used_again_and_a_wrong_byte(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Avoids(Ranks):
        def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
            if self.checks == 3:
                self.shares = [33, 1, 33, 33]
            return super().ask(timeout, do, **command)

    lab, found = Lab(), {}
    set_clock(rail_down, monkeypatch, 0.0, 1.5, 10.0, 12.6, 40.0, 41.5)
    rail_down.measure(Avoids(lab, waits=False, shares=[20, 40, 20, 20], wrong_at=3), lab, 4, 4096, found, pause=lambda _: None)
    assert (found["rail"], found["used_again"]) == (1, False)
    assert found["wrong"] == "rank 1 got a wrong byte from rank 0 at 17", "the exchange after it was right"


def test_a_rail_that_cannot_be_taken_down_is_no_result(rail_down: ModuleType) -> None:
    class Stuck(Lab):
        def set_link(self, node: int, rail: int, *, up: bool) -> None:
            self.changes.append((node, rail, up))  # the exchange goes on as if nothing had happened
            raise OSError("no such link")

    lab = Stuck()
    with pytest.raises(OSError, match="no such link"):
        rail_down.measure(Ranks(lab, waits=False, shares=[25] * 4), lab, 4, 4096, {}, pause=lambda _: None)


def test_a_system_that_never_ends_is_told_and_the_next_one_measured(
    rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab, ended = Lab(), []

    @contextlib.contextmanager
    def start(chosen: Any, *_: Any) -> Any:
        try:
            yield Ranks(lab, waits=False, shares=[0, 0, 0, 9] if chosen.name == "nccl" else [9] * 4, hangs_at=3 * (chosen.name == "nccl"))
        except BenchError:
            ended.append(chosen.name)
            raise

    @contextlib.contextmanager
    def on_rails(*_: Any) -> Any:
        yield SimpleNamespace(place=SimpleNamespace(lab=lab))

    ticks = itertools.count()
    monkeypatch.setattr(rail_down, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    for name, stands_in in (("start", start), ("on_rails", on_rails), ("check_served", lambda *_: None)):
        monkeypatch.setattr(rail_down, name, stands_in)
    monkeypatch.setattr(rail_down, "measure", functools.partial(rail_down.measure, pause=lambda _: None))
    monkeypatch.setattr(sys, "argv", ["rail_down.py"])
    assert rail_down.main() == 0, "Railweave is right"
    theirs, own = map(json.loads, capsys.readouterr().out.splitlines())
    assert theirs == {
        "system": "nccl",
        "healthy_s": 1.0,
        "wrong": None,
        "rail": 3,
        "share_of_the_rail": 1.0,
        "with_the_rail_down_s": 1.0,
        "error": "no answer from rank 2 within 60 s",
    }
    assert (own["system"], own["rail"], own["used_again"]) == ("railweave", 0, True)
    assert ended == ["nccl"], "its ranks are killed, not waited for"
    assert lab.changes == [(0, 3, False), (0, 3, True), (0, 0, False), (0, 0, True)]
