"""What the project wants of exchanges on GPUs, beside what was seen: a line for each aim, from the evaluation's results."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sections import MESH_GBPS, ON_ONE_NODE

from railweave.bench.gpus.mesh import MOST_GPUS
from railweave.bench.gpus.result import (
    LEAST_ROUNDS,
    Beside,
    Exchange,
    Ratio,
    Run,
    call_ratio,
    gain_at_bound,
    mean_call_ratio,
    ratio,
)
from railweave.bench.gpus.table import quantiles
from railweave.calibrate import Calibration
from railweave.size import parse_size

Results = Mapping[str, Sequence[Run]]  # by group

_OWN = "railweave"
_NO_RIVALS = ("nccl-tuned", "nccl-shim-off")  # not NCCL as it comes: beside the rival, not one
_LARGE = ("16MiB", "64MiB", "256MiB")
_LAYER_GAIN = 1.35


class Mark(NamedTuple):
    """What an exchange or layer may take so that an aim is reached."""

    group: str
    name: str  # as pictures have it
    seconds: float


def _is_rival(system: str) -> bool:
    """NCCL as it comes; on the emulated mesh the straight path."""
    return not system.startswith(_OWN) and system not in _NO_RIVALS


@dataclasses.dataclass(frozen=True)
class Line:
    """An aim and what became of it; `reached` is None where nothing was measured."""

    what: str
    wanted: str
    seen: str = ""
    reached: bool | None = None
    marks: tuple[Mark, ...] = ()


def lines(results: Results, gpus: int, calibration: Calibration | None = None, kernels: str = "") -> list[Line]:
    """All aims that this many GPUs can be held against. `kernels`: what gpu_exchange said."""
    if gpus == 1:
        return _one_gpu(results, kernels)
    exchanges, small = _Exchanges(results, "exchanges"), _Exchanges(results, "small")
    found = [
        *_gains(exchanges, "hot pair + 1/16", {f"hot-pair:{a}:{b}": wanted for a, b, wanted in _HOT}),
        *(exchanges.bound(f"hot pair + 1/16, {a}", f"hot-pair:{a}:{b}", 0.95) for a, b, _ in _HOT),
        exchanges.rate("one pair, 256MiB", "hot-pair:256MiB", 380),
        exchanges.rate("one pair, 1GiB", "hot-pair:1GiB", 400),
        *_gains(exchanges, "two pairs both ways", {f"two-pairs-{size}": 1.4 for size in _LARGE}),
        _together(exchanges),
        *_gains(exchanges, "balanced", {"balanced:16MiB": 1.15, "balanced:64MiB": 1.05, "balanced:256MiB": 1.0}),
        *_gains(exchanges, "all to all, oneself too", {f"all-to-all:{size}": 1.0 for size in ("4MiB", *_LARGE)}),
        _least(small, "any pattern, 64KiB to 2MiB: least gain", 1.5, lambda e: 1 << 16 <= _size(e.matrix) <= 2 << 20, _device),
        *(line for name, part in (("p50", 0.5), ("p99", 0.99)) for line in _small_calls(small, name, part)),
        *_floors(small),
    ]
    nodes = _Exchanges(results, "nodes" if gpus < 8 else "rails")
    found += _gains(nodes, "within a node of several", _INSIDE)
    found.append(nodes.bound("90% within the node, 10% over rails", "mostly-inside-64MiB", 0.9))
    for name, what in (("rails-8", "2×4 with 8 rails"), ("rails-4x2", "4×2")) if gpus >= 8 else ():
        found += _gains(_Exchanges(results, name), f"within a node of {what}", _INSIDE)
    # Where NCCL takes ranks of a node for hosts, what stays inside goes over rails, too: no rival when all send to all.
    alike = "rails 2×4, balanced" if gpus >= 4 else "rails 2×2, balanced"
    fair = _Exchanges(results, "rails" if gpus >= 4 else "shared")
    found += [*_paper_rails(results, 3.8 if gpus < 8 else 3.9), *_gains(fair, alike, {"balanced:4MiB": 0.98})]
    if 3 <= gpus <= MOST_GPUS:
        mesh = _Exchanges(results, "mesh")
        found.append(mesh.rate(f"EMULATED mesh of {MESH_GBPS} GB/s a link, one pair", "hot-pair:256MiB", 300, "the straight path alone"))
    found += [_layer(results.get("moe-rails", ())), *_beside(results.get("beside", ())), _ctas(results), _cores(results)]
    return [*found, _memory(kernels, gpus), _grants(calibration)]


def _one_gpu(results: Results, kernels: str) -> list[Line]:
    """Only rails limit anything there. NCCL, to which each rank is a host, is a rival where that takes no rail from a rank."""
    found = _paper_rails(results, 3.8)
    for name, shape in (("rails-8", "rails 2×4, eight of them"), ("rails-4x2", "rails 4×2")):
        found.append(_Exchanges(results, name).bound(f"{shape}, one pair", "hot-pair:64MiB", 0.95))
    for name, shape in (("hosts", "rails 4×1"), ("rails-2", "rails 2×2, two of them")):
        found += _gains(_Exchanges(results, name), f"{shape}, balanced", dict.fromkeys(_OVER_RAILS_BALANCED, 0.98))
    return [*found, _ctas(results), _cores(results), _memory(kernels, 1)]


def _paper_rails(results: Results, pair: float) -> list[Line]:
    """Of 4 GB/s; `pair`: what one is to have."""
    rails, name = _Exchanges(results, "rails"), "rails 2×4"
    return [
        rails.rate(f"{name}, one pair", "hot-pair:64MiB", pair),
        rails.rate(f"{name}, incast", "incast:16MiB", 3.8),
        rails.rate(f"{name}, both ways, each", "bidir-pair:64MiB", 3.5),
        rails.rate(f"{name}, hot pair + background", "hot-pair:64MiB:512KiB", 3.5),
    ]


_OVER_RAILS_BALANCED = ("balanced:4MiB", "balanced:1MiB", "balanced:256KiB", "balanced:64KiB", "balanced:16KiB", "balanced:1KiB")
_INSIDE = {"inside-pair-256MiB": 4, "inside-both-ways-256MiB": 4, "inside-all-to-all-256MiB": 5}
_HOT = (("4MiB", "256KiB", 2.0), ("16MiB", "1MiB", 1.4), ("64MiB", "4MiB", 1.35), ("256MiB", "16MiB", 1.1))


def table(results: Results, gpus: int, calibration: Calibration | None = None, kernels: str = "") -> str:
    """Markdown."""
    words = {None: "not run", True: "reached", False: "**missed**"}
    rows = [f"| {each.what} | {each.wanted} | {each.seen} | {words[each.reached]} |" for each in lines(results, gpus, calibration, kernels)]
    return "\n".join(["| what | wanted | seen | |", "|---|---|---|---|", *rows]) + "\n"


def marks(results: Results, gpus: int) -> dict[tuple[str, str], float]:
    """By group and name: the seconds within which an exchange or layer reaches all its own aims of device time."""
    found: dict[tuple[str, str], float] = {}
    for mark in (mark for line in lines(results, gpus) for mark in line.marks):
        found[mark.group, mark.name] = min(mark.seconds, found.get((mark.group, mark.name), math.inf))
    return found


class _Exchanges:
    """The runs of a group; what was measured twice counts as it was the last time."""

    def __init__(self, results: Results, group: str) -> None:
        self.group = group
        self.by_matrix: dict[str, list[Exchange]] = {}
        for run in results.get(group, ()):
            for matrix in run.matrices():
                self.by_matrix[matrix] = [each for each in run.exchanges if each.matrix == matrix]

    def own(self, matrix: str) -> Exchange | None:
        return next((each for each in self.by_matrix.get(matrix, ()) if each.system == _OWN), None)

    def rival(self, matrix: str) -> Exchange | None:
        """The best NCCL with its defaults."""
        rivals = [each for each in self.by_matrix.get(matrix, ()) if _is_rival(each.system)]
        return min(rivals, key=lambda each: each.seconds_median, default=None)

    def pairs(self) -> list[tuple[Exchange, Exchange]]:
        """Rival and Railweave of every matrix that has both."""
        both = ((self.rival(matrix), self.own(matrix)) for matrix in self.by_matrix)
        return [(theirs, own) for theirs, own in both if theirs and own]

    def rate(self, what: str, matrix: str, wanted: float, rival: str = "NCCL") -> Line:
        """GB/s of the busiest rank."""
        own, theirs = self.own(matrix), self.rival(matrix)
        text = f"≥ {wanted:g} GB/s"
        if own is None:
            return Line(what, text)
        seen, mark = f"{own.gbps:.2f} GB/s" + (f"; {rival} {theirs.gbps:.2f}" if theirs else ""), own.busiest_bytes / wanted / 1e9
        return Line(what, text, seen, own.gbps >= wanted, (Mark(self.group, matrix, mark),))

    def bound(self, what: str, matrix: str, wanted: float) -> Line:
        """Share of the independent bound."""
        own, text = self.own(matrix), f"≥ {wanted:g} of the bound"
        if own is None:
            return Line(what, text)
        marks = (Mark(self.group, matrix, own.bound_seconds / wanted),) if own.bound_seconds else ()
        return Line(what, text, _told(own.bound_fraction, wanted), own.bound_fraction >= wanted, marks)


def _told(value: float, wanted: float) -> str:
    """With one digit more where it would look like what it falls short of."""
    text = f"{value:.2f}"
    return f"{value:.3f}" if value < wanted <= float(text) else text


def _gains(exchanges: _Exchanges, what: str, wanted: Mapping[str, float]) -> list[Line]:
    found = []
    for matrix, least in wanted.items():
        theirs, own, text = exchanges.rival(matrix), exchanges.own(matrix), f"≥ {least:g}×"
        if theirs is None or own is None:
            found.append(Line(f"{what}, `{matrix}`", text))
            continue
        gain = _device(theirs, own)
        seen = f"{_shown(gain, least)}; {own.gbps:.1f} against {theirs.gbps:.1f} GB/s"
        mark = Mark(exchanges.group, matrix, theirs.seconds_median / least)
        found.append(Line(f"{what}, `{matrix}`", text, seen + _out_of_reach(theirs, gain, least), gain.value >= least, (mark,)))
    return found


def _out_of_reach(theirs: Exchange, gain: Ratio, wanted: float) -> str:
    """Of an aim that is missed: that the bound misses it, too."""
    at_bound = gain_at_bound(theirs)
    return f"; {at_bound:.2f}× at the bound" if at_bound and max(gain.value, at_bound) < wanted else ""


Gain = Callable[[Exchange, Exchange], Ratio]


def _device(theirs: Exchange, own: Exchange) -> Ratio:
    return ratio(theirs.seconds, own.seconds)


def _call(part: float) -> Gain:
    return lambda theirs, own: call_ratio(theirs, own, part)


def _shown(gain: Ratio, wanted: float = 0.0) -> str:
    low, high = gain.interval or (0.0, 0.0)
    return f"{_told(gain.value, wanted)}×" + (f" ({low:.2f}–{high:.2f})" if low < high else "")


def _together(exchanges: _Exchanges) -> Line:
    names = [
        f"{name}:{size}{rest}"
        for name, rest in (("incast", ""), ("outcast", ""), ("zipf", ":1.0"), ("rotating-hotspot", ""))
        for size in _LARGE
    ]
    gains = [_device(theirs, own) for theirs, own in exchanges.pairs() if theirs.matrix in names]
    what, wanted = "incast, outcast, Zipf 1.0, rotating hotspots, 16 to 256 MiB", "geometric mean ≥ 1.15×, no interval from below 0.98×"
    if not gains:
        return Line(what, wanted)
    mean, lows = statistics.geometric_mean(gain.value for gain in gains), [gain.interval[0] for gain in gains if gain.interval]
    good = mean >= 1.15 and all(low >= 0.98 for low in lows)
    if len(lows) < len(gains):  # of a run of few rounds: no reason to call it reached
        seen = f"{mean:.2f}×, {len(gains) - len(lows)} of {len(gains)} without intervals, which take {LEAST_ROUNDS} rounds"
        return Line(what, wanted, seen, None if good else False)
    return Line(what, wanted, f"{_told(mean, 1.15)}×, intervals from {_told(min(lows), 0.98)}× ({len(gains)} of {len(names)})", good)


def _least(exchanges: _Exchanges, what: str, wanted: float, chosen: Callable[[Exchange], bool], gain_of: Gain) -> Line:
    gains = [(theirs, gain_of(theirs, own)) for theirs, own in exchanges.pairs() if chosen(own)]
    if not gains:
        return Line(what, f"≥ {wanted:g}×")
    least, gain = min(gains, key=lambda pair: pair[1].value)
    device = gain_of is _device  # as bounds and pictures are
    seen = f"{_shown(gain, wanted)}, `{least.matrix}`, of {len(gains)}" + (_out_of_reach(least, gain, wanted) if device else "")
    marks = (Mark(exchanges.group, theirs.matrix, theirs.seconds_median / wanted) for theirs, _ in gains if device)
    return Line(what, f"≥ {wanted:g}×", seen, gain.value >= wanted, tuple(marks))


def _small_calls(exchanges: _Exchanges, name: str, part: float) -> list[Line]:
    """Of the least row and of all together: rare outliers of the machine decide a single row's p99, in either direction."""
    what, least = f"any pattern, to 64KiB: {name} of single calls", 0.98
    lines = [_least(exchanges, f"{what}, least gain", least, _is_small, _call(part))]
    pairs = [(theirs, own) for theirs, own in exchanges.pairs() if _is_small(own)]
    what, wanted = f"{what}, geometric mean", f"≥ {least:g}×"
    if not pairs:
        return [*lines, Line(what, wanted)]
    mean = mean_call_ratio(pairs, part)
    seen = f"{_shown(mean, least)}, of {len(pairs)}"
    if mean.interval is None:
        seen += f"; without an interval, which takes {LEAST_ROUNDS} rounds of each, or starts where there are several"
    elif mean.interval[0] < least <= max(mean.interval[1], mean.value):  # neither reached nor missed beyond doubt
        seen += f", with an interval that holds {least:g}"
    return [*lines, Line(what, wanted, seen, mean.value >= least)]


