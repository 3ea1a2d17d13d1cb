"""Why a plan is as it is: which path each byte takes and why, which bound holds, and where routing cannot help."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from railweave.plan import Planned, Route, Share
from railweave.size import size_text
from railweave.units import RATES, fitting

# A plan this near its bound has nothing left to gain.
AT_BOUND = 1.01
# Of larger plans only the demands with the most bytes are told one by one.
MAX_DEMANDS = 64


def time_text(seconds: float) -> str:
    """Seconds with a unit that keeps three digits before the point at most."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e9:.2g} ns" if 0 < seconds < 1e-9 else f"{seconds * 1e9:.1f} ns"


def _rate_text(rate_Bps: float) -> str:
    unit = fitting([rate_Bps], RATES)
    return f"{unit.show(rate_Bps) if rate_Bps < 1e9 else f'{rate_Bps / 1e9:.1f}'} {unit.name}"


def gap_remark(planned: Planned) -> str:
    """Why a plan misses the optimum, which divides every demand: small ones stay whole, and the bottleneck carries enough of them.

    Or why it beats it, which has only the planner's routes.
    """
    plan, bottleneck = planned.plan, planned.plan.bottleneck
    if planned.beats_optimum:
        return "it takes routes that the planner does not consider"
    if planned.optimum is None or not planned.gap or bottleneck is None or plan.policy in ("single-path", "nccl"):
        return ""
    too_many = (plan.z_seconds - planned.optimum.seconds) * _capacity(planned, bottleneck)
    small = [share for share in plan.shares if _stays_whole(planned, share.route) and _loads(planned, share, bottleneck)]
    if not small or sum(share.bytes for share in small) < too_many:
        return ""
    most = max(planned.planner.split_min_bytes(share.route.src, share.route.dst) for share in small) - 1
    return f"demands of at most {size_text(most)} take one path, the optimum divides them"


def bound_name(planned: Planned) -> str:
    """Which bound `bound_seconds` is, in a few words: those that hold for the planner's routes alone say so."""
    if planned.bound_is_optimum:
        return "linear program, over the planner's routes"
    return planned.plan.bound.kind + (", over the planner's routes" if planned.plan.bound.kind == "links" else "")


def _stays_whole(planned: Planned, route: Route) -> bool:
    return int(planned.demand.to_numpy()[route.src, route.dst]) < planned.planner.split_min_bytes(route.src, route.dst)


def _loads(planned: Planned, share: Share, resource: int) -> bool:
    return resource in planned.planner.expand(share.route).resources


def explain(planned: Planned) -> Iterator[str]:
    """Lines of text."""
    plan = planned.plan
    if plan.bottleneck is None:
        yield "Nothing to move: no rank sends bytes to another."
        return
    yield from _summary(planned)
    demands = [list(shares) for _, shares in groupby(plan.shares, key=lambda s: (s.route.src, s.route.dst))]
    order = sorted(demands, key=lambda shares: (-sum(s.bytes for s in shares), shares[0].route.src, shares[0].route.dst))
    shown = order[:MAX_DEMANDS]
    single = plan.policy == "railweave" and not all(_considered(planned, share) for shares in shown for share in shares)
    for shares in shown:
        yield ""
        yield from _demand(planned, shares, single)
    if len(order) > MAX_DEMANDS:
        yield ""
        yield f"… and {len(order) - MAX_DEMANDS} demands with fewer bytes (--json has them all)."


def _capacity(planned: Planned, resource: int) -> int:
    if resource < len(planned.fabric.edges):
        return planned.links.rate_Bps(resource)
    return planned.fabric.resources[resource].capacity_Bps


def _summary(planned: Planned) -> Iterator[str]:
    plan, fabric = planned.plan, planned.fabric
    bottleneck = plan.bottleneck
    assert bottleneck is not None
    load = int(plan.load[bottleneck])
    rate = _capacity(planned, bottleneck)
    limit = f"{fabric.describe(bottleneck)}, which carries {size_text(load)} at {_rate_text(rate)}"
    yield f"{plan.policy}: {time_text(plan.z_seconds)}, set by {limit}."
    yield f"Bound: {time_text(planned.bound_seconds)}: {_bound(planned)}."
    if planned.optimum is not None:
        best = time_text(planned.optimum.seconds)
        yield f"Exact optimum over the routes that the planner considers: {best}; {_beside_optimum(planned)}."
    # Not by the optimum's time, which says nothing of endpoints.
    if plan.z_seconds <= plan.bound.seconds * AT_BOUND:
        if plan.bound.kind in ("sender", "receiver"):
            yield "Routing cannot help further: an endpoint is the bound, all its links are busy all the time."
        elif plan.bound.kind in ("node-out", "node-in"):
            yield "Routing cannot help further: all NICs of that node are busy all the time."


