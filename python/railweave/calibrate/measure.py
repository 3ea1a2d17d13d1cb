"""Which exchanges a calibration consists of. What runs them stands behind `Bench`: the device library and the driver, or a test's model."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping
from typing import Protocol

from railweave.calibrate.document import BlockRate, Calibration, Gpu, PairRate, SizeTime
from railweave.calibrate.effect import MOST_BLOCKS

_LARGE = 256 << 20  # rates no longer grow beyond it (docs/cuda.md)
_BLOCKS = (1, 2, 4, 6, 8, 10, 12, 14, MOST_BLOCKS)
_SIZES = tuple(1 << power for power in range(14, 22))  # 16 KiB to 2 MiB, around today's limit of 512 KiB
_REPEATS = 3
_ALL_GRANTED, _ALL_PACKETS = {"gpu_low_latency_bytes": "0"}, {"gpu_low_latency_bytes": str(2 << 20)}

Matrix = list[list[int]]


class Bench(Protocol):
    """A machine's GPUs, at least two."""

    gpus: tuple[Gpu, ...]
    driver: str

    def exchange(self, matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
        """Seconds of one exchange, of many that were queued, on the slowest GPU. Not `mapped`: into memory that others cannot map."""

    def copy(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy by a copy engine."""

    def copy_over_host(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy by copy engines through pinned host memory, in pieces that overlap."""


def measure(bench: Bench, tell: Callable[[str], None]) -> Calibration:
    """Runs all of it: seconds for a machine of eight GPUs. `tell` hears what is measured next."""
    world = len(bench.gpus)

    def pair(source: int, destination: int, nbytes: int) -> Matrix:
        matrix = [[0] * world for _ in range(world)]
        matrix[source][destination] = nbytes
        return matrix

    def exchange(matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
        return statistics.median(bench.exchange(matrix, settings, mapped) for _ in range(_REPEATS))

    tell("time of the smallest operation")
    launch = exchange(pair(0, 1, 8), {})
    blocks = []
    balanced = [[0 if row == column else _LARGE // (world - 1) // 16 * 16 for column in range(world)] for row in range(world)]
    sent = sum(balanced[0])
    for count in _BLOCKS:
        tell(f"rates with {count} blocks")
        chosen = {**_ALL_GRANTED, "gpu_blocks": str(count)}
        one, all_ = exchange(pair(0, 1, _LARGE), chosen), exchange(balanced, chosen)
        blocks.append(BlockRate(count, _rate(_LARGE, one), _rate(sent, all_)))
    times: list[list[int]] = []
    for way, chosen in (("in packets", _ALL_PACKETS), ("after a grant", _ALL_GRANTED)):  # each settings' ranks are made once
        tell(f"times by size, {way}")
        times.append([_ns(exchange(pair(0, 1, size), chosen)) for size in _SIZES])
    sizes = [SizeTime(*row) for row in zip(_SIZES, *times, strict=True)]
    pairs = []
    for source in range(world):
        for destination in range(world):
            if source == destination:
                continue
            tell(f"GPU {source} to GPU {destination}")
            matrix = pair(source, destination, _LARGE)
            seconds = (
                exchange(matrix, _ALL_GRANTED),
                exchange(matrix, _ALL_GRANTED, mapped=False),
                bench.copy(source, destination, _LARGE),
                bench.copy_over_host(source, destination, _LARGE),
            )
            pairs.append(PairRate(source, destination, *(_rate(_LARGE, each) for each in seconds)))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Calibration(today, bench.driver, bench.gpus, _ns(launch), tuple(blocks), tuple(sizes), tuple(pairs))


def _rate(nbytes: int, seconds: float) -> int:
    return max(1, round(nbytes / seconds))


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))
