"""The model against SimGrid 4.1, on cases and answers stored by `make simgrid-goldens`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from railweave import _native

GOLDENS = sorted((Path(__file__).parents[2] / "goldens" / "simgrid").glob("*.json.gz"))
TOLERANCE = 0.01


def flows_of(case: dict) -> _native.Flows:
    loads = [resources for *_, resources in case["flows"]]
    return _native.Flows.from_arrays(
        np.array(case["capacities"], dtype=np.uint64),
        np.array([size for size, *_ in case["flows"]], dtype=np.uint64),
        np.cumsum([0, *map(len, loads)], dtype=np.uint64),
        np.array([resource for each in loads for resource in each], dtype=np.uint32),
        np.array([start for _, start, *_ in case["flows"]], dtype=np.uint64),
        np.array([latency for _, _, latency, _ in case["flows"]], dtype=np.uint64),
    )


def test_there_are_enough_cases() -> None:
    assert len(GOLDENS) >= 50


def load(golden: Path) -> tuple[_native.Flows, np.ndarray]:
    case = json.loads(gzip.decompress(golden.read_bytes()))
    return flows_of(case), np.array(case["finish_seconds"])


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_each_flow_within_one_percent(golden: Path) -> None:
    flows, expected = load(golden)
    simulation = _native.simulate(flows)
    np.testing.assert_allclose(simulation.finish_seconds, expected, rtol=TOLERANCE)
    assert simulation.seconds == pytest.approx(expected.max(), rel=TOLERANCE)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_batched_total_within_one_percent(golden: Path) -> None:
    # Batching may move a small flow by much of its own time, but by little of the whole.
    flows, expected = load(golden)
    simulation = _native.simulate(flows, 1e-3)
    assert simulation.seconds == pytest.approx(expected.max(), rel=TOLERANCE)
    np.testing.assert_allclose(simulation.finish_seconds, expected, atol=TOLERANCE * expected.max())
