"""What the GPUs can do without any protocol: one process that writes from each GPU into the others' memory, for a matrix. Nobody is asked
whether the receiver is ready, so nothing that is correct for two programs can be faster. Written with Triton, apart from the engine.

Its argument is CONTROL-FD. One JSON line each way:
    {"do": "prepare", "matrix": [[bytes]]}                    → {"ready": true}
    {"do": "push", "calls": n, "ctas": c}                     → {"seconds"}: kernels with c CTAs a GPU, given to receivers by bytes
    {"do": "interleave", "calls": n, "ctas": c}               → {"seconds"}: one kernel with c CTAs a GPU, whose pieces go round receivers
    {"do": "take_turns", "calls": n, "ctas": c}               → {"seconds"}: the same, to one receiver after another
    {"do": "copy", "calls": n}                                → {"seconds"}: the GPUs' copy engines
"""

from __future__ import annotations

import dataclasses
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from railweave.bench.gpus.pieces import in_turn, interleaved
from railweave.bench.gpus.worker import die_with_parent, say, serve

_WARPS = 16
_WORDS = 32 * _WARPS * 8  # of 8 bytes: four 16-byte loads a thread before the first store
_PIECE_BLOCKS = 4  # of _WORDS in a piece: 128 KiB, beside which reading where it goes is little
_PIECES_A_CTA = 4  # at least, where there are so many blocks: all end at about the same time
# The GPUs are held by a sleep while launches are queued, for this much longer than the slowest ones so far took. It is counted in cycles:
# on a slower clock it lasts longer, which only costs time.
_SLEEP_FACTOR, _SLEEP_S, _SLEEP_HZ = 1.5, 5e-3, 2e9
_LAUNCH_S = 50e-6  # of a launch by Triton, until one was measured
_ATTEMPTS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _push(source, destination, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for _ in range(tl.program_id(0) * BLOCK, words, tl.num_programs(0) * BLOCK):
        inside = at < words
        tl.store(destination + at, tl.load(source + at, mask=inside), mask=inside)
        at += step


@triton.jit  # type: ignore[untyped-decorator]
def _push_pieces(sources, destinations, words, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    for piece in range(tl.program_id(0), count, tl.num_programs(0)):
        source = tl.load(sources + piece).to(tl.pointer_type(tl.int64))
        destination = tl.load(destinations + piece).to(tl.pointer_type(tl.int64))
        # What Triton cannot see of addresses and lengths from memory: whole 16 bytes, without which it loads 8 at a time.
        length = tl.multiple_of(tl.load(words + piece), 2)
        for first in range(0, length, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < length
            tl.store(tl.multiple_of(destination + at, 16), tl.load(tl.multiple_of(source + at, 16), mask=inside), mask=inside)


@dataclasses.dataclass(frozen=True)
class _Flow:
    """What a GPU sends another one."""

    source: int
    destination: int
    stream: Any
    send: Any
    receive: Any


@dataclasses.dataclass(frozen=True)
class _Launch:
    """What a GPU does on a stream in each call."""

    source: int
    stream: Any
    start: Callable[[], Any]


class Probe:
    """Buffers and streams of each pair."""

    def __init__(self) -> None:
        self._world = torch.cuda.device_count()
        self._flows: list[_Flow] = []
        self._launch_s = _LAUNCH_S
        for source in range(self._world):
            for destination in range(self._world):
                if source != destination:  # PyTorch allows peer access with the first copy
                    torch.ones(1, device=f"cuda:{destination}").copy_(torch.ones(1, device=f"cuda:{source}"))

    def prepare(self, matrix: list[list[int]]) -> dict[str, Any]:
        """Memory for a matrix; of each entry whole 16 bytes."""
        self._flows = []
        for source, row in enumerate(matrix):
            for destination, count in enumerate(row):
                if count and source != destination:
                    words = -(-count // 16) * 2
                    send = torch.ones(words, dtype=torch.int64, device=f"cuda:{source}")
                    receive = torch.empty(words, dtype=torch.int64, device=f"cuda:{destination}")
                    self._flows.append(_Flow(source, destination, torch.cuda.Stream(source), send, receive))
        return {"ready": True}

    def push(self, calls: int, ctas: int) -> dict[str, Any]:
        """By kernels, one a pair."""

        def launch(flow: _Flow) -> _Launch:
            words = len(flow.send)
            total = sum(len(each.send) for each in self._flows if each.source == flow.source)
            share = max(1, min(-(-words // _WORDS), round(ctas * words / total)))
            return _Launch(
                flow.source, flow.stream, lambda: _push[(share,)](flow.send, flow.receive, words, BLOCK=_WORDS, num_warps=_WARPS)
            )

        return self._time(calls, [launch(flow) for flow in self._flows])

    def interleave(self, calls: int, ctas: int) -> dict[str, Any]:
        """By one kernel a GPU: with one a pair, those of several GPUs pile up at a receiver."""
        return self._by_pieces(interleaved, calls, ctas)

    def take_turns(self, calls: int, ctas: int) -> dict[str, Any]:
        """By one kernel a GPU, to one receiver after another: for balanced matrices the fastest way."""
        return self._by_pieces(in_turn, calls, ctas)

    def _by_pieces(self, order: Callable[..., list[tuple[int, int, int]]], calls: int, ctas: int) -> dict[str, Any]:
        def launch(source: int) -> _Launch:
            flows = {flow.destination: flow for flow in self._flows if flow.source == source}
            words = {destination: len(flow.send) for destination, flow in flows.items()}
            blocks = sum(words.values()) // (_PIECES_A_CTA * ctas * _WORDS)
            pieces = order(source, self._world, words, max(1, min(_PIECE_BLOCKS, blocks)) * _WORDS)
            device = f"cuda:{source}"
            sources, destinations = (
                torch.tensor([addresses[destination] + 8 * first for destination, first, _ in pieces], dtype=torch.int64, device=device)
                for addresses in (
                    {destination: flow.send.data_ptr() for destination, flow in flows.items()},
                    {destination: flow.receive.data_ptr() for destination, flow in flows.items()},
                )
            )
            lengths = torch.tensor([length for _, _, length in pieces], dtype=torch.int32, device=device)
            grid = (min(ctas, len(pieces)),)
            lists = (sources, destinations, lengths, len(pieces))
            return _Launch(source, next(iter(flows.values())).stream, lambda: _push_pieces[grid](*lists, BLOCK=_WORDS, num_warps=_WARPS))

        return self._time(calls, [launch(source) for source in sorted({flow.source for flow in self._flows})])

    def copy(self, calls: int) -> dict[str, Any]:
        """By copy engines."""

        def launch(flow: _Flow) -> _Launch:
            return _Launch(flow.source, flow.stream, lambda: flow.receive.copy_(flow.send, non_blocking=True))

        return self._time(calls, [launch(flow) for flow in self._flows])

    def _time(self, calls: int, launches: list[_Launch]) -> dict[str, Any]:
        """Seconds of a call: all begin together on the GPUs, the slowest one counts."""
        if not launches:
            return {"seconds": 0.0}
        for each in launches:  # Triton compiles what it has not yet
            with torch.cuda.device(each.source), torch.cuda.stream(each.stream):
                each.start()
        for _ in range(_ATTEMPTS):
            seconds = self._together(calls, launches)
            if seconds is not None:
                return {"seconds": seconds}
        raise RuntimeError(f"this machine's processors are too busy: {len(launches) * calls} launches were not queued in time")

    def _together(self, calls: int, launches: list[_Launch]) -> float | None:
        """None where a GPU began before all was queued: with eight GPUs some would be over before others begin, and meet nobody."""
        for device in range(self._world):
            torch.cuda.synchronize(device)
        held, begins, ends = [], [], []
        cycles = int((_SLEEP_FACTOR * calls * len(launches) * self._launch_s + _SLEEP_S) * _SLEEP_HZ)
        for each in {each.source: each for each in launches}.values():  # one a GPU, for which those of all wait
            with torch.cuda.device(each.source), torch.cuda.stream(each.stream):
                torch.cuda._sleep(cycles)
                held.append(each.stream.record_event())
        begun = time.perf_counter()
        for each in launches:
            with torch.cuda.device(each.source), torch.cuda.stream(each.stream):
                for event in held:
                    each.stream.wait_event(event)
                begins.append(each.stream.record_event(torch.cuda.Event(enable_timing=True)))
                for _ in range(calls):
                    each.start()
                ends.append(each.stream.record_event(torch.cuda.Event(enable_timing=True)))
        self._launch_s = max(self._launch_s, (time.perf_counter() - begun) / (calls * len(launches)))
        together = not any(begin.query() for begin in begins)
        for device in range(self._world):
            torch.cuda.synchronize(device)
        return max(begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)) / 1e3 / calls if together else None


def main(control_fd: str) -> None:
    """The probe's process."""
    die_with_parent()
    with socket.socket(fileno=int(control_fd)) as control, control.makefile("rw") as lines:
        probe = Probe()
        say(lines, {"gpus": torch.cuda.device_count()})
        serve(lines, {action.__name__: action for action in (probe.prepare, probe.push, probe.interleave, probe.take_turns, probe.copy)})


if __name__ == "__main__":
    main(*sys.argv[1:])
