"""A rail whose rate changes while ranks exchange over it: how the plan follows, by the kernel's byte counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from railweave.bench.session import PolicySession, Session
from railweave.lab import Lab, LabSpec
from railweave.lab.fabric import of_lab
from railweave.matrix import generate

# Slow enough for a busy machine: a chunk takes 26 ms on such a rail, and time without a CPU is not measured.
RATE = 40_000_000
SPEC = LabSpec(2, 2, rate=RATE)
FOLLOWS = 3  # operations after the change
# Of an operation's time in which some thread of the machine had no CPU. The engine believes no rate that it measured so: such operations
# do not count.
BUSY = 0.5
MOST = 20  # operations, of any kind


@pytest.fixture
def lab(nothing_stays: None) -> Iterator[Lab]:
    with Lab.up(SPEC) as lab:
        yield lab


def cpu_stall_s() -> float:
    """Seconds, since some time, in which a thread had to wait for a CPU."""
    pressure = Path("/proc/pressure/cpu")
    return int(pressure.read_text().split("total=")[1].split()[0]) * 1e-6 if pressure.exists() else 0.0


class HotPair:
    """Operations one after the other, all bytes from rank 0 to rank 2, and the part of them that went over rail 1."""

    def __init__(self, session: Session) -> None:
        self.session, self.matrix, self.operations = session, generate("hot-pair:4MiB", SPEC.world), 0

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

    def parts_until(self, low: float, high: float) -> list[float]:
        """Until a part lies between the two, and once more, whether it stays there."""
        parts: list[float] = []
        counted = 0
        while counted <= FOLLOWS and len(parts) < MOST:
            start, stalled = time.monotonic(), cpu_stall_s()
            parts.append(self.part_of_rail_1())
            counted += len(parts) == 1 or cpu_stall_s() - stalled < BUSY * (time.monotonic() - start)
            if low < parts[-1] < high:
                return [*parts, self.part_of_rail_1()]
        if counted <= FOLLOWS:
            pytest.skip("this machine is too busy to measure a rail")
        return parts


@pytest.mark.root
def test_the_plan_follows_a_rail_that_becomes_slow_and_fast_again(lab: Lab) -> None:
    with PolicySession("railweave", lab, of_lab(SPEC), 0) as session:
        pair = HotPair(session)
        even = pair.part_of_rail_1()
        assert 0.45 < even < 0.55
        for node in (0, 1):  # at the sender, at the receiver
            lab.set_link(node, 1, rate=RATE // 2)
            slow = pair.parts_until(0.28, 0.42)  # a third is right; rates are rounded
            assert slow[0] > 0.45, "planned before anything was measured"
            assert all(0.28 < part < 0.42 for part in slow[-2:]), (node, slow)
            lab.set_link(node, 1, rate=RATE)
            fast = pair.parts_until(0.45, 0.55)
            assert all(0.45 < part < 0.55 for part in fast[-2:]), (node, fast)
