"""The benchmark on GPUs: every matrix, or every layer, under every system in turns, and the probe in the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from railweave.bench.errors import BenchError
from railweave.bench.gpus.result import Exchange, Kernel, Layer, serves_itself
from railweave.bench.gpus.session import Place, Processes, System, calibrated, check_served, folder_for_run, start, start_probe
from railweave.errors import DemandError
from railweave.matrix import Matrix, between_ranks

# The longest measurement takes seconds between GPUs; what hangs should not use up the machine. Over a lab's rails calls take as long as
# their rate says, so to this comes what a measurement's calls take where each is so many times as long as its bound, or as the busiest
# node's bytes over one rail: a system may use no more of them, and send what stays inside nodes over them, too.
_TIMEOUT_S = 60.0
_TIMEOUT_BOUNDS, _TIMEOUT_ONE_RAIL = 20.0, 2.0
_UNCOUNTED_CALLS = 10  # of a measurement, at most, that warm up
_ROW = 512  # bytes: real exchanges move rows of a few KiB; entries of a matrix are made multiples of this
_PROBE_CTAS = (16, 64)  # as many as NCCL's kernel has, and more than any GPU needs to fill its links
_PROBE_CALLS, _PROBE_ROUNDS = 20, 5
# A rank of a skewed layer may get all tokens of all others.
_EXPERTS_A_RANK = 16
_HOT_SHARE = 0.75
_CALIBRATION_CALLS, _CALIBRATION_TIMES = 20, 5  # railweave.bench.gpus.moe measures so many times
_ELEMENT = 2  # bytes
_TIMEOUT_ITERATIONS = 3.0  # as long as it should take at worst, and the host's part
_COLD_CALLS = 10
_ATTEMPTS = 8
# Of a system's calls in a round, at the bound; a rival may take four times as long. Rows of the evaluation's labs have bounds of up to
# 34 ms, so each has all its calls.
_ENOUGH_S = 2.0
# The same of single calls. Their p99 is asked of small messages, whose calls are nothing but latency: of others a tenth is measured, and of
# calls with nothing to move, which are alike beside all matrices, a quarter. All of all took 10 of 13 s of a matrix (2 x H200).
_ENOUGH_SINGLE_S = 0.05
_SMALL_BYTES, _LARGER_PART, _FLOOR_EVERY = 64 << 10, 10, 4
# Nine tenths of such a call are the host's, whose speed changes within seconds: systems take turns before it does.
_CALLS_A_TURN = 25


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured. Each round measures all systems, starting with another one each time."""

    rounds: int = 9
    calls: int = 50  # queued in a round
    single_calls: int = 1000  # waited for, in a round, of small messages; of 200 gains of p50 scattered from 0.95 to 1.07 (docs/results.md)


