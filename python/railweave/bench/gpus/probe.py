"""What the GPUs can do without any protocol: one process that writes from each GPU into the others' memory, for a matrix. Nobody is asked
whether the receiver is ready, so nothing that is correct for two programs can be faster. Written with Triton, apart from the engine.

Started as `python -m railweave.bench.gpus.probe CONTROL-FD`. One JSON line each way:
    {"do": "prepare", "matrix": [[bytes]]}                    → {"ready": true}
    {"do": "push", "calls": n, "ctas": c}                     → {"seconds"}: a kernel with c CTAs a GPU, given to receivers by bytes
    {"do": "copy", "calls": n}                                → {"seconds"}: the GPUs' copy engines
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from railweave.bench.gpus.worker import die_with_parent, say, serve

_WARPS = 16
_WORDS = 32 * _WARPS * 8  # of 8 bytes: four 16-byte loads a thread before the first store
_SLEEP_CYCLES = 40_000_000  # 20 ms at 2 GHz: longer than queueing all launches takes


@triton.jit  # type: ignore[untyped-decorator]
def _push(source, destination, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for _ in range(tl.program_id(0) * BLOCK, words, tl.num_programs(0) * BLOCK):
        inside = at < words
        tl.store(destination + at, tl.load(source + at, mask=inside), mask=inside)
        at += step


class Probe:
    """Buffers and streams of each pair."""

    def __init__(self) -> None:
        self._world = torch.cuda.device_count()
        self._flows: list[tuple[int, Any, Any, Any]] = []  # source GPU, its stream, what it sends, where it goes
        for source in range(self._world):
            for destination in range(self._world):
                if source != destination:  # PyTorch allows peer access with the first copy
                    torch.ones(1, device=f"cuda:{destination}").copy_(torch.ones(1, device=f"cuda:{source}"))

    def prepare(self, matrix: list[list[int]]) -> dict[str, Any]:
        """Memory for a matrix; entries are multiples of 8."""
        self._flows = []
        for source, row in enumerate(matrix):
            for destination, count in enumerate(row):
                if count and source != destination:
                    send = torch.ones(count // 8, dtype=torch.int64, device=f"cuda:{source}")
                    receive = torch.empty(count // 8, dtype=torch.int64, device=f"cuda:{destination}")
                    self._flows.append((source, torch.cuda.Stream(source), send, receive))
        return {"ready": True}

    def push(self, calls: int, ctas: int) -> dict[str, Any]:
        """By kernels."""
        shares = []
        for source, _, send, _ in self._flows:
            total = sum(len(each[2]) for each in self._flows if each[0] == source)
            shares.append(max(1, min(-(-len(send) // _WORDS), round(ctas * len(send) / total))))

        def start(number: int) -> None:
            _, _, send, receive = self._flows[number]
            _push[(shares[number],)](send, receive, len(send), BLOCK=_WORDS, num_warps=_WARPS)

        return self._time(calls, start)

    def copy(self, calls: int) -> dict[str, Any]:
        """By copy engines."""

        def start(number: int) -> None:
            _, _, send, receive = self._flows[number]
            receive.copy_(send, non_blocking=True)

        return self._time(calls, start)

    def _time(self, calls: int, start: Callable[[int], None]) -> dict[str, Any]:
        """Seconds of a call: all flows begin together on the GPUs, the slowest one counts."""
        for device in range(self._world):
            torch.cuda.synchronize(device)
        if not self._flows:
            return {"seconds": 0.0}
        held, begins, ends = [], [], []
        for source, stream, _, _ in self._flows:
            with torch.cuda.device(source), torch.cuda.stream(stream):
                torch.cuda._sleep(_SLEEP_CYCLES)
                held.append(stream.record_event())
        for number, (source, stream, _, _) in enumerate(self._flows):
            with torch.cuda.device(source), torch.cuda.stream(stream):
                for event in held:
                    stream.wait_event(event)
                begins.append(stream.record_event(torch.cuda.Event(enable_timing=True)))
                for _ in range(calls):
                    start(number)
                ends.append(stream.record_event(torch.cuda.Event(enable_timing=True)))
        for device in range(self._world):
            torch.cuda.synchronize(device)
        return {"seconds": max(begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)) / 1e3 / calls}


def main(control_fd: str) -> None:
    """The probe's process."""
    die_with_parent()
    with socket.socket(fileno=int(control_fd)) as control, control.makefile("rw") as lines:
        probe = Probe()
        say(lines, {"gpus": torch.cuda.device_count()})
        serve(lines, {action.__name__: action for action in (probe.prepare, probe.push, probe.copy)})


if __name__ == "__main__":
    main(*sys.argv[1:])
