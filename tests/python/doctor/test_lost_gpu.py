"""A GPU that fell off the bus: it is found, and everything that does not depend on it is still answered."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from template_machine import PCI, TemplateMachine

from railweave.advise.live import host_of
from railweave.doctor.compare import compare
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding
from railweave.errors import FabricError
from railweave.machine import nvml
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Known, Unknown
from railweave.machine.source import LiveSource, Reason, Unreadable
from railweave.machine.text import render_machine

LOST = {"error": "NVML_ERROR_GPU_IS_LOST"}


def whole() -> TemplateMachine:
    return TemplateMachine("xe9680-4hca")


def handle_lost(machine: TemplateMachine) -> None:
    """As NVML answers after Xid 79, also to the other GPUs' questions about their ways to it."""
    machine.nvml["gpus"][5] = {"index": 5, **LOST}
    for gpu in machine.nvml["gpus"][:5] + machine.nvml["gpus"][6:]:
        gpu["common_ancestor"]["5"] = LOST


def lost_midway(machine: TemplateMachine) -> None:
    """It answered the first questions."""
    for answer in ("nvlinks", "throttle_reasons", "fabric_state"):
        machine.nvml["gpus"][5][answer] = LOST


def not_listed(machine: TemplateMachine, driver: str = "nvidia") -> None:
    bus_id = machine.gpus[5].bus_id
    del machine.nvml["gpus"][5]
    for index, gpu in enumerate(machine.nvml["gpus"]):
        gpu["index"] = index
    if driver:
        machine.links[f"{PCI}/{bus_id}/driver"] = f"../../../bus/pci/drivers/{driver}"


def not_answering(machine: TemplateMachine) -> None:
    machine.files[f"{PCI}/{machine.gpus[5].bus_id}/config"] = b"\xff" * 4096


def gone_from_the_bus(machine: TemplateMachine) -> None:
    at = f"{PCI}/{machine.gpus[5].bus_id}"
    del machine.links[at]
    machine.files = {path: content for path, content in machine.files.items() if not path.startswith(f"{at}/")}


def of(machine: TemplateMachine) -> list[Finding]:
    return list(examine(machine.machine(), "crafted").findings)


def lost(machine: TemplateMachine) -> list[Finding]:
    return [finding for finding in of(machine) if finding.check == "gpu.lost"]


@pytest.mark.parametrize(
    ("fault", "subject", "evidence"),
    [
        (handle_lost, "GPU 5", "NVML_ERROR_GPU_IS_LOST"),
        (lost_midway, "GPU 5", "NVML_ERROR_GPU_IS_LOST"),
        (not_listed, "GPU at 0000:22:00.0", "driver: nvidia"),
        (not_answering, "GPU 5", "ffff"),
        (gone_from_the_bus, "GPU 5", "not there"),
    ],
)
def test_it_is_found_with_its_evidence_and_the_others_are_clear(
    fault: Callable[[TemplateMachine], None], subject: str, evidence: str
) -> None:
    machine = whole()
    fault(machine)
    fired = [finding for finding in lost(machine) if finding.answer is Answer.fires]
    assert [finding.subject for finding in fired] == [subject]
    assert any(evidence in line for line in fired[0].evidence)
    assert fired[0].effect and fired[0].fix and fired[0].source
    assert sum(finding.answer is Answer.clear for finding in lost(machine)) == 7
    assert {finding.answer for finding in lost(whole())} == {Answer.clear}


@pytest.mark.parametrize("fault", [handle_lost, lost_midway, not_listed, not_answering, gone_from_the_bus])
def test_everything_else_is_still_answered(fault: Callable[[TemplateMachine], None]) -> None:
    before = {(finding.check, finding.subject): finding.answer for finding in of(whole())}
    machine = whole()
    fault(machine)
    after = {(finding.check, finding.subject): finding.answer for finding in of(machine)}
    named = {"GPU 5", "GPU 7", "GPU at 0000:22:00.0"} | {f"GPU {gpu} - GPU 5" for gpu in range(8)}
    # GPU 5's switch has one NIC, and NVSwitch machines register as one: these alone may change with it.
    touched = {("gpu.lost", "machine"), ("gpu.fabric-manager", "machine"), ("nic.ratio", "machine"), ("nic.imbalance", "machine")}
    for key, answer in before.items():
        if key in after and key not in touched and not {key[1]} & named and "GPU 5" not in key[1]:
            assert after[key] is answer, key
    assert {check for check, _ in after} == {check for check, _ in before}
    for subject in (f"GPU {gpu}" for gpu in (0, 1, 2, 3, 4, 6)):
        assert ("pcie.link", subject) in after and ("gdr.distance", subject) in after and ("pcie.aer", subject) in after


def test_advice_and_fabric_leave_it_out_and_say_so() -> None:
    for fault in (handle_lost, lost_midway, not_listed):
        machine = whole()
        fault(machine)
        host, notes = host_of(machine.machine())
        assert len(host.gpus) == 7
        assert machine.gpus[5].bus_id not in {gpu.bus_id for gpu in host.gpus}
        assert any("left out" in note and ("GPU 5" in note or machine.gpus[5].bus_id in note) for note in notes)