def _floors(exchanges: _Exchanges) -> list[Line]:
    """Calls with nothing to move, which every matrix was measured beside."""
    theirs, own = ([time for pair in exchanges.pairs() for time in pair[side].floor_seconds] for side in (0, 1))
    found = []
    for name, number in (("p50", 0), ("p99", 1)):
        what, wanted = f"0 bytes: {name} of single calls", "≥ 0.98×"
        if not own:
            found.append(Line(what, wanted))
            continue
        gain = quantiles(theirs)[number] / quantiles(own)[number]
        found.append(Line(what, wanted, f"{gain:.2f}×", gain >= 0.98))
    return found


def _size(matrix: str) -> float:
    """Bytes of the largest message, by the name; what gates send is large."""
    name, _, rest = matrix.partition(":")
    if name in ("moe", "trace"):
        return math.inf
    return parse_size(rest.partition(":")[0] if rest else matrix.rpartition("-")[2])


def _is_small(exchange: Exchange) -> bool:
    return _size(exchange.matrix) <= 1 << 16


def _layer(runs: Sequence[Run]) -> Line:
    what, wanted = "mixture-of-experts layer over the rails, Zipf 1.0", f"≥ {_LAYER_GAIN:g}× an iteration"
    gains, marks = {}, {}
    for run in runs:
        layers = {(each.system, each.compute): each for each in run.layers if each.skew == "zipf:1.0"}
        for (system, compute), own in layers.items():
            rivals = [each for (name, of), each in layers.items() if of == compute and _is_rival(name)]
            if system == _OWN and rivals:
                theirs = min(rivals, key=lambda layer: layer.seconds_median)
                gains[compute] = ratio(theirs.seconds, own.seconds)
                marks[compute] = Mark("moe-rails", own.name, theirs.seconds_median / _LAYER_GAIN)
    if not gains:
        return Line(what, wanted)
    seen = "; ".join(f"{_shown(gain)} with experts of {compute:g} dispatches" for compute, gain in gains.items())
    return Line(what, wanted, seen, all(gain.value >= _LAYER_GAIN for gain in gains.values()), tuple(marks.values()))


