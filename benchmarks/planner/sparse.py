"""Plans of sparse random matrices on meshes against the exact optimum: where prices find least to hold on to (docs/planner.md).

Each GPU pair has traffic with a chance of 0.1 to 0.6, then between 64 and 2,048 chunks, uniformly.
"""

from __future__ import annotations

import argparse

import numpy as np

from railweave import fabric
from railweave.plan import make

MIB = 1 << 20
MACHINES = {"mesh4": "h100-4gpu-ndr", "dgx-1v": "dgx-1v"}


def main() -> None:
    """Print mean and worst gap and planning time of each machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=10_000, help="Seed of the first matrix.")
    parser.add_argument("--count", type=int, default=1_200, help="Matrices for each machine.")
    given = parser.parse_args()
    print("| machine | matrices | mean gap | worst gap | seed of the worst | above 3% | plan, median | plan, longest |")
    print("|---|---|---|---|---|---|---|---|")
    for name, template in MACHINES.items():
        built = fabric.load(template, 1)
        shape = (built.gpu_count, built.gpu_count)
        gaps, times = {}, []
        for seed in range(given.first_seed, given.first_seed + given.count):
            random = np.random.default_rng(seed)
            density = random.uniform(0.1, 0.6)
            size = random.integers(16 * MIB, 512 * MIB, shape) * (random.random(shape) < density)
            np.fill_diagonal(size, 0)
            if not size.any():
                continue
            planned = make(built, size, exact=True)
            assert planned.gap is not None
            gaps[seed] = planned.gap
            times.append(planned.document()["plan_time_us"])
        worst = max(gaps, key=gaps.__getitem__)
        over = sum(gap > 0.03 for gap in gaps.values())
        print(
            f"| {name} | {len(gaps)} | {np.mean(list(gaps.values())):.2%} | {gaps[worst]:.2%} | {worst} | {over} "
            f"| {np.median(times):.0f} µs | {max(times):.0f} µs |",
            flush=True,
        )


if __name__ == "__main__":
    main()
