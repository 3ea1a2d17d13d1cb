"""A rail whose rate changes while ranks exchange over it: how the plan follows, by the kernel's byte counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lost_time import Span

from railweave.bench.session import PolicySession, Session
from railweave.lab import Lab, LabSpec
from railweave.lab.fabric import of_lab
from railweave.matrix import generate

# Slow enough for a busy machine: a chunk takes 26 ms on such a rail, and time without a CPU is not measured.
RATE = 40_000_000
SPEC = LabSpec(2, 2, rate=RATE)
FOLLOWS = 3  # operations after the change
# Of an operation's time in which some thread of the machine had no CPU. The engine believes no rate that it measured so, and may have lost
# a link in it: only where all operations since the change were quieter can the machine not be what keeps the plan.
BUSY = 0.5
MOST = 20  # operations, of any kind


@pytest.fixture
def lab(nothing_stays: None) -> Iterator[Lab]:
    with Lab.up(SPEC) as lab:
        yield lab


class HotPair:
    """Operations one after the other, all bytes from rank 0 to rank 2, and the part of them that went over rail 1."""

    def __init__(self, session: Session, size: str) -> None:
        self.session, self.matrix, self.operations = session, generate(f"hot-pair:{size}", SPEC.world), 0

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
        quiet = True
        while not all(low < part < high for part in parts[-2:]) or len(parts) < 2:
            if quiet:  # the first was planned before anything was measured
                assert len(parts) < 1 + FOLLOWS or low < parts[-1] < high, parts
            elif len(parts) >= MOST:
                pytest.skip(f"this machine is too busy to measure a rail: {parts}; the logic is in tests/cpp/engine/slow_rail_test.cpp")
            span = Span()
            parts.append(self.part_of_rail_1())
            quiet = quiet and span.quiet(BUSY)


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
