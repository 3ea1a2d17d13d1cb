"""What planning and the exchange of rows take before bytes go over rails, each by itself: host ranks in a lab, with the engine of GPUs.

    python benchmarks/gpus/planning.py [--lab 2x4] [--rails 4] [--rate 8gbit] [--repeat 80]

Needs root and no GPU. Zipf matrices of eight seeds in turn, so that no plan is the last one again. Planning: a rank's. Rows: from the
last rank's call until the last of those that plan has the rows of all. Inside a node nothing is planned and no rows are exchanged: there a
message waits for its receiver's grant, whose time `railweave calibrate` measures. Every byte is checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from railweave.bench.errors import BenchError
from railweave.bench.gpus.table import markdown, quantiles
from railweave.bench.session import PolicySession, Sample
from railweave.lab import Lab, LabSpec
from railweave.lab.fabric import of_lab
from railweave.lab.spec import parse_rate, parse_shape
from railweave.matrix import load

_SEEDS = 8
_BYTES = "16MiB"  # of a rank: its bytes take so long that it waits for rows, and much longer than those
_WARM_UP = 8  # exchanges that do not count: connections are made, memory is touched
_EXCHANGE_S = 20.0  # at most; a rail that fails is found within 6


def rows(samples: Sequence[Sample]) -> list[list[str]]:
    """Lines of the table: what, p50, p99 and most in us."""
    planning = [seconds for sample in samples for seconds in sample.plan_seconds if seconds > 0]
    found = []
    for what, times in (("planning, a rank", planning), ("rows, all ranks", [sample.row_seconds for sample in samples])):
        found.append([what, *(f"{seconds * 1e6:.1f}" for seconds in (*quantiles(times), max(times)))])
    return found


def main() -> int:
    """The table; status 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="2x4")
    parser.add_argument("--rails", type=int, default=4)
    parser.add_argument("--rate", default="8gbit")
    parser.add_argument("--repeat", type=int, default=80)
    options = parser.parse_args()
    nodes, gpus = parse_shape(options.lab)
    spec = LabSpec(nodes, gpus, options.rails, parse_rate(options.rate), isolation="node")
    if nodes < 2 or options.repeat < 1:
        parser.error("expected nodes between which something is planned, and exchanges")
    matrices = [load(f"zipf:{_BYTES}:1.0:{seed}", spec.world) for seed in range(_SEEDS)]
    samples = []
    try:
        with Lab.up(spec) as lab, PolicySession("railweave", lab, of_lab(spec), 0) as session:
            for repetition in range(_WARM_UP + options.repeat):
                samples.append(session.exchange(matrices[repetition % _SEEDS], repetition, _EXCHANGE_S))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    samples = samples[_WARM_UP:]
    print(f"{spec.world} ranks on {spec.nodes} nodes, {spec.rails} rails of {options.rate}, {len(samples)} exchanges\n")
    print(markdown(["us", "p50", "p99", "most"], rows(samples)))
    print(f"Planned without the rows of all: {sum(sample.rows_missing > 0 for sample in samples)} exchanges.")
    wrong = [sample.wrong for sample in samples if sample.wrong]
    print("\n".join(f"WRONG: {each}" for each in wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
