"""Each check: fires on a machine with its fault, on the right subject with the right evidence; silent on the machine without it; unknown
where its input is not readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from template_machine import JOB, PCI, TemplateMachine

from railweave import fabric
from railweave.doctor.catalogue import CHECKS
from railweave.doctor.checks.gpus import expected_nvlinks
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding, Severity
from railweave.doctor.probe import GpuProbe, Probes
from railweave.machine.facts import Known, PciLink, Unknown
from railweave.machine.source import Reason

Break = Callable[[TemplateMachine], None]


@dataclass(frozen=True)
class Case:
    """A fault, and what must be said of it."""

    check: str
    fault: Break
    subjects: tuple[str, ...]
    text: str  # in the finding's text
    evidence: str  # in one line of its evidence
    severity: str
    template: str = "xe9680-4hca"
    effect: str = ""
    job: dict[str, str] | None = field(default=None)  # environment of the job on the healthy machine, too
    name: str = ""

    def __str__(self) -> str:
        return f"{self.check}{f'-{self.name}' if self.name else ''}"


def port_above(machine: TemplateMachine, nic: int) -> str:
    return machine.parent(machine.nics[nic])


def sub_numa(machine: TemplateMachine) -> None:
    for cpu in range(16):
        machine.files[f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0"


def all_policies(name: str, setting: str) -> Break:
    def fault(machine: TemplateMachine) -> None:
        for cpu in range(16):
            machine.files[f"/sys/devices/system/cpu/cpufreq/policy{cpu}/{name}"] = setting

    return fault


def fewer_nvlinks(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][5]["nvlinks"][3] = {"state": {"value": 0}}


def unregistered(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][2]["fabric_state"] = {"value": 2}


def service_down(machine: TemplateMachine) -> None:
    machine.commands["systemctl", "is-active", "nvidia-fabricmanager"] = "failed\n"


def no_gdr(machine: TemplateMachine) -> None:
    machine.files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n"


def old_kernel(machine: TemplateMachine) -> None:
    machine.files["/proc/sys/kernel/osrelease"] = "5.4.0-150-generic"


def no_gdrcopy(machine: TemplateMachine) -> None:
    del machine.files["/sys/module/gdrdrv/version"]
    machine.files["/proc/modules"] = "nvidia 1 0 - Live 0x0\n"


def far_interrupts(machine: TemplateMachine) -> None:
    bus_id = machine.nics[0].bus_id
    for path in [path for path in machine.files if path.startswith(f"{PCI}/{bus_id}/msi_irqs/")][:2]:
        machine.files[f"/proc/irq/{path.rsplit('/', 1)[1]}/smp_affinity_list"] = "8-15"


def translated(machine: TemplateMachine) -> None:
    machine.links[f"{PCI}/{machine.gpus[0].bus_id}/iommu_group"] = "../../../kernel/iommu_groups/14"
    machine.files["/sys/kernel/iommu_groups/14/type"] = "DMA-FQ"


def no_flow_control(machine: TemplateMachine) -> None:
    for nic in range(4):
        machine.qos(nic, pfc="0 0 0 0 0 0 0 0")


def bonded(machine: TemplateMachine) -> None:
    machine.links["/sys/class/net/rail2/master"] = "../bond0"


def environ(**variables: str) -> Break:
    return lambda machine: machine.environ(**variables)


def process(name: str, content: str) -> Break:
    return lambda machine: machine.process(name, content)


def no_verbs(machine: TemplateMachine) -> None:
    machine.environ()
    for path in [path for path in machine.files if path.startswith(f"/proc/{JOB}/root/dev/infiniband/")]:
        del machine.files[path]


def many_devices(machine: TemplateMachine) -> None:
    """Enough of them that mlx5_1 is a prefix of another one's name."""
    machine.links["/sys/class/infiniband/mlx5_10"] = machine.links["/sys/class/infiniband/mlx5_3"].replace("mlx5_3", "mlx5_10")
    del machine.links["/sys/class/infiniband/mlx5_3"]
    for path in [path for path in machine.files if path.startswith("/sys/class/infiniband/mlx5_3/")]:
        machine.files[path.replace("mlx5_3", "mlx5_10")] = machine.files.pop(path)


