"""The page of a benchmark on GPUs: how many times as fast as the rival, and how near to what the GPUs can do."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from railweave.bench.gpus.result import LEAST_ROUNDS, Beside, Ratio, Run, ratio
from railweave.bench.gpus.table import tables
from railweave.bench.taken import warning
from railweave.report.page import Page
from railweave.report.plots import STYLE, svg

_COLOURS = {
    "railweave": "#0072b2",
    "nccl": "#999999",
    "single-path": "#999999",
    "nccl-tuned": "#e69f00",
    "nccl-shim-off": "#009e73",
    "nccl-other": "#cc79a7",
}
_WIDE = 4.0  # times: gains that differ by more have a scale on which twice as fast is as far everywhere
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50, 100)


@dataclasses.dataclass(frozen=True)
class GainRow:
    """How many times as fast as the rival the others did something."""

    name: str
    rival_seconds: float  # its median
    ratios: Mapping[str, Ratio]  # by system
    wanted: float | None = None  # of Railweave


def gain_rows(run: Run) -> list[GainRow]:
    """A row for each exchange, else for each layer, else for each piece of other work."""
    times: dict[str, dict[str, list[float]]] = {}
    if run.exchanges:
        for exchange in run.exchanges:
            times.setdefault(exchange.matrix, {})[exchange.system] = exchange.seconds
    elif run.layers:
        for layer in run.layers:
            times.setdefault(layer.name, {})[layer.system] = layer.seconds
    else:
        for work in run.beside:
            times.setdefault(f"{work.work} beside {work.matrix}", {})[work.system] = _work_seconds(work)
    rival, *others = run.systems()
    return [
        GainRow(name, statistics.median(seconds[rival]), {system: ratio(seconds[rival], seconds[system]) for system in others})
        for name, seconds in times.items()
    ]


def gains_picture(rows: Sequence[GainRow], rival: str, name: str) -> str:
    """An SVG file: each row's gains over the rival with their intervals, and what is wanted. `name` is of what the rows are."""
    with mpl.rc_context({**STYLE, "text.parse_math": False}):
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + svg(_gains(rows, rival), f"Gains over {rival}: {name}", "gains")


def page(run: Run) -> str:
    """The HTML document."""
    limit = "what a kernel or copy engine reaches that asks nobody whether it may write"
    if "emulated_mesh_GBps" in run.settings:
        limit = "what links of that rate, and the GPUs themselves, allow"
    elif "nodes" in run.settings:
        limit = "what the rails allow, and for what stays inside nodes a kernel or copy engine that asks nobody whether it may write"
    others = [system for system in run.systems() if system != run.systems()[0]]
    title, right = _kind(run)
    checked = right if not run.problems() else "Something was wrong: see the end."
    shared = (
        "one process a GPU" if run.settings.get("ranks", run.gpus) <= run.gpus else f"{run.settings['ranks']} processes that share them"
    )
    result = Page(
        title,
        " ".join(
            filter(
                None,
                (
                    f"{run.place}, PyTorch {run.versions['torch']}, {shared}, {', '.join(run.systems())} in turns.",
                    checked,
                    warning(run.machine),
                ),
            )
        ),
    )
    result.cards(_cards(run, others))
    # a file's name may have dollar signs that are no formula
    with mpl.rc_context({**STYLE, "text.parse_math": False}):
        if run.exchanges:
            result.figure(
                "Rate of the busiest GPU",
                "Bytes through the busiest GPU over the median device time of a queued call; thin lines span the rounds. The black mark is "
                f"{limit}.",
                svg(_rates(run), f"Rates of {', '.join(run.systems())}", "rates"),
            )
        if others:
            result.figure(
                f"Gain over {run.systems()[0]}",
                f"Ratio of medians with the interval that holds it in 95% of resampled rounds, from {LEAST_ROUNDS} rounds on; "
                "left of 1 is slower.",
                svg(_gains(gain_rows(run), run.systems()[0]), f"Gains over {run.systems()[0]}", "gains"),
            )
    for title, head, rows in tables(run):
        result.table(title[0].upper() + title[1:], "", head, rows, head.index("system") + 1)
    facts = [
        ("date", run.date),
        (
            "machine",
            f"{run.gpus} × {run.machine['gpu']}, {run.machine['cpu']}, {run.machine['cores']} cores, Linux {run.machine['kernel']}",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("measured", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.settings.items())),
        ("wrong", "; ".join(run.problems()) or "nothing"),
    ]
    result.facts("Where this comes from", facts, run.command)
    return result.render()


