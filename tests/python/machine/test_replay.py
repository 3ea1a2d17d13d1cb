"""What a recording keeps of a machine, fact by fact, by the comparison that runs on GPU machines (benchmarks/machine/replay.py); and what
one that was cut off says: less, never something else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from template_machine import TemplateMachine

from railweave.machine.discovery import discover
from railweave.machine.facts import Known, Machine, Unknown, known
from railweave.machine.recording import RecordedSource, RecordingError, parse_recording

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "machine"))
import replay


def whole(template: str = "xe9680-4hca") -> TemplateMachine:
    machine = TemplateMachine(template)
    machine.environ(NCCL_IB_HCA="mlx5")
    return machine


@pytest.mark.parametrize("template", ["xe9680-4hca", "hgx-h200", "dgx-1v"])
def test_every_fact_survives_recording_and_replay(template: str, tmp_path: Path) -> None:
    made = whole(template)
    live = made.machine()
    replayed = discover(RecordedSource(made.record(tmp_path / "m.tar.zst")), 4242)
    rows = replay.rows(live, replayed)
    assert [row for row in rows if row[2] != row[3]] == []
    assert len(rows) > 1000


def test_a_fact_that_differs_is_named_and_so_is_a_device_that_is_missing() -> None:
    def of(machine: TemplateMachine) -> Machine:
        return machine.machine()

    other = whole()
    other.netdev(1, "mtu", "1500")
    del other.nvml["gpus"][7]
    other.nvml["gpus"][0]["sm_clock_MHz"] = {"value": 345}
    rows = replay.rows(of(whole()), of(other))
    assert {row[0] for row in rows if row[2] != row[3]} == {
        "gpus[7]",
        "nics[mlx5_1 port 1].mtu",
        *(f"gpus[{gpu}].peers" for gpu in range(7)),
    }


def test_what_changes_or_is_replaced_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/machine.md").read_text()
    for name in (*replay.CHANGING, *replay.REPLACED):
        assert f"`{name}`" in page, name


def test_a_recording_that_was_cut_off_says_less_and_nothing_else(tmp_path: Path) -> None:
    made = whole()
    content = made.record(tmp_path / "m.tar.zst").read_bytes()
    full = discover(RecordedSource(parse_recording(content, "m")), 4242)
    cuts = 0
    for percent in (20, 25, 30, 40, 50, 60, 70, 80, 90, 95, 99):
        try:
            recording = parse_recording(content[: len(content) * percent // 100], "m")
        except RecordingError:  # cut within the manifest
            continue
        cuts += bool(recording.damage)
        machine = discover(RecordedSource(recording), 4242)
        for place, value, left in replay.differences(full, machine):
            assert isinstance(left, Unknown) or _is_other_source(value, left), (percent, place, value, left)
        gpus = known(machine.gpus)
        assert gpus is None or len(gpus) == 8
    assert cuts >= 5


def _is_other_source(value: object, left: object) -> bool:
    """Told by another file than in the whole recording, as its evidence says."""
    return isinstance(left, Known) and (not isinstance(value, Known) or left.evidence != value.evidence)


def test_a_recording_without_pci_classes_does_not_say_that_there_is_no_gpu() -> None:
    made = TemplateMachine("xe9680-4hca")
    source = made.source
    source.recording.files = {path: body for path, body in source.recording.files.items() if not path.startswith("/sys/bus/pci/devices/")}
    source.recording.libraries.clear()
    machine = discover(RecordedSource(source.recording))
    assert isinstance(machine.gpus, Unknown) and machine.gpus.reason.value == "not_recorded"
    made.nvml = {}
    no_driver = made.source
    del no_driver.recording.libraries["nvml"]
    assert len(known(discover(no_driver).gpus) or ()) == 8, "with their classes, without NVML"
    assert json.dumps(made.nvml) == "{}"
