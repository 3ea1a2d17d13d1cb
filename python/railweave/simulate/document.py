"""A study as JSON (schema/simulation.schema.json)."""

from __future__ import annotations

from typing import Any

from railweave.simulate.prediction import LastFlow, LinkUse, Prediction, Study

VERSION = "railweave.simulation/1"


def document(study: Study) -> dict[str, Any]:
    """The study as a JSON object; times in seconds, rates in bytes/s."""
    return {
        "version": VERSION,
        "fabric": {"name": study.fabric, "nodes": study.nodes, "gpus": study.gpus},
        "matrix": {"name": study.matrix, "bytes": study.bytes, "skew": study.skew},
        "bound": {
            "seconds": study.bound_seconds,
            "kind": study.bound_kind,
            "at": study.bound_at,
            "optimum_seconds": study.optimum_seconds,
        },
        "results": [_result(each) for each in study.predictions],
    }


def _result(each: Prediction) -> dict[str, Any]:
    return {
        "policy": each.policy,
        "seconds": each.seconds,
        "plan_seconds": each.plan_seconds,
        "gbps": each.gbps,
        "bound_fraction": each.bound_fraction,
        "flows": each.flows,
        "batching_loss_seconds": each.batching_loss_seconds,
        "slice_seconds": each.slice_seconds,
        "links": [_link(link) for link in each.links],
        "last_flows": [_flow(flow) for flow in each.last],
    }


def _link(link: LinkUse) -> dict[str, Any]:
    result: dict[str, Any] = {
        "resource": link.resource,
        "name": link.name,
        "capacity_Bps": link.capacity,
        "bytes": link.bytes,
        "utilisation": link.utilisation,
        "waited_seconds": link.waited_seconds,
        "last_held": link.last_held,
    }
    if link.over_time is not None:
        result["over_time"] = [round(float(use), 6) for use in link.over_time]
    return result


def _flow(flow: LastFlow) -> dict[str, Any]:
    return {
        "src": flow.src,
        "dst": flow.dst,
        "bytes": flow.bytes,
        "way": flow.way,
        "finish_seconds": flow.finish_seconds,
        "startup_seconds": flow.startup_seconds,
        "waits": [{"resource": resource, "seconds": seconds} for resource, seconds in flow.waits],
    }
