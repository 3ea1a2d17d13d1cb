"""Cables on the wrong rail: told by other machines or by the names of switches; unknown where neither is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from template_machine import TemplateMachine

from railweave.cli.doctor import command
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding
from railweave.doctor.rails import Cables, FleetRails, NamedRails, Rails

STRAIGHT = {nic: f"leaf{nic}" for nic in range(8)}
SWAPPED = {**STRAIGHT, 2: "leaf3", 3: "leaf2"}
FIRES, CLEAR, UNKNOWN = Answer.fires, Answer.clear, Answer.unknown


def rails_of(leafs: dict[int, str], rails: Rails | None) -> dict[str, Finding]:
    machine = TemplateMachine("hgx-h100")
    machine.leaf(leafs)
    return {finding.subject: finding for finding in examine(machine.machine(), "m", rails=rails).findings if finding.check == "nic.rail"}


def fired(found: dict[str, Finding]) -> list[str]:
    return [subject for subject, finding in found.items() if finding.answer is FIRES]


def answers(found: dict[str, Finding]) -> set[Answer]:
    return {finding.answer for finding in found.values()}


def cables(leafs: dict[int, str]) -> Cables:
    return {f"mlx5_{nic}": leaf for nic, leaf in leafs.items()}


def test_two_swapped_cables_are_unknown_alone_and_found_beside_others() -> None:
    assert answers(rails_of(SWAPPED, None)) == answers(rails_of(STRAIGHT, None)) == {UNKNOWN}
    fleet = FleetRails([cables(STRAIGHT), cables(STRAIGHT)])
    found = rails_of(SWAPPED, fleet)
    assert fired(found) == ["mlx5_2", "mlx5_3"]
    assert found["mlx5_2"].text == "goes to leaf3, where 2 other machines have mlx5_3"
    assert found["mlx5_2"].evidence == ("lldpcli -f json show neighbors: rail2 - leaf3 Eth1",)
    assert found["mlx5_2"].effect and found["mlx5_2"].fix
    assert answers(rails_of(STRAIGHT, fleet)) == {CLEAR}


def test_machines_with_straight_cables_stay_clear_beside_the_swapped_one() -> None:
    assert answers(rails_of(STRAIGHT, FleetRails([cables(STRAIGHT), cables(SWAPPED)]))) == {CLEAR}


def test_one_other_machine_does_not_tell_which_of_both_is_wrong() -> None:
    found = rails_of(SWAPPED, FleetRails([cables(STRAIGHT)]))
    assert found["mlx5_2"].answer is UNKNOWN and "takes a third" in found["mlx5_2"].text
    assert found["mlx5_0"].answer is CLEAR


def test_a_machine_at_other_leafs_has_no_reference() -> None:
    pod = {nic: f"leaf{nic + 8}" for nic in range(8)}
    assert answers(rails_of(pod, FleetRails([cables(STRAIGHT)] * 3))) == {UNKNOWN}


def test_one_leaf_for_all_has_no_rails() -> None:
    assert answers(rails_of(dict.fromkeys(range(8), "tor"), None)) == {CLEAR}


@pytest.mark.parametrize(
    ("leafs", "wrong"),
    [
        (STRAIGHT, []),
        (SWAPPED, ["mlx5_2", "mlx5_3"]),
        ({nic: f"pod2-leaf{nic + 9}.dc" for nic in range(8)}, []),
        ({**{nic: f"leaf{nic + 1}" for nic in range(8)}, 0: "leaf2", 1: "leaf1"}, ["mlx5_0", "mlx5_1"]),
    ],
)
def test_names_of_switches_tell_rails_wherever_their_numbers_begin(leafs: dict[int, str], wrong: list[str]) -> None:
    found = rails_of(leafs, NamedRails(r"leaf(\d+)"))
    assert fired(found) == wrong
    assert answers(found) <= {CLEAR, FIRES}


def test_names_without_numbers_and_numbers_without_order_are_unknown() -> None:
    assert answers(rails_of({nic: f"switch-{name}" for nic, name in enumerate("abcdefgh")}, NamedRails(r"leaf(\d+)"))) == {UNKNOWN}
    assert answers(rails_of({nic: f"leaf{nic * nic + 3}" for nic in range(2, 8)}, NamedRails(r"leaf(\d+)"))) == {UNKNOWN}


@pytest.mark.parametrize("pattern", ["leaf(", "leaf", "(leaf)(1)"])
def test_a_pattern_that_names_no_number_is_wrong_use(pattern: str) -> None:
    done = CliRunner().invoke(command, ["--rails", pattern])
    assert done.exit_code == 2 and "--rails" in done.output


def test_a_pattern_is_not_for_recordings(tmp_path: Path) -> None:
    recording = TemplateMachine("h100-4gpu-ndr").record(tmp_path / "m.tar.zst")
    done = CliRunner().invoke(command, ["--rails", r"leaf(\d+)", str(recording)])
    assert done.exit_code == 2 and "stand-ins" in done.output


def test_recordings_of_one_salt_judge_each_others_cables(tmp_path: Path) -> None:
    files = []
    for name in "abcd":
        machine = TemplateMachine("hgx-h100")
        machine.leaf(SWAPPED if name == "c" else STRAIGHT)
        files.append(str(machine.record(tmp_path / f"{name}.tar.zst")))
    document = json.loads(CliRunner().invoke(command, ["--json", *files]).output)
    wrong = {
        (machine["name"], finding["subject"])
        for machine in document["machines"]
        for finding in machine["findings"]
        if finding["check"] == "nic.rail" and finding["answer"] == "fires"
    }
    assert wrong == {("c", "mlx5_2"), ("c", "mlx5_3")}
    assert [entry["machine"] for entry in document["comparison"]["odd_ones"]] == ["c"]
