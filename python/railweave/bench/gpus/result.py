"""What a benchmark on GPUs found, and its JSON form (schema/bench-gpus.schema.json)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from railweave.bench.errors import BenchError
from railweave.bench.timed import Timed
from railweave.fields import Fields, shown
from railweave.size import counted

FORMAT, VERSION = "railweave-bench-gpus", 1
_RESAMPLES = 4000
_CALL_RESAMPLES = 400  # of thousands of calls each


# The interval of resampled rounds is called one of 95%: of normal times it held the ratio in 0, 50, 70, 89 and 94% of runs of one to five.
LEAST_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast as the rival: ratio of medians, and the interval that holds it in 95% of resampled rounds; None where that
    would say nothing."""

    value: float
    interval: tuple[float, float] | None = None


def ratio(rival: Sequence[float], own: Sequence[float]) -> Ratio:
    """Of times that were taken in the same rounds. Rounds are drawn again with replacement, in pairs; always the same draws."""
    pairs = np.array([rival, own])
    value = float(np.median(pairs[0]) / np.median(pairs[1]))
    if pairs.shape[1] < LEAST_ROUNDS:
        return Ratio(value)
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], (_RESAMPLES, pairs.shape[1]))
    medians = np.median(pairs[:, draws], axis=2)
    return Ratio(value, _interval(medians[0] / medians[1]))


def _interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def gain_at_bound(rival: Exchange) -> float | None:
    """How many times as fast as the rival a system is that takes as long as the bound. None: nothing limits what was sent."""
    return rival.seconds_median / rival.bound_seconds if rival.bound_seconds else None


def quantile(times: Sequence[float], part: float) -> float:
    """The least time that so much of all times does not exceed: 0.5 for p50."""
    return sorted(times)[_place(len(times), part)]


def _place(count: int, part: float) -> int:
    """Of that time among so many in order. What a product of floats has too much is no more than rounding takes away."""
    return max(0, math.ceil(round(count * part, 9)) - 1)


def call_ratio(rival: Exchange, own: Exchange, part: float) -> Ratio:
    """As `ratio`, of a quantile of single calls. Calls of a round are alike in what the machine did meanwhile, and rounds of a start in
    what its processes got, so rounds are drawn, not calls, and of several starts all of a start's rounds together. Where results do not
    tell calls of one from another's, there is no interval."""
    drawn = _drawn_call_ratios(rival, own, part, np.random.default_rng(0))
    return Ratio(_call_ratio(rival, own, part), None if drawn is None else _interval(drawn))


def mean_call_ratio(pairs: Sequence[tuple[Exchange, Exchange]], part: float) -> Ratio:
    """The geometric mean of `call_ratio` of rivals and own. Rows are measured one after the other, so each draws rounds of its own; starts
    are those of all rows. No interval where a row has none."""
    random = np.random.default_rng(0)
    value = statistics.geometric_mean(_call_ratio(rival, own, part) for rival, own in pairs)
    logs = []
    for rival, own in pairs:
        drawn = _drawn_call_ratios(rival, own, part, random)
        if drawn is None:
            return Ratio(value)
        logs.append(np.log(drawn))
    return Ratio(value, _interval(np.exp(np.mean(logs, axis=0))))


def _call_ratio(rival: Exchange, own: Exchange, part: float) -> float:
    return quantile(rival.call_seconds, part) / quantile(own.call_seconds, part)


def _drawn_call_ratios(rival: Exchange, own: Exchange, part: float, random: np.random.Generator) -> npt.NDArray[np.float64] | None:
    """Of each draw; None where there is no interval."""
    rounds, units = len(own.seconds), _drawn_together(own)
    if units < LEAST_ROUNDS or any(
        len(each.call_seconds) % rounds or (len(each.seconds), each.starts) != (rounds, own.starts) for each in (rival, own)
    ):
        return None
    if own.starts > 1:
        random = np.random.default_rng(0)
    draws = random.integers(0, units, (_CALL_RESAMPLES, units))
    times = np.apply_along_axis(np.bincount, 1, draws, minlength=units)  # that each was drawn
    theirs, ours = (_drawn_quantile(_calls_by_unit(each, units), times, part) for each in (rival, own))
    return theirs / ours


