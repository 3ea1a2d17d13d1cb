"""What it takes the engine's threads to fill rails: GB/s and CPU seconds a GB of host ranks in a lab, under several settings in turn.

    python benchmarks/gpus/rails_cpu.py [--lab 2x2] [--rails 4] [--rate 8gbit] [--matrix bidir-pair:64MiB …] [--set NAME=VALUE,… …]

Needs root and no GPU. A setting is a list of environment variables of the ranks; '' stands for the defaults. Every byte is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time

from railweave.bench.alltoallv import Case, lower_bound
from railweave.bench.errors import BenchError
from railweave.bench.session import PolicySession, Sample, Session
from railweave.bench.taken import TakenTime
from railweave.lab import Lab, LabSpec
from railweave.lab.fabric import of_lab
from railweave.lab.spec import parse_rate, parse_shape
from railweave.matrix import load

_MATRICES = ("bidir-pair:64MiB", "hot-pair:64MiB", "balanced:4MiB", "hot-pair:64MiB:512KiB")
_WARM_UP = 2  # exchanges that do not count: memory is touched, connections find their windows
_EXCHANGE_S = 20.0  # at most; a rail that fails is found within 6
_HEAD = f"""{"":22}    GB/s     of   cores a rank   CPU s a GB
{"matrix":22}     out  bound   user    sys    user    sys  stolen  setting"""


def row(setting: str, case: Case, samples: list[Sample], stolen: float) -> str:
    """A line: GB/s out of the busier node, CPU of the ranks for each GB that a rank sends to or receives from another node."""
    half = len(case.matrix) // 2
    out = int(case.matrix[:half, half:].sum()), int(case.matrix[half:, :half].sum())
    seconds = statistics.median(sample.seconds for sample in samples)
    ranks, moved = len(case.matrix), 2 * sum(out) / 1e9
    user, system = (statistics.median(sum(rank[mode] for rank in sample.cpu) for sample in samples) for mode in (0, 1))
    wrong = next((f"  WRONG: {sample.wrong}" for sample in samples if sample.wrong), "")
    return (
        f"{case.name:22} {max(out) / seconds / 1e9:7.2f} {case.bound_seconds / seconds:6.2f} {user / ranks / seconds:6.2f}"
        f" {system / ranks / seconds:6.2f} {user / moved:7.3f} {system / moved:6.3f} {stolen:7.1%}  {setting or 'defaults'}{wrong}"
    )


def _measure(case: Case, sessions: list[tuple[str, Session]], repeat: int, end: float) -> bool:
    """All settings in turn, until `end`; whether every byte was right."""
    samples: dict[str, list[Sample]] = {setting: [] for setting, _ in sessions}
    with TakenTime() as span:
        for repetition in range(_WARM_UP + repeat):
            for setting, session in sessions:
                if time.monotonic() < end:
                    samples[setting].append(session.exchange(case.matrix, repetition, _EXCHANGE_S))
    for setting, taken in samples.items():
        if len(taken) > _WARM_UP:
            print(row(setting, case, taken[_WARM_UP:], span.stolen), flush=True)
    return not any(sample.wrong for taken in samples.values() for sample in taken)


def main() -> int:
    """A line for each matrix and setting; status 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="2x2")
    parser.add_argument("--rails", type=int, default=4)
    parser.add_argument("--rate", default="8gbit")
    parser.add_argument("--matrix", action="append")
    parser.add_argument("--set", action="append", dest="settings", metavar="NAME=VALUE,…")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--limit", type=float, default=75.0, help="seconds after which no exchange begins")
    options = parser.parse_args()
    nodes, gpus = parse_shape(options.lab)
    if nodes != 2:
        parser.error(f"--lab {options.lab}: expected two nodes")
    end = time.monotonic() + options.limit
    spec = LabSpec(nodes, gpus, options.rails, parse_rate(options.rate))
    fabric = of_lab(spec)
    demands = [(name, load(name, spec.world)) for name in options.matrix or _MATRICES]
    right = True
    try:
        with contextlib.ExitStack() as stack:
            lab = stack.enter_context(Lab.up(spec))
            sessions: list[tuple[str, Session]] = []
            for index, setting in enumerate(options.settings or [""]):
                environment = dict(each.split("=", 1) for each in setting.split(",") if each)
                sessions.append((setting, stack.enter_context(PolicySession("railweave", lab, fabric, index, environment))))
            print(_HEAD, flush=True)
            for name, demand in demands:
                right &= _measure(Case(name, demand, lower_bound(fabric, demand)), sessions, options.repeat, end)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
