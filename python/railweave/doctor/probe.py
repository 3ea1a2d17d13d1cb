"""What only a running GPU tells: its PCIe link under load, what a copy really reaches, whether CUDA hands out dma-buf. Only for `--probe`.

Talks to the CUDA driver library by ctypes, so that doctor needs no CUDA toolkit. Names, constants: CUDA driver API 13.0. RDMA is not
probed: a port's rate takes a second end, and loads a network that others use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from railweave.errors import Error
from railweave.machine.facts import Fact, Known, PciLink, Unknown
from railweave.machine.pci import DEVICES, canonical_bus_id, read_link
from railweave.machine.reading import cpu_list, parsed
from railweave.machine.source import Reason, Source
from railweave.records import dataclass, field

_BYTES = 64 << 20
# Long enough for a GPU to leave its idle clocks (some 10 ms) and for a steady rate; with its context an H200 takes 0.4 s.
_SECONDS = 0.1
_DMA_BUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
_LIBRARY = "libcuda.so.1"


class ProbeError(Error):
    """A probe cannot run at all; the text says what is missing."""


@dataclass(frozen=True)
class GpuProbe:
    """What one GPU showed."""

    link: Fact[PciLink]  # while copying
    to_device: Fact[float]  # bytes/s
    to_host: Fact[float]
    dma_buf: Fact[bool]


@dataclass(frozen=True)
class Probes:
    """By PCI address."""

    gpus: dict[str, GpuProbe] = field(default_factory=dict)

    def link_under_load(self, bus_id: str) -> Known[PciLink] | None:
        """The link of a GPU while it copied; None for what was not probed."""
        probe = self.gpus.get(bus_id)
        return probe.link if probe is not None and isinstance(probe.link, Known) else None


class Copier(Protocol):
    """A GPU that can be loaded: the driver's, or a test's. Copies run between entering and leaving it."""

    bus_id: str

    def __enter__(self) -> Copier:
        """Takes a context and memory; raises ProbeError where there is none, as on a GPU that a job fills."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Gives both back."""

    def supports_dma_buf(self) -> bool:
        """Whether CUDA exports its memory as dma-buf."""

    def copy(self, to_device: bool) -> int:
        """Copies between pinned host memory and the GPU, waits for the end, and says how many bytes."""


def measure(source: Source, gpus: Sequence[Copier]) -> Probes:
    """Loads one GPU after the other. What one of them refuses is unknown, and no reason to leave the others."""
    return Probes({gpu.bus_id: _probe(source, gpu) for gpu in gpus})


def _probe(source: Source, gpu: Copier) -> GpuProbe:
    rates: list[Fact[float]] = []
    link: Fact[PciLink] = Unknown(Reason.error, f"{DEVICES}/{gpu.bus_id}", "no copy ran")
    names = [f"{_SECONDS * 1e3:.0f} ms of copies {way} GPU {gpu.bus_id}" for way in ("to", "from")]
    try:
        with _near(source, gpu.bus_id), gpu:
            for to_device, name in zip((True, False), names, strict=True):
                rates.append(Known(_rate(gpu, to_device), name))
                link = read_link(source, f"{DEVICES}/{gpu.bus_id}", "current")
    except ProbeError as error:
        rates += [Unknown(Reason.error, name, str(error)) for name in names[len(rates) :]]
    if isinstance(link, Known):
        link = Known(link.value, f"{link.evidence}, after copies under load")
    return GpuProbe(link, rates[0], rates[1], _dma_buf(gpu))


def _rate(gpu: Copier, to_device: bool) -> float:
    gpu.copy(to_device)  # leaves idle clocks
    begin, copied = time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < _SECONDS:
        copied += gpu.copy(to_device)
    return copied / now


def _dma_buf(gpu: Copier) -> Fact[bool]:
    name = f"{_LIBRARY}: GPU {gpu.bus_id} CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"
    try:
        return Known(gpu.supports_dma_buf(), name)
    except ProbeError as error:
        return Unknown(Reason.error, name, str(error))


@contextlib.contextmanager
def _near(source: Source, bus_id: str) -> Iterator[None]:
    """On the GPU's cores, where the kernel takes host memory from the GPU's NUMA node; where they are not known or not ours, anywhere."""
    before = os.sched_getaffinity(0)
    cores = parsed(source, f"{DEVICES}/{bus_id}/local_cpulist", cpu_list)
    near = before & set(cores.value) if isinstance(cores, Known) else set()
    try:
        os.sched_setaffinity(0, near or before)
        yield
    finally:
        os.sched_setaffinity(0, before)


class _CudaGpu:
    def __init__(self, cuda: _Cuda, ordinal: int) -> None:
        self._cuda = cuda
        self._device = ctypes.c_int()
        cuda.call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(ordinal))
        name = ctypes.create_string_buffer(32)
        cuda.call("cuDeviceGetPCIBusId", name, ctypes.c_int(32), self._device)
        self.bus_id = canonical_bus_id(name.value.decode())
        self._context = ctypes.c_void_p()
        self._on_device = ctypes.c_uint64()
        self._on_host = ctypes.c_void_p()

    def __enter__(self) -> _CudaGpu:
        self._cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            self._cuda.call("cuCtxSetCurrent", self._context)
            self._cuda.call("cuMemAlloc_v2", ctypes.byref(self._on_device), ctypes.c_size_t(_BYTES))
            self._cuda.call("cuMemAllocHost_v2", ctypes.byref(self._on_host), ctypes.c_size_t(_BYTES))
        except ProbeError:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release()

    def _release(self) -> None:
        """The context's memory goes with it: nobody else in this process holds it."""
        self._cuda.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def supports_dma_buf(self) -> bool:
        value = ctypes.c_int()
        self._cuda.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(_DMA_BUF_SUPPORTED), self._device)
        return bool(value.value)

    def copy(self, to_device: bool) -> int:
        size = ctypes.c_size_t(_BYTES)
        if to_device:
            self._cuda.call("cuMemcpyHtoD_v2", self._on_device, self._on_host, size)
        else:
            self._cuda.call("cuMemcpyDtoH_v2", self._on_host, self._on_device, size)
        return _BYTES


class _Cuda:
    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise ProbeError(f"--probe needs the NVIDIA driver's {_LIBRARY}, which cannot be loaded: {error}") from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise ProbeError(f"{name}: {(text.value or b'error').decode()} ({status})")


def cuda_gpus() -> list[Copier]:
    """The GPUs that CUDA shows to this process. Raises ProbeError without a driver."""
    cuda = _Cuda()
    count = ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    return [_CudaGpu(cuda, ordinal) for ordinal in range(count.value)]