def _drawn_together(each: Exchange) -> int:
    """How many rounds, or starts of as many rounds each, calls are drawn by; none where starts have other numbers of rounds."""
    rounds = len(each.seconds)
    return rounds if each.starts == 1 else each.starts if rounds % each.starts == 0 else 0


def _calls_by_unit(each: Exchange, units: int) -> npt.NDArray[np.float64]:
    """(units, calls of each). Rounds are of each start in turns."""
    turns = len(each.seconds) // units
    by_round = np.array(each.call_seconds).reshape(turns, units, -1)
    return by_round.transpose(1, 0, 2).reshape(units, -1)


def _drawn_quantile(calls: npt.NDArray[np.float64], times: npt.NDArray[np.intp], part: float) -> npt.NDArray[np.float64]:
    """As `quantile`, of each draw. `calls`: (rounds, calls of each), `times`: (draws, rounds), how often a draw has each round. All draws
    are searched in the one order of all calls: ordering each draw's took 40 of the 50 s of an evaluation's tables."""
    order = np.argsort(calls, axis=None)
    before = np.zeros((calls.shape[0], order.size + 1), dtype=np.intp)  # of each round, among the first so many in order
    before[order // calls.shape[1], np.arange(1, order.size + 1)] = 1
    np.cumsum(before, axis=1, out=before)
    wanted = _place(calls.size, part) + 1
    # Among the first `low` in order are fewer than wanted, among the first `high` enough.
    low, high = np.zeros(len(times), dtype=np.intp), np.full(len(times), order.size)
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough = (times * before[:, middle].T).sum(axis=1) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    found: npt.NDArray[np.float64] = calls.ravel()[order[high - 1]]
    return found


# The shim as it comes goes by what NCCL's kernel may have. railweave.torch asks no NCCL, and checksums have kernels of their own.
_HELD_TO_CTAS = "railweave"


def serves_itself(system: str) -> bool:
    """Is it Railweave that exchanges, and not one of NCCL's builds?"""
    return not system.startswith("nccl")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel that a call launches, on the rank where it is largest."""

    name: str
    ctas: int
    threads: int


@dataclasses.dataclass(frozen=True)
class Exchange(Timed):
    """One matrix under one system. Times in seconds, each of the slowest rank."""

    system: str
    matrix: str
    bytes: int  # payload between different ranks
    busiest_bytes: int  # through the busiest rank, in its busier direction
    seconds: list[float]  # device time of a call among queued ones, by round
    host_seconds: list[float]  # what a call takes the host, by round
    call_seconds: list[float]  # of single calls that are waited for
    floor_seconds: list[float]  # of the same call with nothing to move
    bound_seconds: float  # the fastest that the probe saw in the same run
    wrong: str | None
    kernels: list[Kernel]
    busy_cores: list[float] = dataclasses.field(default_factory=list)  # of a rank's threads beside the one that queues, by round
    starts: int = 1  # of the system; each round is another one's, in turns

    @property
    def gbps(self) -> float:
        """Of the busiest rank, 10^9 bytes/s."""
        return self.rate(self.busiest_bytes)

    @property
    def ctas(self) -> int:
        """Of its largest kernel."""
        return max((kernel.ctas for kernel in self.kernels), default=0)

    def to_json(self) -> dict[str, Any]:
        """An element of `exchanges`, with what follows from it."""
        return {
            **dataclasses.asdict(self),
            "seconds_median": self.seconds_median,
            "gbps": self.gbps,
            "bound_fraction": self.bound_fraction,
            "bytes_ok": self.wrong is None,
        }


@dataclasses.dataclass(frozen=True)
class Layer:
    """Iterations of a mixture-of-experts layer under one system."""

    system: str
    skew: str
    compute: float  # expert over dispatch, forward, without skew, under NCCL
    hidden: int
    seconds: list[float]  # of an iteration, by round
    digests: list[int]  # of results and gradients on each rank: equal where both systems computed the same bits
    # Of a traced iteration, on the rank that was busy longest: the GPU had any work, and exchanges. None: of a run before this was kept.
    busy_seconds: float | None = None
    exchange_seconds: float | None = None

    @property
    def name(self) -> str:
        """What pictures call it."""
        return f"skew {self.skew}, compute {self.compute:g}×"

    @property
    def seconds_median(self) -> float:
        """Over the rounds."""
        return statistics.median(self.seconds)


@dataclasses.dataclass(frozen=True)
class Beside:
    """Other work under one system, alone and while exchanges of a matrix run."""

    system: str
    work: str  # gemm, or all-reduce by NCCL on another communicator
    matrix: str
    alone_seconds: list[float]  # of a piece, by round
    beside_seconds: list[float]  # of a piece, while so many exchanges run that they outlast the work
    # Beside as many exchanges as the rival completes while the work runs. None and empty: of a run before this was measured.
    equal_exchanges: int | None = None
    equal_seconds: list[float] = dataclasses.field(default_factory=list)  # of a piece
    both_seconds: list[float] = dataclasses.field(default_factory=list)  # until all pieces and those exchanges are over

    @property
    def slowed(self) -> float:
        """How many times as long it takes beside exchanges that outlast it."""
        return statistics.median(self.beside_seconds) / statistics.median(self.alone_seconds)

    @property
    def equal_slowed(self) -> float:
        """How many times as long it takes beside the equal number of exchanges, where that was measured."""
        return statistics.median(self.equal_seconds) / statistics.median(self.alone_seconds)

    def to_json(self) -> dict[str, Any]:
        """An element of `beside`, with what follows from it."""
        equal = {"equal_slowed": self.equal_slowed} if self.equal_seconds else {}
        return {**dataclasses.asdict(self), "slowed": self.slowed, **equal}


@dataclasses.dataclass(frozen=True)
class Run:
    """A whole benchmark with its circumstances."""

    date: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    gpus: int
    settings: dict[str, Any]  # how much was measured
    exchanges: list[Exchange]
    layers: list[Layer]
    beside: list[Beside] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        head = {"format": FORMAT, "version": VERSION}
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        layers = [{**dataclasses.asdict(each), "seconds_median": each.seconds_median} for each in self.layers]
        own = {"exchanges": [each.to_json() for each in self.exchanges], "beside": [each.to_json() for each in self.beside]}
        return {**head, **body, **own, "layers": layers}

    @classmethod
    def load(cls, path: Path) -> Run:
        """Reads the JSON document. Raises BenchError naming the file and the place in it."""
        return cls.parse(_Reader(path, _KIND, BenchError).file(), path)

    @classmethod
    def parse(cls, text: str, source: Path) -> Run:
        """The same of a text that was read before; `source` is its file in errors."""
        reader = _Reader(source, _KIND, BenchError)
        return reader.run(reader.document(text, FORMAT, VERSION))

    @property
    def place(self) -> str:
        """The GPUs, and what they stood for."""
        gpus = f"{self.gpus:d} × {self.machine['gpu']}"
        if mesh := self.settings.get("emulated_mesh_GBps"):
            return f"{gpus}, EMULATED NVLink mesh of {mesh} GB/s a link"
        if nodes := self.settings.get("nodes"):
            ranks = f" of {self.settings['ranks'] // nodes}" if "ranks" in self.settings else ""
            rails = f"{counted(self.settings['rails'], 'rail')} of {self.settings['rate_bps'] / 1e9:g} Gbit/s"
            return f"{gpus} as {counted(nodes, 'node')}{ranks} on {rails}"
        return gpus

    def systems(self) -> list[str]:
        """In the order they were asked for; the first is the rival of the others."""
        names = [each.system for each in self.exchanges], [each.system for each in self.layers], [each.system for each in self.beside]
        return list(dict.fromkeys(name for some in names for name in some))

    def matrices(self) -> list[str]:
        """In the order they ran."""
        return list(dict.fromkeys(each.matrix for each in self.exchanges))

    def find(self, matrix: str, system: str) -> Exchange:
        """The result of this pair."""
        return next(each for each in self.exchanges if (each.matrix, each.system) == (matrix, system))

    def problems(self) -> list[str]:
        """What makes the run fail: wrong bytes, other results, or more CTAs than the rival's kernel has."""
        rival, found = self.systems()[0], []
        for each in self.exchanges:
            if each.wrong:
                found.append(f"{each.matrix}, {each.system}: {each.wrong}")
            if serves_itself(each.system) and any("nccl" in kernel.name for kernel in each.kernels):
                found.append(f"{each.matrix}: NCCL ran the exchange, not Railweave; RAILWEAVE_LOG=info says why")
            other = self.find(each.matrix, rival)
            if each.system == _HELD_TO_CTAS and each.ctas > other.ctas:
                found.append(f"{each.matrix}, {each.system}: {each.ctas} CTAs; {rival} has {other.ctas}")
        for layer in self.layers:
            same = next(each for each in self.layers if (each.skew, each.compute, each.system) == (layer.skew, layer.compute, rival))
            if layer.digests != same.digests:
                found.append(f"layer, skew {layer.skew}, compute {layer.compute:g}, {layer.system}: results differ from {rival}'s")
        return found


_KIND = "a result of `railweave bench` on GPUs"

# Beyond what any run has, within what rates, ratios and pictures of them can be worked out for.
_LEAST_S, _MOST_S = 1e-15, 1e9
_MOST = 1 << 63
_MOST_GPUS = 1 << 16


class _Reader(Fields):
    """Checks what tables and the page go by, so that neither fails halfway. What else stands in a document passes: it follows from the
    rest, or another version wrote it."""

    def run(self, found: dict[str, Any]) -> Run:
        self.keys("the whole", found, ("date", "command", "machine", "versions", "gpus", "settings", "exchanges", "layers"))
        run = Run(
            self.text("date", found["date"]),
            self.text("command", found["command"]),
            self._machine(found["machine"]),
            self._versions(found["versions"]),
            self.whole("gpus", found["gpus"], 1, _MOST_GPUS),
            self._settings(found["settings"]),
            [self._exchange(f"exchanges[{place}]", each) for place, each in enumerate(self.rows("exchanges", found["exchanges"]))],
            [self._layer(f"layers[{place}]", each) for place, each in enumerate(self.rows("layers", found["layers"]))],
            [self._beside(f"beside[{place}]", each) for place, each in enumerate(self.rows("beside", found.get("beside", [])))],
        )
        if not run.systems():
            raise self.error(f"{self.source}: exchanges, layers, beside: none of them; expected at least one result")
        self._compared("exchanges", run, {(each.matrix, each.system): (len(each.seconds),) for each in run.exchanges})
        layers = {(f"skew {each.skew}, compute {each.compute}", each.system): (len(each.seconds),) for each in run.layers}
        self._compared("layers", run, layers)
        others = {
            (f"{each.work} beside {each.matrix}", each.system): tuple(
                map(len, (each.beside_seconds, each.equal_seconds, each.both_seconds))
            )
            for each in run.beside
        }
        self._compared("beside", run, others)
        return run

    def _compared(self, at: str, run: Run, rounds: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        """Of each case every system has a result, of as many rounds as its rival's."""
        rival = run.systems()[0]
        for case, system in itertools.product(dict.fromkeys(case for case, _ in rounds), run.systems()):
            if (case, system) not in rounds:
                raise self.error(f"{self.source}: {at}: none for {shown(case)} under {shown(system)}; expected every system for every case")
            if rounds[case, system] != rounds[case, rival]:
                raise self.error(f"{self.source}: {at}: {shown(case)} under {shown(system)}: expected as many rounds as {shown(rival)} has")

    def _machine(self, found: object) -> dict[str, Any]:
        machine = self.keys("machine", found, ("cpu", "cores", "kernel", "gpu"))
        for name in ("cpu", "kernel", "gpu"):
            self.text(f"machine.{name}", machine[name])
        self.whole("machine.cores", machine["cores"], 1, _MOST)
        if "cpu_stolen" in machine:
            self.number("machine.cpu_stolen", machine["cpu_stolen"], 0.0, 1.0, "a share from 0 to 1")
        return machine

    def _versions(self, found: object) -> dict[str, str]:
        return {name: self.text(f"versions.{name}", text) for name, text in self.keys("versions", found, ("torch", "driver")).items()}

    def _settings(self, found: object) -> dict[str, Any]:
        settings = self.keys("settings", found, ("rails", "rate_bps") if isinstance(found, dict) and "nodes" in found else ())
        for name, value in settings.items():
            self.number(f"settings.{name}", value, 0.0, _MOST, "a number from 0")
        for name in ("nodes", "ranks", "rails", "rate_bps"):
            if name in settings:
                self.whole(f"settings.{name}", settings[name], 1, _MOST)
        return settings

    def _times(self, at: str, row: dict[str, Any], name: str, least: int = 1) -> list[float]:
        """Seconds; what is missing where there may be none is empty."""
        times = self.rows(f"{at}.{name}", row.get(name, []), least)
        for place, each in enumerate(times):
            self.number(f"{at}.{name}[{place}]", each, _LEAST_S, _MOST_S, f"a positive number of seconds ({_LEAST_S:g} to {_MOST_S:g})")
        return times

    def _bound(self, at: str, found: object) -> float:
        expected = f"0 or a positive number of seconds ({_LEAST_S:g} to {_MOST_S:g})"
        return self.number(f"{at}.bound_seconds", found, _LEAST_S if found else 0, _MOST_S, expected)

    def _exchange(self, at: str, found: object) -> Exchange:
        names = ("system", "matrix", "bytes", "busiest_bytes", "seconds", "host_seconds", "call_seconds", "floor_seconds")
        row = self.keys(at, found, (*names, "bound_seconds", "wrong", "kernels"))
        busy = self.rows(f"{at}.busy_cores", row.get("busy_cores", []))
        for place, each in enumerate(busy):
            self.number(f"{at}.busy_cores[{place}]", each, 0.0, _MOST, "a number from 0")
        return Exchange(
            self.text(f"{at}.system", row["system"]),
            self.text(f"{at}.matrix", row["matrix"]),
            self.whole(f"{at}.bytes", row["bytes"], 1, _MOST),
            self.whole(f"{at}.busiest_bytes", row["busiest_bytes"], 1, _MOST),
            self._times(at, row, "seconds"),
            self._times(at, row, "host_seconds"),
            self._times(at, row, "call_seconds"),
            self._times(at, row, "floor_seconds"),
            self._bound(at, row["bound_seconds"]),
            None if row["wrong"] is None else self.text(f"{at}.wrong", row["wrong"]),
            [self._kernel(f"{at}.kernels[{place}]", each) for place, each in enumerate(self.rows(f"{at}.kernels", row["kernels"]))],
            busy,
            self.whole(f"{at}.starts", row.get("starts", 1), 1, _MOST),
        )

    def _kernel(self, at: str, found: object) -> Kernel:
        row = self.keys(at, found, ("name", "ctas", "threads"))
        return Kernel(
            self.text(f"{at}.name", row["name"]), *(self.whole(f"{at}.{name}", row[name], 1, _MOST) for name in ("ctas", "threads"))
        )

    def _layer(self, at: str, found: object) -> Layer:
        row = self.keys(at, found, ("system", "skew", "compute", "hidden", "seconds", "digests"))
        traced = [row.get(name) for name in ("busy_seconds", "exchange_seconds")]
        for name, value in zip(("busy_seconds", "exchange_seconds"), traced, strict=True):
            if value is not None:
                self.number(f"{at}.{name}", value, 0.0, _MOST_S, f"null or a number of seconds (to {_MOST_S:g})")
        digests = self.rows(f"{at}.digests", row["digests"])
        for place, each in enumerate(digests):
            self.whole(f"{at}.digests[{place}]", each, 0, _MOST)
        return Layer(
            self.text(f"{at}.system", row["system"]),
            self.text(f"{at}.skew", row["skew"]),
            self.number(f"{at}.compute", row["compute"], 1e-9, 1e9, "a positive number"),
            self.whole(f"{at}.hidden", row["hidden"], 1, _MOST),
            self._times(at, row, "seconds"),
            digests,
            *traced,
        )

    def _beside(self, at: str, found: object) -> Beside:
        row = self.keys(at, found, ("system", "work", "matrix", "alone_seconds", "beside_seconds"))
        exchanges = row.get("equal_exchanges")
        equal, both = self._times(at, row, "equal_seconds", least=0), self._times(at, row, "both_seconds", least=0)
        if len(equal) != len(both):
            raise self.fail(f"{at}.both_seconds", both, "as many rounds as equal_seconds has")
        return Beside(
            self.text(f"{at}.system", row["system"]),
            self.text(f"{at}.work", row["work"]),
            self.text(f"{at}.matrix", row["matrix"]),
            self._times(at, row, "alone_seconds"),
            self._times(at, row, "beside_seconds"),
            None if exchanges is None and not equal else self.whole(f"{at}.equal_exchanges", exchanges, 1, _MOST),
            equal,
            both,
        )
