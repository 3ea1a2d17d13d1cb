"""One rank on its GPU: does what the driver says, over whatever its environment brings (railweave.bench.gpus.session).

Its arguments are CONTROL-FD STORE-FILE; it has RANK, LOCAL_RANK and WORLD_SIZE. One JSON line each way:
    {"do": "prepare", "matrix": [[bytes]], "repetition": r}   fill what is sent                        → {"ready": true}
    {"do": "check"}                                           exchange and compare every byte          → {"wrong": null or [source, place]}
    {"do": "queued", "calls": n}                              n calls queued, none waited for          → {"seconds", "host_seconds", "held",
                                                                                                          "busy_cores"}
    {"do": "single", "calls": n, "nothing": false}            one call after another, each waited for  → {"seconds": [of each call]}
    {"do": "beside", "work": "gemm", "pieces": n, "exchanges": m}
                                                              other work while exchanges run           → {"seconds", "exchanges_seconds",
                                                                                                          "held"}
    {"do": "kernels"}                                         what one call launches                   → {"kernels": [...]}
    {"do": "moe_..."}                                         see railweave.bench.gpus.moe
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from railweave.bench import pattern
from railweave.bench.gpus.interface import Interface, chosen
from railweave.bench.gpus.moe import MoeWorker
from railweave.bench.gpus.threads import cpu_of_others
from railweave.bench.gpus.trace import trace

_G = pattern.STEP - (1 << 64)  # as a signed word
_POISON = 0xA5
_PIECE_HOST_S = 100e-6  # at most what queueing a piece of other work takes
_PR_SET_PDEATHSIG = 1
_TIMEOUT = datetime.timedelta(seconds=120)
# The stream is held by a sleep while calls are queued, for this much longer than queueing took the last time. It is counted in cycles: on
# a slower clock it lasts longer, which only costs time.
_SLEEP_FACTOR, _SLEEP_S, _SLEEP_HZ = 1.5, 2e-3, 2e9
# Calls before those that are counted, and before them bytes for each peer, which cross all links. NVLink's links sleep one by one when
# nothing has crossed them for 50 ms, and the first message over each takes 110 us longer, under either system: of 50 calls of 16 bytes
# behind the sleep, up to three of NCCL's did (2 x H100, docs/cuda-measured.md).
_WARM_CALLS = 5
_WAKING_BYTES = 1 << 20


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _processor_of(rank: int, world: int, allowed: set[int]) -> int:
    """Each rank's from a part of its own."""
    return sorted(allowed)[len(allowed) * (2 * rank + 1) // (2 * world)]


def words(count: int, first: int) -> Any:
    """The pattern's words on this GPU (railweave.bench.pattern)."""
    return torch.arange(count, dtype=torch.int64, device="cuda") * _G + _signed(first)


class OtherWork:
    """What exchanges run beside: a product of matrices, or an all-reduce on a communicator of its own."""

    def __init__(self, world: int) -> None:
        self.stream = torch.cuda.Stream()
        self._left, self._right, self._product = (torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        self._gradients = torch.ones(16 << 20, dtype=torch.bfloat16, device="cuda")
        self._group = dist.new_group(range(world))
        self.pieces: dict[str, Callable[[], None]] = {"gemm": self._gemm, "all-reduce": self._all_reduce}

    def _gemm(self) -> None:
        torch.mm(self._left, self._right, out=self._product)

    def _all_reduce(self) -> None:
        dist.all_reduce(self._gradients, op=dist.ReduceOp.MAX, group=self._group)


class Worker:
    """A rank's buffers and its exchange."""

    def __init__(self, rank: int, world: int, interface: Interface) -> None:
        self.rank, self.world = rank, world
        self._interface = interface
        self._repetition = 0
        self._send_counts = self._recv_counts = [0] * world
        self._send = self._recv = torch.empty(0, dtype=torch.uint8, device="cuda")
        self._tick = torch.zeros(1, device="cuda")
        self._waking = torch.zeros(2, world * _WAKING_BYTES, dtype=torch.uint8, device="cuda")
        self._host_seconds = 200e-6  # of a call, until one was measured
        self._other_work: OtherWork | None = None

    def prepare(self, matrix: list[list[int]], repetition: int) -> dict[str, Any]:
        """Fills what is sent, spoils what is received."""
        self._repetition = repetition
        self._send_counts = matrix[self.rank]
        self._recv_counts = [row[self.rank] for row in matrix]
        self._interface.hold()
        self._send = self._recv = torch.empty(0, dtype=torch.uint8, device="cuda")  # frees the old ones first
        self._send = torch.empty(sum(self._send_counts), dtype=torch.uint8, device="cuda")
        self._recv = torch.full((sum(self._recv_counts),), _POISON, dtype=torch.uint8, device="cuda")
        place = 0
        for peer, count in enumerate(self._send_counts):
            first = pattern.key(repetition, self.rank, peer)
            self._send[place : place + count] = words(-(-count // 8), first).view(torch.uint8)[:count]
            place += count
        self._interface.hold(self._send, self._recv)
        torch.cuda.synchronize()
        return {"ready": True}

    def check(self) -> dict[str, Any]:
        """Compares on the GPU."""
        self._recv.fill_(_POISON)
        self._exchange()
        place = 0
        for peer, count in enumerate(self._recv_counts):
            wanted = words(-(-count // 8), pattern.key(self._repetition, peer, self.rank)).view(torch.uint8)[:count]
            different = (self._recv[place : place + count] != wanted).nonzero()
            if len(different):
                return {"wrong": [peer, int(different[0])]}
            place += count
        return {"wrong": None}

    def queued(self, calls: int) -> dict[str, Any]:
        """Device time of a call, the host's part hidden: the GPU sleeps while the calls are queued, then all ranks wake the links and start
        together, with some calls that are not counted.

        `held`: the last call was queued before the first one began, so the time is the device's alone. `busy_cores`: what the process's
        other threads took of the processors from the first call's begin to the last one's end. Before it NCCL's threads are busy with the
        all-reduce that lets all ranks start together.
        """
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        warm = min(_WARM_CALLS, calls)
        torch.cuda._sleep(int((_SLEEP_FACTOR * (warm + calls) * self._host_seconds + _SLEEP_S) * _SLEEP_HZ))
        dist.all_to_all_single(self._waking[0], self._waking[1])
        dist.all_reduce(self._tick)
        for _ in range(warm):
            self._exchange()
        start.record()
        begin = time.perf_counter()
        for _ in range(calls):
            self._exchange()
        self._host_seconds = (time.perf_counter() - begin) / calls
        stop.record()
        held = not start.query()
        start.synchronize()
        begin, others = time.perf_counter(), cpu_of_others()
        stop.synchronize()
        end = time.perf_counter()
        busy = max(0.0, cpu_of_others() - others) / (end - begin)  # below 0: a thread has ended
        return {"seconds": start.elapsed_time(stop) / 1e3 / calls, "host_seconds": self._host_seconds, "held": held, "busy_cores": busy}

    def single(self, calls: int, nothing: bool) -> dict[str, Any]:
        """Time of a call as a program that waits for it sees it; `nothing`: the same call with 0 bytes for everybody, the floor.

        The thread that calls has the same processor under every system: which one it got was worth 47 to 125 us of a floor of 70 otherwise
        (2 x H100 in a virtual machine, docs/results.md).
        """
        empty, zeros = self._send[:0], [0] * self.world
        times = []
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {_processor_of(self.rank, self.world, allowed)})
        try:
            for _ in range(calls):
                dist.all_reduce(self._tick)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                if nothing:
                    self._interface.exchange(self._recv[:0], empty, zeros, zeros)
                else:
                    self._exchange()
                torch.cuda.synchronize()
                times.append(round(time.perf_counter() - begin, 8))  # as exact as such a clock; all its digits made results twice as long
        finally:
            os.sched_setaffinity(0, allowed)
        return {"seconds": times}

    def beside(self, work: str, pieces: int, exchanges: int) -> dict[str, Any]:
        """Device time of a piece of other work, on a stream of its own, while exchanges run; 0 of them: alone.

        `exchanges_seconds`: from the same begin to the end of all exchanges. `held`: as for queued().
        """
        if self._other_work is None:
            self._other_work = OtherWork(self.world)
        do_piece, side = self._other_work.pieces[work], self._other_work.stream
        start, stop, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda.synchronize()
        queueing = _SLEEP_FACTOR * (exchanges * self._host_seconds + pieces * _PIECE_HOST_S)
        torch.cuda._sleep(int((queueing + _SLEEP_S) * _SLEEP_HZ))
        dist.all_reduce(self._tick)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            start.record()
            for _ in range(pieces):
                do_piece()
            stop.record()
        for _ in range(exchanges):
            self._exchange()
        last.record()
        held = not start.query()
        torch.cuda.synchronize()
        # Both streams begin with the all-reduce's end; where there are no exchanges, `last` may be the earlier one.
        took = max(0.0, start.elapsed_time(last)) / 1e3
        return {"seconds": start.elapsed_time(stop) / 1e3 / pieces, "exchanges_seconds": took, "held": held}

    def kernels(self) -> dict[str, Any]:
        """Name, CTAs and threads of each kernel that one call launches, as CUPTI sees them."""
        found = []
        for event in trace(self._exchange):
            if event.get("cat") == "kernel":
                grid, block = event["args"]["grid"], event["args"]["block"]
                found.append({"name": event["name"], "ctas": grid[0] * grid[1] * grid[2], "threads": block[0] * block[1] * block[2]})
        return {"kernels": found}

    def _exchange(self) -> None:
        self._interface.exchange(self._recv, self._send, self._recv_counts, self._send_counts)


def _nccl_version() -> str:
    """Of the library that is loaded; PyTorch's own word is the version that it was built with."""
    number = ctypes.c_int()
    if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number)) != 0:
        raise RuntimeError("ncclGetVersion failed")
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def versions() -> dict[str, str]:
    """Of what takes part here."""
    found = {"torch": str(torch.__version__), "nccl": _nccl_version()}
    driver = Path("/proc/driver/nvidia/version")
    match = re.search(r"Module\s+(?:for \S+\s+)?([\d.]+)", driver.read_text()) if driver.exists() else None
    return {**found, "cuda": str(torch.version.cuda), "driver": match[1] if match else "unknown"}


def serve(lines: Any, actions: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers commands until the driver goes away. What the GPU has no memory for is an answer too, the last: {"failed": why}."""
    for line in lines:
        command = json.loads(line)
        try:
            answer = actions[command.pop("do")](**command)
        except torch.cuda.OutOfMemoryError as error:
            say(lines, {"failed": str(error).partition("\n")[0]})
            return
        say(lines, answer)


def say(lines: Any, answer: dict[str, Any]) -> None:
    """One line."""
    lines.write(json.dumps(answer) + "\n")
    lines.flush()


def die_with_parent() -> None:
    """A kernel that waits for a rank that is gone holds no process that the driver has forgotten."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(control_fd: str, store: str) -> None:
    """A rank."""
    die_with_parent()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    with socket.socket(fileno=int(control_fd)) as control, control.makefile("rw") as lines:
        device = torch.device("cuda", local)
        dist.init_process_group("nccl", init_method=Path(store).as_uri(), rank=rank, world_size=world, timeout=_TIMEOUT, device_id=device)
        interface = chosen()
        worker, moe = Worker(rank, world, interface), MoeWorker(rank, world, interface)
        dist.all_reduce(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
        say(lines, {"gpu": torch.cuda.get_device_name(), **versions()})
        own = (worker.prepare, worker.check, worker.queued, worker.single, worker.beside, worker.kernels)
        layer = (moe.moe_prepare, moe.moe_calibrate, moe.moe_run, moe.moe_trace)
        serve(lines, {action.__name__: action for action in (*own, *layer)})
        interface.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
