"""Plans of many matrices against the exact optimum, and how long planning takes; prints the tables of docs/planner.md.

Demands are 0 or at least 64 chunks, so that whole chunks do not hide how good the split is. Where a plan meets its lower bound to 0.1%
the bound stands for the optimum, which makes the gap at most too large; else HiGHS solves the linear program.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from railweave import fabric as fabrics
from railweave import matrix as matrices
from railweave._native import Demand
from railweave.errors import DemandError
from railweave.fabric import EdgeKind, Fabric, LinkState
from railweave.plan import Planner, PlannerSettings
from railweave.plan.exact import ExactRouting

MIB = 1 << 20
MACHINES = [("h100-4gpu-ndr", 1), ("h100-4gpu-ndr", 2), ("xe9680-4hca", 2), ("hgx-h100", 2), ("hgx-h100", 8)]
LARGE = ("hgx-h100", 128)
LARGE_MATRICES = ["balanced:1MiB", "zipf:64GiB:1.0:1", "random:64MiB:2", "hot-pair:4GiB:16MiB"]
STATES = ["nominal", "half", "down"]
MEETS_BOUND = 1.001

Matrix = npt.NDArray[np.uint64]


def demands(ranks: int, count: int) -> Iterator[tuple[str, Matrix]]:
    """Matrices of all generators; the structured ones also with their ranks shuffled, so that hot pairs fall inside nodes too."""
    for number in range(count):
        random = np.random.default_rng(number)
        size = int(random.choice([64, 256, 1024]))
        texts = [
            f"balanced:{size}MiB",
            f"hot-pair:{4 * size}MiB",
            f"hot-pair:{4 * size}MiB:{random.choice([16, 64])}MiB",
            f"bidir-pair:{4 * size}MiB:16MiB",
            f"incast:{size}MiB",
            f"outcast:{size}MiB",
            f"rotating-hotspot:{2 * size}MiB",
            f"zipf:{random.choice([1, 2, 4, 8])}GiB:{random.choice([0.5, 0.8, 1.0, 1.2, 1.5])}:{number}",
            f"random:{size}MiB:{number}",
            f"moe:{random.choice([8192, 32768])}:7168:{8 * ranks}:8:{random.choice([0.5, 1.0, 1.5])}:{number}",
            f"trace:noaux:{number % 20}:{number % 6}:{random.choice([16, 32])}KiB",
        ]
        text = texts[number % len(texts)]
        try:
            matrix = np.array(matrices.load(text, ranks), dtype=np.uint64)
        except DemandError:  # the recorded routing has experts for so many ranks only
            text = f"random:{size}MiB:{number}"
            matrix = np.array(matrices.load(text, ranks), dtype=np.uint64)
        if number >= len(texts):
            order = random.permutation(ranks)
            matrix = matrix[np.ix_(order, order)]
        matrix[(matrix > 0) & (matrix < 16 * MIB)] = 16 * MIB
        np.fill_diagonal(matrix, 0)
        yield text, matrix


def link_state(fabric: Fabric, state: str) -> LinkState:
    """One rail (or, in a fabric without rails, one NVLink pair) at half its rate or down."""
    links = LinkState(fabric)
    if state == "nominal":
        return links
    leaf = fabric.find_vertex("leaf0") if fabric.node_count > 1 else None
    if leaf is not None:
        edges = [*fabric.out_edges(leaf), *fabric.in_edges(leaf)]
    else:
        edges = [e for e, edge in enumerate(fabric.edges) if edge.kind == EdgeKind.nvlink][:2]
    for edge in edges:
        if state == "half":
            links.set_rate(edge, fabric.edge(edge).capacity_Bps // 2)
        else:
            links.set_down(edge, True)
    return links


def gaps(machine: str, nodes: int, state: str, policies: list[str], count: int) -> dict[str, npt.NDArray[np.float64]]:
    """Per policy the gap of each matrix, as a fraction."""
    fabric = fabrics.load(machine, nodes)
    links = link_state(fabric, state)
    planners = {}
    for policy in policies:
        settings = PlannerSettings()
        settings.policy = policy
        planners[policy] = Planner(fabric, settings)
    exact = ExactRouting(fabric, planners["railweave"], links)
    found: dict[str, list[float]] = {policy: [] for policy in policies}
    for _, matrix in demands(fabric.gpu_count, count):
        demand = Demand.from_numpy(matrix)
        plans = {policy: planner.plan(demand, links) for policy, planner in planners.items()}
        best = plans["railweave"].bound.seconds
        if plans["railweave"].z_seconds > best * MEETS_BOUND:
            best = exact.optimum(demand, best * (1 - 1e-7)).seconds
        for policy, plan in plans.items():
            found[policy].append(plan.z_seconds / best - 1)
    return {policy: np.array(values) for policy, values in found.items()}


def time_plans(timer: Path, machine: str, nodes: int, texts: list[tuple[str, Matrix]], repeat: int) -> dict[str, float]:
    """Microseconds per plan from the C++ program."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "fabric.json"
        graph.write_text(fabrics.load(machine, nodes).to_json())
        files = []
        for number, (_, matrix) in enumerate(texts):
            files.append(Path(folder) / f"{number:03}.txt")
            files[-1].write_text(matrices.write(matrix))
        done = subprocess.run([timer, graph, str(repeat), *files], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timer", type=Path, required=True, help="The planner_time program.")
    parser.add_argument("--count", type=int, default=200, help="Matrices for each machine.")
    parser.add_argument("--policies", default="railweave,nimble")
    parser.add_argument("--only", choices=["gap", "time"])
    options = parser.parse_args()
    policies = options.policies.split(",")
    if options.only != "time":
        print("| machine | links | matrices | policy | mean gap | worst gap |\n|---|---|---|---|---|---|")
        for machine, nodes in MACHINES:
            for state in STATES:
                for policy, values in gaps(machine, nodes, state, policies, options.count).items():
                    row = f"| {nodes} x {machine} | {state} | {len(values)} | {policy} | {values.mean():.2%} | {values.max():.2%} |"
                    print(row, flush=True)
    if options.only != "gap":
        print("| machine | matrices | p50 us | p99 us |\n|---|---|---|---|")
        for machine, nodes in MACHINES:
            ranks = fabrics.load(machine, nodes).gpu_count
            texts = list(demands(ranks, options.count if ranks <= 16 else 30))
            result = time_plans(options.timer, machine, nodes, texts, 50 if ranks <= 16 else 10)
            print(f"| {nodes} x {machine} | {len(texts)} | {result['p50_us']:.1f} | {result['p99_us']:.1f} |", flush=True)
        ranks = LARGE[1] * 8
        texts = [(text, np.array(matrices.load(text, ranks), dtype=np.uint64)) for text in LARGE_MATRICES]
        result = time_plans(options.timer, *LARGE, texts, 5)
        print(f"| {LARGE[1]} x {LARGE[0]} | {len(texts)} | {result['p50_us']:.0f} | {result['p99_us']:.0f} |")


if __name__ == "__main__":
    main()
