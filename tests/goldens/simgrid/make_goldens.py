"""Makes the cases that the model is compared with SimGrid on, asks SimGrid, and stores both: `make simgrid-goldens`.

A case stores the flows themselves, not how they came about, so a change of planner or fabric does not change what is compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from railweave import _native, fabric, matrix
from railweave.simulate import parse_policy

HERE = Path(__file__).parent
Case = dict[str, Any]

# fabric, nodes, matrix, policies
PLANS = (
    ("h100-4gpu-ndr", 2, "hot-pair:256MiB:1MiB", "single-path nccl ucx-rails nimble railweave"),
    ("h100-4gpu-ndr", 2, "zipf:64MiB:1.2", "single-path nccl nccl-pxn0 ucx-rails railweave"),
    ("h100-4gpu-ndr", 1, "random:64MiB:1", "single-path railweave"),
    ("h100-4gpu-ndr", 4, "incast:32MiB", "single-path nccl railweave"),
    ("xe9680-4hca", 2, "random:16MiB:2", "single-path nccl railweave"),
    ("xe9680-4hca", 2, "moe:2048:4096:64:8:0.8", "nccl ucx-rails railweave"),
    ("kisti-a100-8gpu", 2, "balanced:8MiB", "single-path railweave"),
    ("kisti-v100-4gpu", 4, "random:16MiB:3", "single-path railweave"),
    ("dgx-1v", 2, "zipf:32MiB:1", "single-path nccl railweave"),
    ("lineyahoo-2nic", 2, "bidir-pair:128MiB:2MiB", "single-path railweave"),
    ("lineyahoo-4nic-rewired", 2, "rotating-hotspot:32MiB", "single-path railweave"),
    ("charisma-ab", 2, "outcast:32MiB", "single-path railweave"),
    ("hgx-h100", 4, "zipf:64MiB:1.4", "single-path nccl railweave"),
    ("hgx-h100", 8, "random:2MiB:4", "single-path"),
    ("hgx-h200", 8, "trace:noaux:5:5:512", "nccl railweave"),
)
RANDOM_CASES = 20


def random_case(seed: int) -> Case:
    """Flows over random resources, some twice; sizes, starts and latencies that sometimes coincide."""
    rng = random.Random(seed)
    resources = rng.randint(2, 60)
    capacities = [rng.choice((1, 2, 5)) * 10**9 if rng.random() < 0.5 else rng.randint(10**9, 10**11) for _ in range(resources)]
    flows = []
    for _ in range(rng.randint(2, 400)):
        size = 2**20 * rng.randint(1, 64) if rng.random() < 0.3 else rng.randint(10**5, 10**9)
        start = 0 if rng.random() < 0.6 else rng.randint(0, 50) * 10**6
        flows.append([size, start, rng.choice((0, 1000, 12345)), sorted(rng.choices(range(resources), k=rng.randint(1, 6)))])
    return {"name": f"random-{seed}", "capacities": capacities, "flows": flows}


def plan_cases() -> Iterator[Case]:
    """Plans of real machines, as the model sees them; resources that carry nothing are left out."""
    for name, nodes, traffic, policies in PLANS:
        machine = fabric.load(name, nodes)
        links = _native.LinkState(machine)
        demand = _native.Demand.from_numpy(matrix.load(traffic, machine.gpu_count))
        for policy in policies.split():
            settings = parse_policy(policy).settings
            planner = _native.Planner(machine, settings)
            flows = _native.plan_flows(planner.plan(demand, links), planner, settings.chunk_bytes, machine, links)
            loads = [flows.resources(i) for i in range(len(flows))]
            used = sorted({r for each in loads for r in each})
            place = {r: i for i, r in enumerate(used)}
            sizes, starts, latencies = flows.bytes.tolist(), flows.start_ns.tolist(), flows.latency_ns.tolist()
            yield {
                "name": f"{name}x{nodes}-{traffic}-{policy}".replace(":", "_"),
                "capacities": flows.capacities_Bps[np.array(used)].tolist(),
                "flows": [[*each[:3], [place[r] for r in each[3]]] for each in zip(sizes, starts, latencies, loads, strict=True)],
            }


def main() -> None:
    """Writes one compressed file for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simgrid-python", required=True, help="interpreter of a virtual environment with simgrid")
    python = parser.parse_args().simgrid_python
    cases = [*(random_case(seed) for seed in range(RANDOM_CASES)), *plan_cases()]
    lines = "".join(json.dumps({"capacities": case["capacities"], "flows": case["flows"]}) + "\n" for case in cases)
    answers = subprocess.run([python, str(HERE / "run_simgrid.py")], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    for old in HERE.glob("*.json.gz"):
        old.unlink()
    for case, answer in zip(cases, map(json.loads, answers.splitlines()), strict=True):
        case["finish_seconds"] = [float(f"{seconds:.9g}") for seconds in answer["finish_seconds"]]
        data = json.dumps(case, separators=(",", ":")).encode()
        (HERE / f"{case['name']}.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        print(f"{case['name']}: {len(case['flows'])} flows, SimGrid {answer['wall_seconds']:.3f} s", file=sys.stderr)
    print(f"{len(cases)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
