"""Plans a matrix under several policies and simulates each plan (docs/model.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from railweave import _native
from railweave._native import Demand, Fabric, Flows, LinkState, Plan, Planner, PlannerSettings, Route, Simulation
from railweave.errors import Error
from railweave.plan import SOLVER_TOLERANCE
from railweave.plan.bound import endpoint_bound
from railweave.plan.exact import ExactRouting

# Links whose use over time is kept, and flows whose waits are told: more than anybody reads, and small beside the rest.
_LINKS_OVER_TIME = 24
# The simulation keeps up to 128 slices until the last byte has moved; so many cover the start-up of the last flows, too, in wider ones
# where that is most of the time.
_MOST_SLICES = 256
_LAST_FLOWS = 10

# Above this many flows rates are shared out less often than flows end, which loses some of a link's time. With a million flows (1,024
# GPUs, Zipf) the worst link lost 0.6% at this part, 1.4% at twice and 2.5% at three times it, for 6.9, 6.0 and 5.6 s (docs/model.md).
_EXACT_FLOWS = 20_000
_BATCHING = 1.5e-3

_PXN = {"nccl-pxn0": 0, "nccl-pxn1": 1, "nccl": 2}


class PolicyError(Error):
    """A policy that does not exist."""


@dataclass(frozen=True)
class Policy:
    """A policy as people name it: `nccl-pxn0` and `nccl-pxn1` are `nccl` with another PXN level."""

    name: str
    settings: PlannerSettings


@dataclass(frozen=True)
class LinkUse:
    """A resource of the fabric (a link, or a vertex's own capacity) during the whole exchange."""

    resource: int
    name: str
    capacity: int  # bytes/s
    bytes: float
    utilisation: float  # bytes / (capacity * time)
    waited_seconds: float  # time that flows waited for it, summed over the flows
    last_held: int  # flows whose completion it set
    over_time: npt.NDArray[np.float64] | None  # utilisation in each slice of the whole time; only for the busiest


@dataclass(frozen=True)
class LastFlow:
    """One of the flows that end last: who, which way, and what held it back until when."""

    src: int
    dst: int
    bytes: int
    way: str
    finish_seconds: float
    startup_seconds: float  # latency and pipeline fill
    waits: tuple[tuple[str, float], ...]  # resource, seconds; in order


@dataclass(frozen=True)
class Prediction:
    """What the model says about one policy."""

    policy: str
    seconds: float
    plan_seconds: float  # load / capacity of the busiest resource: the plan without latency and sharing
    gbps: float  # payload / seconds
    bound_fraction: float  # bound / seconds
    flows: int
    links: tuple[LinkUse, ...]  # those that carry bytes, busiest first
    last: tuple[LastFlow, ...]  # the flows that end last, last first
    slice_seconds: float
    batching_loss_seconds: float


@dataclass(frozen=True)
class Study:
    """A matrix on a fabric under several policies."""

    fabric: str
    nodes: int
    gpus: int
    matrix: str
    bytes: int
    skew: float
    bound_seconds: float  # no policy here is faster; of an endpoint or node no routing is, of links none over the planner's routes
    bound_kind: str  # sender, receiver, node-out, node-in, links, none
    bound_at: str  # whose
    optimum_seconds: float | None  # the linear program's, over the planner's routes, where asked for
    routes_seconds: float  # the best bound known over the planner's routes, the optimum where asked for
    beyond_routes: tuple[str, ...]  # policies whose plans take less than that
    predictions: tuple[Prediction, ...]


def parse_policy(name: str) -> Policy:
    """Settings of a policy by name. Raises PolicyError."""
    settings = PlannerSettings()
    known = [*_PXN, *(policy for policy in _native.policy_names() if policy != "nccl")]
    if name not in known:
        raise PolicyError(f"no policy '{name}'; expected one of {', '.join(known)}")
    settings.policy = "nccl" if name in _PXN else name
    settings.pxn_level = _PXN.get(name, settings.pxn_level)
    return Policy(name, settings)


def study(fabric: Fabric, matrix: npt.NDArray[np.uint64], matrix_name: str, policies: Sequence[Policy], exact: bool = False) -> Study:
    """Simulate a matrix (uint64 [gpus, gpus], bytes) under each policy; `exact` solves the routing's linear program as well.

    Raises DemandError when the matrix does not fit the fabric and UnreachableError for a pair without a path.
    """
    demand = Demand.from_numpy(np.ascontiguousarray(matrix, dtype=np.uint64))
    links = LinkState(fabric)
    best = Planner(fabric, parse_policy("railweave").settings)
    bound = best.plan(demand, links).bound
    # What holds whatever the routes, and so under every policy.
    anyway = endpoint_bound(fabric, demand, links) if bound.kind == "links" else bound
    optimum = ExactRouting(fabric, best, links).optimum(demand, anyway.seconds).seconds if exact else None
    payload = int(demand.total) - int(np.trace(matrix.astype(object)))
    least = bound.seconds if optimum is None else optimum  # the optimum is the better lower bound
    predictions = tuple(_predict(fabric, links, demand, payload, least, policy) for policy in policies)
    beyond = tuple(each.policy for each in predictions if each.plan_seconds < least * (1 - SOLVER_TOLERANCE))
    if beyond:
        # One bound for all rows: beside a policy that is faster, "99% of the bound" would praise one that only has fewer routes.
        bound = anyway
        predictions = tuple(replace(each, bound_fraction=bound.seconds / each.seconds) for each in predictions)
    return Study(
        fabric=fabric.name,
        nodes=fabric.node_count,
        gpus=fabric.gpu_count,
        matrix=matrix_name,
        bytes=payload,
        skew=float(demand.skew),
        bound_seconds=bound.seconds,
        bound_kind=bound.kind,
        bound_at=_whose(fabric, bound),
        optimum_seconds=optimum,
        routes_seconds=least,
        beyond_routes=beyond,
        predictions=predictions,
    )


def _predict(fabric: Fabric, links: LinkState, demand: Demand, payload: int, least: float, policy: Policy) -> Prediction:
    planner = Planner(fabric, policy.settings)
    plan = planner.plan(demand, links)
    flows = _native.plan_flows(plan, planner, policy.settings.chunk_bytes, fabric, links)
    simulation = _native.simulate(flows, 0.0 if len(flows) <= _EXACT_FLOWS else _BATCHING)
    seconds = simulation.seconds
    slice_seconds = simulation.slice_seconds
    while 0 < _MOST_SLICES * slice_seconds < seconds:
        slice_seconds *= 2
    return Prediction(
        policy=policy.name,
        seconds=seconds,
        plan_seconds=plan.z_seconds,
        gbps=payload / seconds / 1e9 if seconds > 0 else 0.0,
        bound_fraction=least / seconds if seconds > 0 else 1.0,
        flows=len(flows),
        links=_link_uses(fabric, flows, simulation, slice_seconds),
        last=_last_flows(fabric, plan, flows, simulation),
        slice_seconds=slice_seconds,
        batching_loss_seconds=simulation.batching_loss_seconds,
    )


def _link_uses(fabric: Fabric, flows: Flows, simulation: Simulation, slice_seconds: float) -> tuple[LinkUse, ...]:
    carried, waited, held = simulation.bytes, simulation.waited_seconds, simulation.last_held
    capacity = flows.capacities_Bps
    loaded = np.flatnonzero(carried)
    use = carried[loaded] / (capacity[loaded] * simulation.seconds)
    # Of two equally busy links the one that flows waited for comes first: it is the one they saw.
    order = np.lexsort((loaded, -waited[loaded], -np.round(use, 9)))
    return tuple(
        LinkUse(
            resource=r,
            name=fabric.describe(r),
            capacity=int(capacity[r]),
            bytes=float(carried[r]),
            utilisation=float(use[place]),
            waited_seconds=float(waited[r]),
            last_held=int(held[r]),
            over_time=_over_time(simulation, r, float(capacity[r]), slice_seconds) if number < _LINKS_OVER_TIME else None,
        )
        for number, (place, r) in enumerate(zip(order.tolist(), loaded[order].tolist(), strict=True))
    )


def _over_time(simulation: Simulation, resource: int, capacity: float, slice_seconds: float) -> npt.NDArray[np.float64]:
    """In slices of `slice_seconds`, a multiple of the simulation's, up to its end: those of the simulation end with the last byte."""
    carried = simulation.carried_bytes(resource)
    if len(carried) == 0:
        return carried
    together = round(slice_seconds / simulation.slice_seconds)
    # A little less, as a last slice of nothing but rounding would be none.
    slices = max(math.ceil(simulation.seconds / slice_seconds - 1e-9), math.ceil(len(carried) / together))
    whole = np.zeros(slices * together)
    whole[: len(carried)] = carried
    width = np.full(slices, slice_seconds)
    width[-1] = min(slice_seconds, max(simulation.seconds - slice_seconds * (slices - 1), 1e-9 * slice_seconds))
    use: npt.NDArray[np.float64] = whole.reshape(slices, together).sum(axis=1) / (capacity * width)
    return use


def _last_flows(fabric: Fabric, plan: Plan, flows: Flows, simulation: Simulation) -> tuple[LastFlow, ...]:
    finish, startup, size = simulation.finish_seconds, flows.latency_ns, flows.bytes
    last = np.lexsort((np.arange(len(finish)), -finish))[:_LAST_FLOWS]
    result = []
    for flow in last.tolist():
        route = _native.plan_share(plan, flow).route
        end = float(finish[flow]) - float(startup[flow]) * 1e-9
        waits = simulation.waits(flow)
        ends = [begin for begin, _ in waits[1:]] + [end]
        result.append(
            LastFlow(
                src=route.src,
                dst=route.dst,
                bytes=int(size[flow]),
                way=_way(fabric, route),
                finish_seconds=float(finish[flow]),
                startup_seconds=float(startup[flow]) * 1e-9,
                waits=tuple((fabric.describe(r), until - begin) for (begin, r), until in zip(waits, ends, strict=True)),
            )
        )
    return tuple(result)


def _way(fabric: Fabric, route: Route) -> str:
    """A route in words: 'rail node0/nic2 -> node1/nic2, relayed by gpu 2'."""
    text = str(route.kind)
    if route.nic_src is not None and route.nic_dst is not None:
        text += f" {fabric.vertex(route.nic_src).name} -> {fabric.vertex(route.nic_dst).name}"
    relays = [str(relay) for relay in (route.relay_src, route.relay_dst) if relay is not None]
    return text + (f", relayed by gpu {' and '.join(relays)}" if relays else "")


def _whose(fabric: Fabric, bound: Any) -> str:
    if bound.at is None:
        return ""
    return fabric.node_names[bound.at] if bound.kind.startswith("node") else f"gpu {bound.at}"
