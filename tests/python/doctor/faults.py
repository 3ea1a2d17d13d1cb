"""Faults of crafted machines and what doctor must say of them: the table that the tests of each room's checks fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from template_machine import PCI, TemplateMachine

from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding, Severity
from railweave.doctor.probe import GpuProbe, Probes
from railweave.machine.facts import Known, PciLink
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


def translated(machine: TemplateMachine) -> None:
    machine.links[f"{PCI}/{machine.gpus[0].bus_id}/iommu_group"] = "../../../kernel/iommu_groups/14"
    machine.files["/sys/kernel/iommu_groups/14/type"] = "DMA-FQ"


def no_gdrcopy(machine: TemplateMachine) -> None:
    del machine.files["/sys/module/gdrdrv/version"]
    machine.files["/proc/modules"] = "nvidia 1 0 - Live 0x0\n"


def short_config(machine: TemplateMachine) -> None:
    """What users other than root get: 64 bytes of each configuration space."""
    for path, content in machine.files.items():
        if path.endswith("/config"):
            assert isinstance(content, bytes)
            machine.files[path] = content[:64]


def idle(machine: TemplateMachine) -> None:
    """GPUs that idle: both ends of a link tell its speed."""
    for port in machine.gpus:
        for end in (port.bus_id, machine.parent(port)):
            machine.device(end, current_link_speed="2.5 GT/s PCIe")


def unread(machine: TemplateMachine, path: str) -> None:
    """A file that is there and may not be read."""
    assert path in machine.files or path in machine.links, path
    machine.files.pop(path, None)
    machine.links.pop(path, None)
    machine.unreadable[path] = (Reason.permission, "Permission denied")


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


# The machine itself is the fault in these: no other machine of that wiring is without it; a better wired one is.
WIRING = {"gdr.distance": "lineyahoo-4nic-rewired", "nic.ratio": "hgx-h100", "nic.imbalance": "charisma-c"}


def assert_fires(case: Case) -> None:
    """On the machine with the fault, for whom and with what the case says."""
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


def assert_silent(case: Case) -> None:
    """On the same machine without it."""
    machine = crafted(WIRING.get(case.check, case.template))
    if case.job is not None:
        machine.environ(**case.job)
    if case.check == "pcie.ats":
        machine.virtual()
    assert fired(machine, case.check) == []


def assert_unknown(check: str, blind: Break, reason: str) -> None:
    """On a machine whose inputs are not readable, and nothing fires there."""
    machine = TemplateMachine("xe9680-4hca")
    blind(machine)
    findings = [finding for finding in examine(machine.machine(), "crafted").findings if finding.check == check]
    assert any(finding.answer is Answer.unknown and reason in finding.text for finding in findings), findings
    assert not any(finding.answer is Answer.fires for finding in findings)
    assert all(not finding.fix for finding in findings if finding.answer is Answer.unknown)
