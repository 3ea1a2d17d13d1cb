"""Which exchanges a calibration consists of. What runs them stands behind `Bench`: the device library and the driver, or a test's model."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

from railweave.calibrate.document import BlockRate, Calibration, Gpu, PairRate, SizeTime
from railweave.calibrate.effect import MOST_BLOCKS, enough_blocks

_LARGE = 256 << 20  # rates no longer grow beyond it (docs/cuda-measured.md)
_SLOTS = 64 << 20  # over slots, of which a pair has 120 KiB, the rate stands long before
_BLOCKS = (1, 2, 4, 8, MOST_BLOCKS)  # see enough_blocks()
_SIZES = (*(1 << power for power in range(14, 22)), 3 << 20, 4 << 20)
"""Around the limits without a calibration, 1 to 4 MiB; more than 4 MiB in packets cost operations that have larger messages beside them
(docs/cuda-measured.md)."""
_PACKETS, _GRANTED = str(_SIZES[-1]), "0"  # of gpu_low_latency_bytes: all of those sizes in packets, or none

Matrix = list[list[int]]


class Bench(Protocol):
    """A machine's GPUs, at least two."""

    gpus: tuple[Gpu, ...]
    driver: str

    def exchange(self, matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
        """Seconds of one exchange, of many that were queued, on the slowest GPU; the median of several measurements.

        Not `mapped`: into memory that others cannot map.
        """

    def copy(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy by a copy engine."""

    def copy_over_host(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy by copy engines through pinned host memory, in pieces that overlap."""


def measure(bench: Bench, tell: Callable[[str], None]) -> Calibration:
    """Runs all of it; docs/calibrate.md says how long that takes. `tell` hears what is measured next."""
    world = len(bench.gpus)

    def pair(source: int, destination: int, nbytes: int) -> Matrix:
        matrix = [[0] * world for _ in range(world)]
        matrix[source][destination] = nbytes
        return matrix

    def balanced(nbytes: int) -> Matrix:
        return [[0 if row == column else nbytes for column in range(world)] for row in range(world)]

    def chosen(blocks: int, low_latency: str) -> dict[str, str]:
        # What cannot be mapped goes over slots, as it does where it is more than can be received elsewhere and copied.
        return {"gpu_blocks": str(blocks), "gpu_low_latency_bytes": low_latency, "gpu_staging_bytes": "0"}

    def times(settings: Mapping[str, str]) -> list[tuple[int, int]]:
        """By size: of one pair, and of all pairs at once."""
        matrices = ((pair(0, 1, size), balanced(size)) for size in _SIZES)
        return [(_ns(bench.exchange(one, settings)), _ns(bench.exchange(all_, settings))) for one, all_ in matrices]

    # Ranks are made anew whenever the settings change, so what has the same ones stands together.
    blocks = []
    share = _LARGE // (world - 1) // 16 * 16
    for count in _BLOCKS:
        tell(f"rates with {count} blocks")
        seconds = [bench.exchange(matrix, chosen(count, _GRANTED)) for matrix in (pair(0, 1, _LARGE), balanced(share))]
        blocks.append(BlockRate(count, _rate(_LARGE, seconds[0]), _rate(share * (world - 1), seconds[1])))
    pairs = []
    most = chosen(_BLOCKS[-1], _GRANTED)
    for source, destination in itertools.permutations(range(world), 2):
        tell(f"GPU {source} to GPU {destination}")
        rates = (
            _rate(_LARGE, bench.exchange(pair(source, destination, _LARGE), most)),
            _rate(_SLOTS, bench.exchange(pair(source, destination, _SLOTS), most, mapped=False)),
            _rate(_LARGE, bench.copy(source, destination, _LARGE)),
            _rate(_LARGE, bench.copy_over_host(source, destination, _LARGE)),
        )
        pairs.append(PairRate(source, destination, *rates))
    # Which way is faster depends on the blocks: with those that exchanges will have.
    enough = enough_blocks(blocks)
    tell("times by size, after a grant")
    granted = times(chosen(enough, _GRANTED))
    tell("times by size, in packets")
    packets = times(chosen(enough, _PACKETS))
    rows = zip(_SIZES, packets, granted, strict=True)
    sizes = tuple(SizeTime(size, one[0], other[0], one[1], other[1]) for size, one, other in rows)
    tell("time of the smallest operation")
    launch = bench.exchange(pair(0, 1, 8), chosen(enough, _PACKETS))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Calibration(today, bench.driver, bench.gpus, _ns(launch), tuple(blocks), sizes, tuple(pairs))


def _rate(nbytes: int, seconds: float) -> int:
    return max(1, round(nbytes / seconds))


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))
