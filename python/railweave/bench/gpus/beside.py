"""Other work on the GPUs while exchanges run: by how much each system slows it.

Beside exchanges that outlast the work a system that exchanges faster takes more of the links, and moves more bytes, while the work runs.
So the work is also measured beside the same number of exchanges under all systems: as many as the first one completes meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from railweave.bench.errors import BenchError
from railweave.bench.gpus.compare import Systems, rows_of
from railweave.bench.gpus.result import Beside
from railweave.bench.gpus.session import Processes
from railweave.matrix import Matrix

_TIMEOUT_S = 60.0  # the longest measurement takes seconds; what hangs should not use up the machine
_WORK_S = 0.02  # a measurement is so long, so that its ends do not matter
_ATTEMPTS = 8
_COUNTING = 3  # measurements of how many exchanges the first system completes


def beside(
    systems: Systems, works: Sequence[str], cases: Sequence[tuple[str, Matrix]], rounds: int, step: Callable[[str], None]
) -> Iterator[list[Beside]]:
    """Each kind of work beside each matrix under each system, as soon as it is measured."""
    for work in works:
        for name, matrix in cases:
            yield _one(systems, work, name, rows_of(matrix), rounds, step)


def _one(systems: Systems, work: str, name: str, matrix: Matrix, rounds: int, step: Callable[[str], None]) -> list[Beside]:
    alone: dict[str, list[float]] = {system: [] for system in systems.names()}
    together: dict[str, list[float]] = {system: [] for system in systems.names()}
    equal: dict[str, list[float]] = {system: [] for system in systems.names()}
    both: dict[str, list[float]] = {system: [] for system in systems.names()}
    exchanges: dict[str, int] = {}
    pieces = count = 0
    for ranks in systems.all():
        step(f"{work} beside {name}, {ranks.name}: first")
        for repetition in range(3):  # buffers are mapped after the first
            ranks.ask(_TIMEOUT_S, "prepare", matrix=matrix.tolist(), repetition=repetition)
            ranks.ask(_TIMEOUT_S, "check")
        for _ in range(2):
            took = _slowest(ranks.ask(_TIMEOUT_S, "beside", work=work, pieces=4, exchanges=0))
        pieces = pieces or max(4, math.ceil(_WORK_S / took))  # as many under all systems
        exchange = max(each["seconds"] for each in ranks.ask(_TIMEOUT_S, "queued", calls=20))
        exchanges[ranks.name] = math.ceil(1.5 * pieces * took / exchange)
        count = count or _completed(ranks, work, pieces, exchanges[ranks.name], exchange)
    for turn in systems.turns(rounds):
        for ranks in turn:
            step(f"{work} beside {name}, {ranks.name}")
            alone[ranks.name].append(_slowest(_held(ranks, work, pieces, 0)))
            exchanges[ranks.name], answers = _covered(ranks, work, pieces, exchanges[ranks.name])
            together[ranks.name].append(_slowest(answers))
            answers = _held(ranks, work, pieces, count)
            equal[ranks.name].append(_slowest(answers))
            both[ranks.name].append(max(pieces * equal[ranks.name][-1], _exchanged(answers)))
    return [Beside(s, work, name, alone[s], together[s], count, equal[s], both[s]) for s in systems.names()]


def _completed(ranks: Processes, work: str, pieces: int, exchanges: int, alone: float) -> int:
    """How many exchanges end before the work beside them does: those left over run as they do alone, `alone` seconds each."""
    found = []
    for _ in range(_COUNTING):
        exchanges, answers = _covered(ranks, work, pieces, exchanges)
        found.append(exchanges - (_exchanged(answers) - pieces * _slowest(answers)) / alone)
    return min(exchanges, max(1, round(statistics.median(found))))


def _covered(ranks: Processes, work: str, pieces: int, exchanges: int) -> tuple[int, list[dict[str, Any]]]:
    """With so many exchanges that they outlast the work on all ranks; how many that were."""
    for _ in range(_ATTEMPTS):
        answers = _held(ranks, work, pieces, exchanges)
        if all(each["exchanges_seconds"] >= pieces * each["seconds"] for each in answers):
            return exchanges, answers
        exchanges *= 2
    raise BenchError(f"{ranks.name}: {exchanges // 2} exchanges end before {pieces} pieces of {work} beside them")


def _held(ranks: Processes, work: str, pieces: int, exchanges: int) -> list[dict[str, Any]]:
    for _ in range(_ATTEMPTS):
        answers = ranks.ask(_TIMEOUT_S, "beside", work=work, pieces=pieces, exchanges=exchanges)
        if all(each["held"] for each in answers):
            return answers
    raise BenchError(f"{ranks.name}: this machine's processors are too busy; {work} and exchanges could not be queued in time")


def _slowest(answers: list[dict[str, Any]]) -> float:
    return max(float(each["seconds"]) for each in answers)


def _exchanged(answers: list[dict[str, Any]]) -> float:
    return max(float(each["exchanges_seconds"]) for each in answers)
