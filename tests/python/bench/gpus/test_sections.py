"""What the evaluation measures on each number of GPUs. No GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[4] / "benchmarks/gpus"


@pytest.fixture(scope="module")
def sections() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("sections")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_on_two_gpus_a_pattern_is_measured_once(sections: ModuleType) -> None:
    fans = {gpus: next(each for each in sections.sections(gpus) if each.name == "fans") for gpus in (2, 4)}
    assert fans[2].cases == (), "an incast of one is a pair"
    assert len(fans[4].cases) == 6
    assert sections.sections(4) == sections.sections(4)


def test_checks_run_where_there_are_ranks_enough_for_them(sections: ModuleType) -> None:
    names = {gpus: {check.name for check in sections.late_checks(gpus)} for gpus in (1, 2, 4)}
    assert names[4] - names[2] == {"check-elastic"}
    assert names[4] - names[1] == {"check-mps"}, "four ranks share one GPU"


def test_eight_gpus_meet_every_sentence_of_their_issue(sections: ModuleType) -> None:
    found = {each.name: each for each in sections.sections(8)}
    words = {name: " ".join(each.words) for name, each in sections.groups(8).items()}
    patterns = {case.partition(":")[0].rpartition("-")[0] if case.startswith("two") else case.partition(":")[0] for each in found.values()
                if each.group in ("exchanges", "small") for case in each.cases}  # fmt: skip
    assert patterns == {"all-to-all", "hot-pair", "balanced", "two-pairs", "incast", "outcast", "zipf", "rotating-hotspot", "moe", "trace"}
    labs = {name: (each.words[2], each.words[4], each.ranks) for name, each in sections.groups(8).items() if each.gpus_a_node}
    paper = ("2x4", "4", 8)
    others = {"rails-8": ("2x4", "8", 8), "rails-4x2": ("4x2", "4", 8)}
    assert labs == {**dict.fromkeys(("rails", "moe-rails", "moe-rails-zipf", "tuned-rails"), paper), **others}
    assert all(set(found[name].cases) >= {"inside-pair-256MiB", "hot-pair:64MiB"} for name in ("rails", "rails-8", "rails-4x2"))
    assert words["small"] == "alltoallv --gpus 8 --starts 5 --repeat 10"
    assert (words["moe"], words["mesh"]) == ("moe --gpus 8", "alltoallv --gpus 8 --emulate-mesh 120")
    assert {"calibrate", "planning", "check-memory"} <= {each.name for each in (*sections.checks(8), *sections.late_checks(8))}


def test_one_gpu_has_what_eight_have_over_rails(sections: ModuleType) -> None:
    found, all_of = ({each.name: each for each in sections.sections(gpus)} for gpus in (1, 8))
    labs = {gpus: {name: each.words for name, each in sections.groups(gpus).items()} for gpus in (1, 8)}
    for name in ("rails", "rails-8", "rails-4x2", "moe-rails", "moe-rails-zipf"):
        assert labs[1][name] == labs[8][name]
        assert set(found[name].cases) <= set(all_of[name].cases)
    assert {each.gpus_a_node > 0 for each in sections.groups(1).values()} == {True}, "inside a host NCCL refuses ranks that share a GPU"
    assert {each.name for each in sections.late_checks(8)} - {each.name for each in sections.late_checks(1)} == {"check-mps"}


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_nccl_with_more_channels_is_measured_over_the_papers_rails(gpus: int, sections: ModuleType) -> None:
    group = sections.groups(gpus)["tuned-rails"]
    assert group.words == (*sections.groups(gpus)["rails"].words, "--systems", "nccl,nccl-tuned,railweave")
    (section,) = (each for each in sections.sections(gpus) if each.name == "tuned-rails")
    assert section.cases == ("hot-pair:64MiB:512KiB", "incast:16MiB", "balanced:4MiB")
    assert section == sections.sections(gpus)[-1], "the last that is run"


@pytest.mark.parametrize(("gpus", "group"), [(2, None), (4, "tuned-nodes"), (6, "tuned-nodes"), (8, "tuned-rails")])
def test_nccl_with_more_channels_is_measured_inside_nodes_of_several(gpus: int, group: str | None, sections: ModuleType) -> None:
    found = [each for each in sections.sections(gpus) if each.name == "tuned-nodes"]
    assert [(each.group, each.cases) for each in found] == ([(group, sections._INSIDE)] if group else []), "nodes of one have no inside"
    if group:
        words = sections.groups(gpus)[group].words
        assert words == (*sections.groups(gpus)[group.removeprefix("tuned-")].words, "--systems", "nccl,nccl-tuned,railweave")


@pytest.mark.parametrize("gpus", [2, 8])
def test_calls_of_small_messages_are_measured_beside_a_shim_that_does_nothing(gpus: int, sections: ModuleType) -> None:
    groups = sections.groups(gpus)
    assert groups["small-shim-off"].words == (*groups["small"].words, "--systems", "nccl,nccl-shim-off,railweave")
    small = {case for each in sections.sections(gpus) if each.group == "small" for case in each.cases}
    (section,) = (each for each in sections.sections(gpus) if each.name == "small-shim-off")
    assert set(section.cases) <= small, "rows that there are without it"


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_layers_over_rails_have_every_skew_beside_experts_of_every_size(gpus: int, sections: ModuleType) -> None:
    found: set[tuple[str, str]] = set()
    for section in (each for each in sections.sections(gpus) if each.name.startswith("moe-rails")):
        group = sections.groups(gpus)[section.group]
        skews = [group.words[at + 1] for at, word in enumerate(group.words) if word == "--skew"]
        assert len(skews) == group.needs
        found |= {(skew, compute) for skew in skews for compute in section.cases}
    skews = ("none", "zipf:0.6", "zipf:1.0", "zipf:1.2", "rotating")
    assert found == {(skew, compute) for skew in skews for compute in ("0.5", "1", "2")}


def test_matrices_of_nodes(sections: ModuleType) -> None:
    def made(name: str) -> Any:
        return sections.own_matrix(name, 4, 2).tolist()

    assert made("two-pairs-16") == [[0, 0, 16, 0], [0, 0, 0, 16], [16, 0, 0, 0], [0, 16, 0, 0]]
    assert made("inside-pair-16") == [[0, 16, 0, 0], *[[0] * 4] * 3]
    assert made("inside-all-to-all-16") == [[0, 16, 0, 0], [16, 0, 0, 0], [0, 0, 0, 16], [0, 0, 16, 0]]
    mostly = sections.own_matrix("mostly-inside-20000", 8, 4)
    assert mostly[0].tolist() == [0, 6000, 6000, 6000, 500, 500, 500, 500]
    assert sections.own_matrix("hot-pair:16", 4, 2) is None
