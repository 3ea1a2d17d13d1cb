"""A lab as a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave import _native, matrix
from railweave.fabric import EdgeKind, Fabric, LinkState, VertexKind
from railweave.lab import LabError, LabSpec
from railweave.lab.fabric import of_file, of_lab, rails_of_file


def _bound(fabric: Fabric, text: str, ranks: int) -> float:
    demand = _native.Demand.from_numpy(matrix.generate(text, ranks))
    return float(_native.Planner(fabric).plan(demand, LinkState(fabric)).bound.seconds)


@pytest.mark.parametrize(("nodes", "gpus", "rails"), [(2, 4, 4), (2, 4, 2), (2, 2, 4), (1, 2, 2), (4, 4, 1)])
def test_capacities_are_the_shaped_rates(nodes: int, gpus: int, rails: int) -> None:
    spec = LabSpec(nodes, gpus, rails, rate=400_000_000, spine_rate=600_000_000)
    fabric = of_lab(spec)
    kinds = [vertex.kind for vertex in fabric.vertices]
    assert kinds.count(VertexKind.gpu) == spec.world
    assert kinds.count(VertexKind.nic) == nodes * rails
    assert {edge.capacity_Bps for edge in fabric.edges if edge.kind == EdgeKind.rail} == {50_000_000}
    assert {edge.capacity_Bps for edge in fabric.edges if edge.kind == EdgeKind.uplink} <= {75_000_000}


@pytest.mark.parametrize(("gpus", "rails"), [(4, 4), (4, 2), (2, 4), (4, 1), (1, 4)])
def test_nics_are_beside_the_ranks_that_have_them(gpus: int, rails: int) -> None:
    spec = LabSpec(2, gpus, rails)
    fabric = of_lab(spec)
    names = [vertex.name for vertex in fabric.vertices]
    beside = {(names[edge.src], names[edge.dst]) for edge in fabric.edges if names[edge.dst].startswith("node0/switch")}
    for gpu in range(gpus):
        (switch,) = (there for here, there in beside if here == f"node0/gpu{gpu}")
        assert {here for here, there in beside if there == switch and "/nic" in here} == {f"node0/nic{rail}" for rail in spec.rails_of(gpu)}


def test_links_are_what_they_are_now() -> None:
    spec = LabSpec(2, 2, rate=400_000_000)
    links = [{"node": nic.node, "rail": nic.rail, "up": True, "rate": spec.rate} for nic in spec.nics()]
    assert of_lab(spec, links).to_json() == of_lab(spec).to_json()
    links[1]["rate"], links[2]["up"] = 100_000_000, False
    fabric = of_lab(spec, links)
    names = [vertex.name for vertex in fabric.vertices]
    rails = {(names[edge.src], names[edge.dst]): (edge.capacity_Bps, edge.source) for edge in fabric.edges if edge.kind == EdgeKind.rail}
    slow, full = (12_500_000, "lab: tbf at 100 mbit"), (50_000_000, "lab: tbf at 400 mbit")
    expected = {"node0/nic0": ("leaf0", full), "node0/nic1": ("leaf1", slow), "node1/nic1": ("leaf1", full)}
    assert rails == {ends: what for nic, (leaf, what) in expected.items() for ends in ((nic, leaf), (leaf, nic))}
    assert "node1/nic0" in names, "which stays the node's NIC 0, of those that are counted"
    assert _bound(fabric, "hot-pair:5MB", 4) == pytest.approx(0.1), "what is left of node 1"


def test_hot_pair_is_bound_by_all_rails_of_the_node() -> None:
    assert _bound(of_lab(LabSpec(2, 4, rate=400_000_000)), "hot-pair:32MiB", 8) == pytest.approx((32 << 20) / 200e6)


def test_fabric_of_a_template_gets_the_labs_rates() -> None:
    spec = LabSpec(2, 4, rate=400_000_000)
    fabric = of_file(spec, "h100-4gpu-ndr")
    assert {edge.capacity_Bps for edge in fabric.edges if edge.kind == EdgeKind.rail} == {50_000_000}
    assert max(edge.capacity_Bps for edge in fabric.edges) > 10**11  # inside the node it stays the real one
    assert _bound(fabric, "incast:8MiB", 8) == pytest.approx((32 << 20) / 200e6)
    assert rails_of_file("h100-4gpu-ndr", 2) == 4


def test_fabric_that_does_not_fit_the_lab() -> None:
    with pytest.raises(LabError, match="expected 8 GPUs"):
        of_file(LabSpec(2, 8), "h100-4gpu-ndr")
    with pytest.raises(LabError, match="expected 4 GPUs as in 2x4, and one NIC on each of 2 rails"):
        of_file(LabSpec(2, 4, 2), "h100-4gpu-ndr")


def test_recorded_topology_file(request: pytest.FixtureRequest) -> None:
    path = Path(request.config.rootpath) / "examples" / "nccl-topo-4xH200-rail-aligned.xml"
    assert rails_of_file(str(path), 2) == 4
    assert _bound(of_file(LabSpec(2, 4), str(path)), "hot-pair:32MiB", 8) == pytest.approx((32 << 20) / 200e6)