def _beside_optimum(planned: Planned) -> str:
    others = [share for share in planned.plan.shares if not _considered(planned, share)] if planned.beats_optimum else []
    if not others:
        remark = gap_remark(planned)
        return f"this plan is {planned.gap:.2%} above it" + (remark and f" ({remark})")
    part = sum(share.bytes for share in others) / sum(share.bytes for share in planned.plan.shares)
    most = max(others, key=lambda share: share.bytes)
    example = f"GPU {most.route.src} -> GPU {most.route.dst} by {_way(planned, most)}"
    return f"this plan ends {-(planned.gap or 0):.2%} before that, as it takes others: {part:.0%} of its bytes, as {example}"


def _considered(planned: Planned, share: Share) -> bool:
    return share.route in planned.planner.candidates(share.route.src, share.route.dst, planned.links)


def _bound(planned: Planned) -> str:
    plan, fabric, demand = planned.plan, planned.fabric, planned.demand.to_numpy()
    bound = plan.bound
    if planned.bound_is_optimum:
        return "the linear program: over the routes that the planner considers, several links together can carry no more"
    if bound.at is None:
        return "over the routes that the planner considers, several links together can carry no more (by linear-programming duality)"
    if bound.kind in ("sender", "receiver"):
        line = demand[bound.at, :] if bound.kind == "sender" else demand[:, bound.at]
        size = int(line.sum()) - int(demand[bound.at, bound.at])
        verb = "sends" if bound.kind == "sender" else "receives"
        return f"GPU {bound.at} {verb} {size_text(size)}, and all its links together carry {_rate_text(size / bound.seconds)}"
    ranks = [g for g in range(fabric.gpu_count) if fabric.node_of(g) == bound.at]
    others = [g for g in range(fabric.gpu_count) if fabric.node_of(g) != bound.at]
    block = demand[ranks][:, others] if bound.kind == "node-out" else demand[others][:, ranks]
    verb = "sends" if bound.kind == "node-out" else "receives"
    to = "to" if bound.kind == "node-out" else "from"
    size = int(block.sum())
    name = fabric.node_names[bound.at]
    return f"{name} {verb} {size_text(size)} {to} other nodes, and its NICs together carry {_rate_text(size / bound.seconds)}"


def _demand(planned: Planned, shares: list[Share], single: bool) -> Iterator[str]:
    src, dst = shares[0].route.src, shares[0].route.dst
    total = sum(share.bytes for share in shares)
    yield f"GPU {src} -> GPU {dst}, {size_text(total)}:"
    for share in shares:
        yield f"  {size_text(share.bytes):>10}  {_route(planned, share)}"
    yield f"  {_why(planned, shares, total, single)}"


def _route(planned: Planned, share: Share) -> str:
    busiest, part = _busiest(planned, share)
    return f"{_way(planned, share)}; busiest: {planned.fabric.describe(busiest)}, {part:.0%} of the plan's time"


def _way(planned: Planned, share: Share) -> str:
    route = share.route
    if route.nic_src is None:
        return {"direct": "direct", "host": "staged in host memory"}.get(route.kind, f"over GPU {route.relay_src}")
    hops = [planned.vertex_name(route.nic_src), planned.vertex_name(route.nic_dst)]
    if route.relay_src is not None:
        hops.insert(0, f"GPU {route.relay_src}")
    if route.relay_dst is not None:
        hops.append(f"GPU {route.relay_dst}")
    return f"{route.kind}: {' -> '.join(str(h) for h in hops)}"


def _busiest(planned: Planned, share: Share) -> tuple[int, float]:
    load = planned.plan.load
    resources = planned.planner.expand(share.route).resources
    busiest = max(resources, key=lambda r: (int(load[r]) / _capacity(planned, r), -r))
    return busiest, int(load[busiest]) / _capacity(planned, busiest) / planned.plan.z_seconds


def _why(planned: Planned, shares: list[Share], total: int, single: bool) -> str:
    src, dst = shares[0].route.src, shares[0].route.dst
    if single:
        return "Why: the whole plan is today's single path: over rails it would end later."
    if planned.plan.policy in ("single-path", "nccl", "ucx-rails"):
        return "Why: the policy is static; it does not look at the traffic."
    candidates = planned.planner.candidates(src, dst, planned.links)
    if len(candidates) == 1:
        return "Why: the only usable path."
    first = candidates[0]
    if len(shares) == 1:
        least = planned.planner.split_min_bytes(src, dst)
        if total < least and planned.plan.bottleneck is not None and _loads(planned, shares[0], planned.plan.bottleneck):
            return f"Why: a demand of at most {size_text(least - 1)} takes one path."
        if shares[0].route == first:
            return "Why: its first choice, with the fewest relays, does not delay the plan."
        return "Why: one path suffices, and its first choice carries other bytes."
    # What would happen on the first choice alone, all else as planned.
    load = planned.plan.load.astype(float)
    for share in shares:
        for r in planned.planner.expand(share.route).resources:
            load[r] -= share.bytes
    resources = planned.planner.expand(first).resources
    for r in resources:
        load[r] += total
    worst = max(resources, key=lambda r: load[r] / _capacity(planned, r))
    seconds = load[worst] / _capacity(planned, worst)
    return (
        f"Why: all of it on the first path would take {time_text(seconds)} at {planned.fabric.describe(worst)}; the other paths had room."
    )
