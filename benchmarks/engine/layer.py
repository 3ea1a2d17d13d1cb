"""A mixture-of-experts layer of host ranks: dispatch, experts, combine, forward and backward, where ranks with many tokens come late.

    railweave lab up layer 2x4 --rails 4 --isolation node && railweave lab fabric layer > fabric.json
    railweave lab exec layer -- python benchmarks/engine/layer.py --fabric fabric.json --rendezvous "$(mktemp -d)"
    railweave lab down layer

Each rank runs this. Experts are sleeps, as long as their tokens say; bytes are not looked at (tests and `railweave bench` do that). Rank 0
prints ms of an iteration, the median of --repeat; benchmarks/gpus/layer_limit.py models the same layer on GPUs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from railweave.bench.gpus.compare import schedule
from railweave.exchange import Exchange

_ITERATIONS = 4
_BACKWARD = 2  # experts take twice as long as forward


def main() -> None:
    """All iterations of a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabric", type=Path, required=True)
    parser.add_argument("--rendezvous", required=True, help="a folder for this run alone")
    parser.add_argument("--policy", default="railweave")
    parser.add_argument("--skew", default="zipf:1.0")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--token-bytes", type=int, default=8192)
    parser.add_argument(
        "--expert-ms", type=float, default=28.0, help="of a rank with as many tokens as it has itself, forward; 0: all at once"
    )
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    layers = [np.array(counts, dtype=np.int64) for counts in schedule(options.skew, world, options.tokens, _ITERATIONS)]
    moves = [np.where(np.eye(world, dtype=bool), 0, counts) * options.token_bytes for counts in layers]
    room = max(int(max(each.sum(axis=0).max(), each.sum(axis=1).max())) for each in moves)
    fabric = options.fabric.read_text()
    with Exchange(rank, world, f"file://{options.rendezvous}", policy=options.policy, fabric=fabric) as exchange:
        send, recv = exchange.empty(room, np.uint8), exchange.empty(room, np.uint8)

        def move(matrix: npt.NDArray[np.int64]) -> None:
            out, into = matrix[rank].tolist(), matrix[:, rank].tolist()
            exchange.all_to_all_v(send[: sum(out)], recv[: sum(into)], out, into)

        times = []
        for _ in range(1 + options.repeat):  # the first one warms up
            move(np.ones((world, world), dtype=np.int64))
            begin = time.perf_counter()
            for counts, matrix in zip(layers, moves, strict=True):
                experts = options.expert_ms / 1e3 * int(counts[:, rank].sum()) / options.tokens
                for passes in (1, _BACKWARD):
                    move(matrix)
                    time.sleep(experts * passes)
                    move(matrix.T)
            move(np.ones((world, world), dtype=np.int64))
            times.append((time.perf_counter() - begin) / len(layers) * 1e3)
        if rank == 0:
            print(f"{statistics.median(times[1:]):.1f} ms an iteration, {min(times[1:]):.1f} to {max(times[1:]):.1f}", flush=True)


if __name__ == "__main__":
    main()
