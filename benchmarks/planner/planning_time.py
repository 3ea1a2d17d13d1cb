"""How long planning takes on one core, from the program planner_time: the table of times in docs/planner.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from sweep import MACHINES, Matrix, matrix_of

from railweave import fabric as fabrics
from railweave import matrix as matrices

# What an application repeats: few shapes in turn, of which some have hot pairs. The rows "sweep" have the matrices of sweep.py.
FEW = ["zipf:64GiB:1.0:1", "random:64MiB:2", "hot-pair:4GiB:16MiB", "balanced:1MiB"]
LARGE = ("hgx-h100", 128)
SWEPT_MAX_RANKS = 16  # matrices of larger machines take long to write and read


def time_plans(timer: Path, machine: str, nodes: int, found: list[Matrix], repeat: int) -> dict[str, float]:
    """Microseconds per plan."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "fabric.json"
        graph.write_text(fabrics.load(machine, nodes).to_json())
        files = []
        for number, matrix in enumerate(found):
            files.append(Path(folder) / f"{number:03}.txt")
            files[-1].write_text(matrices.write(matrix))
        done = subprocess.run([timer, graph, str(repeat), *files], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timer", type=Path, required=True, help="The planner_time program.")
    options = parser.parse_args()
    print("| machine | matrices | p50 us | p99 us |\n|---|---|---|---|")
    for machine, nodes in [*MACHINES.values(), LARGE]:
        ranks = fabrics.load(machine, nodes).gpu_count
        few = [np.array(matrices.load(text, ranks), dtype=np.uint64) for text in (FEW if ranks <= 64 else FEW[:2])]
        rows = [(f"{len(few)}", few, 300 if ranks <= 16 else 100 if ranks <= 64 else 10)]
        if ranks <= SWEPT_MAX_RANKS:
            rows.append(("200, sweep", [matrix_of(seed, ranks)[1] for seed in range(200)], 20))
        for name, found, repeat in rows:
            result = time_plans(options.timer, machine, nodes, found, repeat)
            print(f"| {nodes} x {machine} | {name} | {result['p50_us']:.1f} | {result['p99_us']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
