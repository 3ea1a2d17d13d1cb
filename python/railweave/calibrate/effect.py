"""What a calibration changes: settings of the GPU exchange, rates of a fabric's links."""

from __future__ import annotations

import math
import re
import statistics
from typing import TYPE_CHECKING

from railweave.calibrate.document import BlockRate, Calibration, CalibrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric import Fabric, LinkState

_ENOUGH = 0.99
"""Of the best rate. Two passes of the same build differed by less than 1% at 256 MiB (docs/cuda-measured.md)."""
_MESH = 1.5
"""Times a pair's rate. Behind an NVSwitch 0.75 times were measured (docs/calibrate.md); in a mesh of 3 GPUs 2 times are the limit."""
_MOST_RELAYING, _MOST_SHARE, _MOST_RATE = 8, 500, 1_000_000
"""Of the settings gpu_relays, gpu_host_share, and the lower one of gpu_pair_rate and gpu_block_rate."""
_MOST_THAT_READ = 6
"""Blocks. With no more of them the destination reads half of a large message, so both ends' move it (fetch_prepare.cpp)."""
MOST_BLOCKS = 16
"""As many as NCCL's kernel has for a pair (17 CTAs, docs/gpu-probe.md): more would take more of the GPU from the program than NCCL does."""


def enough_blocks(rows: Sequence[BlockRate]) -> int:
    """The fewest blocks with which the worse off of both, one pair and all pairs, has what it can have.

    A pair and all pairs want different numbers: on 4 x H200 a pair 14 to 16, all pairs 6 to 12. So of each rate it is the share of its
    best that counts, and of both shares the smaller one. Only powers of two: short packets go in one cluster of half as many blocks,
    rounded down to one, and when longer ones did, too, 12 cost messages of 256 and 512 KiB 2 us for nothing (docs/calibrate.md).
    """
    allowed = [row for row in rows if row.blocks <= MOST_BLOCKS and row.blocks.bit_count() == 1] or [rows[0]]
    pair, balanced = max(row.pair_Bps for row in allowed), max(row.balanced_Bps for row in allowed)
    shares = [min(row.pair_Bps / pair, row.balanced_Bps / balanced) for row in allowed]
    return next(row.blocks for row, share in zip(allowed, shares, strict=True) if share >= _ENOUGH * max(shares))


def settings(calibration: Calibration) -> dict[str, str]:
    """Settings of docs/settings.md that follow from it, by name.

    `gpu_blocks`: see `enough_blocks`. `gpu_low_latency_bytes`: the largest size up to which packets were not slower, one pair and all GPUs
    taken together: a size that costs one of them a few percent and spares the other more is worth it. `gpu_host_share`: the part of a
    lone pair's bytes that goes over the host when both paths end together. `gpu_relays`: see `has_links_of_its_own`. `gpu_pair_rate`: the
    fastest pair's, as blocks that are too many cost less than too few. `gpu_block_rate`: see `rate_of_a_block`.
    """
    limit = 0
    for row in calibration.sizes:
        packets, granted = zip(*row.times(), strict=True)
        if math.prod(packets) > math.prod(granted):
            break
        limit = row.bytes
    return {
        "gpu_blocks": str(enough_blocks(calibration.blocks)),
        "gpu_low_latency_bytes": str(limit),
        "gpu_host_share": str(host_share(calibration)),
        "gpu_relays": str(int(has_links_of_its_own(calibration))),
        "gpu_pair_rate": str(_megabytes(max(row.push_Bps for row in calibration.pairs))),
        "gpu_block_rate": str(_megabytes(rate_of_a_block(calibration.blocks))),
    }


def rate_of_a_block(rows: Sequence[BlockRate]) -> float:
    """What one block writes, bytes a second: its part of a pair's rate with the fewest blocks of which the source's alone move it.

    With one block a pair of H100 has 87 GB/s, as the destination's reads half of that, with 8 blocks 40.6 GB/s each, and 16 fill the link
    (docs/calibrate.md).
    """
    row = next((row for row in rows if row.blocks > _MOST_THAT_READ), rows[-1])
    return row.pair_Bps / row.blocks


def _megabytes(Bps: float) -> int:
    return min(_MOST_RATE, max(1, round(Bps / 1e6)))


def host_share(calibration: Calibration) -> int:
    """Thousandths: PCIe's part of the rates of both paths, medians over the pairs."""
    push, host = statistics.median(row.push_Bps for row in calibration.pairs), statistics.median(row.host_Bps for row in calibration.pairs)
    return min(_MOST_SHARE, round(1000 * host / (push + host)))


def has_links_of_its_own(calibration: Calibration) -> bool:
    """Does each pair have links that no other pair uses? Then paths through other GPUs add to its own.

    Behind an NVSwitch a pair alone has all that a GPU sends, so all pairs together get no more. In a mesh of n GPUs they get up to n - 1
    times as much.
    """
    pair, balanced = (max(getattr(row, name) for row in calibration.blocks) for name in ("pair_Bps", "balanced_Bps"))
    return 3 <= len(calibration.gpus) <= _MOST_RELAYING and balanced >= _MESH * pair


def link_state(calibration: Calibration, fabric: Fabric) -> LinkState:
    """The fabric's links with what was measured: of each node's GPUs, by their number there. Other links stay at their nominal rate.

    A link between two GPUs carries what their pair did; a GPU's link to an NVSwitch the most that one of its pairs did. Raises
    CalibrationError for a fabric whose nodes have another number of GPUs, or others.
    """
    from railweave.fabric import LinkState, VertexKind

    links = LinkState(fabric)
    rate = {(row.source, row.destination): row.push_Bps for row in calibration.pairs}
    for node in range(fabric.node_count):
        gpus = fabric.gpus_of(node)
        if len(gpus) != len(calibration.gpus):
            raise CalibrationError(
                f"fabric '{fabric.name}': {fabric.node_names[node]} has {len(gpus)} GPUs; "
                f"expected {len(calibration.gpus)}, as the calibration has"
            )
        for index, gpu in enumerate(gpus):
            there, measured = fabric.vertex(gpu).model, calibration.gpus[index].name
            if _parts(there) and _parts(measured) and not _parts(there) & _parts(measured):
                raise CalibrationError(
                    f"fabric '{fabric.name}': GPU {index} of {fabric.node_names[node]} is '{there}'; expected '{measured}', as the "
                    "calibration has; plan on a fabric of the machine that was measured"
                )
            for edge in fabric.out_edges(gpu):
                other = fabric.edge(edge).dst
                if other in gpus:
                    links.set_rate(edge, rate[index, gpus.index(other)])
                elif fabric.vertex(other).kind == VertexKind.nvswitch:
                    links.set_rate(edge, max(Bps for pair, Bps in rate.items() if pair[0] == index))
            for edge in fabric.in_edges(gpu):
                if fabric.vertex(fabric.edge(edge).src).kind == VertexKind.nvswitch:
                    links.set_rate(edge, max(Bps for pair, Bps in rate.items() if pair[1] == index))
    return links


def _parts(name: str) -> set[str]:
    """The parts that a name speaks of; none where it has none that is told by a word. Who gives the name writes the rest of it in its own
    way: `NVIDIA H200`, `H200 SXM 141GB`, `Tesla V100-SXM2-32GB`. A chip (`GH100 [H200 SXM 141GB]`) is that of several parts."""
    return set(re.findall(r"\b(?!(?:G[A-Z]|AD)1\d\d)[A-Z]{1,2}\d{1,4}S?\b", name))
