"""In which orders a GPU of the probe writes to several others."""

from __future__ import annotations

from collections.abc import Mapping


def interleaved(source: int, world: int, words: Mapping[int, int], piece: int) -> list[tuple[int, int, int]]:
    """Pieces of at most `piece` words: destination, first word, words. Of the words of each destination any beginning of the list has its
    share, and equal shares go round the destinations from the one after the source on: so all GPUs send to all at once, and no receiver
    gets the pieces of all senders at the same time."""
    found = []
    for destination, count in words.items():
        pieces = -(-count // piece)
        turn = (destination - source - 1) % world
        found += [((2 * n + 1) / (2 * pieces), turn, destination, n * piece, min(piece, count - n * piece)) for n in range(pieces)]
    return [(destination, first, length) for _, _, destination, first, length in sorted(found)]


def in_turn(source: int, world: int, words: Mapping[int, int], piece: int) -> list[tuple[int, int, int]]:
    """As `interleaved`, but all pieces of a destination side by side, those of the one after the source first: so GPUs that begin together
    and send as much to all have one receiver each at a time."""
    turns = sorted(words, key=lambda destination: (destination - source - 1) % world)
    return [(to, first, min(piece, words[to] - first)) for to in turns for first in range(0, words[to], piece)]


__all__ = ["in_turn", "interleaved"]
