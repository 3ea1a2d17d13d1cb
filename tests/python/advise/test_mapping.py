"""Which NICs each rank uses: against plain enumeration, on the seeds' machines, under permutation."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from railweave import fabric
from railweave.advise.errors import AdviceError
from railweave.advise.host import Distance, Host, Nic, read_host
from railweave.advise.mapping import Workload, distances, map_nics


def names(host: Host, workload: Workload = Workload.bandwidth) -> list[tuple[str, ...]]:
    mapping = map_nics(host, workload)
    assert mapping is not None
    return [tuple(nic.name for nic in nics) for nics in mapping.nics]


def node(gpus: str, nics: str, switches: str = "[]", numa: int = 2, gdr: bool = True, rails: str = "", slow: str = "") -> Host:
    """A node with x16 links everywhere; `slow` makes the first NIC's link one of those lanes."""
    text = f"""
format: railweave-node
version: 1
name: crafted
description: crafted
links:
  wide: {{pcie: gen4 x16, latency: 100ns, source: test}}
  port: {{capacity: 200Gbit/s, latency: 1us, source: test}}
  upi: {{capacity: 20GB/s, latency: 150ns, source: test}}
  ram: {{capacity: 200GB/s, source: test}}
numa: {{count: {numa}, memory: ram{", socket: upi" if numa > 1 else ""}}}
{f"switches: [{{link: wide, at: {switches}}}]" if switches != "[]" else ""}
gpus: [{{model: A100, link: wide, gdr: {str(gdr).lower()}, at: {gpus}}}]
nics: [{{model: CX6, link: wide, port: port, at: {nics}{rails}}}{slow}]
"""
    return read_host(fabric.loads(text, "crafted.yaml"))


def random_host(seed: int, most_gpus: int = 5, most_nics: int = 4) -> Host:
    """Up to so many GPUs and NICs on up to 2 sockets with up to 4 switches."""
    r = random.Random(seed)
    numa = r.randint(1, 2)
    switches = [f"numa{r.randrange(numa)}" for _ in range(r.randint(0, 4))]
    places = [f"numa{i}" for i in range(numa)] + [f"switch{i}" for i in range(len(switches))]
    gpus = [r.choice(places) for _ in range(r.randint(1, most_gpus))]
    nics = [r.choice(places) for _ in range(r.randint(1, most_nics))]
    listed = [f"[{', '.join(names)}]" for names in (gpus, nics, switches)]
    return node(listed[0], listed[1], listed[2], numa, gdr=r.random() < 0.5)


def key_of(host: Host, choices: Sequence[Sequence[Nic]], workload: Workload) -> tuple[float, ...]:
    """What an assignment is judged by, most important first: the bound in seconds for each byte of a rank, the busiest NIC, the ways."""
    load: dict[int, Fraction] = {}
    users: dict[int, Fraction] = {}
    cost = 0
    for gpu, nics in zip(host.gpus, choices, strict=True):
        for nic in nics:
            path = host.paths[gpu.vertex, nic.vertex]
            cost += (int(path.distance or 0) << 44) + path.latency_ns
            users[nic.vertex] = users.get(nic.vertex, Fraction(0)) + Fraction(1, len(nics))
            for resource in path.resources:
                load[resource] = load.get(resource, Fraction(0)) + Fraction(1, len(nics))
    capacity = {nic.vertex: nic.capacity_Bps for nic in host.nics}
    bound = float(max(units / host.fabric.resources[resource].capacity_Bps for resource, units in load.items()))
    busiest = float(max(units / capacity[nic] for nic, units in users.items()))
    return (bound, busiest, cost) if workload == Workload.bandwidth else (cost, bound, busiest)