def _beside(runs: Sequence[Run]) -> list[Line]:
    found = {}
    for run in runs:
        for own in (each for each in run.beside if each.system == _OWN):
            same = [each for each in run.beside if (each.work, each.matrix) == (own.work, own.matrix)]
            if rivals := [each for each in same if _is_rival(each.system)]:
                theirs = min(rivals, key=lambda each: statistics.median(each.equal_seconds or each.beside_seconds))
                found[own.work, own.matrix] = _beside_line(theirs, own)
    return list(found.values()) or [Line("other work beside exchanges", _BESIDE)]


_BESIDE = "not slower than beside as many of NCCL's exchanges"


def _beside_line(theirs: Beside, own: Beside) -> Line:
    """Judged by the equal number of exchanges; what outlasts the work moves more bytes meanwhile where it is faster."""
    what = f"{own.work} beside `{own.matrix}`"
    outlasting = f"beside exchanges that outlast it {own.slowed:.2f}×, under NCCL {theirs.slowed:.2f}×"
    if not (own.equal_seconds and theirs.equal_seconds):
        return Line(what, _BESIDE, outlasting)
    gain, both = ratio(theirs.equal_seconds, own.equal_seconds), ratio(theirs.both_seconds, own.both_seconds)
    seen = (
        f"{own.equal_slowed:.2f}× its time alone, under NCCL {theirs.equal_slowed:.2f}×: {_shown(gain)}, {_shown(both)} until both are over"
    )
    return Line(what, _BESIDE, f"{seen}; {outlasting}", gain.value >= 1.0)


