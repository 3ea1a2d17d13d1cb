"""What a calibration changes: settings of the GPU exchange, rates of a fabric's links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.calibrate.document import Calibration, CalibrationError

if TYPE_CHECKING:
    from railweave.fabric import Fabric, LinkState

_ENOUGH = 0.99
"""Of the best rate. Two passes of the same build differed by less than 1% at 256 MiB (docs/cuda.md)."""
MOST_BLOCKS = 16
"""As many as NCCL's kernel has for a pair (17 CTAs, docs/gpu-probe.md): more would take more of the GPU from the program than NCCL does."""


def settings(calibration: Calibration) -> dict[str, str]:
    """Settings of docs/engine.md that follow from it, by name.

    `gpu_blocks`: the fewest that move what the most do, both for one pair and between all GPUs. `gpu_low_latency_bytes`: the largest
    size up to which packets were never slower.
    """
    allowed = [row for row in calibration.blocks if row.blocks <= MOST_BLOCKS] or [calibration.blocks[0]]
    pair, balanced = (max(getattr(row, name) for row in allowed) for name in ("pair_Bps", "balanced_Bps"))
    enough = next(row for row in allowed if row.pair_Bps >= _ENOUGH * pair and row.balanced_Bps >= _ENOUGH * balanced)
    limit = 0
    for row in calibration.sizes:
        if row.packets_ns > row.granted_ns:
            break
        limit = row.bytes
    return {"gpu_blocks": str(enough.blocks), "gpu_low_latency_bytes": str(limit)}


def link_state(calibration: Calibration, fabric: Fabric) -> LinkState:
    """The fabric's links with what was measured: of each node's GPUs, by their number there. Other links stay at their nominal rate.

    A link between two GPUs carries what their pair did; a GPU's link to an NVSwitch the most that one of its pairs did. Raises
    CalibrationError for a fabric whose nodes have another number of GPUs.
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
