"""Checks of fabric NICs: each fires on its fault, is silent without it, unknown where its input is not readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Break, Case, answers, unread
from template_machine import PCI, TemplateMachine


def far_interrupts(machine: TemplateMachine) -> None:
    bus_id = machine.nics[0].bus_id
    for path in [path for path in machine.files if path.startswith(f"{PCI}/{bus_id}/msi_irqs/")][:2]:
        machine.files[f"/proc/irq/{path.rsplit('/', 1)[1]}/smp_affinity_list"] = "8-15"


def no_flow_control(machine: TemplateMachine) -> None:
    for nic in range(4):
        machine.qos(nic, pfc="0 0 0 0 0 0 0 0")


def bonded(machine: TemplateMachine) -> None:
    machine.links["/sys/class/net/rail2/master"] = "../bond0"
    machine.files["/sys/class/net/bond0/bonding/mode"] = "802.3ad 4"


CASES = [
    Case(
        "nic.down",
        lambda machine: (machine.infiniband(3, "port/state", "1: DOWN"), machine.infiniband(3, "port/rate", "10 Gb/sec (4X SDR)"))[0],
        ("mlx5_3",),
        "down",
        "ports/1/state: down",
        "error",
        effect="3 of 4 fabric NICs carry all traffic between nodes: 150 GB/s",
    ),
    Case("nic.mtu", lambda machine: machine.netdev(0, "mtu", "1500"), ("mlx5_0",), "1024 instead of 4096", "rail0/mtu: 1500", "warning"),
    Case("nic.bond", bonded, ("mlx5_2",), "bond0", "/sys/class/net/rail2/master: bond0", "warning"),
    Case(
        "nic.errors",
        lambda machine: machine.infiniband(1, "port/counters/symbol_error", "12"),
        ("mlx5_1",),
        "symbol_error 12",
        "counters",
        "warning",
        template="hgx-h200",
    ),
    Case(
        "nic.errors",
        lambda machine: machine.netdev(2, "statistics/rx_errors", "25"),
        ("mlx5_2",),
        "rx_errors 25 (a fault from 10)",
        "rail2/statistics: rx_errors 25",
        "warning",
        name="netdevice",
    ),
    Case(
        "nic.flaps",
        lambda machine: machine.infiniband(1, "port/counters/link_downed", "9"),
        ("mlx5_1",),
        "went down 9 times; another fabric NIC 0 times",
        "counters",
        "error",
    ),
    Case(
        "nic.lossless",
        lambda machine: machine.qos(2, trust="pcp"),
        ("mlx5_2",),
        "come from pcp",
        "mlnx_qos -i rail2: pcp",
        "warning",
        name="trust",
    ),
    Case(
        "nic.lossless",
        no_flow_control,
        ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
        "PFC is on for no priority",
        "no priority",
        "warning",
        name="pfc",
    ),
    Case(
        "nic.lossless",
        lambda machine: machine.netdev(1, "ecn/roce_np/enable/3", "0"),
        ("mlx5_1",),
        "ECN is on for no priority; set otherwise than",
        "ecn",
        "warning",
        name="ecn",
    ),
    Case(
        "nic.firmware",
        lambda machine: machine.infiniband(0, "fw_ver", "28.39.2048"),
        ("mlx5_0",),
        "28.39.2048 on 1, 28.43.1014 on 3",
        "mlx5_0/fw_ver",
        "warning",
    ),
    Case(
        "nic.rail",
        lambda machine: machine.leaf({0: "leaf0", 1: "leaf0", 2: "leaf2", 3: "leaf3"}),
        ("mlx5_0", "mlx5_1"),
        "leaf0, as does",
        "- leaf0 Eth1",
        "error",
    ),
    Case("nic.irq-affinity", far_interrupts, ("mlx5_0",), "2 of its 4 interrupts", "smp_affinity_list: 8-15", "warning"),
    Case(
        "nic.imbalance",
        lambda _: None,
        ("machine",),
        "4 GPUs have mlx5_0 nearest",
        "mlx5_1 nearest: 0",
        "warning",
        "charisma-ab",
        effect="balanced",
    ),
    Case("nic.ratio", lambda _: None, ("machine",), "8 GPUs, 4 fabric NICs", "fastest rate", "info", effect="25 x 15/8 = 46.9 GB/s"),
]

UNKNOWN: list[tuple[str, Break, str]] = [
    ("nic.imbalance", TemplateMachine.virtual, "guest sees a flat tree"),
    ("nic.down", lambda machine: unread(machine, "/sys/class/infiniband/mlx5_0/ports/1/state"), "permission"),
    ("nic.mtu", lambda machine: unread(machine, "/sys/class/net/rail0/mtu"), "permission"),
    ("nic.lossless", lambda machine: machine.commands.pop(("mlnx_qos", "-i", "rail0")) and None, "mlnx_qos"),
    ("nic.firmware", lambda machine: unread(machine, "/sys/class/infiniband/mlx5_0/fw_ver"), "permission"),
    ("nic.rail", lambda machine: machine.commands.clear(), "lldpcli"),
    ("nic.rail", lambda machine: machine.leaf({1: "leaf1"}), "no LLDP neighbour"),
    ("nic.irq-affinity", lambda machine: unread(machine, f"{PCI}/{machine.nics[0].bus_id}/local_cpulist"), "permission"),
]


def test_equal_shares_are_balanced_whatever_their_sum_rounds_to(tmp_path: Path) -> None:
    below = ", ".join(["switch0"] * 20)
    (tmp_path / "box.yaml").write_text(
        "format: railweave-node\nversion: 1\nname: box\ndescription: one switch\n"
        "links: {pcie5: {pcie: gen5 x16, source: test}, ndr: {capacity: 400Gbit/s, source: test}}\n"
        "numa: {count: 1}\nswitches: [{link: pcie5, at: [numa0]}]\n"
        f"gpus: [{{model: H100, link: pcie5, gdr: true, at: [{below}]}}]\n"
        f"nics: [{{model: ConnectX-7, link: pcie5, port: ndr, at: [{', '.join(['switch0'] * 10)}]}}]\n"
    )
    finding = answers(TemplateMachine(str(tmp_path / "box.yaml")), "nic.imbalance", None)["machine"]
    assert finding.answer.value == "clear" and "GPUs that have mlx5_9 nearest: 2" in finding.evidence


@pytest.mark.parametrize("master", ["br0", "ovs-system", "vrf-rail2"])
def test_what_is_above_a_nic_need_not_be_a_bond(master: str) -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.links["/sys/class/net/rail2/master"] = f"../{master}"
    finding = answers(machine, "nic.bond", None)["mlx5_2"]
    assert finding.answer.value == "clear" and any(f"{master}, no bond" in line for line in finding.evidence)


def test_a_master_of_unknown_kind_is_unknown() -> None:
    machine = TemplateMachine("xe9680-4hca")
    bonded(machine)
    unread(machine, "/sys/class/net/bond0/bonding/mode")
    assert answers(machine, "nic.bond", None)["mlx5_2"].answer.value == "unknown"


@pytest.mark.parametrize(
    ("counter", "count", "fires"), [("symbol_error", 9, False), ("symbol_error", 10, True), ("port_xmit_discards", 99, False)]
)
def test_a_few_errors_are_shown_and_no_fault(counter: str, count: int, fires: bool) -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.infiniband(1, f"port/counters/{counter}", str(count))
    finding = answers(machine, "nic.errors", None)["mlx5_1"]
    assert (finding.answer.value == "fires") == fires
    assert f"{counter} {count}" in finding.text and any(f"{counter} {count}" in line for line in finding.evidence)


def test_a_fault_that_is_known_is_not_hidden_by_what_is_unknown() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.qos(1, trust="pcp")
    unread(machine, "/sys/class/net/rail1/ecn/roce_np/enable/0")
    finding = answers(machine, "nic.lossless", None)["mlx5_1"]
    assert finding.answer.value == "fires" and "come from pcp" in finding.text