def _ctas(results: Results) -> Line:
    """Of all exchanges that have a rival; on the emulated mesh Railweave's own is none."""
    what, wanted = "CTAs of the largest kernel of a call", "no row more than NCCL's"
    found = {
        _row(own, name): (own.ctas, theirs.ctas)
        for name in results
        if name != "mesh"
        for theirs, own in _Exchanges(results, name).pairs()
        if own.ctas and theirs.ctas
    }
    if not found:
        return Line(what, wanted)
    more = [f"{row} {own}, NCCL {theirs}" for row, (own, theirs) in found.items() if own > theirs]
    return Line(what, wanted, f"more in {len(more)} of {len(found)}" + (f": {'; '.join(more)}" if more else ""), not more)


def _cores(results: Results) -> Line:
    """Of all exchanges, also of those on the emulated mesh."""
    what, wanted = "processors that a rank's threads take beside the one that queues", "≤ 1"
    busy = [
        (statistics.median(own.busy_cores), _row(own, name))
        for name in results
        for _, own in _Exchanges(results, name).pairs()
        if own.busy_cores
    ]
    if not busy:
        return Line(what, wanted)
    most, row = max(busy)
    return Line(what, wanted, f"{most:.2f} at most, {row}", most <= 1.0)


def _row(own: Exchange, group: str) -> str:
    """What a line calls an exchange: labs have matrices of equal names."""
    return f"`{own.matrix}`" + ("" if group in ON_ONE_NODE else f" ({group})")