def test_its_address_is_the_one_that_the_others_leave() -> None:
    machine = whole()
    handle_lost(machine)
    gpus = machine.machine().gpus
    assert isinstance(gpus, Known)
    assert gpus.value[5].bus_id == Known(machine.gpus[5].bus_id, "/sys/bus/pci/devices: the address that NVML's other GPUs leave")
    assert gpus.value[4].lost is None and gpus.value[5].lost is not None
    machine.nvml["gpus"].append({"index": 8, **LOST})  # more than the bus has: nothing can be said
    gpus = machine.machine().gpus
    assert isinstance(gpus, Known) and isinstance(gpus.value[5].bus_id, Unknown)


def test_a_machine_that_lost_all_its_gpus_has_no_fabric_and_says_why() -> None:
    machine = whole()
    machine.nvml["gpus"] = [{"index": index, **LOST} for index in range(8)]
    with pytest.raises(FabricError, match=r"no GPU of a recording can be placed: GPU 0 does not answer .*GPU_IS_LOST"):
        fabric_of(machine.machine())


def test_gpus_kept_for_guests_or_not_given_to_a_container_are_no_fault() -> None:
    machine = whole()
    not_listed(machine, "vfio-pci")
    assert [finding.text for finding in lost(machine) if finding.subject.startswith("GPU at")] == ["it is kept for a virtual machine"]
    machine = whole()
    not_listed(machine)
    machine.files["/run/systemd/container"] = "docker"
    (finding,) = [finding for finding in lost(machine) if finding.subject.startswith("GPU at")]
    assert finding.answer is Answer.unknown and "container (docker)" in finding.text
    machine = whole()
    not_listed(machine, "")
    assert any(finding.text == "it is on the PCI bus, and no driver has it" for finding in lost(machine))


def test_a_gpu_that_left_no_trace_shows_beside_other_machines() -> None:
    machines = [whole(), whole(), whole()]
    not_listed(machines[1])
    gone_from_the_bus(machines[1])
    assert {finding.answer for finding in lost(machines[1])} == {Answer.clear}
    comparison = compare([examine(machine.machine(), name) for machine, name in zip(machines, "abc", strict=True)])
    odd = {difference.what: difference.odd for difference in comparison.differences}
    assert odd["number of GPUs"] == {"7": ("b",)} and comparison.odd_ones[0][0] == "b"


def test_topo_names_a_gpu_that_the_driver_does_not_list() -> None:
    machine = whole()
    not_listed(machine)
    assert f"GPU at {machine.gpus[5].bus_id}: on the PCI bus, and not among the driver's" in render_machine(machine.machine())
    assert "not among the driver's" not in render_machine(whole().machine())


def test_registration_is_not_called_clear_where_it_is_not_known() -> None:
    machine = whole()
    for gpu in machine.nvml["gpus"]:
        gpu["nvlinks"] = LOST
        gpu["fabric_state"] = {"error": "NVML_ERROR_UNKNOWN"}
    (finding,) = [finding for finding in of(machine) if finding.check == "gpu.fabric-manager"]
    assert finding.answer is Answer.unknown and "nvlinks" in finding.text


def test_registration_is_judged_without_a_pci_tree() -> None:
    machine = whole()
    machine.links = {path: target for path, target in machine.links.items() if not path.startswith(PCI)}
    machine.files = {path: content for path, content in machine.files.items() if not path.startswith(PCI)}
    (finding,) = [finding for finding in of(machine) if finding.check == "gpu.fabric-manager"]
    assert finding.answer is Answer.clear


class _Error(Exception):
    value = 15


class _Library:
    """NVML, as its Python module shows it, on a driver that fails."""

    NVMLError = _Error

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        raise _Error


def test_a_library_that_does_not_even_count_is_unknown_with_its_error() -> None:
    with pytest.raises(Unreadable, match=r"nvmlDeviceGetCount: NVML_ERROR_GPU_IS_LOST") as caught:
        nvml.Reader(_Library()).document()
    assert caught.value.reason is Reason.error


def test_a_question_that_the_python_package_does_not_know_is_unsupported() -> None:
    assert nvml.Reader(_Library()).ask(lambda: _Library().nvmlDeviceGetUUID) == {  # type: ignore[attr-defined]
        "error": "NVML_ERROR_FUNCTION_NOT_FOUND"
    }


def test_a_binding_that_fails_in_its_own_way_is_unknown_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise TypeError("bytes are no JSON")

    monkeypatch.setattr(nvml, "read_json", fails)
    with pytest.raises(Unreadable, match="library:nvml: error: TypeError: bytes are no JSON"):
        LiveSource().library("nvml")


def test_recorded_answers_of_any_form_stay_answers() -> None:
    machine = whole()
    for entry in ({"index": 5}, {"index": 5, "nvlinks": [{"state": {"value": 1}, "errors": {"replay": 3}}]}):
        machine.nvml["gpus"][5] = entry
        assert json.dumps([finding.text for finding in of(machine)])
