"""Plans: which bytes take which path, what bounds them, and how far they are from the exact optimum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from railweave._native import Demand, Fabric, LinkState, Plan, Planner, PlannerSettings, Route, Share, policy_names
from railweave.plan.bound import endpoint_bound
from railweave.plan.exact import ExactRouting, Optimum

__all__ = ["POLICIES", "Plan", "Planned", "Planner", "PlannerSettings", "Route", "Share", "make"]

POLICIES: list[str] = policy_names()

FORMAT = "railweave-plan"
VERSION = 1

# HiGHS meets its constraints to 1e-7; gaps below this are rounding.
SOLVER_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Planned:
    """A plan with what it was made from."""

    fabric: Fabric
    links: LinkState
    demand: Demand
    planner: Planner
    plan: Plan
    plan_time_us: float  # median of several runs, in the C++ core
    optimum: Optimum | None = field(default=None)

    @property
    def bound_seconds(self) -> float:
        """The best lower bound known for this plan: the exact optimum if that says more, else `plan.bound`."""
        return self.optimum.seconds if self.optimum and self.bound_is_optimum else self.plan.bound.seconds

    @property
    def bound_is_optimum(self) -> bool:
        """Whether `bound_seconds` is the linear program's: not where the plan takes routes beside it and so ends sooner."""
        if self.optimum is None or self.beats_optimum:
            return False
        return self.plan.bound.kind == "links" or self.optimum.seconds > self.plan.bound.seconds * (1 + SOLVER_TOLERANCE)

    @property
    def beats_optimum(self) -> bool:
        """Whether the plan takes routes that the planner does not consider, and ends sooner by them than all that it does consider."""
        return self.gap is not None and self.gap < 0

    @property
    def gap(self) -> float | None:
        """Plan time over the optimum of the linear program, minus 1; None when that was not computed.

        Negative where the plan's routes, which the linear program does not have, are faster than those that it has.
        """
        if self.optimum is None:
            return None
        gap = self.plan.z_seconds / self.optimum.seconds - 1 if self.optimum.seconds > 0 else 0.0
        return gap if abs(gap) > SOLVER_TOLERANCE else 0.0

    def vertex_name(self, vertex: int | None) -> str | None:
        """Name of a vertex, None for none."""
        return None if vertex is None else self.fabric.vertex(vertex).name

    def document(self) -> dict[str, Any]:
        """The plan as JSON (schema/plan.schema.json)."""
        plan = self.plan
        return {
            "format": FORMAT,
            "version": VERSION,
            "fabric": self.fabric.name,
            "ranks": self.fabric.gpu_count,
            "policy": plan.policy,
            "id": f"{plan.id:016x}",
            "link_epoch": plan.link_epoch,
            "total_bytes": sum(share.bytes for share in plan.shares),
            "z_seconds": plan.z_seconds,
            "bound_seconds": self.bound_seconds,
            "bound": {"kind": plan.bound.kind, "at": plan.bound.at, "seconds": plan.bound.seconds},
            "optimum_seconds": self.optimum.seconds if self.optimum else None,
            "gap": self.gap,
            "plan_time_us": self.plan_time_us,
            "bottleneck": None if plan.bottleneck is None else self.fabric.describe(plan.bottleneck),
            "paths": [self._path(share) for share in plan.shares],
        }

    def _path(self, share: Share) -> dict[str, Any]:
        route = share.route
        return {
            "src": route.src,
            "dst": route.dst,
            "kind": route.kind,
            "bytes": share.bytes,
            "relay_src": route.relay_src,
            "relay_dst": route.relay_dst,
            "nic_src": self.vertex_name(route.nic_src),
            "nic_dst": self.vertex_name(route.nic_dst),
        }


def make(
    fabric: Fabric,
    matrix: npt.NDArray[Any],
    policy: str = "railweave",
    *,
    links: LinkState | None = None,
    pxn_level: int = 2,
    exact: bool = False,
) -> Planned:
    """Plan a matrix (bytes, rows send) on a fabric.

    Raises DemandError when it does not fit, UnreachableError naming a pair that has bytes and no usable path.
    """
    settings = PlannerSettings()
    settings.policy = policy
    settings.pxn_level = pxn_level
    links = links or LinkState(fabric)
    demand = Demand.from_numpy(np.ascontiguousarray(matrix, dtype=np.uint64))
    planner = Planner(fabric, settings)
    plan = planner.plan(demand, links)
    time_us = planner.plan_microseconds(demand, links)
    optimum = None
    if exact:
        # A bound that is known makes the linear program smaller; a little less of it leaves room for rounding. That of prices can be
        # above the optimum, which would then be reported as high as that.
        known = plan.bound if plan.bound.kind != "links" else endpoint_bound(fabric, demand, links)
        optimum = ExactRouting(fabric, planner, links).optimum(demand, known.seconds * (1 - 1e-7))
    return Planned(fabric, links, demand, planner, plan, time_us, optimum)
