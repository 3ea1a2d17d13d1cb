"""What ranks in a lab get when one of them, a relay or a rail goes away in the middle of an operation.

What has moved is read from the kernel's counters. However late this process comes to read them, the operation is still under way: it
cannot end without what is about to happen, or it is done again.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lost_time import Span

from railweave.bench.session import PolicySession
from railweave.lab import Lab, LabSpec, Program
from railweave.lab.fabric import of_lab
from railweave.matrix import generate

pytestmark = pytest.mark.root

SPEC = LabSpec(2, 2, rate=40_000_000)
BEGUN = 500_000  # bytes on a rail, a tenth of what an operation gives it
ITS_PART = 3 << 20  # and a bit: of 8 MiB over two rails
PATIENCE_S = 120.0

# Ranks make an exchange over all pairs, say so, and do what their mode says; descriptor 3 gets a byte when it is time to die.
RANKS = """
import json, os, signal, sys, time
import numpy as np
from railweave.exchange import Exchange, ExchangeError, RankDied

mode, rendezvous, fabric = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
bytes_each = 8 << 20

def tell(**what):
    os.write(1, json.dumps({"rank": rank, **what}).encode() + b"\\n")  # whole lines: ranks share the pipe

def die_when_told():
    os.read(3, 1)
    os.kill(os.getpid(), signal.SIGKILL)

def collective(exchange, size):
    data = np.full(size * world, rank, np.uint8)
    into = exchange.empty(size * world, np.uint8)
    exchange.all_to_all_v(data, into, [size] * world, [size] * world)

def send_and_die(exchange):  # its part of a collective without the receives: no other rank's ends before the death
    group = exchange.group()
    data = np.full(bytes_each, rank, np.uint8)
    for peer in range(world):
        if peer != rank:
            group.send(data, peer)
    handle = group.end()
    die_when_told()

with Exchange(rank, world, rendezvous, fabric=open(fabric).read()) as exchange:
    collective(exchange, 100)
    tell(up=True)
    if mode == "rank" and rank == 3:
        send_and_die(exchange)
    elif mode == "rank":
        try:
            collective(exchange, bytes_each)
        except RankDied as error:
            tell(died=error.rank, text=str(error))
    elif mode == "leave" and rank == 3:
        os.read(3, 1)
        while len(exchange.links_down()) < 4:  # of both NICs of this node to both of the other; what is said now goes nowhere
            time.sleep(0.01)
        exchange.close()
        sys.exit()
    elif mode == "leave":
        if rank != 2:
            group = exchange.group()
            group.recv(np.zeros(100_000, np.uint8), 3)
            handle = group.end()
            tell(waits=True)
            try:
                handle.wait()
            except ExchangeError as error:
                tell(text=str(error))
    elif rank == 1:
        die_when_told()
    elif rank in (0, 2):
        pattern = np.random.default_rng(7).integers(0, 256, bytes_each, np.uint8)
        into = np.zeros(bytes_each, np.uint8)
        with exchange.group() as group:
            group.send(pattern, 2) if rank == 0 else group.recv(into, 0)
        tell(right=rank == 0 or bool((into == pattern).all()), resent=exchange.last_operation().resent_chunks)
    # A rank that closes relays nothing more: nobody leaves before the driver has what it wants.
    os.read(4, 1)
