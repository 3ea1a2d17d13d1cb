"""Shapes, rates, and which rank has which NIC and address."""

from __future__ import annotations

import itertools

import pytest

from railweave.lab import LabError, LabSpec
from railweave.lab.spec import parse_rate, parse_shape


@pytest.mark.parametrize(
    ("text", "rate"), [("400mbit", 400_000_000), ("8gbit", 8_000_000_000), ("1.5Gbit", 1_500_000_000), ("1000kbit", 1_000_000)]
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "400", "mbit", "-1mbit", "400MB", "999kbit", "33gbit", "1e9bit", f"{'9' * 400}gbit"])
def test_bad_rates(text: str) -> None:
    with pytest.raises(LabError, match="expected"):
        parse_rate(text)


def test_shapes() -> None:
    assert parse_shape("2x4") == (2, 4)
    for text in ("2", "x4", "2x", "2x4x8", "axb", f"{'9' * 5000}x4"):
        with pytest.raises(LabError, match="NODESxGPUS"):
            parse_shape(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"nodes": 0, "gpus": 4}, "nodes = 0"),
        ({"nodes": 2, "gpus": 65}, "gpus = 65"),
        ({"nodes": 2, "gpus": 4, "rails": 3}, "divide"),
        ({"nodes": 2, "gpus": 4, "rails": -1}, "rails = -1"),
        ({"nodes": 100, "gpus": 8}, "800 ranks"),
        ({"nodes": 2, "gpus": 4, "mtu": 5}, "mtu = 5: expected 68 to 65535"),
        ({"nodes": 2, "gpus": 4, "mtu": 70_000}, "mtu = 70000"),
        ({"nodes": 2, "gpus": 4, "isolation": "rack"}, "isolation 'rack'"),
    ],
)
def test_what_cannot_be_built(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(LabError, match=says):
        LabSpec(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "rails", "owners"),
    [
        (4, 4, [[0], [1], [2], [3]]),
        (4, 2, [[0], [0], [1], [1]]),
        (4, 1, [[0], [0], [0], [0]]),
        (2, 4, [[0, 1], [2, 3]]),
        (1, 4, [[0, 1, 2, 3]]),
    ],
)
def test_rails_of_ranks(gpus: int, rails: int, owners: list[list[int]]) -> None:
    spec = LabSpec(2, gpus, rails)
    assert [spec.rails_of(rank) for rank in range(gpus)] == owners
    for nic in spec.nics():
        assert [rank % gpus for rank in nic.ranks] == [rank for rank in range(gpus) if nic.rail in owners[rank]]


@pytest.mark.parametrize("isolation", ["node", "gpu"])
@pytest.mark.parametrize(("nodes", "gpus", "rails"), [(2, 4, 4), (4, 4, 2), (3, 2, 4), (8, 8, 8)])
def test_addresses_are_unique(isolation: str, nodes: int, gpus: int, rails: int) -> None:
    spec = LabSpec(nodes, gpus, rails, isolation=isolation)
    addresses = [nic.address(function) for nic in spec.nics() for function in range(len(nic.ranks) if isolation == "gpu" else 1)]
    assert len(set(addresses)) == len(addresses)
    for a, b in itertools.combinations(range(spec.world), 2):
        shared = isolation == "node" and spec.node_of(a) == spec.node_of(b) and spec.rails_of(a % gpus) == spec.rails_of(b % gpus)
        assert (spec.rank_address(a) == spec.rank_address(b)) == shared
    assert set(map(spec.rank_address, range(spec.world))) <= set(addresses)


def test_spec_survives_json() -> None:
    spec = LabSpec(2, 4, 2, 10**9, 3 * 10**9, "node", 1500)
    assert LabSpec.from_json(spec.to_json()) == spec


def test_goodput_is_what_the_headers_leave() -> None:
    assert LabSpec(2, 4, mtu=1500).goodput / 50e6 == pytest.approx(0.9564, abs=1e-4)
    assert LabSpec(2, 4, mtu=9000).goodput / 50e6 == pytest.approx(0.9927, abs=1e-4)
