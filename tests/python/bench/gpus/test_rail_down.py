"""The exchange whose rail goes down: what is told of ranks that go on without it, that wait for it, that damage bytes. No GPU, no lab."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

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
    """An exchange takes the rails that are up, or waits for the first one; its k-th one may damage a byte."""

    def __init__(self, lab: Lab, waits: bool, shares: list[int], wrong_at: int = -1) -> None:
        self.name, self.lab, self.waits, self.shares, self.wrong_at = "tested", lab, waits, shares, wrong_at
        self.checks = 0

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        if do == "prepare":
            assert command["matrix"][0][2] == 4096
            return [{"ready": True}] * 4
        self.checks += 1
        if self.checks == 3:
            while len(self.lab.changes) < (2 if self.waits else 1):
                threading.Event().wait(0.001)
        for rail, share in enumerate(self.shares):
            self.lab.sent[rail] += share
        return [{"wrong": None}, {"wrong": [0, 17] if self.checks == self.wrong_at else None}, {"wrong": None}, {"wrong": None}]


def measured(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch, **ranks: Any) -> tuple[dict[str, Any], Lab]:
    lab = Lab()
    # Time is what the test says: an exchange that waits for the rail's return counts as one that took longer than it was down.
    clock = iter([0.0, 1.5, 10.0, 10.0 + (13.0 if ranks["waits"] else 2.6), 40.0, 41.5])
    # Its own: the clock of all would be asked by the test runner's threads, too.
    monkeypatch.setattr(rail_down, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return rail_down.measure(Ranks(lab, **ranks), lab, 4, 4096, pause=lambda _: None), lab


def test_ranks_that_go_on_over_the_other_rails(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found, lab = measured(rail_down, monkeypatch, waits=False, shares=[25, 25, 25, 25])
    assert lab.changes == [(0, 0, False), (0, 0, True)]
    assert found == {
        "system": "tested",
        "healthy_s": 1.5,
        "with_the_rail_down_s": 2.6,
        "afterwards_s": 1.5,
        "share_of_the_rail_afterwards": 0.25,
        "wrong": None,
        "ended_while_the_rail_was_down": True,
        "used_again": True,
    }


def test_ranks_that_wait_for_the_rail(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = measured(rail_down, monkeypatch, waits=True, shares=[100, 0, 0, 0])
    assert (found["with_the_rail_down_s"], found["ended_while_the_rail_was_down"]) == (13.0, False)


def test_a_rail_that_is_not_used_again_and_a_wrong_byte(rail_down: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = measured(rail_down, monkeypatch, waits=False, shares=[1, 33, 33, 33], wrong_at=3)
    assert not found["used_again"]
    assert found["wrong"] == "rank 1 got a wrong byte from rank 0 at 17"
