"""What a benchmark on GPUs found, and its JSON form (schema/bench-gpus.schema.json)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from railweave.bench.errors import BenchError
from railweave.bench.timed import Timed
from railweave.fields import Fields

FORMAT, VERSION = "railweave-bench-gpus", 1
_RESAMPLES = 4000
_CALL_RESAMPLES = 400  # of thousands of calls each


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast as the rival: ratio of medians, and the interval that holds it in 95% of resampled rounds."""

    value: float
    low: float
    high: float


def ratio(rival: Sequence[float], own: Sequence[float]) -> Ratio:
    """Of times that were taken in the same rounds. Rounds are drawn again with replacement, in pairs; always the same draws."""
    pairs = np.array([rival, own])
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], (_RESAMPLES, pairs.shape[1]))
    medians = np.median(pairs[:, draws], axis=2)
    low, high = np.percentile(medians[0] / medians[1], [2.5, 97.5])
    return Ratio(float(np.median(pairs[0]) / np.median(pairs[1])), float(low), float(high))


def gain_at_bound(rival: Exchange) -> float | None:
    """How many times as fast as the rival a system is that takes as long as the bound. None: nothing limits what was sent."""
    return rival.seconds_median / rival.bound_seconds if rival.bound_seconds else None


def quantile(times: Sequence[float], part: float) -> float:
    """The least time that so much of all times does not exceed: 0.5 for p50."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def call_ratio(rival: Exchange, own: Exchange, part: float) -> Ratio:
    """As `ratio`, of a quantile of single calls. Calls of a round are alike in what the machine did meanwhile, so rounds are drawn, not
    calls. Where results do not tell calls of one round from another's, the interval is the value."""
    rounds = len(own.seconds)
    value = quantile(rival.call_seconds, part) / quantile(own.call_seconds, part)
    if rounds < 2 or any(len(each.call_seconds) % rounds or len(each.seconds) != rounds for each in (rival, own)):
        return Ratio(value, value, value)
    draws = np.random.default_rng(0).integers(0, rounds, (_CALL_RESAMPLES, rounds))
    found = []
    for each in (rival, own):
        calls = np.array(each.call_seconds).reshape(rounds, -1)[draws].reshape(_CALL_RESAMPLES, -1)
        place = min(calls.shape[1] - 1, int(calls.shape[1] * part))
        found.append(np.partition(calls, place, axis=1)[:, place])
    low, high = np.percentile(found[0] / found[1], [2.5, 97.5])
    return Ratio(value, float(low), float(high))


def serves_itself(system: str) -> bool:
    """Is it Railweave that exchanges, and not one of NCCL's builds?"""
    return not system.startswith("nccl")


# What a document that is none, or was damaged, raises when it is read or worked with.
_OF_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, StopIteration)


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

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Exchange:
        """The inverse of `to_json`."""
        kept = {field.name: value[field.name] for field in dataclasses.fields(cls) if field.name not in ("kernels", "busy_cores")}
        kernels = [Kernel(**kernel) for kernel in value["kernels"]]
        return cls(**kept, kernels=kernels, busy_cores=value.get("busy_cores", []))


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

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Beside:
        """The inverse of `to_json`."""
        return cls(**{field.name: value[field.name] for field in dataclasses.fields(cls) if field.name in value})


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
        """Reads the JSON document. Raises BenchError naming the file."""
        fields = Fields(path, "a result of `railweave bench` on GPUs", BenchError)
        value = fields.document(fields.file(), FORMAT, VERSION)
        try:
            del value["format"], value["version"]
            exchanges = [Exchange.from_json(each) for each in value.pop("exchanges")]
            layers = [Layer(**{f.name: each[f.name] for f in dataclasses.fields(Layer) if f.name in each}) for each in value.pop("layers")]
            others = [Beside.from_json(each) for each in value.pop("beside", [])]
            run = cls(**value, exchanges=exchanges, layers=layers, beside=others)
            run.follow()
        except _OF_DAMAGE as error:
            raise fields.none(str(error) or type(error).__name__) from error
        return run

    def follow(self) -> None:
        """Works out what follows from the figures, as tables and pages do: it raises one of `_OF_DAMAGE` where that cannot be."""
        if not self.systems():
            raise ValueError("expected at least one result")
        self.problems()
        self.to_json()
        _ = self.place, [each.seconds_median for each in self.layers]

    @property
    def place(self) -> str:
        """The GPUs, and what they stood for."""
        gpus = f"{self.gpus:d} × {self.machine['gpu']}"
        if mesh := self.settings.get("emulated_mesh_GBps"):
            return f"{gpus}, EMULATED NVLink mesh of {mesh} GB/s a link"
        if nodes := self.settings.get("nodes"):
            ranks = f" of {self.settings['ranks'] // nodes}" if "ranks" in self.settings else ""
            return f"{gpus} as {nodes} nodes{ranks} on {self.settings['rails']} rails of {self.settings['rate_bps'] / 1e9:g} Gbit/s"
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
            if serves_itself(each.system) and each.ctas > other.ctas:
                found.append(f"{each.matrix}, {each.system}: {each.ctas} CTAs; {rival} has {other.ctas}")
        for layer in self.layers:
            same = next(each for each in self.layers if (each.skew, each.compute, each.system) == (layer.skew, layer.compute, rival))
            if layer.digests != same.digests:
                found.append(f"layer, skew {layer.skew}, compute {layer.compute:g}, {layer.system}: results differ from {rival}'s")
        return found
