"""Cables on the wrong rail: told by other machines or by the names of switches; unknown where neither is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from template_machine import PCI, TemplateMachine

from railweave.cli.doctor import command
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding
from railweave.doctor.rails import Cables, FleetRails, NamedRails, Rails
from railweave.machine.network import LLDP
from railweave.machine.source import Reason

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
    assert found["mlx5_2"].text == "goes to leaf3, where 2 other machines have NIC 3, mlx5_3 here; it is NIC 2"
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


def test_machines_with_another_number_of_fabric_nics_have_no_common_places() -> None:
    fewer = {nic: f"leaf{nic}" for nic in range(1, 8)}
    found = rails_of(STRAIGHT, FleetRails([cables(fewer), cables(fewer)]))
    assert answers(found) == {UNKNOWN}
    assert found["mlx5_1"].text == "goes to leaf1; 8 fabric NICs here and 7 on other machines there have no common places"
    # Those with as many are asked, and outvoted by no others.
    assert answers(rails_of(STRAIGHT, FleetRails([cables(fewer), cables(fewer), cables(STRAIGHT)]))) == {CLEAR}


def test_rails_that_share_a_leaf_stay_clear_beside_one_wrong_cable() -> None:
    pairs = {nic: f"leaf{nic // 2}" for nic in range(8)}
    crossed = {**pairs, 1: "leaf1", 2: "leaf0"}
    assert answers(rails_of(pairs, FleetRails([cables(pairs), cables(crossed)]))) == {CLEAR}
    assert fired(rails_of(crossed, FleetRails([cables(pairs), cables(pairs)]))) == ["mlx5_1", "mlx5_2"]


@pytest.mark.parametrize("reference", [FleetRails([cables(STRAIGHT)] * 2), NamedRails(r"leaf(\d+)")])
def test_places_are_unknown_where_an_address_is(reference: Rails) -> None:
    machine = TemplateMachine("hgx-h100")
    machine.leaf(STRAIGHT)
    device = "/sys/class/infiniband/mlx5_5/device"
    machine.links.pop("/sys/class/infiniband/mlx5_5")
    machine.unreadable["/sys/class/infiniband/mlx5_5"] = machine.unreadable[device] = (Reason.permission, "Permission denied")
    found = [finding for finding in examine(machine.machine(), "m", rails=reference).findings if finding.check == "nic.rail"]
    assert {finding.answer for finding in found} == {UNKNOWN}


def test_a_port_that_hears_of_two_switches_is_unknown_and_its_siblings_are_judged() -> None:
    machine = TemplateMachine("hgx-h100")
    machine.leaf(STRAIGHT)
    heard = json.loads(machine.commands[LLDP])
    heard["lldp"]["interface"].append({"rail2": {"chassis": {"leaf9": {}}, "port": {"id": {"value": "Eth1"}}}})
    machine.commands[LLDP] = json.dumps(heard)
    examination = examine(machine.machine(), "m", rails=NamedRails(r"leaf(\d+)"))
    found = {finding.subject: finding for finding in examination.findings if finding.check == "nic.rail"}
    odd = found.pop("mlx5_2")
    assert (odd.answer, odd.text) == (UNKNOWN, "rail2 hears of leaf2, leaf9; which of them its cable leads to is not known")
    assert answers(found) == {CLEAR}
    assert examination.traits["leaf at rail2"] == "leaf2, leaf9"


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


def test_a_pattern_is_shown_as_it_was_written() -> None:
    done = CliRunner().invoke(command, ["--rails", r"leaf(\d+"])
    assert r"'leaf(\d+' is no regular expression" in done.output
    done = CliRunner().invoke(command, ["--rails", r"leaf\d+"])
    assert r"'leaf\d+' has 0 groups" in done.output


def test_a_pattern_is_not_for_recordings(tmp_path: Path) -> None:
    recording = TemplateMachine("h100-4gpu-ndr").record(tmp_path / "m.tar.zst")
    done = CliRunner().invoke(command, ["--rails", r"leaf(\d+)", str(recording)])
    assert done.exit_code == 2 and "stand-ins" in done.output


def fleet(folder: Path, change: Callable[[TemplateMachine], None], leafs: dict[int, str]) -> tuple[list[str], TemplateMachine]:
    """Recordings of four machines, the third with another wiring and changed."""
    files = []
    for name in "abcd":
        machine = TemplateMachine("hgx-h100")
        machine.leaf(STRAIGHT)
        if name == "c":
            machine.leaf(leafs)
            change(machine)
            changed = machine
        files.append(str(machine.record(folder / f"{name}.tar.zst")))
    return files, changed


def rail_answers(files: list[str]) -> dict[str, set[tuple[str, str]]]:
    """Machine and NIC, by answer."""
    found: dict[str, set[tuple[str, str]]] = {}
    for machine in json.loads(CliRunner().invoke(command, ["--json", *files]).output)["machines"]:
        for finding in machine["findings"]:
            if finding["check"] == "nic.rail":
                found.setdefault(finding["answer"], set()).add((machine["name"], finding["subject"]))
    return found


def later(machine: TemplateMachine) -> None:
    """Two other HCAs enumerate first."""

    def named(text: str) -> str:
        return re.sub(r"mlx5_(\d+)", lambda found: f"mlx5_{int(found[1]) + 2}", text)

    machine.files = {named(path): content for path, content in machine.files.items()}
    machine.links = {named(path): named(target) for path, target in machine.links.items()}


def without_the_first(machine: TemplateMachine) -> None:
    """A NIC that is not there."""
    gone = (f"{PCI}/{machine.nics[0].bus_id}", "/sys/class/infiniband/mlx5_0", "/sys/class/net/rail0")
    for table in (machine.files, machine.links):
        for path in [path for path in table if path.startswith(gone)]:
            del table[path]


def test_recordings_of_one_salt_judge_each_others_cables(tmp_path: Path) -> None:
    files, _ = fleet(tmp_path, lambda _: None, SWAPPED)
    assert rail_answers(files)["fires"] == {("c", "mlx5_2"), ("c", "mlx5_3")}
    document = json.loads(CliRunner().invoke(command, ["--json", *files]).output)
    assert [entry["machine"] for entry in document["comparison"]["odd_ones"]] == ["c"]


def test_a_machine_whose_nics_have_other_names_is_judged_by_their_places(tmp_path: Path) -> None:
    files, changed = fleet(tmp_path, later, STRAIGHT)
    assert {nic.name for nic in changed.machine().nics.value} == {f"mlx5_{nic}" for nic in range(2, 10)}  # type: ignore[union-attr]
    assert set(rail_answers(files)) == {"clear"}
    assert CliRunner().invoke(command, [*files, "--fail-on", "error"]).exit_code == 0


def test_swapped_cables_are_found_under_other_names(tmp_path: Path) -> None:
    files, _ = fleet(tmp_path, later, SWAPPED)
    assert rail_answers(files)["fires"] == {("c", "mlx5_4"), ("c", "mlx5_5")}


def test_a_machine_that_lacks_a_nic_is_unknown_and_its_fleet_clear(tmp_path: Path) -> None:
    files, _ = fleet(tmp_path, without_the_first, {nic: leaf for nic, leaf in STRAIGHT.items() if nic})
    found = rail_answers(files)
    assert found["unknown"] == {("c", f"mlx5_{nic}") for nic in range(1, 8)}
    assert found["clear"] == {(name, f"mlx5_{nic}") for name in "abd" for nic in range(8)}
