"""What is in the buffers of a benchmark: every 8 bytes differ by sender, receiver, place and repetition.

The 64-bit word i (little endian) of what `source` sends to `destination` is key + i·G, with G odd and a key mixed from
(repetition, source, destination). So a chunk that is lost, doubled, misplaced, stale or from another pair shows.
`mpi_alltoallv.c` has the same pattern.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: its multiples visit every word before one repeats
_MASK = (1 << 64) - 1
_BLOCK = 1 << 16  # words; the working set stays in the cache

Bytes = npt.NDArray[np.uint8]

_ramp = np.arange(_BLOCK, dtype=np.uint64) * np.uint64(STEP)


def key(repetition: int, source: int, destination: int) -> int:
    """The first word: splitmix64's finaliser over the three numbers."""
    x = (repetition << 40 | source << 20 | destination) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def fill(buffer: Bytes, first: int) -> None:
    """Write the pattern that starts with the word `first`."""
    for begin, expected in _blocks(len(buffer), first):
        buffer[begin : begin + len(expected)] = expected


def first_difference(buffer: Bytes, first: int) -> int | None:
    """Place of the first byte that differs from the pattern, None if none does."""
    for begin, expected in _blocks(len(buffer), first):
        part = buffer[begin : begin + len(expected)]
        if not np.array_equal(part, expected):
            return begin + int(np.argmax(part != expected))
    return None


def _blocks(size: int, first: int) -> Iterator[tuple[int, Bytes]]:
    for begin in range(0, size, 8 * _BLOCK):
        count = min(_BLOCK, (size - begin + 7) // 8)
        start = np.uint64((first + begin // 8 * STEP) & _MASK)
        yield begin, (_ramp[:count] + start).view(np.uint8)[: size - begin]
