"""The fabric of a machine: its NCCL topology file, read by the project's own reader."""

from __future__ import annotations

import json

from railweave import fabric as fabrics
from railweave.fabric import Fabric
from railweave.machine import nccl_topology
from railweave.machine.facts import Machine, known
from railweave.machine.ways_topology import MADE_UP_DOMAIN, export_ways

# What the reader calls its source, in the sources of a fabric's figures.
_READ_FROM = "topology file: "


def fabric_of(machine: Machine, nodes: int | None = None) -> tuple[Fabric, tuple[str, ...]]:
    """The fabric, and what was not known. Raises FabricError where there is none to make: no GPU, GPUs without addresses."""
    gpus = known(machine.gpus) or ()
    by_ways = bool(gpus) and all(known(gpu.bus_id) is None for gpu in gpus)
    exported = export_ways(machine) if by_ways else nccl_topology.export(machine, name=machine.origin)
    fabric = fabrics.loads(exported.text, machine.origin, nodes)
    document = json.loads(fabric.to_json())
    for part in (*document["edges"], *document["vertices"]):
        source = part.get("source", "")
        if source.startswith(_READ_FROM):
            part["source"] = f"{machine.origin}: {source.removeprefix(_READ_FROM)}"
        if by_ways and part.get("kind") == "nvlink":
            part["source"] += " (generation assumed)"
        if by_ways and part.get("bus_id", "").startswith(MADE_UP_DOMAIN):
            del part["bus_id"]
    return Fabric.from_json(json.dumps(document), machine.origin), exported.notes
