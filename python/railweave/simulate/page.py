"""A study as a page: time under each policy against the bound, links over time, who waits for what."""

from __future__ import annotations

from railweave.report.page import Page  # first: its package sees to where matplotlib keeps its fonts

# isort: split
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from railweave.report.plots import COLOURS, STYLE, svg
from railweave.simulate.prediction import Prediction, Study
from railweave.simulate.text import beyond, bound_reason, duration, gigabytes, held_by, percent, size
from railweave.size import counted

_LINKS = 16
_TABLE_LINKS = 12


def page(study: Study, command: str) -> str:
    """The HTML document; `command` is what made it."""
    where = f"{counted(study.nodes, 'node')}, {counted(study.gpus, 'GPU')}"
    result = Page(
        f"Prediction: {study.matrix}",
        f"{study.fabric}, {where}; {size(study.bytes)} between GPUs, skew {study.skew:.2f}. "
        "A max-min fair fluid simulation; nothing was run.",
    )
    result.cards(_cards(study))
    with mpl.rc_context(STYLE):
        result.figure(
            "Time under each policy",
            f"The line is the bound, {duration(study.bound_seconds)}{bound_reason(study)}: {_promise(study)}",
            svg(_times(study), "Predicted time of each policy", "times"),
        )
        result.figure(
            "How busy the links are over time",
            "For each policy its busiest links, from idle (white) to full (dark). A row that stays dark to the end, above rows that turn "
            "white early, is what everybody waits for.",
            svg(_links_over_time(study), "Utilisation of the busiest links over time", "links"),
        )
    _tables(result, study)
    result.facts("Where this comes from", _facts(study), command)
    return result.render()


def _cards(study: Study) -> list[tuple[str, str]]:
    first, best = study.predictions[0], min(study.predictions, key=lambda each: each.seconds)
    cards = [(duration(study.bound_seconds), f"bound{bound_reason(study)}")]
    if best is not first:
        cards.append((f"{first.seconds / best.seconds:.2f}×", f"{best.policy} over {first.policy}"))
    cards.append((percent(best.bound_fraction), f"of the bound, {best.policy}"))
    return cards


def _promise(study: Study) -> str:
    """What nobody can beat, and by which routes."""
    if study.bound_kind == "links":
        return "the least over the routes that Railweave's planner considers; other routes might be faster."
    everywhere = "no routing on this fabric is faster."
    if not study.beyond_routes:
        return everywhere
    least = duration(study.routes_seconds)
    return f"{everywhere} Over the routes that it considers, Railweave's planner expects no less than {least}, which {beyond(study)}."


def _colour(policy: str) -> str:
    return COLOURS["nccl"] if policy.startswith("nccl") else COLOURS[policy]


def _times(study: Study) -> Figure:
    figure = Figure(figsize=(11, 0.9 + 0.5 * len(study.predictions)), layout="constrained")
    axes = figure.subplots()
    names = [each.policy for each in study.predictions]
    times = np.array([each.seconds for each in study.predictions]) * 1e3
    places = np.arange(len(names))
    axes.barh(places, times, 0.7, color=[_colour(name) for name in names])
    for place, each in zip(places, study.predictions, strict=True):
        text = f"{duration(each.seconds)}, {percent(each.bound_fraction)} of the bound"
        axes.annotate(text, (each.seconds * 1e3, place), (6, 0), textcoords="offset points", va="center", size=9.5)
    axes.axvline(study.bound_seconds * 1e3, color="black", lw=1.5)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, float(times.max()) * 1.22 if times.size and times.max() > 0 else 1)
    axes.set_xlabel("ms")
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    return figure


def _links_over_time(study: Study) -> Figure:
    shown = [[link for link in each.links[:_LINKS] if link.over_time is not None and len(link.over_time)] for each in study.predictions]
    heights = [max(1, len(links)) for links in shown]
    figure = Figure(figsize=(11, sum(0.24 * height + 0.75 for height in heights)), layout="constrained")
    grid = figure.subplots(len(shown), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
    for axes, each, links in zip(grid.flat, study.predictions, shown, strict=True):
        axes.set_title(each.policy, loc="left", size=11)
        axes.grid(visible=False)
        if not links:
            axes.set_axis_off()
            continue
        use = np.array([link.over_time for link in links])
        extent = (0.0, each.slice_seconds * use.shape[1] * 1e3, len(links) - 0.5, -0.5)
        axes.imshow(use, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        axes.set_yticks(range(len(links)), [link.name for link in links], size=7.5)
    longest = max((each.seconds for each in study.predictions), default=0.0) * 1e3
    grid[-1, 0].set_xlim(0, longest or 1)
    grid[-1, 0].set_xlabel("ms")
    return figure


def _tables(result: Page, study: Study) -> None:
    result.table(
        "All policies",
        "Time is of the whole exchange; the plan alone, without latency and the order in which flows end, would take 'plan'.",
        ["policy", "time", "plan", "GB/s", "of the bound", "flows"],
        [
            [
                each.policy,
                duration(each.seconds),
                duration(each.plan_seconds),
                gigabytes(each.gbps),
                percent(each.bound_fraction),
                f"{each.flows}",
            ]
            for each in study.predictions
        ],
        1,
    )
    result.table(
        "Who waits for what",
        "For each policy the links that flows waited for longest (time summed over the flows), and how many flows they held to the end.",
        ["policy", "link", "capacity", "bytes", "busy", "flows waited", "held last"],
        [row for each in study.predictions for row in _waited(each)],
        2,
    )
    result.table(
        "Who ends last",
        "The flows that end last, and what held them back.",
        ["policy", "flow", "way", "waited for", "ends", "start-up"],
        [row for each in study.predictions for row in _last(each)],
        4,
    )


def _waited(each: Prediction) -> list[list[str]]:
    links = sorted((link for link in each.links if link.waited_seconds > 0), key=lambda link: -link.waited_seconds)[:_TABLE_LINKS]
    return [
        [
            each.policy if place == 0 else "",
            link.name,
            f"{size(link.capacity)}/s",
            size(link.bytes),
            percent(link.utilisation),
            duration(link.waited_seconds),
            f"{link.last_held}",
        ]
        for place, link in enumerate(links)
    ]


def _last(each: Prediction) -> list[list[str]]:
    return [
        [
            each.policy if place == 0 else "",
            f"{flow.src} → {flow.dst}, {size(flow.bytes)}",
            flow.way,
            ", ".join(f"{name} {duration(seconds)}" for name, seconds in held_by(flow)[:2]),
            duration(flow.finish_seconds),
            duration(flow.startup_seconds),
        ]
        for place, flow in enumerate(each.last[:4])
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    facts = [("bound", f"{duration(study.bound_seconds)}{bound_reason(study)}")]
    if study.optimum_seconds is not None:
        facts.append(("optimum over the planner's routes", duration(study.optimum_seconds)))
    loss = max((each.batching_loss_seconds / each.seconds for each in study.predictions if each.seconds), default=0.0)
    facts.append(("model", f"max-min fair fluid simulation; a link lost at most {loss:.3%} of the time to batching"))
    return facts
