"""What ranks of check_on_gpus.py send each other, and how they say that something is wrong."""

from __future__ import annotations

import torch
import torch.distributed as dist

REMOTE_ERROR = 6  # ncclRemoteError


def require(condition: bool, text: str) -> None:
    """Raises AssertionError with this rank's number where the condition does not hold."""
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: {text}")


def rows_of(source: int, destination: int, count: int, width: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    """What `source` sends: bits that depend on both ranks, the place and the salt, so also NaNs and denormals."""
    nbytes = count * width * dtype.itemsize
    words = torch.arange((nbytes + 7) // 8, dtype=torch.int64, device="cuda") * -7046029254386353131 + (
        source * 1009 + destination * 31 + salt
    )
    return words.view(torch.uint8)[:nbytes].view(dtype).view(count, width)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, also NaNs."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
