"""Advice as JSON (schema/advice.schema.json), which `railweave run` reads back."""

from __future__ import annotations

from railweave.advise.advice import Advice
from railweave.advise.gdr import Decision
from railweave.advise.settings import Setting
from railweave.launch.placement import cpu_text

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from typing import Any

FORMAT = "railweave-advice"
VERSION = 1


def document(advice: Advice) -> dict[str, Any]:
    """Everything, as plain values."""
    host = advice.host
    return {
        "format": FORMAT,
        "version": VERSION,
        "fabric": host.fabric.name,
        "node": host.fabric.node_names[host.node],
        "workload": advice.workload.value,
        "size_B": advice.size_B,
        "network": {"nics": [nic.name for nic in host.network_nics], "why": host.network_why},
        "ranks": [_rank(advice, rank) for rank in range(len(host.gpus))],
        "bound": _bound(advice),
        "settings": [_setting(setting) for setting in advice.settings],
        "missing": list(advice.missing),
        "notes": list(advice.notes),
    }


def _rank(advice: Advice, rank: int) -> dict[str, Any]:
    gpu, binding = advice.host.gpus[rank], advice.bindings[rank]
    nics = advice.mapping.nics[rank] if advice.mapping else ()
    return {
        "rank": rank,
        "gpu": {"name": gpu.name, "model": gpu.model, "bus_id": gpu.bus_id, "uuid": gpu.uuid, "minor": gpu.minor},
        "nics": [{"name": nic.name, "device": nic.device} for nic in nics],
        "distance": None if not advice.distances or (way := advice.distances[rank]) is None else way.name,
        "memory": None if binding.memory is None else list(binding.memory),
        "cpus": None if binding.cpus is None else cpu_text(binding.cpus),
        "gpudirect": [_decision(decision) for decision in advice.decisions[rank]] if advice.decisions else [],
        "environment": advice.environment(rank),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "metric": decision.metric.value,
        "first_B": decision.first_B,
        "last_B": decision.last_B,
        "gdr": decision.gdr,
        "gdrcopy": decision.gdrcopy,
        "why": decision.why,
        "source": decision.source,
        "caveat": decision.caveat,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "library": setting.library.value,
        "values": list(setting.values),
        "default": setting.default,
        "why": setting.why,
        "source": setting.source,
        "versions": setting.versions,
    }


def _bound(advice: Advice) -> dict[str, Any] | None:
    mapping = advice.mapping
    if mapping is None:
        return None
    return {
        "rank_Bps": 1 / mapping.seconds_per_byte,
        "bottleneck": mapping.bottleneck,
        "nearest_rank_Bps": 1 / mapping.nearest_seconds_per_byte,
        "candidates": mapping.candidates,
        "steps": mapping.steps,
        "exact": mapping.exact,
    }
