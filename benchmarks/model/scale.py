"""Time and memory of predicting 1,024 GPUs (128 nodes of 8) with a Zipf matrix, plan included: `make bench-model`.

Each case is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

CASES = (("zipf:1GiB:1", "single-path"), ("zipf:1GiB:1", "nccl"), ("zipf:1GiB:1", "railweave"), ("zipf:1GiB:1.2", "railweave"))


def predict(traffic: str, policy: str) -> None:
    """One case in this process."""
    from railweave import fabric, matrix
    from railweave.simulate import parse_policy, study

    loaded = fabric.load("hgx-h100", 128)
    demand = matrix.load(traffic, loaded.gpu_count)
    begin, cpu = time.perf_counter(), time.process_time()
    result = study(loaded, demand, traffic, [parse_policy(policy)]).predictions[0]
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    lost = result.batching_loss_seconds / result.seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{traffic:14} {policy:12} {result.flows:8} flows: {wall:6.2f} s ({cpu:.2f} s CPU), {memory:5.0f} MiB; "
        f"predicts {result.seconds:.6f} s, plan {result.plan_seconds:.6f} s, lost to batching {lost:.2e}",
        flush=True,
    )


def main() -> None:
    """All cases, or the one that was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="matrix and policy; by default all cases, each in a process of its own")
    case = parser.parse_args().case
    if case:
        predict(*case)
        return
    for traffic, policy in CASES:
        subprocess.run([sys.executable, __file__, traffic, policy], check=True)


if __name__ == "__main__":
    main()
