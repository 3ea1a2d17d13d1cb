"""Network ports of all kinds, what tools say of them, processes, and hwloc where sysfs is silent."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from crafted import Crafted, Switch, craft
from template_machine import WholeSource

from railweave.machine import nvml
from railweave.machine.discovery import discover
from railweave.machine.facts import Known, LldpNeighbour, Machine, Nic, Unknown, known
from railweave.machine.network import LLDP, parse_dcb_pfc, parse_lldp, parse_mlnx_pfc, parse_mlnx_trust, switches_at
from railweave.machine.process import is_communication_variable, kept
from railweave.machine.recording import RecordedSource
from railweave.machine.source import CommandOutput, LiveSource, Reason, Unreadable

QOS = """\
DCBX mode: OS controlled
Priority trust state: dscp
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   1   0
\tbuffer      0   0   0   1   0   0   0   0
"""


def machine_of(crafted: Crafted) -> Machine:
    return discover(WholeSource(crafted.recording))


def reason_of(fact: object) -> Reason:
    assert isinstance(fact, Unknown)
    return fact.reason


def netdev(crafted: Crafted, name: str, bus_id: str, **values: str) -> None:
    """A netdevice on a PCI function."""
    at = f"/sys/class/net/{name}"
    crafted.folder("/sys/class/net", [*crafted.recording.folders["/sys/class/net"], name])
    crafted.recording.links[at] = f"{crafted.recording.links[f'/sys/bus/pci/devices/{bus_id}']}/net/{name}"
    crafted.absent(f"{at}/master")
    for key, value in {
        "dev_port": "0",
        "mtu": "9000",
        "carrier_changes": "2",
        "operstate": "up",
        "carrier": "1",
        "type": "1",
        **values,
    }.items():
        crafted.file(f"{at}/{key}", value)
    for counter in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors"):
        crafted.file(f"{at}/statistics/{counter}", "3")


def roce(crafted: Crafted) -> None:
    """Makes the first NIC a RoCE one with its netdevice and its quality of service."""
    port = "/sys/class/infiniband/mlx5_0"
    crafted.file(f"{port}/ports/1/link_layer", "Ethernet")
    crafted.file(f"{port}/tc/1/traffic_class", "Global tclass=106")
    netdev(crafted, "eth0", crafted.nics[0])
    crafted.recording.links["/sys/class/net/eth0/master"] = "../bond0"
    crafted.file("/sys/class/net/bond0/bonding/mode", "802.3ad 4")
    crafted.recording.commands["mlnx_qos", "-i", "eth0"] = CommandOutput(QOS, "", 0)
    for end in ("roce_np", "roce_rp"):
        for priority in range(8):
            crafted.file(f"/sys/class/net/eth0/ecn/{end}/enable/{priority}", "1" if priority == 3 else "0")


def first_nic(crafted: Crafted) -> Nic:
    nics = known(machine_of(crafted).nics)
    assert nics
    return nics[0]


def test_roce_port() -> None:
    crafted = craft()
    roce(crafted)
    nic = first_nic(crafted)
    assert (known(nic.netdevs), known(nic.mtu), known(nic.bond)) == (("eth0",), 9000, "bond0")
    assert (known(nic.trust), known(nic.pfc), known(nic.ecn), known(nic.traffic_class)) == ("dscp", (3, 6), (3,), 106)
    assert known(nic.statistics) == dict.fromkeys(
        ["rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors"], 3
    )


def test_flow_control_by_iproute2_where_the_vendors_tool_is_missing() -> None:
    crafted = craft()
    roce(crafted)
    del crafted.recording.commands["mlnx_qos", "-i", "eth0"]
    crafted.recording.unreadable["mlnx_qos -i eth0"] = (Reason.tool_missing, "no program mlnx_qos")
    assert reason_of(first_nic(crafted).pfc) is Reason.tool_missing
    crafted.recording.commands["dcb", "-j", "pfc", "show", "dev", "eth0"] = CommandOutput('{"prio-pfc":{"3":true,"4":false}}', "", 0)
    nic = first_nic(crafted)
    assert known(nic.pfc) == (3,) and reason_of(nic.trust) is Reason.tool_missing


def test_infiniband_has_no_flow_control_to_ask_for() -> None:
    nic = first_nic(craft())
    assert {reason_of(fact) for fact in (nic.trust, nic.pfc, nic.ecn, nic.traffic_class)} == {Reason.unsupported}


def test_representors_are_no_ports() -> None:
    crafted = craft()
    roce(crafted)
    netdev(crafted, "eth0_3", crafted.nics[0], phys_port_name="pf0vf3")
    assert known(first_nic(crafted).netdevs) == ("eth0",)


def test_netdevice_without_rdma_is_a_nic() -> None:
    crafted = craft((Switch(0, 1, 1),))
    crafted.folder("/sys/class/infiniband", [])
    netdev(crafted, "ens1", crafted.nics[0], speed="100000")
    netdev(crafted, "ens2", crafted.nics[0], dev_port="1", speed="-1")
    nics = known(machine_of(crafted).nics)
    assert nics is not None and [nic.name for nic in nics] == ["ens1", "ens2"]
    assert known(nics[0].rate_bps) == 100_000_000_000 and reason_of(nics[1].rate_bps) is Reason.not_given
    assert known(nics[0].rdma) is None and isinstance(nics[0].rdma, Known)


def test_two_ports_of_a_card_have_their_own_netdevices() -> None:
    crafted = craft((Switch(0, 1, 1),))
    crafted.folder("/sys/class/infiniband/mlx5_0/ports", ["1", "2"])
    netdev(crafted, "ens1", crafted.nics[0])
    netdev(crafted, "ens2", crafted.nics[0], dev_port="1")
    nics = known(machine_of(crafted).nics)
    assert nics is not None and [(nic.name, nic.port, known(nic.netdevs)) for nic in nics] == [
        ("mlx5_0", 1, ("ens1",)),
        ("mlx5_0", 2, ("ens2",)),
    ]


@pytest.mark.parametrize("one", [True, False], ids=["one neighbour", "two"])
def test_lldp(one: bool) -> None:
    entry = {"eth0": {"chassis": {"leaf3": {"id": {"value": "a"}}}, "port": {"id": {"type": "ifname", "value": "swp7"}}}}
    nameless = {"eth1": {"chassis": {"id": {"type": "mac", "value": "b"}}, "port": {"id": {"value": "8"}}}}
    text = json.dumps({"lldp": {"interface": entry if one else [entry, nameless]}})
    expected = [LldpNeighbour("eth0", "leaf3", "swp7"), LldpNeighbour("eth1", "b", "8")]
    assert list(parse_lldp(text)) == expected[: 1 if one else 2]


@pytest.mark.parametrize(
    ("announced", "switches"),
    [
        ([("nic-firmware", None), ("leaf3", "Bridge"), ("node7", "Station")], ["leaf3"]),
        ([("leaf3", "Router"), ("leaf3", None)], ["leaf3"]),  # a switch that speaks CDP, too
        ([("leaf3", "Bridge"), ("leaf4", "Bridge")], ["leaf3", "leaf4"]),  # a hub between them, or a cable that was moved
        ([("leaf3", None), ("node7", "Station")], ["leaf3"]),
        ([("node7", "Station")], ["node7"]),  # back to back
    ],
)
def test_of_several_neighbours_the_switch_is_taken(announced: list[tuple[str, str | None]], switches: list[str]) -> None:
    def entry(name: str, kind: str | None) -> dict[str, object]:
        capabilities = [{"type": kind, "enabled": True}, {"type": "Wlan", "enabled": False}]
        return {"chassis": {name: {"capability": capabilities} if kind else {}}, "port": {"id": {"value": "swp7"}}}

    interfaces = [{"eth0": entry(name, kind)} for name, kind in announced] + [{"eth1": entry("leaf9", "Bridge")}]
    neighbours = parse_lldp(json.dumps({"lldp": {"interface": interfaces}}))
    assert [neighbour.switch for neighbour in switches_at(neighbours, "eth0")] == switches


def test_lldp_daemon_that_does_not_run() -> None:
    crafted = craft()
    crafted.recording.commands[LLDP] = CommandOutput("", "unable to connect to socket\n", 1)
    lldp = machine_of(crafted).lldp
    assert isinstance(lldp, Unknown) and lldp.detail == "exit status 1: unable to connect to socket"


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_mlnx_trust, ""),
        (parse_mlnx_pfc, "PFC configuration:\n"),
        (parse_dcb_pfc, "[]"),
        (parse_lldp, "{"),
        (parse_lldp, "[" * 100_000),
    ],
)
def test_tools_that_say_something_else(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        parse(text)


# ---- processes ----


def test_process() -> None:
    crafted = craft()
    at = "/proc/4711"
    crafted.file(f"{at}/environ", b"NCCL_IB_HCA=mlx5_1\0AWS_SECRET_ACCESS_KEY=hunter2\0RANK=3\0NCCL_IB_HCA=twice\0")
    crafted.file(
        f"{at}/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         65536                65536                bytes"
    )
    crafted.file(f"{at}/mountinfo", "1 2 0:1 / /dev/shm rw - tmpfs shm rw,size=65536k\n3 2 0:2 / /home rw - nfs secret-server:/x rw")
    crafted.file(f"{at}/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t1")
    crafted.folder(f"{at}/root/dev", ["null"])
    crafted.absent(f"{at}/root/dev/infiniband")
    process = discover(RecordedSource(crafted.recording), 4711).process
    assert process is not None
    assert known(process.environ) == {"NCCL_IB_HCA": "mlx5_1", "RANK": "3"}
    assert (known(process.memlock_B), known(process.shm_B)) == (65536, 65536 << 10)
    assert (known(process.affinity), known(process.memory_nodes), known(process.infiniband_devices)) == ((0, 1, 2, 3, 8), (1,), ())
    files = crafted.recording.files
    assert b"hunter2" not in kept(f"{at}/environ", files[f"{at}/environ"])
    assert kept(f"{at}/mountinfo", files[f"{at}/mountinfo"]) == b"1 2 0:1 / /dev/shm rw - tmpfs shm rw,size=65536k\n"


def test_own_process_and_one_that_is_not() -> None:
    own = discover(LiveSource(), os.getpid()).process
    assert own is not None and known(own.affinity) == tuple(sorted(os.sched_getaffinity(0)))
    gone = discover(LiveSource(), 2**22 + 1).process
    assert gone is not None and reason_of(gone.affinity) is Reason.absent


@pytest.mark.parametrize(("name", "is_one"), [("NCCL_DEBUG", True), ("LOCAL_RANK", True), ("HOME", False), ("GITHUB_TOKEN", False)])
def test_variables_that_are_read(name: str, is_one: bool) -> None:
    assert is_communication_variable(name) is is_one


# ---- hwloc and NVML ----

SEEN = """\
<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x3" nodeset="0x1">
<object type="Package" os_index="0" cpuset="0x3" nodeset="0x1">
<object type="NUMANode" os_index="0" cpuset="0x3" nodeset="0x1" local_memory="4096"/>
<object type="Core" os_index="0" cpuset="0x3"><object type="PU" os_index="0" cpuset="0x1"/>
<object type="PU" os_index="1" cpuset="0x2"/></object>
</object></object></topology>
"""


def test_hwloc_fills_in_what_sysfs_does_not_show() -> None:
    crafted = craft()
    crafted.recording.libraries["hwloc"] = SEEN
    del crafted.recording.folders["/sys/devices/system/node"]
    del crafted.recording.files["/sys/devices/system/cpu/online"]
    machine = machine_of(crafted)
    nodes = known(machine.numa)
    assert nodes is not None and known(nodes[0].cpus) == (0, 1)
    assert isinstance(machine.cpus.cores, Known) and machine.cpus.cores.evidence == "library:hwloc"
    assert len(known(machine.nics) or ()) == 8  # sysfs' own


def test_hwloc_of_this_machine_agrees_with_sysfs() -> None:
    source = LiveSource()
    try:
        text = source.library("hwloc")
    except Unreadable as error:
        pytest.skip(str(error))
    crafted = Crafted()
    crafted.recording.libraries["hwloc"] = text
    seen, here = machine_of(crafted), discover(source)
    assert known(seen.cpus.online) == known(here.cpus.online)
    nodes, nodes_here = ([(node.id, known(node.cpus)) for node in known(machine.numa) or ()] for machine in (seen, here))
    assert nodes == nodes_here


class FakeNvml:
    """Three GPUs: a whole one, one that is lost on the way, one that cannot be opened."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    NVML_NVLINK_MAX_LINKS = 2
    c_nvmlGpuFabricInfo_t = staticmethod(lambda: SimpleNamespace(state=3))
    byref = staticmethod(lambda value: value)
    NVML_FEATURE_ENABLED = 1

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        if not name.startswith("nvmlDeviceGet") and not name.startswith("nvmlSystemGet"):
            return 0

        def call(handle: int = 0, *_: object) -> object:
            if name == "nvmlDeviceGetCount":
                return 3
            if name == "nvmlDeviceGetHandleByIndex":
                if handle == 2:
                    raise self.NVMLError(15)
                return handle
            self.asked += 1
            if handle == 1 and self.asked > 20:
                raise self.NVMLError(15)
            pci = SimpleNamespace(busId=b"00000000:1B:00.0")
            answers: dict[str, object] = {
                "nvmlDeviceGetName": b"H100",
                "nvmlDeviceGetPciInfo": pci,
                "nvmlDeviceGetNvLinkRemotePciInfo": pci,
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
                "nvmlDeviceGetCudaComputeCapability": (9, 0),
                "nvmlDeviceGetMigMode": (0, 0),
                "nvmlDeviceGetCpuAffinity": [1] * 64,
            }
            return answers.get(name, 1)

        return call


def test_nvml_that_loses_a_gpu_between_two_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "error_name", lambda error: {15: "NVML_ERROR_GPU_IS_LOST"}[error.value])
    document = nvml.Reader(FakeNvml()).document()
    whole, lost, closed = document["gpus"]
    assert whole["name"] == {"value": "H100"} and len(whole["nvlinks"]) == 2
    assert lost["common_ancestor"]["0"] == {"error": "NVML_ERROR_GPU_IS_LOST"}
    assert closed == {"index": 2, "error": "NVML_ERROR_GPU_IS_LOST"}