def rows_of(matrix: Matrix) -> Matrix:
    """The matrix with entries of whole rows."""
    rounded = (matrix + np.uint64(_ROW // 2)) // np.uint64(_ROW) * np.uint64(_ROW)
    small = (matrix > 0) & (rounded == 0)
    rounded[small] = matrix[small]
    return rounded


def check_something(name: str, matrix: Matrix) -> None:
    """Raises DemandError for a matrix by which no rank sends another one anything."""
    if not between_ranks(matrix).any():
        raise DemandError(f"{name}: nothing to exchange")


def busiest(matrix: Matrix) -> int:
    """Bytes through the busiest rank, in its busier direction."""
    between = between_ranks(matrix)
    return int(max(between.sum(axis=0).max(), between.sum(axis=1).max()))


class Systems:
    """All systems' ranks, up at the same time; and what they said when they started.

    A call takes a rank up to four times as long in one start as in another one, under either system (docs/results.md): what is to tell
    systems apart by less needs several starts of each.
    """

    def __init__(self, systems: Sequence[System], place: Place, step: Callable[[str], None], starts: int = 1) -> None:
        self._stack = contextlib.ExitStack()
        self._lab = place.lab.spec if place.lab else None
        self.starts: list[dict[str, Processes]] = [{} for _ in range(starts)]  # by name
        self.calibrated: dict[str, str] = {}  # settings that follow from a calibration of this machine
        try:
            folders = [self._stack.enter_context(folder_for_run()) for _ in self.starts]
            step(f"starting {', '.join(each.name for each in systems)}")
            for running, folder in zip(self.starts, folders, strict=True):
                for each in systems:
                    running[each.name] = self._stack.enter_context(start(each, place, folder))
            for ranks in self.all():
                ranks.ready()
            for folder, each in itertools.product(folders, systems):
                if serves_itself(each.name):
                    check_served(each.name, folder)
                    self.calibrated |= calibrated(each.name, folder)
        except BaseException:
            self._stack.close()
            raise

    def versions(self) -> dict[str, str]:
        """Of the GPU's software, and of NCCL under each system."""
        found: dict[str, str] = {}
        for system, ranks in self.starts[0].items():
            for name in ("torch", "cuda", "driver"):
                found[name] = ranks.hello[name]
            found[f"nccl ({system})"] = ranks.hello["nccl"]
        return found

    def gpu(self) -> str:
        """Its name."""
        return str(next(self.all()).hello["gpu"])

    def names(self) -> list[str]:
        """In the order they were asked for."""
        return list(self.starts[0])

    def all(self) -> Iterator[Processes]:
        """Every start of every system."""
        return itertools.chain.from_iterable(running.values() for running in self.starts)

    def __enter__(self) -> Systems:
        """Itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Ends all processes."""
        self._stack.__exit__(*error)

    def patience(self, matrix: Matrix, bound: float, calls: int) -> float:
        """Seconds that so many calls may take, none of which is as fast as it should be."""
        call = _TIMEOUT_BOUNDS * bound
        if self._lab:
            call = max(call, _TIMEOUT_ONE_RAIL * busiest(matrix) * self._lab.gpus * 8 / self._lab.rate)
        return _TIMEOUT_S + (calls + _UNCOUNTED_CALLS) * call

    def turns(self, rounds: int) -> list[list[Processes]]:
        """The systems in each round's order, of that round's start: the first round's is the first one, and so on in turns."""
        found = []
        for number in range(rounds):
            turn, start = divmod(number, len(self.starts))
            running = list(self.starts[start].values())
            first = (turn + start) % len(running)
            found.append(running[first:] + running[:first])
        return found


Bound = Callable[[Matrix], float]  # seconds


def exchange(
    systems: Systems, bound_of: Bound, cases: Sequence[tuple[str, Matrix]], effort: Effort, step: Callable[[str], None]
) -> Iterator[list[Exchange]]:
    """Every matrix under every system; the results of a matrix as soon as they are there."""
    for name, matrix in cases:
        check_something(name, matrix)
    for name, matrix in cases:
        yield _exchange_one(systems, bound_of, name, rows_of(matrix), effort, step)


def _exchange_one(
    systems: Systems, bound_of: Bound, name: str, matrix: Matrix, effort: Effort, step: Callable[[str], None]
) -> list[Exchange]:
    total = int(between_ranks(matrix).sum())
    wrong: dict[str, str] = {}
    times: dict[str, list[float]] = {system: [] for system in systems.names()}
    host: dict[str, list[float]] = {system: [] for system in systems.names()}
    single: dict[str, list[float]] = {system: [] for system in systems.names()}
    floor: dict[str, list[float]] = {system: [] for system in systems.names()}
    busy: dict[str, list[float]] = {system: [] for system in systems.names()}
    kernels: dict[str, list[Kernel]] = {}
    step(f"{name}, bound")
    bound = bound_of(matrix)
    calls = _affordable(effort.calls, bound, _ENOUGH_S)
    patience = systems.patience(matrix, bound, calls)
    for ranks in systems.all():
        step(f"{name}, {ranks.name}: first")
        for repetition in range(3):  # buffers are mapped after the first
            ranks.ask(_TIMEOUT_S, "prepare", matrix=matrix.tolist(), repetition=repetition)
            _note_wrong(wrong, ranks, patience)
        ranks.ask(patience, "queued", calls=calls)
    for system, ranks in systems.starts[0].items():
        kernels[system] = _largest(ranks.ask(patience, "kernels"))
    for turn in systems.turns(effort.rounds):
        for ranks in turn:
            step(f"{name}, {ranks.name}")
            answers = _queued(ranks, calls, patience)
            times[ranks.name].append(max(each["seconds"] for each in answers))
            host[ranks.name].append(max(each["host_seconds"] for each in answers))
            busy[ranks.name].append(max(each["busy_cores"] for each in answers))
        # The first calls find the processors asleep and caches cold.
        all_calls = _affordable(_single_calls(effort, matrix), bound, _ENOUGH_SINGLE_S)
        cold = min(_COLD_CALLS, all_calls)
        for number, begin in enumerate(range(0, all_calls, _CALLS_A_TURN)):
            some = min(all_calls - begin, _CALLS_A_TURN)
            limit = systems.patience(matrix, bound, cold + some)
            kinds = [(False, single)]
            if number % _FLOOR_EVERY == 0:
                kinds.append((True, floor))
            for ranks, (nothing, kept) in itertools.product(turn, kinds):
                kept[ranks.name] += _slowest(ranks.ask(limit, "single", calls=cold + some, nothing=nothing))[cold:]
    for ranks in systems.all():
        _note_wrong(wrong, ranks, patience)
    sent, starts = (total, busiest(matrix)), len(systems.starts)
    return [
        Exchange(s, name, *sent, times[s], host[s], single[s], floor[s], bound, wrong.get(s), kernels[s], busy[s], starts)
        for s in systems.names()
    ]


def _single_calls(effort: Effort, matrix: Matrix) -> int:
    """Of a round."""
    return effort.single_calls if matrix.max() <= _SMALL_BYTES else -(-effort.single_calls // _LARGER_PART)


def _affordable(calls: int, bound: float, seconds: float) -> int:
    """As many as wanted, or as take so many seconds at the bound: over much slower rails fewer are as exact."""
    return calls if calls * bound <= seconds else max(3, int(seconds / bound))


def _queued(ranks: Processes, calls: int, patience: float) -> list[dict[str, Any]]:
    """Measures again when a rank's processor was away for so long that its GPU began before all was queued."""
    for _ in range(_ATTEMPTS):
        answers = ranks.ask(patience, "queued", calls=calls)
        if all(each["held"] for each in answers):
            return answers
    raise BenchError(f"{ranks.name}: this machine's processors are too busy; no {calls} calls could be queued in time, {_ATTEMPTS} times")


def _note_wrong(wrong: dict[str, str], ranks: Processes, patience: float) -> None:
    for rank, answer in enumerate(ranks.ask(patience, "check")):
        if answer["wrong"] is not None:
            source, place = answer["wrong"]
            wrong.setdefault(ranks.name, f"rank {rank} got a wrong byte from rank {source} at {place}")


def _slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Of each call, the slowest rank's time."""
    return [max(times) for times in zip(*(each["seconds"] for each in answers), strict=True)]


def _largest(answers: list[dict[str, Any]]) -> list[Kernel]:
    found: dict[str, Kernel] = {}
    for answer in answers:
        for each in answer["kernels"]:
            kernel = Kernel(_short(each["name"]), each["ctas"], each["threads"])
            if kernel.name not in found or found[kernel.name].ctas < kernel.ctas:
                found[kernel.name] = kernel
    return list(found.values())


def _short(name: str) -> str:
    """A kernel's name without the types of its arguments."""
    return name.replace("(anonymous namespace)::", "").partition("(")[0]


def measure_bound(probe: Processes, matrix: Matrix) -> float:
    """Seconds of the fastest way to write the bytes of a matrix without asking anybody: kernels and copy engines, medians."""
    probe.ask(_TIMEOUT_S, "prepare", matrix=matrix.tolist())
    kernels = [(way, {"ctas": ctas}) for way in ("push", "interleave", "take_turns") for ctas in _PROBE_CTAS]
    ways: list[tuple[str, dict[str, int]]] = [("copy", {}), *kernels]
    return min(_probe_median(probe, way, arguments) for way, arguments in ways)


def _probe_median(probe: Processes, way: str, arguments: dict[str, int]) -> float:
    times: list[float] = [probe.ask(_TIMEOUT_S, way, calls=_PROBE_CALLS, **arguments)[0]["seconds"] for _ in range(_PROBE_ROUNDS + 1)]
    return statistics.median(times[1:])


# --- Layers


def _exponent(skew: str, text: str) -> float:
    try:
        exponent = float(text)
    except ValueError:
        exponent = math.nan
    if not 0 <= exponent <= 10:
        raise DemandError(f"skew '{skew}': expected zipf:S with S from 0 to 10")
    return exponent


def schedule(skew: str, gpus: int, tokens: int, rounds: int) -> list[list[list[int]]]:
    """Tokens from each rank to each, for each iteration. `skew`: none, zipf:S over experts, or rotating: one rank gets most, another
    one in each iteration. The same for the same arguments."""
    kind, _, argument = skew.partition(":")
    if kind not in ("none", "rotating", "zipf") or (argument and kind != "zipf"):
        raise DemandError(f"skew '{skew}': expected none, zipf:S or rotating")
    exponent = _exponent(skew, argument) if kind == "zipf" else 0.0
    random = np.random.default_rng(0)
    result = []
    for number in range(rounds):
        if kind == "none":
            share = np.full(gpus, 1.0 / gpus)
        elif kind == "rotating":
            share = np.full(gpus, (1.0 - _HOT_SHARE) / max(1, gpus - 1))
            share[number % gpus] = _HOT_SHARE
        else:
            experts = _EXPERTS_A_RANK * gpus
            popularity = np.empty(experts)
            popularity[random.permutation(experts)] = 1.0 / np.arange(1, experts + 1) ** exponent
            share = popularity.reshape(gpus, -1).sum(axis=1) / popularity.sum()
        if kind == "none":
            counts = np.full((gpus, gpus), tokens // gpus)
            counts[:, 0] += tokens - counts.sum(axis=1)
        else:
            counts = np.stack([random.multinomial(tokens, share) for _ in range(gpus)])
        result.append(counts.tolist())
    return result


@dataclasses.dataclass(frozen=True)
class LayerCase:
    """A layer: expert compute over dispatch time, and skew."""

    skew: str
    compute: float


def layers(
    systems: Systems,
    gpus: int,
    tokens: int,
    width: int,
    cases: Sequence[LayerCase],
    effort: Effort,
    iterations: int,
    step: Callable[[str], None],
) -> Iterator[list[Layer]]:
    """Every layer under every system, as soon as it is measured. The first system, NCCL, says how large experts are."""
    reference = next(systems.all())
    step("calibrating")
    even = schedule("none", gpus, tokens, 1)
    reference.ask(_TIMEOUT_S, "moe_prepare", tokens=tokens, width=width, hidden=width, schedule=even)
    sent = np.array(even[0], dtype=np.uint64) * np.uint64(_ELEMENT * width)
    patience = systems.patience(sent, 0.0, _CALIBRATION_TIMES * _CALIBRATION_CALLS)
    reference.ask(patience, "moe_calibrate", calls=_CALIBRATION_CALLS)
    answers = reference.ask(patience, "moe_calibrate", calls=_CALIBRATION_CALLS)
    dispatch, expert = (max(each[key] for each in answers) for key in ("dispatch_seconds", "expert_seconds"))
    for case in cases:
        hidden = max(128, round(width * case.compute * dispatch / expert / 128) * 128)
        plan = schedule(case.skew, gpus, tokens, max(iterations, gpus))
        # At worst one rank gets all tokens of all others: four exchanges, and three times the experts of a dispatch, back and forth.
        slowest = gpus * (4 * dispatch + 3 * expert * hidden / width)
        patience = _TIMEOUT_S + _TIMEOUT_ITERATIONS * iterations * slowest
        yield _layer(systems, tokens, width, hidden, plan, case, effort, iterations, patience, step)


def _layer(
    systems: Systems,
    tokens: int,
    width: int,
    hidden: int,
    plan: list[list[list[int]]],
    case: LayerCase,
    effort: Effort,
    iterations: int,
    patience: float,
    step: Callable[[str], None],
) -> list[Layer]:
    times: dict[str, list[float]] = {system: [] for system in systems.names()}
    digests: dict[str, list[int]] = {}
    for ranks in systems.all():
        step(f"layer {case.skew}, compute {case.compute:g}, {ranks.name}: first")
        ranks.ask(_TIMEOUT_S, "moe_prepare", tokens=tokens, width=width, hidden=hidden, schedule=plan)
        for _ in range(2):
            ranks.ask(patience, "moe_run", iterations=iterations)
    for turn in systems.turns(effort.rounds):
        for ranks in turn:
            step(f"layer {case.skew}, compute {case.compute:g}, {ranks.name}")
            answers = ranks.ask(patience, "moe_run", iterations=iterations)
            times[ranks.name].append(max(each["seconds"] for each in answers))
            digests[ranks.name] = [each["digest"] for each in answers]
    shares = {
        system: max(ranks.ask(patience, "moe_trace", iterations=iterations), key=lambda each: float(each["busy"]))
        for system, ranks in systems.starts[0].items()
    }
    return [
        Layer(s, case.skew, case.compute, hidden, times[s], digests[s], shares[s]["busy"], shares[s]["exchange"]) for s in systems.names()
    ]


__all__ = ["Effort", "LayerCase", "Systems", "exchange", "layers", "measure_bound", "rows_of", "schedule", "start_probe"]
