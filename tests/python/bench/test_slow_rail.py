"""A rail whose rate changes while ranks exchange over it: how the plan follows, by the kernel's byte counters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lost_time import Span, stolen_s

from railweave.bench.session import PolicySession, Session
from railweave.lab import Lab, LabSpec
from railweave.lab.fabric import of_lab
from railweave.matrix import generate

# Slow enough for a busy machine: a chunk takes 26 ms on such a rail, and time without a CPU is not measured.
RATE = 40_000_000
SPEC = LabSpec(2, 2, rate=RATE)
# Operations in a row after the change that were surely measured, of which the engine needs two: one that it doubts, and one more.
FOLLOWS = 3
# Seconds without a CPU, of both ends of the rail together, up to which an operation was. A rail that is held for slow carries 12 of its
# chunks, of which five make the only span, 0.13 s at the full rate, and one is not believed when more than a quarter is missing
# (docs/protocol.md §11).
MEASURED_S = 0.03
BUSY = 0.5  # of an operation's time without a CPU for some thread, in which the engine may have lost a link
MOST = 20  # operations, of any kind


@pytest.fixture
def lab(nothing_stays: None) -> Iterator[Lab]:
    with Lab.up(SPEC) as lab:
        yield lab


class RailEnds:
    """The engine threads of ranks 1 and 3, which drive rail 1, and their time without a CPU, which decides whether they measure it."""

    def __init__(self) -> None:
        mark = f"RAILWEAVE_TEST={os.environ['RAILWEAVE_TEST']}".encode()
        self._threads = [
            thread.parent / "schedstat"
            for process in Path("/proc").glob("[0-9]*")
            if mark in (variables := self._environment(process)) and variables & {b"RANK=1", b"RANK=3"}
            for thread in process.glob("task/*/comm")
            if thread.read_text() == "rw-engine\n"
        ]
        assert len(self._threads) == 2

    @staticmethod
    def _environment(process: Path) -> set[bytes]:
        try:
            return set((process / "environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended
            return set()

    def waited_s(self) -> float:
        return sum(int(thread.read_text().split()[1]) * 1e-9 + stolen_s() for thread in self._threads)


class HotPair:
    """Operations one after the other, all bytes from rank 0 to rank 2, and the part of them that went over rail 1."""

    def __init__(self, session: Session, size: str) -> None:
        self.session, self.matrix, self.operations = session, generate(f"hot-pair:{size}", SPEC.world), 0
        self.ends = RailEnds()

    def part_of_rail_1(self) -> float:
        before = self.session.lab.links()
        assert self.session.exchange(self.matrix, self.operations, 120.0).wrong is None
        self.operations += 1
        sent = {
            after["rail"]: after["tx_bytes"] - old["tx_bytes"]
            for old, after in zip(before, self.session.lab.links(), strict=True)
            if after["node"] == 0
        }
        return float(sent[1] / (sent[0] + sent[1]))

    def follows(self, low: float, high: float) -> None:
        """The part comes to lie between the two, and stays there for one more operation."""
        parts: list[float] = []
        measured = 0  # in a row, up to the last one
        while not all(low < part < high for part in parts[-2:]) or len(parts) < 2:
            if measured > FOLLOWS:  # so the last one was planned after as many
                assert low < parts[-1] < high, parts
            if len(parts) >= MOST:
                pytest.skip(f"this machine is too busy to measure a rail: {parts}; the logic is in tests/cpp/engine/slow_rail_test.cpp")
            waited = self.ends.waited_s()
            parts.append(self.part_of_rail_1())
            measured = measured + 1 if self.ends.waited_s() - waited < MEASURED_S else 0


@pytest.mark.root
def test_the_plan_follows_a_rail_that_becomes_slow_and_fast_again(lab: Lab) -> None:
    with PolicySession("railweave", lab, of_lab(SPEC), 0) as session:
        pair = HotPair(session, "4MiB")
        pair.follows(0.45, 0.55)
        for node in (0, 1):  # at the sender, at the receiver
            lab.set_link(node, 1, rate=RATE // 2)
            pair.follows(0.28, 0.42)  # a third is right; rates are rounded
            lab.set_link(node, 1, rate=RATE)
            pair.follows(0.45, 0.55)


@pytest.mark.root
def test_an_operation_leaves_a_rail_that_becomes_slow_while_it_runs(lab: Lab) -> None:
    with PolicySession("railweave", lab, of_lab(SPEC), 0) as session:
        pair = HotPair(session, "16MiB")
        pair.follows(0.45, 0.55)
        lab.set_link(0, 1, rate=RATE // 4)  # so it is planned for half of the bytes
        span = Span()
        part = pair.part_of_rail_1()
        if not span.quiet(BUSY):
            pytest.skip("this machine is too busy to measure a rail")
        assert part < 0.4
