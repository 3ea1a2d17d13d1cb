"""The page of a benchmark on GPUs: how many times as fast as the rival, and how near to what the GPUs can do."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from railweave.bench.gpus.result import Layer, Ratio, Run, ratio
from railweave.bench.gpus.table import slowest_gain, tables
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


def page(run: Run) -> str:
    """The HTML document."""
    limit = "what a kernel or copy engine reaches that asks nobody whether it may write"
    if "emulated_mesh_GBps" in run.settings:
        limit = "what links of that rate, and the GPUs themselves, allow"
    elif "nodes" in run.settings:
        limit = "what the rails allow, and for what stays inside nodes a kernel or copy engine that asks nobody whether it may write"
    others = [system for system in run.systems() if system != run.systems()[0]]
    right = "Every byte was checked on every rank, and right." if run.exchanges else "Results and gradients were equal bit for bit."
    checked = right if not run.problems() else "Something was wrong: see the end."
    shared = (
        "one process a GPU" if run.settings.get("ranks", run.gpus) <= run.gpus else f"{run.settings['ranks']} processes that share them"
    )
    result = Page(
        "Skewed exchanges between GPUs" if run.exchanges else "A mixture-of-experts layer on GPUs",
        f"{run.place}, PyTorch {run.versions['torch']}, {shared}, {', '.join(run.systems())} in turns. "
        f"{checked} {warning(run.machine)}".rstrip(),
    )
    result.cards(_cards(run, others))
    with mpl.rc_context(STYLE):
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
                "Ratio of medians with the interval that holds it in 95% of resampled rounds; left of 1 is slower.",
                svg(_gains(run, others), f"Gains over {run.systems()[0]}", "gains"),
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
    rival = run.systems()[0]
    if run.exchanges:
        gains = {m: ratio(run.find(m, rival).seconds, run.find(m, "railweave").seconds).value for m in run.matrices()}
        best = max(gains, key=gains.__getitem__)
        least, value = slowest_gain(run, "railweave")
        return [(f"{gains[best]:.2f}×", f"over {rival}, {best}"), (f"{value.value:.2f}×", f"the least: {least}")]
    pairs = _layer_gains(run, "railweave")
    best_layer = max(pairs, key=lambda pair: pair[1].value)
    least_layer = min(pairs, key=lambda pair: pair[1].value)
    return [(f"{value.value:.2f}×", f"an iteration over {rival}, {_layer_name(layer)}") for layer, value in (best_layer, least_layer)]


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
        axes.barh(at, rates, width * 0.92, color=_COLOURS[system], xerr=np.abs(ends - rates), error_kw={"lw": 0.8, "ecolor": "#1c2733"})
    for place, matrix in zip(places, matrices, strict=True):
        first = run.find(matrix, systems[0])
        axes.vlines(first.busiest_bytes / first.bound_seconds / 1e9, place - 0.44, place + 0.44, color="black", lw=2)
    axes.set_yticks(places, matrices, size=9)
    axes.set_ylim(0.5 - len(matrices), 0.5)
    axes.set_xlabel("GB/s")
    axes.margins(x=0.02)
    handles: list[Patch | Line2D] = [Patch(color=_COLOURS[system], label=system) for system in systems]
    handles.append(Line2D([], [], color="black", lw=2, label="bound"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _gains(run: Run, others: list[str]) -> Figure:
    names = run.matrices() if run.exchanges else [_layer_name(layer) for layer, _ in _layer_gains(run, others[0])]
    figure = Figure(figsize=(11, 0.9 + 0.3 * len(names) * len(others)), layout="constrained")
    axes = figure.subplots()
    for number, system in enumerate(others):
        if run.exchanges:
            values = [ratio(run.find(m, run.systems()[0]).seconds, run.find(m, system).seconds) for m in run.matrices()]
        else:
            values = [value for _, value in _layer_gains(run, system)]
        at = -np.arange(len(names)) - (number - (len(others) - 1) / 2) * 0.25
        middles = np.array([value.value for value in values])
        ends = np.array([[value.value - value.low for value in values], [value.high - value.value for value in values]])
        axes.errorbar(middles, at, xerr=np.maximum(ends, 0.0), fmt="o", color=_COLOURS[system], label=system, capsize=3, ms=5)
    axes.axvline(1.0, color="#8a97a5", lw=1)
    axes.set_yticks(-np.arange(len(names)), names, size=9)
    axes.set_ylim(0.5 - len(names), 0.5)
    axes.set_xlabel("times as fast")
    figure.legend(loc="outside upper left", ncols=len(others))
    return figure


def _layer_gains(run: Run, system: str) -> list[tuple[Layer, Ratio]]:
    found = []
    for layer in run.layers:
        if layer.system != system:
            continue
        rival = next(o for o in run.layers if (o.skew, o.compute, o.system) == (layer.skew, layer.compute, run.systems()[0]))
        found.append((layer, ratio(rival.seconds, layer.seconds)))
    return found


def _layer_name(layer: Layer) -> str:
    return f"skew {layer.skew}, compute {layer.compute:g}×"
