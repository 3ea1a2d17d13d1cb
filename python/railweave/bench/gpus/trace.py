"""What the GPU did during a call, as CUPTI sees it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_EXCHANGE_KERNELS = ("nccl", "railweave")


def trace(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The events of a call, in the form of Chrome's traces; times in microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def shares(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Seconds from the GPU's first work to the end of its last, in which it had any, and in which it had exchanges."""
    work = [
        (float(each["ts"]), float(each["ts"]) + float(each["dur"]), str(each["name"])) for each in events if each.get("cat") in _GPU_WORK
    ]
    if not work:
        return {"span": 0.0, "busy": 0.0, "exchange": 0.0}
    exchanges = [each for each in work if any(name in each[2] for name in _EXCHANGE_KERNELS)]
    span = max(end for _, end, _ in work) - min(begin for begin, _, _ in work)
    return {"span": span / 1e6, "busy": _covered(work) / 1e6, "exchange": _covered(exchanges) / 1e6}


def _covered(work: list[tuple[float, float, str]]) -> float:
    """What overlaps counts once."""
    total, reached = 0.0, float("-inf")
    for begin, end, _ in sorted(work):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
