"""The bound of endpoints: the one that holds for every policy, whatever routes it takes."""

from __future__ import annotations

from railweave._native import Bound, Demand, Fabric, LinkState, Planner, PlannerSettings


def endpoint_bound(fabric: Fabric, demand: Demand, links: LinkState) -> Bound:
    """The longest that a GPU or a node's NICs need for what they send or receive.

    The planner's own bound may be of kind links: that is of its routes, which others can beat (docs/planner.md, "What a bound holds for").
    """
    settings = PlannerSettings()
    settings.policy = "single-path"  # static policies solve nothing, so theirs is never of kind links
    return Planner(fabric, settings).plan(demand, links).bound
