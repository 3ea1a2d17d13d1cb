"""The calls that a calibration makes, against a driver and a device library that keep account of them. No GPU."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from railweave._native import BootstrapError
from railweave.calibrate import CalibrationError, gpus, settings
from railweave.calibrate.measure import measure
from railweave.device import Transfer

ARGUMENTS = {  # of cuda.h
    "cuInit": 1, "cuDriverGetVersion": 1, "cuDeviceGetCount": 1, "cuDeviceGet": 2, "cuDeviceGetName": 3, "cuDeviceGetPCIBusId": 3,
    "cuDevicePrimaryCtxRetain": 2, "cuCtxSetCurrent": 1, "cuCtxEnablePeerAccess": 2, "cuStreamCreate": 2, "cuStreamSynchronize": 1,
    "cuStreamWaitEvent": 3, "cuEventCreate": 2, "cuEventRecord": 2, "cuEventElapsedTime": 3, "cuEventDestroy_v2": 1, "cuMemAlloc_v2": 2,
    "cuMemAllocAsync": 3, "cuMemFree_v2": 1, "cuMemAllocHost_v2": 2, "cuMemFreeHost": 1, "cuMemcpyPeerAsync": 6, "cuMemcpyDtoHAsync_v2": 4,
    "cuMemcpyHtoDAsync_v2": 4, "cuStreamBeginCapture_v2": 2, "cuStreamEndCapture": 2, "cuGraphInstantiateWithFlags": 3, "cuGraphLaunch": 2,
    "cuGraphDestroy": 1, "cuGraphExecDestroy": 1,
}  # fmt: skip


class AccountingCuda(gpus.Cuda):
    """Checks each call against what was made before, and says that everything takes a time."""

    count = 3
    takes_ms = 1.0

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.memory: dict[int, int] = {}
        self.live: dict[int, str] = {}
        self.capturing: set[int] = set()
        self._next = 1 << 20

    def make(self, kind: str) -> int:
        self._next += 1 << 32
        self.live[self._next] = kind
        return self._next

    def known(self, value: Any, kind: str) -> int:
        number = value.value
        assert self.live.get(number) == kind, f"{number} is no {kind}"
        return int(number)

    def call(self, name: str, *arguments: Any, accept: int = 0) -> None:
        assert len(arguments) == ARGUMENTS[name], name
        self.calls[name] += 1
        out: Any = getattr(arguments[0], "_obj", None)
        match name:
            case "cuDeviceGetCount":
                out.value = self.count
            case "cuDriverGetVersion":
                out.value = 13010
            case "cuDeviceGet":
                out.value = arguments[1].value
            case "cuDeviceGetName":
                arguments[0].value = b"NVIDIA H200"
            case "cuDeviceGetPCIBusId":
                arguments[0].value = b"0000:%02X:00.0" % arguments[2].value
            case "cuDevicePrimaryCtxRetain":
                out.value = self.make("context")
            case "cuCtxSetCurrent" | "cuCtxEnablePeerAccess":
                self.known(arguments[0], "context")
                assert name == "cuCtxSetCurrent" or accept == 704
            case "cuStreamCreate":
                out.value = self.make("stream")
            case "cuEventCreate":
                out.value = self.make("event")
            case "cuEventRecord" | "cuEventDestroy_v2":
                self.known(arguments[0], "event")
                if name == "cuEventDestroy_v2":
                    del self.live[arguments[0].value]
            case "cuEventElapsedTime":
                out.value = self.takes_ms
            case "cuMemAlloc_v2" | "cuMemAllocAsync" | "cuMemAllocHost_v2":
                out.value = self.make("memory")
                self.memory[out.value] = arguments[1].value
            case "cuMemFree_v2" | "cuMemFreeHost":
                del self.live[self.known(arguments[0], "memory")]
            case "cuMemcpyPeerAsync":
                self.inside(arguments[0].value, arguments[4].value)
                self.inside(arguments[2].value, arguments[4].value)
                assert self.known(arguments[1], "context") != self.known(arguments[3], "context")
            case "cuMemcpyDtoHAsync_v2" | "cuMemcpyHtoDAsync_v2":
                self.inside(arguments[0].value, arguments[2].value)
                self.inside(arguments[1].value, arguments[2].value)
            case "cuStreamBeginCapture_v2":
                self.capturing.add(self.known(arguments[0], "stream"))
            case "cuStreamEndCapture":
                self.capturing.remove(self.known(arguments[0], "stream"))
                arguments[1]._obj.value = self.make("graph")
            case "cuGraphInstantiateWithFlags":
                self.known(arguments[1], "graph")
                out.value = self.make("launchable graph")
            case "cuGraphLaunch":
                self.known(arguments[0], "launchable graph")
            case "cuGraphDestroy" | "cuGraphExecDestroy":
                del self.live[arguments[0].value]

    def inside(self, address: int, size: int) -> None:
        assert any(base <= address and address + size <= base + length for base, length in self.memory.items() if base in self.live)

    def kept(self, kind: str) -> int:
        return sum(each == kind for each in self.live.values())


class Ranks:
    """A device library that matches sends with receives."""

    def __init__(self, cuda: AccountingCuda) -> None:
        self.cuda = cuda
        self.open = 0
        self.bytes: Counter[tuple[int, int]] = Counter()
        self.settings: list[dict[str, str]] = []
        self.refuse = -1

    def make(self, rank: int, world: int, device: int, rendezvous: str, settings: Mapping[str, str]) -> Rank:
        assert rank == device and world == self.cuda.count and rendezvous.startswith("tcp://127.0.0.1:")
        if rank == self.refuse:
            raise BootstrapError("no NVLink")
        self.open += 1
        if rank == 0:
            self.settings.append(dict(settings))
        return Rank(self, rank)


class Rank:
    def __init__(self, all_: Ranks, rank: int) -> None:
        self.all, self.rank = all_, rank

    def enqueue(self, transfers: list[Transfer], stream: int) -> None:
        assert stream in self.all.cuda.capturing
        for transfer in transfers:
            self.all.cuda.inside(transfer.pointer, transfer.nbytes)
            pair = (self.rank, transfer.peer) if transfer.sends else (transfer.peer, self.rank)
            self.all.bytes[pair] += transfer.nbytes if transfer.sends else -transfer.nbytes

    def check(self) -> None:
        assert not any(self.all.bytes.values()), "a send without its receive"

    def abort(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.all.open -= 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> AccountingCuda:
    made = AccountingCuda()
    monkeypatch.setattr(gpus, "Cuda", lambda: made)
    return made


@pytest.fixture
def ranks(cuda: AccountingCuda, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    made = Ranks(cuda)
    monkeypatch.setattr(gpus, "DeviceCommunicator", made.make)
    return made


def test_a_whole_calibration(cuda: AccountingCuda, ranks: Ranks) -> None:
    bench = gpus.GpuBench()
    measured = measure(bench, lambda what: None)
    assert [gpu.bus_id for gpu in measured.gpus] == ["0000:00:00.0", "0000:01:00.0", "0000:02:00.0"]
    assert measured.driver == "CUDA 13.1"
    assert len(measured.pairs) == 6
    # Everything takes 1 ms here, so a replay does, and 30 of a graph of ten operations do.
    assert measured.launch_ns == round(1e6 / (30 * 10))
    assert settings(measured)
    bench.close()
    assert ranks.open == 0
    # Each communicator lives alone; only settings that differ from the one before make another.
    assert len(ranks.settings) == 5 + 2
    assert all(chosen["gpu_timeout_ms"] for chosen in ranks.settings)
    # What was made for a measurement is gone: of each GPU a stream, two events and its three buffers stay.
    assert [cuda.kept(kind) for kind in ("graph", "launchable graph", "stream", "event", "memory")] == [0, 0, 3, 6, 9]
    assert not cuda.capturing


@pytest.mark.parametrize(("takes_ms", "operations", "replays"), [(0.1, 10, 200), (2.0, 10, 15), (25.5, 1, 2), (40.0, 1, 1)])
def test_what_takes_long_is_not_repeated_as_often(
    cuda: AccountingCuda, ranks: Ranks, takes_ms: float, operations: int, replays: int
) -> None:
    cuda.takes_ms = takes_ms  # whatever it is
    bench = gpus.GpuBench()
    seconds = bench.exchange([[0, 8, 0], [0, 0, 0], [0, 0, 0]], {})
    assert seconds == pytest.approx(takes_ms / 1e3 / (replays * operations))
    # A graph for the source and one for the destination; twice two replays before it is clear what to measure, and then three times.
    assert cuda.calls["cuGraphLaunch"] == 2 * (2 + 2 + 3 * replays)
    bench.close()


def test_one_gpu_is_not_enough(cuda: AccountingCuda) -> None:
    cuda.count = 1
    with pytest.raises(CalibrationError, match="1 GPU; expected at least two"):
        gpus.GpuBench()


def test_gpus_that_are_not_served_say_why_and_leave_nothing(cuda: AccountingCuda, ranks: Ranks) -> None:
    ranks.refuse = 1
    bench = gpus.GpuBench()
    with pytest.raises(CalibrationError, match="not served: no NVLink"):
        bench.exchange([[0, 8, 0], [0, 0, 0], [0, 0, 0]], {})
    assert ranks.open == 0


def test_what_the_driver_refuses_has_its_name() -> None:
    class Library:
        def cuInit(self, flags: object) -> int:  # noqa: N802 - CUDA's name
            return 100

        def cuGetErrorName(self, status: int, text: Any) -> None:  # noqa: N802 - CUDA's name
            text._obj.value = b"CUDA_ERROR_NO_DEVICE"

    cuda = object.__new__(gpus.Cuda)
    cuda._library = Library()  # type: ignore[assignment]
    with pytest.raises(CalibrationError, match=r"^cuInit: CUDA_ERROR_NO_DEVICE \(100\)$"):
        cuda.call("cuInit", ctypes.c_uint(0))