@pytest.mark.parametrize("workload", Workload)
@pytest.mark.parametrize("most", [(5, 4), (3, 7)], ids=["ranks share NICs", "ranks have several"])
@pytest.mark.parametrize("seed", range(60))
def test_search_finds_what_plain_enumeration_finds(seed: int, most: tuple[int, int], workload: Workload) -> None:
    host = random_host(seed, *most)
    mapping = map_nics(host, workload)
    assert mapping is not None and mapping.exact
    width = max(1, len(host.network_nics) // len(host.gpus))
    options = []
    for gpu in host.gpus:
        reachable = [nic for nic in host.network_nics if (gpu.vertex, nic.vertex) in host.paths]
        options.append(list(itertools.combinations(reachable, min(width, len(reachable)))))
    keys = [key_of(host, choices, workload) for choices in itertools.product(*options)]
    assert len(keys) == mapping.candidates
    assert key_of(host, mapping.nics, workload) == pytest.approx(min(keys), rel=1e-12)
    assert mapping.seconds_per_byte == pytest.approx(key_of(host, mapping.nics, Workload.bandwidth)[0], rel=1e-12)


@pytest.mark.parametrize("name", fabric.templates())
def test_templates_are_solved_exactly_in_few_steps(name: str) -> None:
    mapping = map_nics(read_host(fabric.load(name)))
    assert mapping is not None
    assert mapping.exact
    assert mapping.steps < 200
    assert mapping.seconds_per_byte <= mapping.nearest_seconds_per_byte
    used = [sum(nic in nics for nics in mapping.nics) for nic in read_host(fabric.load(name)).network_nics]
    assert max(used) - min(used) <= 1, "ranks are divided evenly over the NICs of every template"


def test_xe9680_each_hca_serves_the_two_gpus_of_its_switch() -> None:
    host = read_host(fabric.load("xe9680-4hca"))
    assert names(host) == [(f"nic{gpu // 2}",) for gpu in range(8)]
    mapping = map_nics(host)
    assert mapping is not None
    assert distances(host, mapping) == [Distance.PIX] * 8
    assert mapping.candidates == 4**8


def test_nearest_only_would_overload_what_balance_does_not() -> None:
    """Four GPUs of a socket with a switch each, two NICs: nearest-only gives three of them the first."""
    mapping = map_nics(read_host(fabric.load("lineyahoo-4nic")))
    assert mapping is not None
    assert mapping.nearest_seconds_per_byte == pytest.approx(1.5 * mapping.seconds_per_byte)


def test_latency_prefers_the_short_way_and_bandwidth_the_idle_nic() -> None:
    host = read_host(fabric.load("charisma-ab"))
    assert names(host, Workload.latency) == [("nic0",)] * 4
    assert sorted(names(host)) == [("nic0",), ("nic0",), ("nic1",), ("nic1",)]


def test_equally_near_nics_are_shared_out() -> None:
    assert sorted(names(node("[numa0, numa0, numa0, numa0]", "[numa0, numa0, numa0, numa0]"))) == [(f"nic{i}",) for i in range(4)]


def test_more_nics_than_ranks_are_all_used() -> None:
    chosen = names(node("[switch0, switch1]", "[switch0, switch0, switch1, switch1]", "[numa0, numa1]"))
    assert chosen == [("nic0", "nic1"), ("nic2", "nic3")]


def test_nics_that_are_not_on_the_network_serve_no_rank() -> None:
    host = node("[numa0, numa1]", "[numa0]", slow=", {model: CX4, link: wide, port: port, rails: none, at: [numa1]}")
    assert [nic.name for nic in host.network_nics] == ["nic0"]
    assert names(host) == [("nic0",), ("nic0",)]


def test_staging_goes_through_the_memory_of_the_gpus_own_socket() -> None:
    """Without GPUDirect RDMA a byte below one switch climbs to the CPU and back: it loads the uplink, which GPUDirect leaves alone."""
    for gdr, expected in ((True, False), (False, True)):
        host = node("[switch0]", "[switch0]", "[numa0]", 1, gdr=gdr)
        [path] = host.paths.values()
        uplink = host.fabric.find_edge(host.fabric.find_vertex("node0/switch0"), host.fabric.find_vertex("node0/numa0"))  # type: ignore[arg-type]
        assert (uplink in path.resources) == expected
        assert path.distance == Distance.PIX


def test_order_of_parts_in_the_file_changes_no_bound() -> None:
    one = map_nics(node("[switch0, switch1, numa0, numa1]", "[switch0, numa1]", "[numa0, numa1]"))
    other = map_nics(node("[numa1, numa0, switch1, switch0]", "[numa1, switch0]", "[numa0, numa1]"))
    assert one is not None
    assert other is not None
    assert one.seconds_per_byte == other.seconds_per_byte


def test_a_node_without_network_has_no_mapping() -> None:
    host = node("[numa0]", "[numa0]", rails=", rails: none")
    assert map_nics(host) is None


def test_a_gpu_that_reaches_no_nic_is_named() -> None:
    parsed = json.loads(fabric.load("kisti-v100-2gpu").to_json())
    parsed["edges"] = [edge for edge in parsed["edges"] if "gpu1" not in edge["from"] + edge["to"]]
    with pytest.raises(AdviceError, match=r"gpu1 .* reaches no NIC"):
        map_nics(read_host(fabric.loads(json.dumps(parsed))))


def test_nodes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(AdviceError, match="no node 3"):
        read_host(fabric.load("dgx-1v"), 3)
