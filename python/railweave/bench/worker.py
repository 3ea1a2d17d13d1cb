"""One rank of a benchmark inside the lab: does exchanges when the driver says so, and checks every byte.

The driver and its workers talk over a socket, one JSON line each way:
    {"do": "prepare", "repetition": r, "matrix": [[bytes]]}  fill the buffers                    → {"ready": true}
    {"do": "go", "at": t}                                    exchange, starting at CLOCK_MONOTONIC t → {"start", "end", "cpu",
                                                                                                "plan", "row_wait", "rows_missing"}
    {"do": "check"}                                          compare every byte received          → {"wrong": null or [source, place]}
    {"do": "quit"}
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from railweave.bench import pattern
from railweave.ending import or_told
from railweave.exchange import Exchange


class Worker:
    """A rank's buffers and its exchange."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        """Nothing is prepared yet."""
        self.rank, self.exchange = rank, exchange
        self.repetition = 0
        self.send_counts: list[int] = []
        self.recv_counts: list[int] = []
        self.send = self.recv = np.empty(0, dtype=np.uint8)

    def prepare(self, repetition: int, matrix: list[list[int]]) -> dict[str, Any]:
        """Make room for this matrix and fill what is sent."""
        self.repetition = repetition
        self.send_counts = matrix[self.rank]
        self.recv_counts = [row[self.rank] for row in matrix]
        self.send = self._room(self.send, sum(self.send_counts))
        self.recv = self._room(self.recv, sum(self.recv_counts))
        place = 0
        for peer, count in enumerate(self.send_counts):
            pattern.fill(self.send[place : place + count], pattern.key(repetition, self.rank, peer))
            place += count
        return {"ready": True}

    def go(self, at: float) -> dict[str, Any]:
        """One exchange. `cpu` is what the process took meanwhile, seconds in user mode and in the kernel: the engine's thread, mostly."""
        time.sleep(max(0.0, at - time.monotonic()))
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        report = self.exchange.all_to_all_v(self.send, self.recv, self.send_counts, self.recv_counts)
        end, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        cpu = [after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime]
        planned = {"plan": report.plan_seconds, "row_wait": report.row_wait_seconds, "rows_missing": report.rows_missing}
        return {"start": start, "end": end, "cpu": cpu, **planned}

    def check(self) -> dict[str, Any]:
        """Compare what was received, byte by byte."""
        place = 0
        for peer, count in enumerate(self.recv_counts):
            at = pattern.first_difference(self.recv[place : place + count], pattern.key(self.repetition, peer, self.rank))
            if at is not None:
                return {"wrong": [peer, at]}
            place += count
        return {"wrong": None}

    def _room(self, buffer: pattern.Bytes, size: int) -> pattern.Bytes:
        return buffer if len(buffer) == size else self.exchange.empty(size, np.uint8)


def main(policy: str, rendezvous: str, control_fd: str, fabric_fd: str) -> None:
    """Serve the driver until it says quit or goes away."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(socket.socket(fileno=int(control_fd)))
        lines = stack.enter_context(control.makefile("rw"))
        description = Path(f"/proc/self/fd/{fabric_fd}").read_text()  # opened anew: all ranks share the offset of the descriptor
        exchange = stack.enter_context(Exchange(rank, world, rendezvous, policy=policy, fabric=description))
        worker = Worker(rank, exchange)
        actions: dict[str, Callable[..., dict[str, Any]]] = {"prepare": worker.prepare, "go": worker.go, "check": worker.check}
        _say(lines, {"up": True})
        for line in lines:
            command = json.loads(line)
            action = command.pop("do")
            if action == "quit":
                break
            _say(lines, actions[action](**command))


def _say(lines: Any, answer: dict[str, Any]) -> None:
    lines.write(json.dumps(answer) + "\n")
    lines.flush()


if __name__ == "__main__":
    or_told(lambda: main(*sys.argv[1:]))
