"""What rails allow a mixture-of-experts layer to gain: `railweave bench moe` on a lab, by bytes alone; needs no GPU.

    python benchmarks/gpus/layer_limit.py [--lab 2x4] [--rails 4] [--tokens 2048]

NCCL's exchange takes what the busiest rank's own rails take (no PXN without GPUDirect, so none in a lab), any other at least what the
busiest node's rails take; bytes inside nodes and all latencies take nothing. Experts take as long as those of the rank with most tokens,
three times forward and backward. On those rails nobody can gain more than it says: an aim above it is out of reach there.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from railweave.bench.gpus.compare import schedule
from railweave.lab import LabSpec
from railweave.lab.spec import parse_shape

_ITERATIONS = 4
_COMPUTE = (0.5, 1.0, 2.0)
_EACH = 2  # dispatches of an iteration, forward and as the backward of combines; and combines


def exchanges(spec: LabSpec, skew: str, tokens: int) -> tuple[float, float, float]:
    """Tokens over a rail in an iteration: the busiest one of NCCL's, of an even spread; and the fullest rank's, over `tokens`."""
    node = np.arange(spec.world) // spec.gpus
    far = node[:, None] != node[None, :]
    own_rails = spec.rails / spec.gpus
    theirs = even = fullest = 0.0
    for counts in schedule(skew, spec.world, tokens, _ITERATIONS):
        dispatch: npt.NDArray[np.int64] = np.array(counts)
        for matrix in (dispatch * far, dispatch.T * far):
            ranks = np.maximum(matrix.sum(axis=0), matrix.sum(axis=1))
            nodes = [max(matrix[node == k].sum(), matrix[:, node == k].sum()) for k in range(spec.nodes)]
            theirs += _EACH * ranks.max() / own_rails / _ITERATIONS
            even += _EACH * max(nodes) / spec.rails / _ITERATIONS
        fullest += dispatch.sum(axis=0).max() / tokens / _ITERATIONS
    return float(theirs), float(even), float(fullest)


def main() -> None:
    """A line for each skew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="2x4")
    parser.add_argument("--rails", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    spec = LabSpec(*parse_shape(options.lab), options.rails)
    dispatch = exchanges(spec, "none", options.tokens)[0] / (2 * _EACH)
    print(f"{options.lab}, {options.rails} rails: most that a layer can gain")
    print(f"{'skew':10}{'exchanges':>11}" + "".join(f"{f'experts {each:g}x':>14}" for each in _COMPUTE))
    for skew in ("none", "zipf:1.0", "zipf:1.2", "rotating"):
        theirs, even, fullest = exchanges(spec, skew, options.tokens)
        experts = [3 * each * dispatch * fullest for each in _COMPUTE]
        print(f"{skew:10}{theirs / even:>10.2f}x" + "".join(f"{(theirs + each) / (even + each):>13.2f}x" for each in experts))


if __name__ == "__main__":
    main()
