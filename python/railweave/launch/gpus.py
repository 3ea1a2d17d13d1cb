"""Which of the node's GPUs are this rank's: those that it may open, CUDA_VISIBLE_DEVICES, its place among the ranks."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from railweave.launch.placement import Placement
    from railweave.launch.rank import Rank


def may_open(minor: str) -> bool:
    """Whether the device cgroup lets this process open /dev/nvidiaN: access(2) asks it without waking the GPU, which open(2) would."""
    return os.access(f"/dev/nvidia{minor}", os.R_OK | os.W_OK)


def gpus_of(
    rank: Rank, node: Sequence[Placement], environment: Mapping[str, str], openable: Callable[[str], bool] = may_open
) -> tuple[list[Placement], str]:
    """The rank's GPUs, and where there are none, why."""
    gpus = [gpu for gpu in node if not gpu.minor or openable(gpu.minor)]
    if not gpus:
        return [], "it may open none of the node's GPUs"
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        if "MIG-" in visible:
            return [], f"CUDA_VISIBLE_DEVICES={visible} names MIG instances, which advice does not know"
        gpus = _visible(gpus, visible)
        if not gpus:
            return [], f"CUDA_VISIBLE_DEVICES={visible} leaves it none"
    if rank.alone or len(gpus) == 1:
        return gpus, ""
    return [gpus[rank.local % len(gpus)]], ""


def _visible(gpus: Sequence[Placement], text: str) -> list[Placement]:
    """As CUDA reads it: numbers or the beginnings of UUIDs, and nothing after the first that names no GPU.

    Numbers count in the order of PCI addresses, which is CUDA's where all GPUs are of one kind.
    """
    found: list[Placement] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdecimal() and len(word) < 10 and int(word) < len(gpus):
            found.append(gpus[int(word)])
            continue
        named = [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
        if len(named) != 1:
            break
        found += named
    return found
