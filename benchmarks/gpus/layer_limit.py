"""What rails allow a mixture-of-experts layer to gain: `railweave bench moe` on a lab, by its bytes and its experts; needs no GPU.

    python benchmarks/gpus/layer_limit.py [--lab 2x4] [--rails 4] [--tokens 2048] [--width 4096] [--rate 8gbit]

Each rank dispatches, computes, combines, forward and backward, as the benchmark does, and begins each when its own part of the one before
is there. A message moves while both its ranks are in that exchange; messages share rails max-min fair. NCCL sends over the destination's
rails (without PXN, which needs GPUDirect), any other at best over all rails of both nodes evenly. Bytes inside nodes, latencies and what a
shaper lets through after a pause take nothing. The lab's nodes share GPUs, and ranks on one GPU share its time while both compute.

On two H200 and four H100 NCCL's iterations took 0.94 to 1.05 of what this says (docs/results.md).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from railweave.bench.gpus.compare import schedule
from railweave.lab import LabSpec
from railweave.lab.spec import parse_rate, parse_shape

_ITERATIONS = 4
_COMPUTE = (0.5, 1.0, 2.0)
_ELEMENT = 2  # bytes of a number
_BACKWARD = 2  # as many matrix products as forward
_DONE = 1e-9

Tokens = npt.NDArray[np.float64]
# What a message from one rank to another takes a part of: names, with bytes a second.
Routing = Callable[[int, int], Sequence[tuple[Hashable, float]]]


@dataclasses.dataclass
class Layer:
    """Iterations of a layer. A step of each rank is an exchange (its number) or experts (seconds on a GPU of its own)."""

    exchanges: list[Tokens]  # bytes from each rank to each other one on another node
    steps: list[list[tuple[int | None, float]]]  # of each rank

    @staticmethod
    def of(spec: LabSpec, tokens: Sequence[Tokens], token_bytes: int, token_seconds: float) -> Layer:
        """`token_seconds`: what experts take for a token forward."""
        node = np.arange(spec.world) // spec.gpus
        far = node[:, None] != node[None, :]
        layer = Layer([], [[] for _ in range(spec.world)])
        for counts in tokens:
            dispatch = counts * far * token_bytes
            counting = np.where(far, 1.0, 0.0)  # the counts of each iteration, for which all wait
            for matrix, times in ((counting, 0), (dispatch, 1), (dispatch.T, 0), (dispatch, _BACKWARD), (dispatch.T, 0)):
                for rank, steps in enumerate(layer.steps):
                    steps.append((len(layer.exchanges), 0.0))
                    if times:
                        steps.append((None, times * token_seconds * float(counts[:, rank].sum())))
                layer.exchanges.append(np.array(matrix))
        return layer


def _fair_rates(messages: list[tuple[int, int, int]], routing: Routing) -> dict[tuple[int, int, int], float]:
    """Max-min fair, bytes a second of each message."""
    room: dict[Hashable, float] = {}
    through: dict[Hashable, set[tuple[int, int, int]]] = {}
    for message in messages:
        for name, capacity in routing(*message[1:]):
            room[name] = capacity
            through.setdefault(name, set()).add(message)
    rates: dict[tuple[int, int, int], float] = {}
    while through:
        tightest = min(through, key=lambda name: room[name] / len(through[name]))
        share = room[tightest] / len(through[tightest])
        for message in through[tightest].copy():
            rates[message] = share
            for name, _ in routing(*message[1:]):
                room[name] -= share
                through[name].discard(message)
        through = {name: left for name, left in through.items() if left}
    return rates


def seconds(layer: Layer, routing: Routing, gpus: int) -> float:
    """Until the last rank has done all its steps; rank r is on GPU r mod `gpus`."""
    world = len(layer.steps)
    left = [matrix.copy() for matrix in layer.exchanges]
    place = [0] * world
    working = [0.0] * world
    entered: dict[int, set[int]] = {}
    now = 0.0

    def begin(rank: int) -> None:
        if place[rank] == len(layer.steps[rank]):
            return
        exchange, working[rank] = layer.steps[rank][place[rank]]
        if exchange is not None:
            entered.setdefault(exchange, set()).add(rank)

    def is_over(rank: int) -> bool:
        exchange, _ = layer.steps[rank][place[rank]]
        if exchange is None:
            return working[rank] <= _DONE
        return not (left[exchange][rank] > _DONE).any() and not (left[exchange][:, rank] > _DONE).any()

    for rank in range(world):
        begin(rank)
    while any(place[rank] < len(layer.steps[rank]) for rank in range(world)):
        messages = [(e, s, d) for e, ranks in entered.items() for s in ranks for d in ranks if left[e][s, d] > _DONE]
        rates = _fair_rates(messages, routing)
        computing = [rank for rank in range(world) if place[rank] < len(layer.steps[rank]) and working[rank] > _DONE]
        beside = {rank: sum(other % gpus == rank % gpus for other in computing) for rank in computing}
        step = min([left[e][s, d] / rates[e, s, d] for e, s, d in messages] + [working[rank] * beside[rank] for rank in computing])
        now += step
        for e, s, d in messages:
            left[e][s, d] -= rates[e, s, d] * step
            if left[e][s, d] < 1e-3:  # of a byte: rounded
                left[e][s, d] = 0.0
        for rank in computing:
            working[rank] -= step / beside[rank]
        for rank in range(world):
            while place[rank] < len(layer.steps[rank]) and is_over(rank):
                place[rank] += 1
                begin(rank)
        entered = {e: ranks for e, ranks in entered.items() if left[e].any()}
    return now


def limits(spec: LabSpec, skew: str, compute: float, tokens: int, token_bytes: int) -> tuple[float, float]:
    """Seconds of an iteration: NCCL's, and of an even spread; `compute`: experts forward over dispatch without skew, as two ranks that
    share a GPU see it."""
    own = spec.rails / spec.gpus * spec.rate / 8
    all_rails = spec.rails * spec.rate / 8

    def of_nccl(source: int, destination: int) -> list[tuple[Hashable, float]]:
        return [((source // spec.gpus, destination % spec.gpus), own), (destination, own)]

    def even(source: int, destination: int) -> list[tuple[Hashable, float]]:
        return [(("out", source // spec.gpus), all_rails), (("in", destination // spec.gpus), all_rails)]

    far = tokens * (spec.world - spec.gpus) / spec.world
    token_seconds = compute * far * token_bytes / own / tokens / spec.nodes
    counts = [np.array(each, dtype=np.float64) for each in schedule(skew, spec.world, tokens, _ITERATIONS)]
    layer = Layer.of(spec, counts, token_bytes, token_seconds)
    return seconds(layer, of_nccl, spec.gpus) / _ITERATIONS, seconds(layer, even, spec.gpus) / _ITERATIONS


def main() -> None:
    """A line for each skew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="2x4")
    parser.add_argument("--rails", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rate", default="8gbit")
    options = parser.parse_args()
    spec = LabSpec(*parse_shape(options.lab), options.rails, parse_rate(options.rate))
    if spec.nodes < 2:
        parser.error("expected nodes between which something goes over rails")
    print(f"{options.lab}, {options.rails} rails of {options.rate}: ms of an iteration, NCCL's and by an even spread, and what is gained")
    print(f"{'skew':10}" + "".join(f"{f'experts {each:g}x':>22}" for each in _COMPUTE))
    for skew in ("none", "zipf:1.0", "zipf:1.2", "rotating"):
        cells = []
        for compute in _COMPUTE:
            theirs, even = limits(spec, skew, compute, options.tokens, _ELEMENT * options.width)
            cells.append(f"{1e3 * theirs:.1f} / {1e3 * even:.1f}, {theirs / even:.2f}x".rjust(22))
        print(f"{skew:10}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
