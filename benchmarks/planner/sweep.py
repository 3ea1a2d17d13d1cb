"""Plans of many matrices against the exact optimum: the table of gaps in docs/planner.md.

Demands are 0 or at least 64 chunks, so that whole chunks do not hide how good the split is. Where a plan meets its lower bound to 0.1%
(--certify) the bound stands for the optimum, which makes the gap at most too large; else HiGHS solves the linear program.

Cases are kept in a file of records as they are done, so that a sweep can stop (--seconds) and go on where it was. Records know what
they were made from: other matrices or another fabric make new ones. Plans of a changed planner need --replan, which keeps the optima.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
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
MACHINES = {
    "mesh4": ("h100-4gpu-ndr", 1),
    "dgx-1v": ("dgx-1v", 1),
    "2x4": ("h100-4gpu-ndr", 2),
    "xe9680": ("xe9680-4hca", 2),
    "hgx": ("hgx-h100", 2),
    "8x8": ("hgx-h100", 8),
}
STATES = ["nominal", "half", "down"]
POLICIES = ["railweave", "nimble"]

Matrix = npt.NDArray[np.uint64]


def matrix_of(seed: int, ranks: int) -> tuple[str, Matrix]:
    """The matrix of a seed: all generators in turn, structured ones with their ranks shuffled so that hot pairs fall inside nodes too."""
    random = np.random.default_rng(seed)
    size = int(random.choice([64, 256, 1024]))
    texts = [
        f"balanced:{size}MiB",
        f"hot-pair:{4 * size}MiB",
        f"hot-pair:{4 * size}MiB:{random.choice([16, 64])}MiB",
        f"bidir-pair:{4 * size}MiB:16MiB",
        f"incast:{size}MiB",
        f"outcast:{size}MiB",
        f"rotating-hotspot:{2 * size}MiB",
        f"zipf:{random.choice([1, 2, 4, 8])}GiB:{random.choice([0.5, 0.8, 1.0, 1.2, 1.5])}:{seed}",
        f"random:{size}MiB:{seed}",
        f"moe:{random.choice([8192, 32768])}:7168:{8 * ranks}:8:{random.choice([0.5, 1.0, 1.5])}:{seed}",
        f"trace:noaux:{seed % 20}:{seed % 6}:{random.choice([16, 32])}KiB",
    ]
    text = texts[seed % len(texts)]
    try:
        matrix = np.array(matrices.load(text, ranks), dtype=np.uint64)
    except DemandError:  # the recorded routing has experts for so many ranks only
        text = f"random:{size}MiB:{seed}"
        matrix = np.array(matrices.load(text, ranks), dtype=np.uint64)
    if seed >= len(texts):
        order = random.permutation(ranks)
        matrix = matrix[np.ix_(order, order)]
    matrix[(matrix > 0) & (matrix < 16 * MIB)] = 16 * MIB
    np.fill_diagonal(matrix, 0)
    return text, matrix


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


@dataclass(frozen=True)
class Record:
    """One case: a matrix on a machine in a state. `optimum` is a lower bound of the optimum unless `exact`; times in seconds."""

    machine: str
    state: str
    seed: int
    digest: str  # of fabric and matrix
    matrix: str
    optimum: float
    exact: bool
    z: dict[str, float]  # by policy

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from other cases."""
        return self.machine, self.state, self.seed


class Bench:
    """One machine in one state, with a planner for each policy."""

    def __init__(self, machine: str, state: str) -> None:
        self.machine, self.state = machine, state
        self.fabric = fabrics.load(*MACHINES[machine])
        self._fabric_text = self.fabric.to_json().encode()
        self.links = link_state(self.fabric, state)
        self.planners = {}
        for policy in POLICIES:
            settings = PlannerSettings()
            settings.policy = policy
            self.planners[policy] = Planner(self.fabric, settings)
        self._exact = ExactRouting(self.fabric, self.planners["railweave"], self.links)

    def measure(self, seed: int, policies: list[str], certify: float, old: Record | None) -> Record:
        """The case of a seed; what `old` knows of it (optimum, plans of other policies) is kept if it is of the same inputs."""
        text, matrix = matrix_of(seed, self.fabric.gpu_count)
        digest = hashlib.sha256(self._fabric_text + matrix.tobytes()).hexdigest()[:16]
        if old is None or old.digest != digest:
            old = Record(self.machine, self.state, seed, digest, text, 0.0, False, {})
        demand = Demand.from_numpy(matrix)
        plan = self.planners["railweave"].plan(demand, self.links)
        optimum, exact = max(old.optimum, plan.bound.seconds), old.exact
        if plan.z_seconds > optimum * (1 + certify) and not exact:
            # The bound is rounded; as a bound of the program's own it must not lie above the optimum.
            optimum, exact = self._exact.optimum(demand, plan.bound.seconds * (1 - 1e-7)).seconds, True
        z = old.z | {policy: self.planners[policy].plan(demand, self.links).z_seconds for policy in policies}
        return replace(old, optimum=old.optimum if old.exact else optimum, exact=exact, z=z)