def prefix(machine: TemplateMachine) -> None:
    many_devices(machine)
    machine.environ(NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_10")


STATUS = "Name:\tpython\nCapEff:\t0000000000000000\nCpus_allowed_list:\t{}\nMems_allowed_list:\t0\n"
LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {0}            {0}            bytes\n"
SHM = "30 1 0:26 / /dev/shm rw,nosuid - tmpfs shm rw,size={}k\n"

CASES = [
    Case(
        "pcie.acs-redirect",
        lambda machine: machine.acs(port_above(machine, 2), "SrcValid", "ReqRedir"),
        ("GPU 4 - mlx5_2", "GPU 5 - mlx5_2"),
        "ReqRedir",
        "ACSCtl (config 0x14e): ReqRedir+ CmpltRedir- UpstreamFwd-",
        "error",
        effect="through host memory",
    ),
    Case(
        "pcie.acs-redirect",
        lambda machine: machine.acs(machine.parent(machine.gpus[1]), "CmpltRedir"),
        ("GPU 0 - GPU 1", "GPU 1 - mlx5_0"),
        "CmpltRedir",
        "CmpltRedir+",
        "error",
        template="dgx-1v-without-nvlink",
        name="gpu-gpu",
    ),
    Case(
        "pcie.ats",
        lambda machine: (machine.virtual(), machine.ats(1, False))[0],
        ("mlx5_1",),
        "ATS is off",
        "ATSCtl (config 0x14e): Enable-",
        "error",
    ),
    Case("pcie.iommu", translated, ("GPU 0",), "DMA-FQ", "/sys/kernel/iommu_groups/14/type", "warning"),
    Case(
        "pcie.link",
        lambda machine: machine.device(machine.gpus[3].bus_id, current_link_width="8"),
        ("GPU 3",),
        "32 GT/s x8; both ends can do 32 GT/s x16",
        "current_link_width: 32 GT/s x8",
        "warning",
        effect="31.5 GB/s each way instead of 63.0 GB/s",
        name="narrow-gpu",
    ),
    Case(
        "pcie.link",
        lambda machine: machine.device(machine.nics[1].bus_id, current_link_speed="16.0 GT/s PCIe"),
        ("mlx5_1",),
        "16 GT/s x16",
        "current_link_speed",
        "warning",
        effect="instead of 63.0 GB/s",
        name="slow-nic",
    ),
    Case(
        "pcie.aer",
        lambda machine: machine.device(machine.nics[0].bus_id, aer_dev_nonfatal="TLP 3\nTOTAL_ERR_NONFATAL 3"),
        ("mlx5_0",),
        "3 nonfatal errors",
        "aer_dev_nonfatal",
        "error",
    ),
    Case(
        "pcie.aer",
        lambda machine: machine.device(machine.gpus[0].bus_id, aer_dev_correctable="RxErr 7\nTOTAL_ERR_COR 7"),
        ("GPU 0",),
        "7 corrected errors",
        "correctable 7",
        "info",
        name="corrected",
    ),
    Case("vm.topology-file", TemplateMachine.virtual, ("machine",), "guest sees a flat tree", "virtualTopology.xml", "warning"),
    Case(
        "gdr.unavailable",
        no_gdr,
        ("machine",),
        "dma-buf needs the open kernel modules",
        "/proc/driver/nvidia/version",
        "error",
        effect="GB/s",
    ),
    Case("gdr.unavailable", old_kernel, ("machine",), "Linux 5.12", "/proc/sys/kernel/osrelease: 5.4.0", "error", name="kernel"),
    Case("gdr.gdrcopy", no_gdrcopy, ("machine",), "gdrdrv", "/proc/modules", "info"),
    Case("gpu.nvlinks", fewer_nvlinks, ("GPU 5",), "17 of 18 NVLinks", "17 active", "error", effect="25 GB/s less"),
    Case("gpu.fabric-manager", unregistered, ("machine",), "GPU 2 did not register", "fabric_state", "error"),
    Case("gpu.fabric-manager", service_down, ("machine",), "failed", "nvidia-fabricmanager: failed", "error", "charisma-e", name="service"),
    Case(
        "gpu.throttle",
        lambda machine: machine.nvml["gpus"][1].update(throttle_reasons={"value": 0x40}),
        ("GPU 1",),
        "hw_thermal",
        "hw_thermal",
        "error",
    ),
    Case(
        "gpu.throttle",
        lambda machine: machine.nvml["gpus"][1].update(throttle_reasons={"value": 0x4}),
        ("GPU 1",),
        "power limit",
        "sw_power_cap",
        "info",
        name="power",
    ),
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
    Case(
        "gdr.distance",
        lambda _: None,
        tuple(f"GPU {gpu}" for gpu in (1, 2, 3, 5, 6, 7)),
        "NODE away (mlx5_",
        "below pci0000:",
        "warning",
        "lineyahoo-2nic",
        effect="what it sends, PXN can take over NVLink and one of GPU 0, GPU 4, what it receives, it cannot",
    ),
    Case("cpu.sub-numa", sub_numa, ("machine",), "2 NUMA nodes a socket", "socket 0: NUMA nodes 0, 1", "info"),
    Case(
        "cpu.smt",
        lambda machine: machine.files.update({"/sys/devices/system/cpu/smt/active": "1"}),
        ("machine",),
        "several hardware threads",
        "smt/active",
        "info",
    ),
    Case(
        "cpu.clock", all_policies("scaling_governor", "schedutil"), ("machine",), "schedutil on CPUs 0-15", "schedutil on 0-15", "warning"
    ),
    Case(
        "cpu.clock",
        all_policies("energy_performance_preference", "balance_performance"),
        ("machine",),
        "preference balance_performance",
        "balance_performance on 0-15",
        "warning",
        name="epp",
    ),
    Case(
        "cpu.numa-balancing",
        lambda machine: machine.files.update({"/proc/sys/kernel/numa_balancing": "1"}),
        ("machine",),
        "on",
        "/proc/sys/kernel/numa_balancing: 1",
        "warning",
    ),
    Case(
        "cpu.hugepages",
        lambda machine: machine.files.update({"/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}),
        ("machine",),
        "transparent huge pages are off",
        "transparent_hugepage/enabled: never",
        "info",
    ),
    Case(
        "job.cpu-affinity",
        process("status", STATUS.format("8-15")),
        (f"process {JOB}",),
        "none of them near its GPU 0",
        "8-15",
        "warning",
        job={},
    ),
    Case(
        "job.cpu-affinity",
        process("status", STATUS.format("0-15")),
        (f"process {JOB}",),
        "may run on cores of other NUMA nodes",
        "0-15",
        "warning",
        job={},
        name="missing",
    ),
    Case("job.memlock", process("limits", LIMITS.format("65536")), (f"process {JOB}",), "0.0625 MiB", "limits: 65536", "error", job={}),
    Case(
        "job.memlock",
        process("limits", LIMITS.format(str(1 << 34))),
        (f"process {JOB}",),
        "limited to",
        "limits",
        "warning",
        job={},
        name="large",
    ),
    Case("job.rdma-devices", no_verbs, (f"process {JOB}",), "no /dev/infiniband/uverbs*", "/dev/infiniband", "error", job={}),
    Case("job.shm", process("mountinfo", SHM.format("65536")), (f"process {JOB}",), "64 MiB", "mountinfo", "error", job={}),
    Case(
        "nccl.prefix",
        prefix,
        ("NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_10",),
        "mlx5_1 also takes mlx5_10",
        f"/proc/{JOB}/environ: NCCL_IB_HCA=",
        "warning",
        job={"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"},
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_HCA="=mlx5_1"),
        ("NCCL_IB_HCA==mlx5_1",),
        "hides NICs from PXN",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "mlx5"},
        name="hca-per-rank",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_HCA="mlx4_0"),
        ("NCCL_IB_HCA=mlx4_0",),
        "leaves no RDMA device",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "^mlx4"},
        name="hca-none",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_GID_INDEX="3"),
        ("NCCL_IB_GID_INDEX=3",),
        "since 2.21",
        "environ",
        "warning",
        job={"NCCL_IB_GID_INDEX": "-1"},
        name="gid",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_TC="160"),
        ("NCCL_IB_TC=160",),
        "DSCP 40 is priority 5",
        "environ",
        "warning",
        job={"NCCL_IB_TC": "106"},
        name="traffic-class",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_NET_GDR_LEVEL="2"),
        ("NCCL_NET_GDR_LEVEL=2",),
        "write PXB",
        "environ",
        "warning",
        job={"NCCL_NET_GDR_LEVEL": "PHB"},
        name="number",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_NET="Socket"),
        ("NCCL_NET=Socket",),
        "sockets are chosen although",
        "environ",
        "warning",
        job={"NCCL_NET": "IB"},
        name="socket",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_DISABLE="1"),
        ("NCCL_IB_DISABLE=1",),
        "RDMA is switched off",
        "environ",
        "warning",
        job={"NCCL_IB_DISABLE": "0"},
        name="ib-disable",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_P2P_DISABLE="1"),
        ("NCCL_P2P_DISABLE=1",),
        "instead of NVLink",
        "environ",
        "warning",
        job={"NCCL_P2P_DISABLE": "0"},
        name="p2p",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_PXN_DISABLE="1"),
        ("NCCL_PXN_DISABLE=1",),
        "send through the CPU",
        "environ",
        "warning",
        template="lineyahoo-2nic",
        job={"NCCL_PXN_DISABLE": "0"},
        name="pxn",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_TOPO_FILE="/opt/gone.xml"),
        ("NCCL_TOPO_FILE=/opt/gone.xml",),
        "there is no file",
        "environ",
        "warning",
        name="topology-file",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_IB_TC="106", NCCL_NET="Socket"),
        ("NCCL_IB_TC=106",),
        "NCCL_NET=Socket takes sockets",
        "environ",
        "warning",
        job={"NCCL_IB_TC": "106"},
        name="sockets",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_IB_SPLIT_DATA_ON_QPS="1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS=1",),
        "one queue pair",
        "environ",
        "warning",
        job={"NCCL_IB_SPLIT_DATA_ON_QPS": "1", "NCCL_IB_QPS_PER_CONNECTION": "4"},
        name="queues",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_SOCKET_NTHREADS="4"),
        ("NCCL_SOCKET_NTHREADS=4",),
        "over RDMA",
        "environ",
        "warning",
        job={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NET": "Socket"},
        name="threads",
    ),
    Case(
        "nccl.default",
        environ(NCCL_IB_TIMEOUT="20"),
        ("NCCL_IB_TIMEOUT=20",),
        "20 is the default of NCCL 2.28.9",
        "environ",
        "info",
        job={"NCCL_IB_TIMEOUT": "18"},
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_IBHCA="mlx5"),
        ("NCCL_IBHCA=mlx5",),
        "NCCL_IB_HCA is meant?",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "mlx5"},
        name="misspelt",
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_IB_SUBNET_AWARE_ROUTING="1"),
        ("NCCL_IB_SUBNET_AWARE_ROUTING=1",),
        "releases did since 2.30",
        "environ",
        "warning",
        job={"NCCL_IB_DATA_DIRECT": "0"},
        name="newer",
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_AGG_CHANNEL_SIZE="4"),
        ("NCCL_AGG_CHANNEL_SIZE=4",),
        "releases did until 2.19.4",
        "environ",
        "warning",
        name="gone",
    ),
]


