"""Settings: each only where it differs from the default, NCCL's the same for all ranks, and nothing without its facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from railweave import fabric
from railweave.advise.advice import Advice, advise
from railweave.advise.host import Host, read_host
from railweave.advise.settings import Library

Furnished = Callable[..., Host]


def values(advice: Advice) -> dict[str, tuple[str | None, ...]]:
    return {setting.name: setting.values for setting in advice.settings}


def test_ucx_gets_a_device_for_each_rank(furnished: Furnished) -> None:
    assert values(advise(furnished("xe9680-4hca")))["UCX_NET_DEVICES"] == tuple(f"mlx5_{rank // 2}:1" for rank in range(8))


def test_one_nic_needs_no_choice(furnished: Furnished) -> None:
    assert "UCX_NET_DEVICES" not in values(advise(furnished("kisti-v100-2gpu")))


@pytest.mark.parametrize("name", fabric.templates())
def test_nccl_never_differs_by_rank_and_every_line_has_its_reasons(furnished: Furnished, name: str) -> None:
    advice = advise(furnished(name, nodes=2), nccl_topology="/etc/nccl-topology.xml")
    for setting in advice.settings:
        assert not (setting.library == Library.nccl and setting.per_rank)
        assert all((setting.why, setting.source, setting.versions, setting.default))
        assert setting.values != (setting.default,)
        assert setting.name.startswith({"NCCL": "NCCL_", "UCX": "UCX_", "OpenMPI": "OMPI_MCA_"}[setting.library.value])
    assert len(values(advice)) == len(advice.settings), "no name twice"


def test_nics_of_other_networks_are_kept_from_nccl(furnished: Furnished) -> None:
    host = furnished("xe9680-4hca")
    assert "NCCL_IB_HCA" not in values(advise(host))
    storage = replace(host.nics[0], name="nic4", vertex=host.nics[0].vertex, on_network=False, device="mlx5_10:1")
    assert values(advise(replace(host, nics=(*host.nics, storage))))["NCCL_IB_HCA"] == ("=mlx5_0,mlx5_1,mlx5_2,mlx5_3",)


def test_of_a_device_with_ports_on_two_networks_nccl_is_given_one(furnished: Furnished) -> None:
    host = furnished("xe9680-4hca")
    first, second, *rest = host.nics
    other_port = replace(first, name="nic4", on_network=False, device="mlx5_0:2")
    assert values(advise(replace(host, nics=(*host.nics, other_port))))["NCCL_IB_HCA"] == ("=mlx5_0:1,mlx5_1,mlx5_2,mlx5_3",)
    storage = replace(first, name="nic4", on_network=False, device="mlx5_10:1")
    both = (first, replace(second, device="mlx5_0:2"), *rest, storage)
    assert values(advise(replace(host, nics=both)))["NCCL_IB_HCA"] == ("=mlx5_0,mlx5_2,mlx5_3",)


def test_netdevices_are_named_to_nccls_sockets(furnished: Furnished) -> None:
    host = furnished("xe9680-4hca")
    nics = tuple(replace(nic, device=f"rail{number}", on_network=number < 3) for number, nic in enumerate(host.nics))
    found = values(advise(replace(host, nics=nics)))
    assert found["NCCL_SOCKET_IFNAME"] == ("=rail0,rail1,rail2",) and "NCCL_IB_HCA" not in found


CLUSTER = """
format: railweave-cluster
version: 1
name: rails
nodes: [{{template: xe9680-4hca, count: 4}}]
network: {{wiring: {wiring}, spine: {spine}}}
"""


@pytest.mark.parametrize(
    ("wiring", "spine", "expected"),
    [
        ("rail", "none", ("0",)),
        ("rail", "{oversubscription: 2, latency: 500ns, source: plan}", ("0",)),
        ("rail", "{oversubscription: 1, latency: 500ns, source: plan}", None),
        ("tree", "{oversubscription: 2, latency: 500ns, source: plan}", None),
    ],
)
def test_cross_nic_is_off_where_rails_meet_only_slowly(wiring: str, spine: str, expected: tuple[str] | None) -> None:
    host = read_host(fabric.loads(CLUSTER.format(wiring=wiring, spine=spine)))
    assert values(advise(host)).get("NCCL_CROSS_NIC") == expected


def test_gpudirect_is_switched_by_rank(furnished: Furnished) -> None:
    """V100 with half its GPUs below a switch without NIC: those alone do without GPUDirect."""
    assert values(advise(furnished("kisti-v100-8gpu")))["UCX_IB_GPU_DIRECT_RDMA"] == (None, None, "n", "n") * 2
    assert advise(furnished("kisti-v100-8gpu")).environment(0).keys() == {"UCX_NET_DEVICES", "OMPI_MCA_pml"}


def test_what_is_not_known_is_said_and_not_set() -> None:
    advice = advise(read_host(fabric.load("xe9680-4hca")))
    assert "UCX_NET_DEVICES" not in values(advice)
    assert [text.split(":")[0] for text in advice.missing] == ["UCX_NET_DEVICES and NCCL_IB_HCA", "cores"]


def test_seed_notes() -> None:
    notes = {name: " ".join(advise(read_host(fabric.load(name))).notes) for name in fabric.templates()}
    assert "2 of 8 GPUs reach a NIC without leaving their PCIe switch (gpu0, gpu4)" in notes["lineyahoo-2nic"]
    assert "does not cover receiving" in notes["lineyahoo-2nic"]
    assert "4 of 8 GPUs" in notes["lineyahoo-4nic"]
    assert "every rank's NIC is on its GPU's PCIe switch: nic0 serves gpu0, gpu1" in notes["lineyahoo-4nic-rewired"]
    assert "nic3 serves gpu6, gpu7" in notes["xe9680-4hca"]
    assert "crosses a CPU's PCIe root" in notes["charisma-c"]


def test_drivers_that_are_missing_are_told(furnished: Furnished) -> None:
    host = replace(furnished("xe9680-4hca"), gdrcopy=False, virtual=True)
    notes = " ".join(advise(host).notes)
    assert "gdrdrv" in notes
    assert "virtual machine" in notes