def read_records(path: Path) -> dict[tuple[str, str, int], Record]:
    """Records of earlier runs; of several of one case the last holds."""
    if not path.exists():
        return {}
    records = [Record(**json.loads(line)) for line in path.read_text().splitlines()]
    return {record.key: record for record in records}


def print_table(records: list[Record]) -> None:
    """Mean and worst gap of each machine, state and policy; `solved`: of how many matrices the linear program gave the optimum."""
    print("| machine | links | matrices | solved | policy | mean gap | worst gap | worst matrix |\n|---|---|---|---|---|---|---|---|")
    for machine, state, policy in itertools.product(MACHINES, STATES, POLICIES):
        cases = [(r.z[policy] / r.optimum - 1, r) for r in records if (r.machine, r.state) == (machine, state) and policy in r.z]
        if not cases:
            continue
        worst, record = max(cases, key=lambda case: case[0])
        mean = sum(gap for gap, _ in cases) / len(cases)
        solved = sum(record.exact for _, record in cases)
        row = f"| {machine} | {state} | {len(cases)} | {solved} | {policy} | {mean:.2%} | {worst:.2%} |"
        print(f"{row} seed {record.seed}: {record.matrix} |")


def todo(options: argparse.Namespace, records: dict[tuple[str, str, int], Record]) -> Iterator[tuple[str, str, int, list[str]]]:
    """Cases that are to be planned, each with the policies that it lacks."""
    for machine, state in itertools.product(options.machines, options.states):
        for seed in range(options.first_seed, options.first_seed + options.count):
            old = records.get((machine, state, seed))
            missing = [p for p in options.policies if old is None or p not in old.z or p in options.replan]
            if missing:
                yield machine, state, seed, missing


def names(choices: list[str]) -> object:
    """Argument type: some of `choices`, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",") if text else []
        if unknown := [name for name in chosen if name not in choices]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; expected some of {', '.join(choices)}")
        return chosen

    return parse


def main() -> None:
    """Do what is missing, then print the table of these seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=names([*MACHINES]), default=[*MACHINES], help=f"Of {','.join(MACHINES)}.")
    parser.add_argument("--states", type=names(STATES), default=STATES, help=f"Of {','.join(STATES)}.")
    parser.add_argument("--policies", type=names(POLICIES), default=POLICIES, help=f"Of {','.join(POLICIES)}.")
    parser.add_argument("--first-seed", type=int, default=0, help="Seed of the first matrix.")
    parser.add_argument("--count", type=int, default=200, help="Matrices for each machine and state.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Stop after this time; the next run goes on.")
    parser.add_argument("--certify", type=float, default=0.001, help="Plans this near their lower bound (a part) need no linear program.")
    parser.add_argument("--replan", type=names(POLICIES), default=[], help="Policies to plan again although recorded.")
    parser.add_argument("--records", type=Path, default=Path("build/planner-sweep.jsonl"))
    options = parser.parse_args()
    records = read_records(options.records)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    left, bench = 0, None
    with options.records.open("a") as file:
        for machine, state, seed, policies in todo(options, records):
            if time.monotonic() > end:
                left += 1
                continue
            if bench is None or (bench.machine, bench.state) != (machine, state):
                bench = Bench(machine, state)
            record = bench.measure(seed, policies, options.certify, records.get((machine, state, seed)))
            records[record.key] = record
            print(json.dumps(asdict(record)), file=file, flush=True)
    print_table([r for r in records.values() if options.first_seed <= r.seed < options.first_seed + options.count])
    if left:
        sys.exit(f"{left} cases are left; run again to go on")


if __name__ == "__main__":
    main()
