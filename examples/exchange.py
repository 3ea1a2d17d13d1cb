"""Two ranks of this machine that exchange unequal parts of their buffers, through the engine's host backend.

python examples/exchange.py
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile

import numpy as np

from railweave.exchange import Exchange

WORLD = 2


def run(rank: int, folder: str) -> None:
    """A rank: sends to rank d as many elements as `counts[rank][d]` says, each of them its own number."""
    counts = [[1, 1_000_000], [250_000, 1]]
    sent, received = counts[rank], [row[rank] for row in counts]
    with Exchange(rank, WORLD, f"file://{folder}") as exchange:
        send = np.full(sum(sent), rank, np.float32)
        recv = exchange.empty(sum(received), np.float32)  # mates write it directly; any other array works, too
        exchange.all_to_all_v(send, recv, sent, received)
        assert (recv == np.repeat(np.arange(WORLD), received)).all()
        # The end of the line with it: where Python does not buffer it would be a write of its own, and the ranks share the output.
        print(f"rank {rank}: {recv.nbytes} bytes received, all right\n", end="", flush=True)

        own, other = np.array([rank]), np.array([-1])
        with exchange.group() as group:  # posted and waited for at the end
            group.send(own, peer=(rank + 1) % WORLD)
            group.recv(other, peer=(rank - 1) % WORLD)
        assert other[0] == (rank - 1) % WORLD


def main() -> int:
    """All ranks as processes; the status is 0 if all were right."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [multiprocessing.Process(target=run, args=(rank, folder)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
