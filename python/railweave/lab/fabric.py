"""A lab as a fabric, so that planner, model and bounds work on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from railweave import fabric
from railweave.fabric import Fabric, VertexKind
from railweave.lab.errors import LabError
from railweave.lab.spec import LabSpec

# One process copies into another's memory: 7.7 GiB/s on the machine of docs/results.md (np.copyto of 64 MiB). The rails of a
# lab are so much slower that no plan depends on it.
_MEMORY_BPS = 8 * 10**9
_MEMORY_NS = 1000
_RAIL_NS = 50_000  # half of what ping says between two nodes, 0.1 ms

Json = dict[str, Any]


def of_lab(spec: LabSpec, links: Sequence[Json] = ()) -> Fabric:
    """The fabric of a lab as such: ranks of a node share memory, each sits beside its NIC. `links`: what they are now (`Lab.links`), where
    that may be something else than the spec says; one that is down carries nothing, and a fabric has no edge of that kind."""
    rates = {(link["node"], link["rail"]): link["rate"] if link["up"] else 0 for link in links}
    vertices: list[Json] = []
    edges: list[Json] = []
    for node in range(spec.nodes):
        name = f"node{node}"
        vertices += _vertices(spec, name)
        for a, b, kind in _inside(spec):
            edges += _both_ways(f"{name}/{a}", f"{name}/{b}", kind, _MEMORY_BPS, _MEMORY_NS, "lab: a copy through shared memory")
        for rail in range(spec.rails):
            if rate := rates.get((node, rail), spec.rate):
                edges += _both_ways(f"{name}/nic{rail}", f"leaf{rail}", "rail", rate // 8, _RAIL_NS, _shaped(rate))
    vertices += [{"name": f"leaf{rail}", "kind": "leaf", "index": rail, "rail": rail} for rail in range(spec.rails)]
    if spec.rails > 1:
        vertices.append({"name": "spine0", "kind": "spine", "index": 0})
        for rail in range(spec.rails):
            edges += _both_ways(f"leaf{rail}", "spine0", "uplink", spec.spine_rate // 8, _RAIL_NS, _shaped(spec.spine_rate))
    nodes = [f"node{node}" for node in range(spec.nodes)]
    head = {"format": "railweave-fabric", "version": 1, "name": f"lab {spec.shape}", "nodes": nodes}
    return fabric.loads(json.dumps({**head, "vertices": vertices, "edges": edges}), f"lab {spec.shape}")


def of_file(spec: LabSpec, source: str) -> Fabric:
    """The fabric of a file or template, made of as many nodes as the lab has, with the lab's rates on its rails and uplinks."""
    real = fabric.load(source, spec.nodes)
    _check(real, spec, source)
    document = json.loads(real.to_json())
    rates = {"rail": spec.rate, "uplink": spec.spine_rate}
    for edge in document["edges"]:
        if edge["kind"] in rates:
            edge.update(capacity_Bps=rates[edge["kind"]] // 8, source=_shaped(rates[edge["kind"]]))
    return fabric.loads(json.dumps(document), source)


def rails_of_file(source: str, nodes: int) -> int:
    """How many rails a lab made of this file or template has."""
    return len({vertex.rail for vertex in fabric.load(source, nodes).vertices if vertex.kind == VertexKind.nic and vertex.rail is not None})


def _check(real: Fabric, spec: LabSpec, source: str) -> None:
    for node in range(spec.nodes):
        inside = [vertex for vertex in real.vertices if vertex.node == node]
        gpus = sum(vertex.kind == VertexKind.gpu for vertex in inside)
        rails = sorted(vertex.rail for vertex in inside if vertex.kind == VertexKind.nic and vertex.rail is not None)
        if gpus != spec.gpus or rails != list(range(spec.rails)):
            raise LabError(
                f"{source}: node {node} has {gpus} GPUs and NICs on rails {rails}; expected {spec.gpus} GPUs as in {spec.shape}, "
                f"and one NIC on each of {spec.rails} rails"
            )


def _vertices(spec: LabSpec, node: str) -> Iterator[Json]:
    yield {"name": f"{node}/numa0", "kind": "numa", "node": node, "index": 0}
    for switch in range(min(spec.gpus, spec.rails)):
        yield {"name": f"{node}/switch{switch}", "kind": "pcie_switch", "node": node, "index": switch}
    for gpu in range(spec.gpus):
        yield {"name": f"{node}/gpu{gpu}", "kind": "gpu", "node": node, "index": gpu, "model": "process", "gdr": True}
    for rail in range(spec.rails):
        yield {"name": f"{node}/nic{rail}", "kind": "nic", "node": node, "index": rail, "rail": rail}


def _inside(spec: LabSpec) -> Iterator[tuple[str, str, str]]:
    """Links inside a node: a switch for each NIC with its ranks, or for each rank with its NICs; memory between all ranks."""
    switches = min(spec.gpus, spec.rails)
    for switch in range(switches):
        yield f"switch{switch}", "numa0", "pcie"
    for gpu in range(spec.gpus):
        yield f"gpu{gpu}", f"switch{gpu * switches // spec.gpus}", "pcie"
    for rail in range(spec.rails):
        yield f"nic{rail}", f"switch{rail * switches // spec.rails}", "pcie"
    for a, b in itertools.combinations(range(spec.gpus), 2):
        yield f"gpu{a}", f"gpu{b}", "nvlink"


def _both_ways(a: str, b: str, kind: str, capacity: int, latency: int, source: str) -> list[Json]:
    rest = {"kind": kind, "capacity_Bps": capacity, "latency_ns": latency, "source": source}
    return [{"from": a, "to": b, **rest}, {"from": b, "to": a, **rest}]


def _shaped(rate: int) -> str:
    return f"lab: tbf at {rate / 1e6:g} mbit"
