"""Speed and agreement of the model and SimGrid on 10,000 flows over 1,000 links, taking turns in one run: `make bench-model`."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from railweave import _native

RUNNER = Path(__file__).parents[2] / "tests" / "goldens" / "simgrid" / "run_simgrid.py"
FLOWS, LINKS, LINKS_A_FLOW = 10_000, 1_000, 4


def main() -> None:
    """Prints a row for each way, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simgrid-python", required=True, help="interpreter of a virtual environment with simgrid")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    rng = random.Random(1)
    capacities = [rng.randrange(10**9, 10**10) for _ in range(LINKS)]
    flows = [[rng.randrange(10**6, 10**8), 0, 0, sorted(rng.sample(range(LINKS), LINKS_A_FLOW))] for _ in range(FLOWS)]
    line = json.dumps({"capacities": capacities, "flows": flows})
    native = _native.Flows.from_arrays(
        np.array(capacities, dtype=np.uint64),
        np.array([size for size, *_ in flows], dtype=np.uint64),
        np.arange(0, FLOWS * LINKS_A_FLOW + 1, LINKS_A_FLOW, dtype=np.uint64),
        np.array([r for *_, resources in flows for r in resources], dtype=np.uint32),
        np.zeros(FLOWS, dtype=np.uint64),
        np.zeros(FLOWS, dtype=np.uint64),
    )
    # CPU time beside wall time: on a machine that does other work as well, it is what can be compared.
    seconds: dict[str, list[float]] = {"simgrid": [], "exact": [], "batched": []}
    cpu_seconds: dict[str, list[float]] = {"simgrid": [], "exact": [], "batched": []}
    finish: dict[str, np.ndarray] = {}
    for _ in range(arguments.repeat):
        answer = json.loads(
            subprocess.run([arguments.simgrid_python, str(RUNNER)], input=line, stdout=subprocess.PIPE, text=True, check=True).stdout
        )
        # Only the simulation itself is timed on both sides, not how the platform and the flows are set up.
        seconds["simgrid"].append(answer["wall_seconds"])
        cpu_seconds["simgrid"].append(answer["cpu_seconds"])
        finish["simgrid"] = np.array(answer["finish_seconds"])
        for name, batching in (("exact", 0.0), ("batched", 1e-3)):
            begin, cpu = time.perf_counter(), time.process_time()
            simulation = _native.simulate(native, batching)
            seconds[name].append(time.perf_counter() - begin)
            cpu_seconds[name].append(time.process_time() - cpu)
            finish[name] = simulation.finish_seconds
    reference, total = finish["simgrid"], finish["simgrid"].max()
    for name in seconds:
        columns = [_column(unit, each[name], each["simgrid"]) for unit, each in (("wall", seconds), ("CPU", cpu_seconds))]
        apart = np.abs(finish[name] - reference)
        print(
            f"{name:8} {'; '.join(columns)}; total differs by {abs(finish[name].max() / total - 1):.2e}, "
            f"a flow by at most {(apart / reference).max():.2e} of its time, {apart.max() / total:.2e} of the total"
        )


def _column(unit: str, each: list[float], simgrid: list[float]) -> str:
    median = statistics.median(each)
    return f"{unit} median {median:7.3f} s ({min(each):.3f} to {max(each):.3f}), {statistics.median(simgrid) / median:6.1f}x"


if __name__ == "__main__":
    main()
