"""The page of an exchange benchmark: who is how fast, next to what the hardware can do, and which rails carried it."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from railweave.bench.result import Result, Run
from railweave.bench.taken import warning
from railweave.report.page import Page
from railweave.report.plots import COLOURS, STYLE, svg
from railweave.size import counted
from railweave.units import BYTES, RATES, TIMES, decimals, fitting

_PLOTS_A_ROW = 3


def page(run: Run) -> str:
    """The HTML document."""
    lab, policies = run.lab, run.policies()
    result = Page(
        "An exchange over rails",
        f"All-to-allv between {counted(lab['nodes'] * lab['gpus'], 'rank')} on {counted(lab['nodes'], 'node')} with "
        f"{counted(lab['rails'], 'rail')} of "
        f"{lab['rate'] / 1e6:g} Mbit/s each way, wired as {run.fabric}; each rank sees {_sight(run)}. {_checked(run)} "
        f"{warning(run.machine)}".rstrip(),
    )
    result.cards(_cards(run))
    # a file's name may have dollar signs that are no formula
    with mpl.rc_context({**STYLE, "text.parse_math": False}):
        result.figure(
            "Effective rate",
            "Payload over the median time, for each traffic matrix; the black mark is the bound: the most that an endpoint, a node's NICs, "
            "or several links together over the routes that Railweave's planner considers can pass. The figure on a bar is the share of it "
            "that was reached. Thin lines span the fastest and the slowest repetition.",
            svg(_rates(run), f"Effective rates of {', '.join(policies)}", "rates"),
        )
        result.figure(
            "Which rails carried it",
            "Bytes through each NIC in one exchange, as the kernel counted them at its switch port: sent upwards, received downwards. "
            "Rails that stay empty while another is full are what a skewed exchange loses.",
            svg(_rails(run), f"Bytes through each NIC under {', '.join(policies)}", "rails"),
        )
    result.table("All figures", f"Speed-up is over {policies[0]}; {_repetitions(run)}.", *_table(run), 2)
    result.facts("Where this comes from", _facts(run), run.command)
    return result.render()


def _checked(run: Run) -> str:
    if any(each.wrong for each in run.results):
        return "Not every byte was right: see the table."
    return "Every byte was checked on every rank, and right."


def _repetitions(run: Run) -> str:
    count = len(run.results[0].seconds)
    return "times are of one repetition" if count == 1 else f"times are medians of {count} repetitions"


def _sight(run: Run) -> str:
    return "its own NIC only" if run.lab["isolation"] == "gpu" else "all NICs of its node"


def _cards(run: Run) -> list[tuple[str, str]]:
    """What to remember: the best and the worst case of railweave against what is done today."""
    policies, cards = run.policies(), []
    if "railweave" in policies and len(policies) > 1:
        base = policies[0] if policies[0] != "railweave" else policies[1]
        gains = {m: run.find(m, base).seconds_median / run.find(m, "railweave").seconds_median for m in run.matrices()}
        for matrix in sorted(gains, key=gains.__getitem__, reverse=True)[:2]:
            cards.append((f"{gains[matrix]:.2f}×", f"railweave over {base}, {matrix}"))
        if len(gains) > 2:
            least = min(gains, key=gains.__getitem__)
            cards.append((f"{gains[least]:.2f}×", f"the least gain: {least}"))
    best = "railweave" if "railweave" in policies else policies[0]
    fractions = [run.find(matrix, best).bound_fraction for matrix in run.matrices()]
    ends = [f"{end:.0%}" for end in (min(fractions), max(fractions))]
    cards.append(("–".join(dict.fromkeys(ends)), f"of the bound reached by {best}"))
    return cards


def _rates(run: Run) -> Figure:
    matrices, policies = run.matrices(), run.policies()
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(policies)
    places = np.arange(len(matrices))
    unit = fitting([max(_rate(each, min([*each.seconds, each.bound_seconds or math.inf])) for each in run.results)], RATES)
    for number, policy in enumerate(policies):
        results = [run.find(matrix, policy) for matrix in matrices]
        rates = np.array([_rate(each, each.seconds_median) for each in results]) / unit.size
        ends = np.array([[_rate(each, end(each.seconds)) for each in results] for end in (max, min)]) / unit.size
        at = places + (number - (len(policies) - 1) / 2) * width
        axes.bar(at, rates, width * 0.92, color=_colour(policy), yerr=np.abs(ends - rates), error_kw={"lw": 0.8, "ecolor": "#1c2733"})
        for x, each in zip(at, results, strict=True):
            ink = "white" if policy == "railweave" else "#1c2733"
            axes.annotate(f"{each.bound_fraction:.0%}", (x, 0), (0, 4), textcoords="offset points", ha="center", size=8.5, color=ink)
    for place, matrix in zip(places, matrices, strict=True):
        bound = run.find(matrix, policies[0])
        if bound.bound_seconds > 0:
            axes.hlines(_rate(bound, bound.bound_seconds) / unit.size, place - 0.44, place + 0.44, color="black", lw=2)
    axes.set_xticks(places, [_title(matrix) for matrix in matrices])
    axes.set_ylabel(unit.name)
    axes.margins(x=0.02)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
    handles: list[Patch | Line2D] = [Patch(color=_colour(policy), label=policy) for policy in policies]
    handles.append(Line2D([], [], color="black", lw=2, label="bound"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _rails(run: Run) -> Figure:
    matrices = run.matrices()
    rows = -(-len(matrices) // _PLOTS_A_ROW)
    columns = min(_PLOTS_A_ROW, len(matrices))
    figure = Figure(figsize=(11, 0.6 + 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(matrices):
            _rail_bars(axes, run, matrices[place])
        else:
            axes.set_axis_off()
    figure.legend(handles=[Patch(color=_colour(policy), label=policy) for policy in run.policies()], loc="outside upper left", ncols=7)
    return figure


def _rail_bars(axes: Axes, run: Run, matrix: str) -> None:
    policies, rails, nodes = run.policies(), run.lab["rails"], run.lab["nodes"]
    width = 0.84 / len(policies)
    unit = fitting(
        [max((max(nic.tx_bytes, nic.rx_bytes) for policy in policies for nic in run.find(matrix, policy).rails), default=0)], BYTES
    )
    for number, policy in enumerate(policies):
        nics = run.find(matrix, policy).rails
        # a gap of one NIC between nodes
        at = np.array([nic.node * (rails + 0.8) + nic.rail for nic in nics]) + (number - (len(policies) - 1) / 2) * width
        axes.bar(at, [nic.tx_bytes / unit.size for nic in nics], width * 0.95, color=_colour(policy))
        axes.bar(at, [-nic.rx_bytes / unit.size for nic in nics], width * 0.95, color=_colour(policy), alpha=0.55)
    axes.axhline(0, color="#8a97a5", lw=0.8)
    axes.set_title(_title(matrix).replace("\n", " "), size=10.5, loc="left")
    step = max(1, nodes * rails // 16)
    named = [(node, rail) for node in range(nodes) for rail in range(rails)][::step]
    axes.set_xticks([node * (rails + 0.8) + rail for node, rail in named], [f"{rail}" for _, rail in named], size=8)
    for node in range(nodes if nodes <= 8 else 0):
        middle = node * (rails + 0.8) + (rails - 1) / 2
        axes.annotate(
            f"node {node}",
            (middle, 0),
            (0, -18),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="top",
            size=8,
        )
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylabel(unit.name, size=8)


def _table(run: Run) -> tuple[list[str], list[list[str]]]:
    times = fitting((each.seconds_median for each in run.results), TIMES)
    rates = fitting((_rate(each, each.seconds_median) for each in run.results), RATES)
    payload = fitting((each.bytes for each in run.results), BYTES)
    head = ["matrix", "policy", f"median {times.name}", "fastest", "slowest", rates.name, "speed-up"]
    head += [f"bound {times.name}", "of bound", f"payload {payload.name}", "bytes"]
    base, rows = run.policies()[0], []
    for matrix in run.matrices():
        reference = run.find(matrix, base).seconds_median
        for number, policy in enumerate(run.policies()):
            each = run.find(matrix, policy)
            row = [
                *map(times.show, (each.seconds_median, min(each.seconds), max(each.seconds))),
                rates.show(_rate(each, each.seconds_median)),
                f"{reference / each.seconds_median:.2f}",
                times.show(each.bound_seconds),
                f"{each.bound_fraction:.{decimals(each.bound_fraction, 2)}f}",
                payload.show(each.bytes),
                "ok" if each.wrong is None else f"WRONG: {each.wrong}",
            ]
            rows.append([matrix if number == 0 else "", policy, *row])
    return head, rows


def _rate(each: Result, seconds: float) -> float:
    """Bytes per second."""
    return each.bytes / seconds


def _facts(run: Run) -> list[tuple[str, str]]:
    machine, lab = run.machine, run.lab
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    return [
        ("date", run.date),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {memory}, Linux {machine['kernel']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("lab", f"{lab['nodes']}x{lab['gpus']}, {counted(lab['rails'], 'rail')}, isolation {lab['isolation']}, MTU {lab['mtu']}"),
        ("spine", f"{lab['spine_rate'] / 1e6:g} mbit each way between a leaf and the spine"),
    ]


def _colour(policy: str) -> str:
    # one that this version does not have, in the result of another
    return COLOURS.get(policy, "#5b6b7b")


def _title(matrix: str) -> str:
    name, _, arguments = matrix.partition(":")
    return f"{name}\n{arguments}" if arguments else name
