"""All checks together: each has a case, none fires on a healthy machine, and whatever is missing makes none fire."""

from __future__ import annotations

import pytest
import test_gpu_checks
import test_host_checks
import test_job_checks
import test_nic_checks
import test_pcie_checks
from faults import Break, Case, assert_fires, assert_silent, assert_unknown
from template_machine import TemplateMachine

from railweave import fabric
from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer
from railweave.doctor.rails import NamedRails

ROOMS = (test_pcie_checks, test_gpu_checks, test_nic_checks, test_host_checks, test_job_checks)
CASES: list[Case] = [case for room in ROOMS for case in room.CASES]
UNKNOWN: list[tuple[str, Break, str]] = [entry for room in ROOMS for entry in room.UNKNOWN]


def test_every_check_has_a_case() -> None:
    assert {check.id for check in CHECKS if check.needs != "probe"} == {case.check for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fires_on_the_fault_and_names_it(case: Case) -> None:
    assert_fires(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_silent_without_the_fault(case: Case) -> None:
    assert_silent(case)


@pytest.mark.parametrize(("check", "blind", "reason"), UNKNOWN, ids=[f"{check}-{place}" for place, (check, _, _) in enumerate(UNKNOWN)])
def test_unknown_says_why_and_guesses_nothing(check: str, blind: Break, reason: str) -> None:
    assert_unknown(check, blind, reason)


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
    findings = examine(machine.machine(), template, rails=NamedRails(r"leaf(\d+)")).findings
    counts: dict[str, int] = {}
    for finding in findings:
        assert finding.answer is not Answer.unknown, finding
        if finding.answer is Answer.fires:
            counts[finding.check] = counts.get(finding.check, 0) + 1
    assert counts == STRUCTURE[template]


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
