"""An emulated mesh: what its systems differ in, and what its links allow."""

from __future__ import annotations

import pytest

from railweave import exchange
from railweave.bench.gpus.mesh import mesh_bound, mesh_fabric, mesh_systems
from railweave.matrix import balanced, bidir_pair, hot_pair

MiB = 1 << 20


def test_systems_differ_in_relays_alone() -> None:
    single, own = mesh_systems(120)
    assert (single.name, own.name) == ("single-path", "railweave")
    assert {key for key in own.environment if own.environment[key] != single.environment[key]} == {"RAILWEAVE_GPU_RELAYS"}
    assert own.environment["RAILWEAVE_GPU_RELAYS"] == "1"
    assert own.environment["RAILWEAVE_GPU_EMULATED_MESH"] == "120"


def test_their_settings_exist() -> None:
    known = {row["environment"] for row in exchange.settings()}
    for system in mesh_systems(120):
        assert {key for key in system.environment if key.startswith("RAILWEAVE")} <= known


@pytest.mark.parametrize("gpus", [3, 4, 8])
def test_a_pair_has_all_links_of_its_gpu(gpus: int) -> None:
    seconds = mesh_bound(gpus, 120, hot_pair(gpus, 256 * MiB))
    assert 256 * MiB / seconds / 1e9 == pytest.approx((gpus - 1) * 120)


def test_all_pairs_at_once_have_their_own_links() -> None:
    assert 64 * MiB / mesh_bound(4, 100, balanced(4, 64 * MiB)) / 1e9 == pytest.approx(100)
    assert 64 * MiB / mesh_bound(4, 100, bidir_pair(4, 64 * MiB)) / 1e9 == pytest.approx(300)


def test_its_fabric_has_a_link_each_way() -> None:
    fabric = mesh_fabric(4, 120)
    assert (fabric.gpu_count, fabric.node_count) == (4, 1)
    assert sum(edge.capacity_Bps == 120 * 10**9 for edge in fabric.edges) == 12