def _cards(run: Run, others: list[str]) -> list[tuple[str, str]]:
    if "railweave" not in others:
        return []
    rival, gains = run.systems()[0], [(row.name, row.ratios["railweave"]) for row in gain_rows(run)]
    best, least = (end(gains, key=lambda pair: pair[1].value) for end in (max, min))
    if run.exchanges:
        return [(f"{best[1].value:.2f}×", f"over {rival}, {best[0]}"), (f"{least[1].value:.2f}×", f"the least: {least[0]}")]
    what = "an iteration" if run.layers else "other work"
    return [(f"{value.value:.2f}×", f"{what} over {rival}, {name}") for name, value in (best, least)]


def _kind(run: Run) -> tuple[str, str]:
    """What the page is called, and what it says where nothing was wrong."""
    if run.exchanges:
        return "Skewed exchanges between GPUs", "Every byte was checked on every rank, and right."
    if run.layers:
        return "A mixture-of-experts layer on GPUs", "Results and gradients were equal bit for bit."
    return "Other work beside exchanges between GPUs", ""


def _rates(run: Run) -> Figure:
    matrices, systems = run.matrices(), run.systems()
    figure = Figure(figsize=(11, 1.1 + 0.22 * len(matrices) * len(systems)), layout="constrained")
    axes = figure.subplots()
    width, places = 0.8 / len(systems), -np.arange(len(matrices))
    for number, system in enumerate(systems):
        found = [run.find(matrix, system) for matrix in matrices]
        rates = np.array([each.gbps for each in found])
        ends = np.array([[each.busiest_bytes / end(each.seconds) / 1e9 for each in found] for end in (max, min)])
        at = places - (number - (len(systems) - 1) / 2) * width
        axes.barh(at, rates, width * 0.92, color=_colour(system), xerr=np.abs(ends - rates), error_kw={"lw": 0.8, "ecolor": "#1c2733"})
    for place, matrix in zip(places, matrices, strict=True):
        first = run.find(matrix, systems[0])
        if first.bound_seconds > 0:  # else nothing limits what was sent
            axes.vlines(first.busiest_bytes / first.bound_seconds / 1e9, place - 0.44, place + 0.44, color="black", lw=2)
    axes.set_yticks(places, matrices, size=9)
    axes.set_ylim(0.5 - len(matrices), 0.5)
    axes.set_xlabel("GB/s")
    axes.margins(x=0.02)
    handles: list[Patch | Line2D] = [Patch(color=_colour(system), label=system) for system in systems]
    handles.append(Line2D([], [], color="black", lw=2, label="bound"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _gains(rows: Sequence[GainRow], rival: str) -> Figure:
    systems = list(dict.fromkeys(system for row in rows for system in row.ratios))
    figure = Figure(figsize=(11, 1.1 + len(rows) * (0.12 + 0.2 * len(systems))), layout="constrained")
    axes = figure.subplots()
    apart, dots = 0.7 / len(systems), []
    for number, system in enumerate(systems):
        found = [(place, row.ratios[system]) for place, row in enumerate(rows) if system in row.ratios]
        at = [-place - (number - (len(systems) - 1) / 2) * apart for place, _ in found]
        middles = np.array([value.value for _, value in found])
        ends = np.array([value.interval or (value.value, value.value) for _, value in found])
        reach = np.maximum(np.abs(ends.T - middles), 0.0)
        dots.append(axes.errorbar(middles, at, xerr=reach, fmt="o", color=_colour(system), label=system, capsize=3, ms=5, zorder=3))
    handles: list[object] = list(dots)
    wanted = [(place, row.wanted) for place, row in enumerate(rows) if row.wanted is not None]
    for place, gain in wanted:
        axes.vlines(gain, -place - 0.4, -place + 0.4, color="black", lw=2, zorder=2)
    if wanted:
        handles.append(Line2D([], [], color="black", lw=2, label="wanted of Railweave"))
    _scale(axes, [value.value for row in rows for value in row.ratios.values()] + [gain for _, gain in wanted])
    axes.axvline(1.0, color="#8a97a5", lw=1, zorder=1)
    axes.set_yticks(-np.arange(len(rows)), [row.name for row in rows], size=9)
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.set_xlabel(f"times as fast as {rival}")
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _scale(axes: Axes, gains: Sequence[float]) -> None:
    """Of the horizontal axis."""
    if max(gains) <= _WIDE * min(gains):
        axes.margins(x=0.04)
        return
    axes.set_xscale("log")
    axes.margins(x=0.04)
    low, high = axes.get_xlim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


def _work_seconds(each: Beside) -> list[float]:
    """Beside the equal number of exchanges, where that was measured."""
    return each.equal_seconds or each.beside_seconds


def _colour(system: str) -> str:
    # one that this version does not have, in the result of another
    return _COLOURS.get(system, "#5b6b7b")
