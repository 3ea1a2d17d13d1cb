"""A run on GPUs as text and as Markdown: tables that need no more than what stands in them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from railweave.bench.gpus.result import Exchange, Layer, Ratio, Run, call_ratio, gain_at_bound, quantile, ratio
from railweave.units import decimals


def exchange_rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows: device time, rate, gain over the first system with its interval, and at the bound, share of the bound, CTAs."""
    head = ["matrix", "system", "device us", "±", "GB/s", "gain", "95%", "gain at bound", "of bound", "CTAs", "bytes"]
    rows = []
    for matrix in run.matrices():
        rival = run.find(matrix, run.systems()[0])
        at_bound = gain_at_bound(rival)
        for number, system in enumerate(run.systems()):
            each = run.find(matrix, system)
            gain, interval = _gain(ratio(rival.seconds, each.seconds), system == rival.system)
            rows.append(
                [
                    matrix if number == 0 else "",
                    system,
                    _microseconds(each.seconds_median),
                    _spread(each),
                    f"{each.gbps:.{decimals(each.gbps, 1)}f}",
                    gain,
                    interval,
                    f"{at_bound:.2f}×" if at_bound and system != rival.system else "",
                    f"{each.bound_fraction:.2f}",
                    str(each.ctas),
                    "ok" if each.wrong is None else "WRONG",
                ]
            )
    return head, rows


def call_rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows: single calls that are waited for, beside the floor, what a call takes the host, and what its threads take."""
    head = ["matrix", "system", "call p50 us", "p99 us", "floor p50 us", "p99 us", "host us", "busy cores"]
    head += ["gain p50", "95%", "gain p99", "95%"]
    rows = []
    for matrix in run.matrices():
        rival = run.find(matrix, run.systems()[0])
        for number, system in enumerate(run.systems()):
            each = run.find(matrix, system)
            gains = [_gain(call_ratio(rival, each, part), system == rival.system) for part in (0.5, 0.99)]
            rows.append(
                [
                    matrix if number == 0 else "",
                    system,
                    *map(_microseconds, (*quantiles(each.call_seconds), *quantiles(each.floor_seconds))),
                    _microseconds(statistics.median(each.host_seconds)),
                    f"{statistics.median(each.busy_cores):.2f}" if each.busy_cores else "",
                    *gains[0],
                    *gains[1],
                ]
            )
    return head, rows


def layer_rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows of layers."""
    head = ["skew", "compute", "system", "iteration us", "±", "GPU busy us", "exchanges us", "gain", "95%", "results"]
    rows = []
    for each in run.layers:
        rival = next(o for o in run.layers if (o.skew, o.compute, o.system) == (each.skew, each.compute, run.systems()[0]))
        gain, interval = _gain(ratio(rival.seconds, each.seconds), each.system == rival.system)
        same = "equal" if each.digests == rival.digests else "DIFFER"
        first = each.system == rival.system
        name = [each.skew, f"{each.compute:g}×"] if first else ["", ""]
        traced = ["" if seconds is None else _microseconds(seconds) for seconds in (each.busy_seconds, each.exchange_seconds)]
        rows.append([*name, each.system, _microseconds(each.seconds_median), _spread(each), *traced, gain, interval, same])
    return head, rows


def equal_rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows of other work beside the same number of exchanges: its time, and that until both are over."""
    head = ["work", "matrix", "system", "exchanges", "alone us", "beside us", "slowed", "gain", "95%"]
    head += ["both over us", "both gain", "both 95%"]
    rows = []
    for each in (each for each in run.beside if each.equal_seconds):
        rival = next(o for o in run.beside if (o.work, o.matrix, o.system) == (each.work, each.matrix, run.systems()[0]))
        first = each.system == rival.system
        name = [each.work, each.matrix] if first else ["", ""]
        times = [_microseconds(statistics.median(times)) for times in (each.alone_seconds, each.equal_seconds)]
        gain, both_gain = (
            _gain(ratio(theirs, own), first)
            for theirs, own in ((rival.equal_seconds, each.equal_seconds), (rival.both_seconds, each.both_seconds))
        )
        both = [_microseconds(statistics.median(each.both_seconds)), *both_gain]
        rows.append([*name, each.system, str(each.equal_exchanges), *times, f"{each.equal_slowed:.2f}×", *gain, *both])
    return head, rows


def beside_rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows of other work beside exchanges that outlast it: how much each system slows it, and how much faster it is than beside
    the rival."""
    head = ["work", "matrix", "system", "alone us", "beside us", "slowed", "gain", "95%"]
    rows = []
    for each in run.beside:
        rival = next(o for o in run.beside if (o.work, o.matrix, o.system) == (each.work, each.matrix, run.systems()[0]))
        gain, interval = _gain(ratio(rival.beside_seconds, each.beside_seconds), each.system == rival.system)
        first = each.system == rival.system
        times = [_microseconds(statistics.median(times)) for times in (each.alone_seconds, each.beside_seconds)]
        name = [each.work, each.matrix] if first else ["", ""]
        rows.append([*name, each.system, *times, f"{each.slowed:.2f}×", gain, interval])
    return head, rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the documentation."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(f"`{cell}`" if ":" in cell and i == 0 else cell for i, cell in enumerate(line)) + " |\n" for line in lines
    )


def tables(run: Run) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of what the run has."""
    found = []
    if run.exchanges:
        found.append(("device time of a call among queued ones", *exchange_rows(run)))
        found.append(("single calls, each waited for", *call_rows(run)))
    if run.layers:
        found.append(("mixture-of-experts layer, forward and backward", *layer_rows(run)))
    if run.beside:
        if any(each.equal_seconds for each in run.beside):
            found.append(("other work beside the same number of exchanges", *equal_rows(run)))
        found.append(("other work beside exchanges that outlast it", *beside_rows(run)))
    return found


def quantiles(times: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    return quantile(times, 0.5), quantile(times, 0.99)


def _gain(value: Ratio, itself: bool) -> tuple[str, str]:
    if itself:
        return "", ""
    return f"{value.value:.2f}×", "{:.2f}–{:.2f}".format(*value.interval) if value.interval else ""


def _spread(each: Exchange | Layer) -> str:
    """Of the rounds about their median; one alone does not tell."""
    return f"{(max(each.seconds) - min(each.seconds)) / each.seconds_median / 2:.1%}" if len(each.seconds) > 1 else ""


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


__all__ = ["beside_rows", "call_rows", "equal_rows", "exchange_rows", "layer_rows", "markdown", "quantiles", "tables"]
