"""Checks of PCI Express and of guests: each fires on its fault, is silent without it, unknown where its input is not readable."""

from __future__ import annotations

from faults import Break, Case, fired, idle, port_above, short_config, translated, unread
from template_machine import PCI, TemplateMachine

from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer
from railweave.doctor.probe import GpuProbe, Probes
from railweave.machine.facts import Known, PciLink


def guest_acs(machine: TemplateMachine) -> None:
    machine.files["/proc/cpuinfo"] = str(machine.files["/proc/cpuinfo"]).replace("fpu", "fpu hypervisor")


def grace(machine: TemplateMachine) -> None:
    machine.acs(port_above(machine, 0), "ReqRedir")
    machine.device(machine.nics[0].bus_id, device="0x1023")
    machine.files["/proc/sys/kernel/arch"] = "aarch64"
    machine.files["/proc/cpuinfo"] = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
    machine.commands["systemd-detect-virt", "--vm"] = "none\n"


def malformed_topology(machine: TemplateMachine) -> None:
    machine.files["/var/run/nvidia-topologyd/virtualTopology.xml"] = "<system>"


def narrow_switch(machine: TemplateMachine) -> None:
    """The link of the first switch to the CPU, as both of its ends tell it."""
    root_port, upstream_port = machine.gpus[0].path.split("/")[1:3]
    for end in (root_port, upstream_port):
        machine.device(end, current_link_width="8")


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
        "pcie.link",
        narrow_switch,
        ("bridge 0000:12:00.0",),
        "32 GT/s x8; both ends can do 32 GT/s x16",
        "current_link_width",
        "warning",
        effect="31.5 GB/s each way instead of 63.0 GB/s",
        name="narrow-switch",
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
]

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
    ("pcie.acs-redirect", TemplateMachine.virtual, "guest sees a flat tree"),
    ("vm.topology-file", lambda machine: (TemplateMachine.virtual(machine), malformed_topology(machine))[0], "not XML"),
]


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


def test_a_card_of_an_older_generation_is_no_fault_of_the_port_above_it() -> None:
    machine = TemplateMachine("xe9680-4hca")
    for port in machine.nics:
        machine.device(port.bus_id, current_link_speed="16.0 GT/s PCIe", max_link_speed="16.0 GT/s PCIe")
        machine.device(machine.parent(port), current_link_speed="16.0 GT/s PCIe")
    assert fired(machine, "pcie.link") == []