def crafted(template: str) -> TemplateMachine:
    """A healthy machine; `-without-nvlink` takes its NVLinks away."""
    machine = TemplateMachine(template.removesuffix("-without-nvlink"))
    if template.endswith("-without-nvlink"):
        for gpu in machine.nvml["gpus"]:
            gpu["nvlinks"] = [{"state": {"error": "NVML_ERROR_NOT_SUPPORTED"}}] * 6
            gpu["name"] = {"value": "NVIDIA V100 PCIe"}
    return machine


def fired(machine: TemplateMachine, check: str) -> list[Finding]:
    findings = examine(machine.machine(), "crafted").findings
    return [finding for finding in findings if finding.check == check and finding.answer is Answer.fires]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fires_on_the_fault_and_names_it(case: Case) -> None:
    machine = crafted(case.template)
    case.fault(machine)
    found = fired(machine, case.check)
    assert sorted(finding.subject for finding in found) == sorted(case.subjects)
    for finding in found:
        assert case.text in finding.text
        assert any(case.evidence in line for line in finding.evidence), finding.evidence
        assert finding.severity is Severity(case.severity)
        assert case.effect in finding.effect
        assert finding.effect
        assert finding.fix
        assert finding.source


# The machine itself is the fault in these: no other machine of that wiring is without it; a better wired one is.
WIRING = {"gdr.distance": "lineyahoo-4nic-rewired", "nic.ratio": "hgx-h100", "nic.imbalance": "charisma-c"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_silent_without_the_fault(case: Case) -> None:
    machine = crafted(WIRING.get(case.check, case.template))
    if case.job is not None:
        machine.environ(**case.job)
    if case.check == "pcie.ats":
        machine.virtual()
    assert fired(machine, case.check) == []


def test_every_check_has_a_case() -> None:
    assert {check.id for check in CHECKS if check.needs != "probe"} == {case.check for case in CASES}


# What the wiring of a template is known for; everything else on a healthy machine would be a false finding.
STRUCTURE: dict[str, dict[str, int]] = {
    "charisma-ab": {"gdr.distance": 4, "nic.imbalance": 1, "nic.ratio": 1},
    "charisma-c": {"gdr.distance": 4, "nic.ratio": 1},
    "charisma-e": {"gdr.distance": 4, "nic.ratio": 1},
    "dgx-1v": {"nic.ratio": 1},
    "h100-4gpu-ndr": {},
    "hgx-h100": {},
    "hgx-h200": {},
    "kisti-a100-8gpu": {"nic.ratio": 1},
    "kisti-v100-2gpu": {"gdr.distance": 2, "nic.ratio": 1},
    "kisti-v100-4gpu": {"gdr.distance": 4, "nic.ratio": 1},
    "kisti-v100-8gpu": {"gdr.distance": 4, "nic.ratio": 1},
    "lineyahoo-2nic": {"gdr.distance": 6, "nic.ratio": 1},
    "lineyahoo-4nic": {"gdr.distance": 4, "nic.ratio": 1},
    "lineyahoo-4nic-rewired": {"nic.ratio": 1},
    "xe9680-4hca": {"nic.ratio": 1},
}


@pytest.mark.parametrize("template", fabric.templates())
@pytest.mark.parametrize("ethernet", [True, False], ids=["roce", "infiniband"])
def test_no_false_finding_on_healthy_machines(template: str, ethernet: bool) -> None:
    machine = TemplateMachine(template, ethernet=ethernet)
    machine.environ(NCCL_DEBUG="WARN")
    findings = examine(machine.machine(), template).findings
    counts: dict[str, int] = {}
    for finding in findings:
        assert finding.answer is not Answer.unknown, finding
        if finding.answer is Answer.fires:
            counts[finding.check] = counts.get(finding.check, 0) + 1
    assert counts == STRUCTURE[template]


# ---- unknown ----


def unread(machine: TemplateMachine, path: str) -> None:
    """A file that is there and may not be read."""
    assert path in machine.files or path in machine.links, path
    machine.files.pop(path, None)
    machine.links.pop(path, None)
    machine.unreadable[path] = (Reason.permission, "Permission denied")


def short_config(machine: TemplateMachine) -> None:
    """What users other than root get: 64 bytes of each configuration space."""
    for path, content in machine.files.items():
        if path.endswith("/config"):
            assert isinstance(content, bytes)
            machine.files[path] = content[:64]


def idle(machine: TemplateMachine) -> None:
    for port in machine.gpus:
        machine.device(port.bus_id, current_link_speed="2.5 GT/s PCIe")


def guest_acs(machine: TemplateMachine) -> None:
    machine.files["/proc/cpuinfo"] = str(machine.files["/proc/cpuinfo"]).replace("fpu", "fpu hypervisor")


def grace(machine: TemplateMachine) -> None:
    machine.acs(port_above(machine, 0), "ReqRedir")
    machine.device(machine.nics[0].bus_id, device="0x1023")
    machine.files["/proc/sys/kernel/arch"] = "aarch64"


def malformed_topology(machine: TemplateMachine) -> None:
    machine.files["/var/run/nvidia-topologyd/virtualTopology.xml"] = "<system>"


UNKNOWN: list[tuple[str, Break, str]] = [
    ("pcie.acs-redirect", short_config, "needs root"),
    ("pcie.acs-redirect", guest_acs, "a guest does not see the host's ACS"),
    ("pcie.acs-redirect", grace, "Data Direct"),
    ("pcie.ats", lambda machine: (TemplateMachine.virtual(machine), short_config(machine))[0], "needs root"),
    ("pcie.iommu", lambda machine: (translated(machine), unread(machine, "/sys/kernel/iommu_groups/14/type"))[0], "permission"),
    ("pcie.link", idle, "GPUs that idle"),
    ("pcie.link", lambda machine: unread(machine, f"{PCI}/{machine.nics[0].bus_id}/current_link_width"), "permission"),
    ("pcie.aer", lambda machine: unread(machine, f"{PCI}/{machine.nics[0].bus_id}/aer_dev_fatal"), "permission"),
    ("vm.topology-file", lambda machine: unread(machine, "/proc/cpuinfo"), "permission"),
    ("gdr.unavailable", lambda machine: unread(machine, "/proc/driver/nvidia/version"), "permission"),
    ("gdr.gdrcopy", lambda machine: (no_gdrcopy(machine), unread(machine, "/proc/modules"))[0], "permission"),
    ("gdr.distance", TemplateMachine.virtual, "guest sees a flat tree"),
    ("nic.imbalance", TemplateMachine.virtual, "guest sees a flat tree"),
    ("pcie.acs-redirect", TemplateMachine.virtual, "guest sees a flat tree"),
    ("vm.topology-file", lambda machine: (TemplateMachine.virtual(machine), malformed_topology(machine))[0], "not XML"),
    ("gpu.nvlinks", lambda machine: machine.nvml["gpus"][0].update(nvlinks=None), "nvlinks"),
    ("gpu.throttle", lambda machine: machine.nvml["gpus"][0].update(throttle_reasons={"error": "NVML_ERROR_GPU_IS_LOST"}), "GPU_IS_LOST"),
    ("nic.down", lambda machine: unread(machine, "/sys/class/infiniband/mlx5_0/ports/1/state"), "permission"),
    ("nic.mtu", lambda machine: unread(machine, "/sys/class/net/rail0/mtu"), "permission"),
    ("nic.lossless", lambda machine: machine.commands.pop(("mlnx_qos", "-i", "rail0")) and None, "mlnx_qos"),
    ("nic.firmware", lambda machine: unread(machine, "/sys/class/infiniband/mlx5_0/fw_ver"), "permission"),
    ("nic.rail", lambda machine: machine.commands.clear(), "lldpcli"),
    ("nic.rail", lambda machine: machine.leaf({1: "leaf1"}), "no LLDP neighbour"),
    ("nic.irq-affinity", lambda machine: unread(machine, f"{PCI}/{machine.nics[0].bus_id}/local_cpulist"), "permission"),
    ("cpu.sub-numa", lambda machine: unread(machine, "/sys/devices/system/node/node1/cpulist"), ""),
    ("cpu.smt", lambda machine: unread(machine, "/sys/devices/system/cpu/smt/active"), "permission"),
    ("cpu.clock", lambda machine: unread(machine, "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"), "permission"),
    ("cpu.numa-balancing", lambda machine: unread(machine, "/proc/sys/kernel/numa_balancing"), "permission"),
    ("cpu.hugepages", lambda machine: unread(machine, "/sys/kernel/mm/transparent_hugepage/enabled"), "permission"),
    ("job.cpu-affinity", lambda machine: (machine.environ(), machine.process("environ", ""))[0], "local rank"),
    ("job.memlock", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/limits"))[0], "permission"),
    ("job.shm", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/mountinfo"))[0], "permission"),
    ("nccl.ignored", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/environ"))[0], "permission"),
    ("nccl.default", lambda machine: (machine.environ(NCCL_IB_TIMEOUT="20"), machine.process("maps", ""))[0], "no libnccl.so is loaded"),
    (
        "nccl.unknown",
        lambda machine: (machine.environ(NCCL_IB_HCA="mlx5"), machine.process("maps", "x /lib/libnccl.so.2.99.1"))[0],
        "covers 2.8.3 to",
    ),
    ("nccl.contradiction", lambda machine: machine.environ(NCCL_SOCKET_IFNAME="bond0"), "virtual interface"),
]


@pytest.mark.parametrize(("check", "blind", "reason"), UNKNOWN, ids=[f"{check}-{place}" for place, (check, _, _) in enumerate(UNKNOWN)])
def test_unknown_says_why_and_guesses_nothing(check: str, blind: Break, reason: str) -> None:
    machine = TemplateMachine("xe9680-4hca")
    blind(machine)
    findings = [finding for finding in examine(machine.machine(), "crafted").findings if finding.check == check]
    assert any(finding.answer is Answer.unknown and reason in finding.text for finding in findings), findings
    assert not any(finding.answer is Answer.fires for finding in findings)
    assert all(not finding.fix for finding in findings if finding.answer is Answer.unknown)


@pytest.mark.parametrize(
    "path", ["/sys/bus/pci/devices", "/sys/class/infiniband", "/sys/class/net", "/sys/devices/system/node", "/proc/cpuinfo", "nvml"]
)
def test_whatever_is_missing_nothing_fires_that_did_not_before(path: str) -> None:
    machine = TemplateMachine("hgx-h100")
    machine.files = {name: content for name, content in machine.files.items() if not name.startswith(path)}
    machine.links = {name: target for name, target in machine.links.items() if not name.startswith(path)}
    if path == "nvml":
        machine.nvml = {}
    fires = [finding for finding in examine(machine.machine(), "crafted").findings if finding.answer is Answer.fires]
    assert fires == []


def probes(machine: TemplateMachine, slow: int | None = None, dma_buf: bool = True) -> Probes:
    """Every GPU copies as an H200 does; one at half of that."""
    return Probes(
        {
            port.bus_id: GpuProbe(
                Known(PciLink(32.0, 16), "under load"),
                Known(27e9 if gpu == slow else 55e9, "copies to it"),
                Known(54e9, "copies from it"),
                Known(dma_buf, "libcuda"),
            )
            for gpu, port in enumerate(machine.gpus)
        }
    )


def answers(machine: TemplateMachine, check: str, probed: Probes | None) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(machine.machine(), "crafted", probes=probed).findings if finding.check == check}


def test_slow_copies_fire_for_the_gpu_that_is_slow() -> None:
    machine = TemplateMachine("xe9680-4hca")
    found = answers(machine, "gpu.copy-rate", probes(machine, slow=3))
    assert [subject for subject, finding in found.items() if finding.answer is Answer.fires] == ["GPU 3"]
    assert found["GPU 3"].text == "copies reach 27.0 GB/s to it, 54.0 GB/s from it; 32 GT/s x16 carries 63.0 GB/s"
    assert {finding.answer for finding in answers(machine, "gpu.copy-rate", probes(machine)).values()} == {Answer.clear}
    assert answers(machine, "gpu.copy-rate", None) == {}


def test_a_gpu_that_was_not_probed_or_refused_is_unknown() -> None:
    machine = TemplateMachine("xe9680-4hca")
    full = Unknown(Reason.error, "100 ms of copies", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
    probed = probes(machine)
    hidden, refusing = machine.gpus[0].bus_id, machine.gpus[1].bus_id
    del probed.gpus[hidden]
    probed.gpus[refusing] = GpuProbe(full, full, full, Known(True, ""))
    found = answers(machine, "gpu.copy-rate", probed)
    assert (found["GPU 0"].answer, found["GPU 1"].answer, found["GPU 2"].answer) == (Answer.unknown, Answer.unknown, Answer.clear)
    assert "CUDA_VISIBLE_DEVICES" in found["GPU 0"].text
    assert "OUT_OF_MEMORY" in found["GPU 1"].text


def test_gpudirect_needs_a_cuda_that_exports_dma_buf() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.files = {path: content for path, content in machine.files.items() if "peermem" not in path and "memory_peers" not in path}
    machine.files["/proc/modules"] = "nvidia 1 0 - Live\nmlx5_core 1 0 - Live\n"
    for dma_buf, answer in ((True, Answer.clear), (False, Answer.fires)):
        found = answers(machine, "gdr.unavailable", probes(machine, dma_buf=dma_buf))["machine"]
        assert found.answer is answer, found
        assert any(line.startswith("libcuda: ") for line in found.evidence)
    assert answers(machine, "gdr.unavailable", None)["machine"].answer is Answer.clear


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("NVIDIA H100 80GB HBM3", 18),
        ("NVIDIA H200", 18),
        ("NVIDIA H800", 8),
        ("NVIDIA A100-SXM4-80GB", 12),
        ("NVIDIA B200", 18),
        ("NVIDIA GH200 480GB", 18),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
    ],
)
def test_nvlinks_of_a_part_by_the_name_that_nvml_gives_it(name: str, links: int | None) -> None:
    assert expected_nvlinks(name) == links


def test_load_settles_what_an_idle_gpu_leaves_open() -> None:
    machine = TemplateMachine("xe9680-4hca")
    idle(machine)
    probed = {
        port.bus_id: GpuProbe(
            Known(PciLink(16.0 if gpu == 2 else 32.0, 16), "under load"), Known(54e9, ""), Known(53e9, ""), Known(True, "")
        )
        for gpu, port in enumerate(machine.gpus)
    }
    findings = [f for f in examine(machine.machine(), "crafted", probes=Probes(probed)).findings if f.check == "pcie.link"]
    assert [finding.subject for finding in findings if finding.answer is Answer.fires] == ["GPU 2"]
    assert not any(finding.answer is Answer.unknown for finding in findings)