"""


@pytest.fixture
def lab(nothing_stays: None) -> Iterator[Lab]:
    with Lab.up(SPEC) as lab:
        yield lab


def sent(lab: Lab, node: int, rail: int) -> int:
    return next(int(link["tx_bytes"]) for link in lab.links() if (link["node"], link["rail"]) == (node, rail))


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Ranks:
    """The program above on all ranks of a lab."""

    def __init__(self, lab: Lab, mode: str, victim: int, directory: Path, **environment: str) -> None:
        fabric = directory / "fabric.json"
        fabric.write_text(of_lab(lab.spec).to_json())
        (directory / "rendezvous").mkdir()
        said, says = os.pipe()
        die, self.kill = os.pipe()
        end, self.end = os.pipe()
        argv = [sys.executable, "-c", RANKS, mode, f"file://{directory / 'rendezvous'}", str(fabric)]
        programs = [
            Program(argv, rank=rank, env=environment, fds={1: says, 2: says, 4: end, **({3: die} if rank == victim else {})})
            for rank in range(SPEC.world)
        ]
        self.job = lab.start(programs)
        for fd in (says, die, end):
            os.close(fd)
        self.said = os.fdopen(said)
        self.statuses = {rank: -signal.SIGKILL if rank == victim and mode != "leave" else 0 for rank in range(SPEC.world)}

    def hear(self, count: int) -> list[dict[str, Any]]:
        """The next things that ranks say."""
        return [json.loads(self.said.readline()) for _ in range(count)]

    def close(self) -> None:
        os.close(self.end)
        self.job.drain(PATIENCE_S)
        statuses = dict(self.job.statuses)
        self.job.close()
        self.said.close()
        os.close(self.kill)
        assert statuses == self.statuses


def test_a_rank_that_dies_is_named_by_all_others_within_10_seconds(lab: Lab, tmp_path: Path) -> None:
    ranks = Ranks(lab, "rank", 3, tmp_path)
    ranks.hear(SPEC.world)
    wait_for("rank 3 sends", lambda: sent(lab, 1, 1) > BEGUN)
    since_death = Span()
    os.write(ranks.kill, b"x")
    errors = ranks.hear(SPEC.world - 1)
    took = since_death.ran()
    ranks.close()
    assert sorted(error["rank"] for error in errors) == [0, 1, 2]
    assert all(error["died"] == 3 and "rank 3 has died" in error["text"] for error in errors), errors
    assert took < 10  # the contract: death_ms and what is left for the rest


def test_a_rank_that_leaves_unheard_is_not_waited_for(lab: Lab, tmp_path: Path) -> None:
    """Its node is cut off for longer than it may wait for acknowledgements; its mate stays."""
    ranks = Ranks(lab, "leave", 3, tmp_path, RAILWEAVE_DRAIN_MS="300", RAILWEAVE_DEATH_MS="600000")
    ranks.hear(SPEC.world)
    ranks.hear(2)
    for rail in range(SPEC.rails):
        lab.set_link(1, rail, up=False)
    os.write(ranks.kill, b"x")
    wait_for("rank 3 ends", lambda: 3 in {**ranks.job.poll(0.01), **ranks.job.statuses})
    for rail in range(SPEC.rails):
        lab.set_link(1, rail, up=True)
    errors = ranks.hear(2)
    ranks.close()
    assert sorted(error["rank"] for error in errors) == [0, 1]
    assert all("rank 3 has left" in error["text"] for error in errors), errors


def test_the_death_of_a_relay_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    # The relay's rail needs more than a minute for what is planned for it, and is not given up for that.
    lab.set_link(0, 1, rate=400_000)
    attempts = itertools.count()

    def resent() -> bool:
        """The relay dies with something in its slots, if this process is not so late that the rest has been planned elsewhere."""
        directory = tmp_path / str(next(attempts))
        directory.mkdir()
        ranks = Ranks(lab, "relay", 1, directory, RAILWEAVE_RAIL_TIMEOUT_MS="600000", RAILWEAVE_CHUNK_BYTES="4096")
        ranks.hear(SPEC.world)
        before = sent(lab, 0, 1)
        wait_for("rank 1 relays", lambda: sent(lab, 0, 1) - before > 20_000)
        os.write(ranks.kill, b"x")
        results = ranks.hear(2)
        ranks.close()
        assert all(each["right"] for each in results), results
        return max(each["resent"] for each in results) > 0

    wait_for("the relay dies with something in its slots", resent)


def test_a_rail_that_goes_down_in_the_middle_loses_nothing_and_is_used_again(lab: Lab) -> None:
    matrix = generate("hot-pair:8MiB", SPEC.world)
    with PolicySession("railweave", lab, of_lab(SPEC), 0) as session:
        repetitions = itertools.count()

        def exchange() -> int:
            """Bytes that rail 1 has carried."""
            before = sent(lab, 0, 1)
            assert session.exchange(matrix, next(repetitions), PATIENCE_S).wrong is None
            return sent(lab, 0, 1) - before

        def broken() -> bool:
            """An operation in whose middle rail 1 goes down, if this process sees it in time."""
            lab.set_link(0, 1, up=True)
            wait_for("rail 1 is used", lambda: exchange() > ITS_PART)
            before, over = sent(lab, 0, 1), threading.Event()

            def cut() -> None:
                while sent(lab, 0, 1) - before < BEGUN and not over.is_set():
                    time.sleep(0.01)
                lab.set_link(0, 1, up=False)

            cutter = threading.Thread(target=cut)
            cutter.start()
            carried = exchange()
            over.set()
            cutter.join()
            return BEGUN // 2 < carried < ITS_PART

        wait_for("rail 1 goes down in the middle", broken)
        assert exchange() < BEGUN
        lab.set_link(0, 1, up=True)
        wait_for("rail 1 is used again", lambda: exchange() > ITS_PART)
