"""The fabric of a machine: its NCCL topology file, read by the project's own reader."""

from __future__ import annotations

from railweave import fabric as fabrics
from railweave.fabric import Fabric
from railweave.machine import nccl_topology
from railweave.machine.facts import Fact, Machine, Unknown, known

# Attributes of parts, beside those of the topology file that a machine is written as: why it is not known of a GPU whether GPUDirect RDMA
# is usable, and of a NUMA node that its number is not the operating system's.
GDR_UNKNOWN, NUMBERS_MADE_UP = "railweave.gdr_unknown", "railweave.numa_made_up"


def fabric_of(machine: Machine, nodes: int | None = None) -> tuple[Fabric, tuple[str, ...]]:
    """The fabric, and what was not known. Raises FabricError where there is none (no GPU, GPUs without addresses), ParseError."""
    gpus = known(machine.gpus) or ()
    by_ways = bool(gpus) and all(known(gpu.bus_id) is None for gpu in gpus)
    if by_ways:
        from railweave.machine.ways_topology import export_ways  # most machines need none of this

        exported = export_ways(machine)
    else:
        exported = nccl_topology.export(machine, name=machine.origin)
    fabric = fabrics.loads(exported.text, machine.origin, nodes, machine.origin)
    gdr = nccl_topology.gpudirect_rdma(machine)
    if by_ways or isinstance(gdr, Unknown):
        fabric = _annotated(fabric, machine, gdr, by_ways)
    return fabric, exported.notes


def _annotated(fabric: Fabric, machine: Machine, gdr: Fact[bool], by_ways: bool) -> Fabric:
    """With what a topology file has no place for: what is not known, and what was made up."""
    import json  # likewise

    from railweave.machine.ways_topology import MADE_UP_DOMAIN

    document = json.loads(fabric.to_json())
    stated = {node.id for node in known(machine.numa) or ()}
    for part in (*document["edges"], *document["vertices"]):
        if part.get("kind") == "gpu" and isinstance(gdr, Unknown):
            part["attributes"][GDR_UNKNOWN] = str(gdr)
        if by_ways and part.get("kind") == "numa" and int(part["attributes"]["cpu.numaid"]) not in stated:
            part["attributes"][NUMBERS_MADE_UP] = "nvidia-smi topo -m names no NUMA node"
        if by_ways and part.get("kind") == "nvlink":
            part["source"] += " (generation assumed)"
        if by_ways and part.get("bus_id", "").startswith(MADE_UP_DOMAIN):
            del part["bus_id"]
    return Fabric.from_json(json.dumps(document), machine.origin)