def _memory(kernels: str, gpus: int) -> Line:
    """What is told is of all ranks of a GPU."""
    what, wanted = "memory of a GPU that a communicator takes", "≤ 64 MiB"
    found = re.findall(r"a communicator of (\d+) ranks takes ([\d.]+) MiB of the device", kernels)
    if not found:
        return Line(what, wanted)
    told = [(int(ranks), -(-int(ranks) // gpus), float(of_gpu)) for ranks, of_gpu in found]
    ranks, sharing, of_gpu = max(told, key=lambda each: each[2] / each[1])
    taken = of_gpu / sharing
    return Line(what, wanted, f"{taken:.1f} MiB with {ranks} ranks" + (f", {sharing} a GPU" if sharing > 1 else ""), taken <= 64)


def _grants(calibration: Calibration | None) -> Line:
    """Behind an NVSwitch no plan can help, so inside a node no rows are exchanged: grants are all that comes before the bytes."""
    what, wanted = "planning and rows inside a node: there are none; grant and message of the smallest size", "≤ 40 us"
    if calibration is None or not calibration.sizes:
        return Line(what, wanted)
    least = min(calibration.sizes, key=lambda each: each.bytes)
    slowest = max(granted for _, granted in least.times())
    pairs = "all pairs" if len(list(least.times())) > 1 else "a pair"
    return Line(what, wanted, f"{slowest / 1e3:.1f} us, {least.bytes >> 10} KiB of {pairs}", slowest <= 40_000)
