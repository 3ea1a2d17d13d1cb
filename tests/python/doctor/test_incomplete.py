"""What a machine does not tell must not become a finding: links, folders and texts of a healthy machine are taken away one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from template_machine import PCI, TemplateMachine

from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer
from railweave.machine import discovery
from railweave.machine.fabric import fabric_of
from railweave.machine.paths import pci_way
from railweave.machine.recording import RecordedSource, Recording, RecordingError, parse_recording
from railweave.machine.source import Reason, Source

TEMPLATE = "xe9680-4hca"
EMPTIED = (
    "/sys/class/infiniband/mlx5_1/ports/1/state",
    "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor",
    "/sys/devices/system/cpu/cpufreq/policy1/energy_performance_preference",
    "/proc/driver/nvidia/version",
)


def whole() -> Recording:
    return TemplateMachine(TEMPLATE).source.recording


def fired(source: Source) -> set[tuple[str, str]]:
    findings = examine(discovery.discover(source), "machine").with_answer(Answer.fires)
    return {(finding.check, finding.subject) for finding in findings}


def without_one(what: str) -> Iterator[tuple[str, Recording]]:
    """Reason `not_recorded`, as where a recording was cut, and `vanished`, as where a device went away between two reads."""
    recording = whole()
    for path in recording.folders if what == "folders" else recording.links:
        if what == "folders":
            yield path, replace(recording, folders={name: names for name, names in recording.folders.items() if name != path})
            continue
        links = {name: target for name, target in recording.links.items() if name != path}
        vanished = {path: (Reason.vanished, "No such device")} if what == "links that vanished" else {}
        yield path, replace(recording, links=links, unreadable={**recording.unreadable, **vanished})


# Three tests, as one took four minutes on a busy machine.
@pytest.mark.parametrize("what", ["links", "links that vanished", "folders"])
def test_links_and_folders_that_cannot_be_read_are_no_finding(what: str) -> None:
    healthy = fired(RecordedSource(whole()))
    false = {path: sorted(new) for path, recording in without_one(what) if (new := fired(RecordedSource(recording)) - healthy)}
    assert not false


def test_files_and_commands_that_cannot_be_read_are_no_finding() -> None:
    whole = TemplateMachine("kisti-v100-2gpu").source.recording
    healthy = fired(RecordedSource(whole))
    false = {}
    for path in whole.files:
        files = {name: content for name, content in whole.files.items() if name != path}
        without = replace(whole, files=files, unreadable={**whole.unreadable, path: (Reason.permission, "Permission denied")})
        false[path] = fired(RecordedSource(without)) - healthy
    for argv in whole.commands:
        commands = {other: output for other, output in whole.commands.items() if other != argv}
        false[" ".join(argv)] = fired(RecordedSource(replace(whole, commands=commands))) - healthy
    false["nvml"] = fired(RecordedSource(replace(whole, libraries={}))) - healthy
    assert not {path: found for path, found in false.items() if found}


@pytest.mark.parametrize("path", EMPTIED)
def test_empty_texts_are_no_finding(path: str) -> None:
    machine = TemplateMachine(TEMPLATE)
    assert path in machine.files
    machine.files[path] = "\n"
    assert fired(machine.source) == fired(TemplateMachine(TEMPLATE).source)


def test_no_cpus_near_a_device_is_no_finding() -> None:
    machine = TemplateMachine(TEMPLATE)
    machine.device(machine.nics[0].bus_id, local_cpulist="\n")
    assert fired(machine.source) == fired(TemplateMachine(TEMPLATE).source)


def test_counters_that_a_cut_recording_lacks_hide_no_flaps() -> None:
    crafted = TemplateMachine(TEMPLATE)
    crafted.infiniband(0, "port/counters/link_downed", "9\n")
    recording = crafted.source.recording
    path = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    cut = replace(recording, files={name: text for name, text in recording.files.items() if name != path})
    findings = examine(discovery.discover(RecordedSource(cut)), "machine").findings
    (flaps,) = (finding for finding in findings if (finding.check, finding.subject) == ("nic.flaps", "mlx5_0"))
    assert flaps.answer is Answer.unknown and path in flaps.text


def test_a_gpu_without_place_has_no_way_and_its_bridges_keep_theirs() -> None:
    crafted = TemplateMachine(TEMPLATE)
    gpu, other, nic = crafted.gpus[0].bus_id, crafted.gpus[1].bus_id, crafted.nics[0].bus_id
    bridge = crafted.parent(crafted.gpus[1])
    for bus_id in (gpu, bridge):
        del crafted.links[f"{PCI}/{bus_id}"]
        crafted.unreadable[f"{PCI}/{bus_id}"] = (Reason.vanished, "No such device")
    machine = crafted.machine()
    way = pci_way(machine, gpu, nic)
    assert getattr(way, "reason", None) is Reason.vanished
    assert pci_way(machine, other, nic) == pci_way(TemplateMachine(TEMPLATE).machine(), other, nic)
    _, notes = fabric_of(machine)
    assert any(f"the place of {gpu} in the PCI tree is not known" in note for note in notes)


def test_ports_of_unknown_state_are_not_said_to_be_down() -> None:
    crafted = TemplateMachine(TEMPLATE)
    for nic in range(len(crafted.nics)):
        path = f"/sys/class/infiniband/mlx5_{nic}/ports/1/state"
        del crafted.files[path]
        crafted.unreadable[path] = (Reason.permission, "Permission denied")
    said = examine(crafted.machine(), "machine").fabric_nics
    assert "none is known to be up, of 4 it is unknown" in said


def without_place(crafted: TemplateMachine, nic: int) -> None:
    path = f"{PCI}/{crafted.nics[nic].bus_id}"
    del crafted.links[path]
    crafted.unreadable[path] = (Reason.vanished, "No such device")


def test_a_nic_without_place_leaves_gpus_judged_whose_switch_has_another() -> None:
    crafted = TemplateMachine(TEMPLATE)  # GPUs 6 and 7 share a switch with NIC 3
    without_place(crafted, 3)
    findings = examine(crafted.machine(), "machine").findings
    distances = {finding.subject: finding.answer for finding in findings if finding.check == "gdr.distance"}
    assert distances == {f"GPU {gpu}": Answer.clear if gpu < 6 else Answer.unknown for gpu in range(8)}
    (imbalance,) = (finding for finding in findings if finding.check == "nic.imbalance")
    assert imbalance.answer is Answer.unknown


def test_a_nic_without_place_could_be_the_near_one_of_a_gpu_that_has_only_far_ones() -> None:
    crafted = TemplateMachine("lineyahoo-2nic")  # GPUs 2 to 7 do not share a switch with a NIC
    without_place(crafted, 1)
    findings = examine(crafted.machine(), "machine").findings
    answers = {finding.answer for finding in findings if finding.check == "gdr.distance"}
    assert answers == {Answer.clear, Answer.unknown}


@pytest.mark.parametrize("missing", ["port/rate", "port/state"])
def test_nics_that_are_counted_for_want_of_a_rate_make_no_ratio(missing: str) -> None:
    crafted = TemplateMachine("hgx-h100")
    crafted.infiniband(7, "port/rate", "100 Gb/sec (2X HDR)")
    assert ("nic.ratio", "machine") in fired(crafted.source)  # 7 for 8 GPUs
    path = f"/sys/class/infiniband/mlx5_7/{missing.replace('port/', 'ports/1/')}"
    del crafted.files[path]
    crafted.unreadable[path] = (Reason.not_recorded, "")
    answers = {finding.check: finding for finding in examine(crafted.machine(), "machine").findings}
    for check in ("nic.ratio", "nic.imbalance"):
        assert answers[check].answer is Answer.unknown and path in answers[check].text
    named = examine(crafted.machine(), "machine", [f"mlx5_{nic}" for nic in range(7)]).with_answer(Answer.fires)
    assert "nic.ratio" in {finding.check for finding in named}


@pytest.mark.parametrize("fault", [None, "ill"])
def test_a_recording_that_was_cut_anywhere_has_no_finding_that_the_whole_one_has_not(fault: str | None, tmp_path: Path) -> None:
    crafted = TemplateMachine("hgx-h100")
    crafted.infiniband(7, "port/rate", "100 Gb/sec (2X HDR)")
    if fault:
        crafted.netdev(1, "mtu", "1500")
        crafted.infiniband(2, "port/state", "1: DOWN")
    whole = crafted.record(tmp_path / "whole.tar.zst").read_bytes()
    all_of_it = fired(RecordedSource(parse_recording(whole, "whole")))
    for size in range(len(whole) // 4, len(whole), len(whole) // 24):
        with contextlib.suppress(RecordingError):
            assert fired(RecordedSource(parse_recording(whole[:size], "cut"))) <= all_of_it, size
