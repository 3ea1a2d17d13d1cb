"""The probe's launches, with stand-ins for PyTorch and Triton: tensors are NumPy's, kernels are recorded. No GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

WORLD = 3
SLEPT: list[int] = []
"""Cycles."""
OWN = ("railweave.bench.gpus.worker", "railweave.bench.gpus.moe", "railweave.bench.gpus.probe")


class Tensor:
    """Of numbers, on a device."""

    def __init__(self, values: Any, dtype: Any, device: str) -> None:
        self.values, self.device = np.array(values, dtype=dtype), device

    def __len__(self) -> int:
        return len(self.values)

    def data_ptr(self) -> int:
        return int(self.values.ctypes.data)

    def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
        self.values[:] = other.values


class Stream:
    """Does nothing in its order."""

    def __init__(self, device: int) -> None:
        self.device = device

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def wait_event(self, event: Any) -> None:
        assert isinstance(event, Event)


class Event:
    """All take 10 ms; `late` measurements begin before all is queued."""

    late = 0

    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def query(self) -> bool:
        Event.late -= 1
        return Event.late >= 0

    def elapsed_time(self, other: Event) -> float:
        return 10.0


class Kernel:
    """Writes down its launches: CTAs, arguments."""

    def __init__(self, function: Any) -> None:
        self.launches: list[tuple[int, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*arguments: Any, BLOCK: int, num_warps: int) -> None:
            self.launches.append((grid[0], arguments))

        return launch


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    torch, triton = ModuleType("torch"), ModuleType("triton")
    cuda = SimpleNamespace(
        device_count=lambda: WORLD,
        synchronize=lambda device: None,
        device=lambda device: contextlib.nullcontext(),
        stream=lambda stream: contextlib.nullcontext(),
        _sleep=SLEPT.append,
        Stream=Stream,
        Event=Event,
    )
    vars(torch).update(
        cuda=cuda,
        int64=np.int64,
        int32=np.int32,
        bfloat16=None,
        ones=lambda count, dtype=np.float32, device="": Tensor(np.arange(count) + 1, dtype, device),
        empty=lambda count, dtype, device: Tensor(np.zeros(count), dtype, device),
        tensor=Tensor,
    )
    vars(triton).update(jit=Kernel)
    functional = ModuleType("torch.distributed.nn.functional")
    vars(functional).update(all_to_all_single=None)
    modules = {"torch": torch, "triton": triton, "triton.language": ModuleType("triton.language"), functional.__name__: functional}
    for name in ("torch.distributed", "torch.distributed.nn"):
        modules[name] = ModuleType(name)
    vars(torch).update(distributed=modules["torch.distributed"])
    vars(triton).update(language=modules["triton.language"])
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in OWN:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("railweave.bench.gpus.probe")
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("way", ["interleave", "take_turns"])
def test_a_kernel_a_gpu_writes_every_word_to_its_receiver(probe: Any, way: str) -> None:
    ready = probe.Probe()
    # 20 bytes are whole 16 twice; 16 MiB are so much that pieces have four blocks.
    ready.prepare([[0, 1 << 20, 16 << 20], [20, 0, 0], [0, 0, 0]])
    assert getattr(ready, way)(calls=2, ctas=16) == {"seconds": 5e-3}
    launches = probe._push_pieces.launches
    assert [ctas for ctas, _ in launches] == [16, 1, 16, 16, 1, 1], "two calls of both senders, of which one has a piece; each once before"
    launches = launches[2:]
    for _, (sources, destinations, lengths, count) in launches:
        assert len({len(sources), len(destinations), len(lengths), count}) == 1
        assert (sources.device, lengths.values.dtype) == (destinations.device, np.int32)
        assert max(lengths.values) <= 4 * probe._WORDS
        for source, destination, length in zip(sources.values, destinations.values, lengths.values, strict=True):
            assert source % 16 == destination % 16 == length % 2 == 0, "as Triton is told"
            ctypes.memmove(int(destination), int(source), int(length) * 8)
    for flow in ready._flows:
        assert np.array_equal(flow.receive.values, flow.send.values)
    assert {launches[0][1][0].device, launches[2][1][0].device} == {"cuda:0", "cuda:1"}


def test_the_other_ways_write_pair_by_pair(probe: Any) -> None:
    ready = probe.Probe()
    ready.prepare([[0, 3 << 20, 1 << 20], [0, 0, 0], [0, 0, 0]])
    assert ready.push(calls=1, ctas=64) == ready.copy(calls=1) == {"seconds": 10e-3}
    assert [ctas for ctas, _ in probe._push.launches] == [48, 16, 48, 16], "by bytes"
    for flow in ready._flows:
        assert np.array_equal(flow.receive.values, flow.send.values), "by copy engines"
    ready.prepare([[0] * 3] * 3)
    assert ready.push(calls=1, ctas=16) == ready.interleave(calls=1, ctas=16) == ready.take_turns(calls=1, ctas=16) == {"seconds": 0.0}


def test_what_was_not_queued_in_time_is_measured_again(probe: Any) -> None:
    ready = probe.Probe()
    ready.prepare([[0, 1 << 20, 1 << 20], [1 << 20, 0, 0], [0, 0, 0]])
    SLEPT.clear()
    Event.late = 1
    assert ready.push(calls=4, ctas=16) == {"seconds": 2.5e-3}
    assert len(probe._push.launches) == 3 + 2 * 4 * 3
    assert len(SLEPT) == 2 * 2, "one a sending GPU, for however many receivers"
    assert SLEPT[0] >= 12 * 50e-6 * 2e9, "longer than queueing takes, which grows with the square of the GPUs"
    Event.late = 100
    with pytest.raises(RuntimeError, match="too busy: 12 launches were not queued in time"):
        ready.push(calls=4, ctas=16)
    Event.late = 0
