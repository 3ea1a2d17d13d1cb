"""An NVLink mesh, emulated on GPUs behind an NVSwitch: each ordered pair's link carries so much and no more (docs/bench.md)."""

from __future__ import annotations

import itertools
import json

from railweave import fabric
from railweave.bench.alltoallv import lower_bound
from railweave.bench.gpus.session import System, shimmed
from railweave.fabric import Fabric
from railweave.matrix import Matrix

MOST_GPUS = 8
"""The setting gpu_relays goes no further."""
_NVLINK_NS = 1000  # no bound depends on it


def mesh_systems(rate_GBps: int) -> list[System]:
    """Railweave on the links between pairs alone, and with paths through other GPUs. No message goes over the host, or in packets, which
    keep to no rate."""
    links = {
        "LD_PRELOAD": shimmed(),
        "RAILWEAVE_GPU_EMULATED_MESH": str(rate_GBps),
        "RAILWEAVE_GPU_LOW_LATENCY_BYTES": "0",
        "RAILWEAVE_GPU_HOST_SHARE": "0",
    }
    return [System("single-path", {**links, "RAILWEAVE_GPU_RELAYS": "0"}), System("railweave", {**links, "RAILWEAVE_GPU_RELAYS": "1"})]


def mesh_fabric(gpus: int, rate_GBps: int) -> Fabric:
    """Of a node whose GPUs have a link of that rate between each two, each way."""
    name = f"emulated mesh of {gpus} GPUs"
    vertices = [{"name": "node0/numa0", "kind": "numa", "node": "node0", "index": 0}]
    vertices += [
        {"name": f"node0/gpu{gpu}", "kind": "gpu", "node": "node0", "index": gpu, "model": "emulated", "gdr": True} for gpu in range(gpus)
    ]
    edges = [
        {
            "from": f"node0/gpu{a}",
            "to": f"node0/gpu{b}",
            "kind": "nvlink",
            "capacity_Bps": rate_GBps * 10**9,
            "latency_ns": _NVLINK_NS,
            "source": f"emulated: {rate_GBps} GB/s",
        }
        for a, b in itertools.permutations(range(gpus), 2)
    ]
    head = {"format": "railweave-fabric", "version": 1, "name": name, "nodes": ["node0"]}
    return fabric.loads(json.dumps({**head, "vertices": vertices, "edges": edges}), name)


def mesh_bound(gpus: int, rate_GBps: int, matrix: Matrix) -> float:
    """Seconds that no routing over such links can beat."""
    return lower_bound(mesh_fabric(gpus, rate_GBps), matrix)
