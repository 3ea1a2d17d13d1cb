"""Other work on the GPUs while exchanges run: by how much each system slows it."""

from __future__ import annotations

import math
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


def beside(
    systems: Systems, works: Sequence[str], cases: Sequence[tuple[str, Matrix]], rounds: int, step: Callable[[str], None]
) -> Iterator[list[Beside]]:
    """Each kind of work beside each matrix under each system, as soon as it is measured."""
    for work in works:
        for name, matrix in cases:
            yield _one(systems, work, name, rows_of(matrix), rounds, step)


def _one(systems: Systems, work: str, name: str, matrix: Matrix, rounds: int, step: Callable[[str], None]) -> list[Beside]:
    alone: dict[str, list[float]] = {system: [] for system in systems.running}
    together: dict[str, list[float]] = {system: [] for system in systems.running}
    exchanges: dict[str, int] = {}
    pieces = 0
    for system, ranks in systems.running.items():
        step(f"{work} beside {name}, {system}: first")
        for repetition in range(3):  # buffers are mapped after the first
            ranks.ask(_TIMEOUT_S, "prepare", matrix=matrix.tolist(), repetition=repetition)
            ranks.ask(_TIMEOUT_S, "check")
        for _ in range(2):
            took = _slowest(ranks.ask(_TIMEOUT_S, "beside", work=work, pieces=4, exchanges=0))
        pieces = pieces or max(4, math.ceil(_WORK_S / took))  # as many under all systems
        exchange = max(each["seconds"] for each in ranks.ask(_TIMEOUT_S, "queued", calls=20))
        exchanges[system] = math.ceil(1.5 * pieces * took / exchange)
    for turn in systems.turns(rounds):
        for ranks in turn:
            step(f"{work} beside {name}, {ranks.name}")
            alone[ranks.name].append(_slowest(_held(ranks, work, pieces, 0)))
            exchanges[ranks.name], took = _covered(ranks, work, pieces, exchanges[ranks.name])
            together[ranks.name].append(took)
    return [Beside(system, work, name, alone[system], together[system]) for system in systems.running]


def _covered(ranks: Processes, work: str, pieces: int, exchanges: int) -> tuple[int, float]:
    """With so many exchanges that they outlast the work on all ranks; how many that were."""
    for _ in range(_ATTEMPTS):
        answers = _held(ranks, work, pieces, exchanges)
        if all(each["covered"] for each in answers):
            return exchanges, _slowest(answers)
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
