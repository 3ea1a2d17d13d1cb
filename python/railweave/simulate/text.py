"""A study for the terminal: the policies beside the bound, then for each policy its busy links and who waits for what."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from railweave.plan.explain import time_text
from railweave.simulate.prediction import LastFlow, LinkUse, Prediction, Study
from railweave.size import counted

_LINKS = 8
_FLOWS = 3
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 32
LEAST_WIDTH = 80
"""Characters a line that the figures need; in narrower terminals lines go on below."""
_WIDTH_WITH_BARS = 116


def render(study: Study, width: int) -> RenderableType:
    """Everything, as rich renders it in lines of `width` characters: names are folded where they do not fit, figures never cut off."""
    parts: list[RenderableType] = [headline(study), _policies(study)]
    for prediction in study.predictions:
        parts += [Text(), _links(prediction, bars=width >= _WIDTH_WITH_BARS), *_last(prediction)]
    return Group(*parts)


def headline(study: Study) -> str:
    """What was studied and what bounds it."""
    where = f"{counted(study.nodes, 'node')}, {counted(study.gpus, 'GPU')}"
    return (
        f"{study.matrix} on {study.fabric}: {where}, {size(study.bytes)}, skew {study.skew:.2f}\n"
        f"bound {duration(study.bound_seconds)}{bound_reason(study)}{_of_the_routes(study)}"
    )


def _of_the_routes(study: Study) -> str:
    beaten = f", which {beyond(study)}" if study.beyond_routes else ""
    if study.optimum_seconds is not None:
        whose = "their optimum" if study.bound_kind == "links" else "optimum over the planner's routes"
        return f", {whose} {duration(study.optimum_seconds)}{beaten}"
    return f", over the planner's routes {duration(study.routes_seconds)}{beaten}" if beaten else ""


def beyond(study: Study) -> str:
    """Who ends before the planner's routes allow: 'single-path and nccl beat'; proven to be by other routes where the optimum is known."""
    *first, last = study.beyond_routes
    verb = f"{', '.join(first)} and {last} beat" if first else f"{last} beats"
    return verb + (" by others" if study.optimum_seconds is not None else "")


def bound_reason(study: Study) -> str:
    """Who sets the bound, in words."""
    reasons = {
        "sender": "what {} sends",
        "receiver": "what {} receives",
        "node-out": "what leaves {}",
        "node-in": "what enters {}",
        "links": "several links together, over the planner's routes",
    }
    return f" ({reasons[study.bound_kind].format(study.bound_at)})" if study.bound_kind in reasons else ""


def duration(seconds: float) -> str:
    """Three decimals and a fitting unit, as `railweave plan` has them."""
    return time_text(seconds).replace(" us", " µs")


def percent(part: float) -> str:
    """One decimal, or one figure of what is less and not nothing."""
    return f"{part:.1%}" if part >= 0.0005 or part <= 0 else f"{100 * part:.1g}%"


def gigabytes(rate: float) -> str:
    """GB/s: two decimals, or three figures of what is less than one."""
    return f"{rate:.3g}" if 0 < rate < 1 else f"{rate:.2f}"


def size(count: float) -> str:
    """Bytes with a fitting decimal unit, as rates have."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count:.0f} B"


def held_by(flow: LastFlow) -> list[tuple[str, float]]:
    """What held a flow back, most first: resource, seconds."""
    total: dict[str, float] = {}
    for resource, seconds in flow.waits:
        total[resource] = total.get(resource, 0.0) + seconds
    return sorted(total.items(), key=lambda item: -item[1])


def _policies(study: Study) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    for name in ("time", "GB/s", "of bound", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("held up by", overflow="fold")
    first = study.predictions[0].seconds
    for each in study.predictions:
        worst = max(each.links, key=lambda link: (link.last_held > 0, link.utilisation), default=None)
        table.add_row(
            each.policy,
            duration(each.seconds),
            gigabytes(each.gbps),
            percent(each.bound_fraction),
            f"{first / each.seconds:.2f}x" if each.seconds else "",
            f"{worst.name}, {percent(worst.utilisation) if worst.utilisation < 0.005 else f'{worst.utilisation:.0%}'} busy"
            if worst
            else "",
        )
    return table


def _links(prediction: Prediction, bars: bool) -> Table:
    title = f"{prediction.policy}: busiest of {len(prediction.links)} links and limits"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold cyan")
    table.add_column("link", overflow="fold")
    for name in ("capacity", "bytes", "busy", "flows waited", "held last"):
        table.add_column(name, justify="right", no_wrap=True)
    if bars:
        table.add_column("over time", no_wrap=True)
    for link in prediction.links[:_LINKS]:
        table.add_row(
            link.name,
            f"{size(link.capacity)}/s",
            size(link.bytes),
            percent(link.utilisation),
            duration(link.waited_seconds) if link.waited_seconds else "",
            str(link.last_held) if link.last_held else "",
            *([_bar(link)] if bars else []),
        )
    return table


def _bar(link: LinkUse) -> str:
    if link.over_time is None or len(link.over_time) == 0:
        return ""
    steps = len(link.over_time)
    width = min(_BAR_WIDTH, steps)
    bar = ""
    for place in range(width):
        part = link.over_time[place * steps // width : (place + 1) * steps // width]
        bar += _BARS[min(len(_BARS) - 1, round(float(part.mean()) * (len(_BARS) - 1)))]
    return bar


def _last(prediction: Prediction) -> Iterator[Text]:
    for flow in prediction.last[:_FLOWS]:
        held = ", ".join(f"{resource} for {duration(seconds)}" for resource, seconds in held_by(flow)[:3])
        start = f"; start-up {duration(flow.startup_seconds)}" if flow.startup_seconds else ""
        yield Text(
            f"  ends {duration(flow.finish_seconds)}: {flow.src} → {flow.dst}, {size(flow.bytes)} by {flow.way}; waited for {held}{start}"
        )
