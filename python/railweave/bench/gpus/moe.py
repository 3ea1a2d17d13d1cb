"""A mixture-of-experts layer on a rank of the benchmark: dispatch, expert, combine, forward and backward.

One expert a rank, which stands for those that the rank has: a feed-forward network of two matrix products. Which tokens go where is given
by the driver, so that both systems do the same work; counts are exchanged and read by the host in each iteration, as gates need it.
    {"do": "moe_prepare", "tokens", "width", "hidden", "schedule": [[[tokens]]]}     a matrix for each iteration, own tokens on its diagonal
    {"do": "moe_calibrate", "calls"}    → {"dispatch_seconds", "expert_seconds"}     device time without skew, forward
    {"do": "moe_run", "iterations"}     → {"seconds" an iteration, "digest"}         the digest is of results and gradients, bit for bit
    {"do": "moe_trace", "iterations"}   → {"span", "busy", "exchange"}               seconds of an iteration (railweave.bench.gpus.trace)
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from railweave.bench.gpus.interface import Interface
from railweave.bench.gpus.trace import shares, trace

_DTYPE = torch.bfloat16
_PIECE = 4 << 20  # elements of a tensor that are summed up at once: three integers of 8 bytes each, where eight ranks may share a GPU


def _sum_of_places(tensor: Any) -> int:
    """Each element's bits, times a number that follows from its place."""
    bits, total = tensor.detach().contiguous().view(torch.int16).flatten(), 0
    for start in range(0, len(bits), _PIECE):
        piece = bits[start : start + _PIECE].to(torch.int64)
        total += int((piece * (torch.arange(start, start + len(piece), device="cuda") % 65521 + 1)).sum())
    return total


class MoeWorker:
    """The layer of one rank."""

    def __init__(self, rank: int, world: int, interface: Interface) -> None:
        self.rank, self.world = rank, world
        self._interface = interface
        self._tokens = 0
        self._rounds: list[tuple[Any, Any, Any]] = []  # order of the tokens, its inverse, counts
        self._input = self._up = self._down = self._gradient = torch.empty(0, device="cuda")

    def moe_prepare(self, tokens: int, width: int, hidden: int, schedule: list[list[list[int]]]) -> dict[str, Any]:
        """Makes the layer; the same weights and tokens for the same arguments."""
        generator = torch.Generator(device="cuda").manual_seed(1000 + self.rank)

        def normal(rows: int, columns: int, scale: float) -> Any:
            made = torch.randn(rows, columns, generator=generator, device="cuda", dtype=_DTYPE)
            return made.mul_(scale).requires_grad_()  # in place: several ranks of a lab share a GPU's memory

        self._tokens = tokens
        self._input = normal(tokens, width, 1.0)
        self._up, self._down = normal(width, hidden, width**-0.5), normal(hidden, width, hidden**-0.5)
        self._gradient = normal(tokens, width, 1.0).detach()  # what the layers above would send back
        self._rounds = []
        for matrix in schedule:
            order = torch.randperm(tokens, generator=generator, device="cuda")
            self._rounds.append((order, torch.argsort(order), torch.tensor(matrix[self.rank], device="cuda")))
        torch.cuda.synchronize()
        return {"ready": True}

    def moe_calibrate(self, calls: int) -> dict[str, Any]:
        """What dispatch and expert take where every rank has as many tokens as any other."""
        rows = self._input.detach()
        received, even = torch.empty_like(rows), [self._tokens // self.world] * self.world
        rows, received = rows[: sum(even)], received[: sum(even)]
        result = {}
        for name in ("dispatch_seconds", "expert_seconds"):
            times = []
            for _ in range(5):
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                dist.barrier()
                start.record()
                for _ in range(calls):
                    if name == "dispatch_seconds":
                        dist.all_to_all_single(received, rows, even, even)
                    else:
                        self._expert(rows)
                stop.record()
                stop.synchronize()
                times.append(start.elapsed_time(stop) / 1e3 / calls)
            result[name] = sorted(times)[len(times) // 2]
        return result

    def moe_run(self, iterations: int) -> dict[str, Any]:
        """Iterations one after another, timed as a whole, as a training loop sees them."""
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for place in range(iterations):
            output = self._iteration(place)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / iterations
        digest = 0
        for tensor in (output, self._input.grad, self._up.grad, self._down.grad):
            digest = (digest * 1000003 + _sum_of_places(tensor)) % (1 << 61)
        return {"seconds": seconds, "digest": digest}

    def moe_trace(self, iterations: int) -> dict[str, Any]:
        """How much of an iteration the GPU works, and exchanges: the rest is the host's, or other ranks'."""

        def run() -> None:
            for place in range(iterations):
                self._iteration(place)

        return {name: seconds / iterations for name, seconds in shares(trace(run)).items()}

    def _iteration(self, place: int) -> Any:
        order, inverse, counts = self._rounds[place % len(self._rounds)]
        self._input.grad = self._up.grad = self._down.grad = None
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = torch.stack((counts, theirs)).tolist()
        width = self._input.shape[1]
        rows = self._input.index_select(0, order)
        there = self._interface.differentiable(rows.new_empty(sum(received), width), rows, received, sent)
        back = self._interface.differentiable(rows.new_empty(rows.shape), self._expert(there), sent, received)
        output = back.index_select(0, inverse)
        output.backward(self._gradient)
        return output

    def _expert(self, rows: Any) -> Any:
        return torch.nn.functional.gelu(rows @ self._up) @ self._down
