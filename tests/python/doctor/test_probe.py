"""Loading GPUs: what is measured, in which order, and what one GPU's refusal leaves of the others. GPUs are played."""

from __future__ import annotations

import os
from types import TracebackType

from railweave.doctor.probe import Copier, ProbeError, measure
from railweave.machine.facts import Known, PciLink, Unknown
from railweave.machine.source import LiveSource

DEVICES = "/sys/bus/pci/devices"


class FakeGpu:
    """Notes what is asked of it; `full` has no memory left, `dies` fails at the first copy back, `dark` does not tell of dma-buf."""

    def __init__(self, bus_id: str, log: list[str], trouble: str = "") -> None:
        self.bus_id = bus_id
        self.cores: set[int] = set()
        self._log = log
        self._trouble = trouble

    def __enter__(self) -> Copier:
        if self._trouble == "full":
            raise ProbeError("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
        self._log.append(f"open {self.bus_id}")
        self.cores = os.sched_getaffinity(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._log.append(f"close {self.bus_id}")

    def supports_dma_buf(self) -> bool:
        if self._trouble == "dark":
            raise ProbeError("cuDeviceGetAttribute: CUDA_ERROR_INVALID_VALUE (1)")
        return True

    def copy(self, to_device: bool) -> int:
        if self._trouble == "dies" and not to_device:
            raise ProbeError("cuMemcpyDtoH_v2: CUDA_ERROR_ECC_UNCORRECTABLE (214)")
        return 1000


class Links(LiveSource):
    """Links at full speed; each GPU's cores are the first that this process may use."""

    def read_bytes(self, path: str) -> bytes:
        if path.endswith("/local_cpulist"):
            return str(min(os.sched_getaffinity(0))).encode()
        return b"32.0 GT/s PCIe" if path.endswith("_speed") else b"16"


def test_gpus_are_loaded_one_after_the_other_near_their_memory() -> None:
    log: list[str] = []
    gpus = [FakeGpu("0000:01:00.0", log), FakeGpu("0000:02:00.0", log)]
    before = os.sched_getaffinity(0)
    probes = measure(Links(), gpus)
    assert log == ["open 0000:01:00.0", "close 0000:01:00.0", "open 0000:02:00.0", "close 0000:02:00.0"]
    assert [gpu.cores for gpu in gpus] == [{min(before)}] * 2
    assert os.sched_getaffinity(0) == before
    probe = probes.gpus["0000:02:00.0"]
    assert isinstance(probe.link, Known)
    assert probe.link.value == PciLink(32.0, 16)
    assert "under load" in probe.link.evidence
    assert isinstance(probe.to_device, Known)
    assert isinstance(probe.to_host, Known)
    assert min(probe.to_device.value, probe.to_host.value) > 0
    assert probe.dma_buf == Known(True, "libcuda.so.1: GPU 0000:02:00.0 CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED")
    assert probes.link_under_load("0000:02:00.0") == probe.link
    assert probes.link_under_load("0000:03:00.0") is None


def test_what_one_gpu_refuses_is_unknown_and_the_others_are_probed() -> None:
    log: list[str] = []
    gpus = [FakeGpu(f"0000:0{number}:00.0", log, trouble) for number, trouble in enumerate(("full", "dies", "dark", ""))]
    before = os.sched_getaffinity(0)
    full, dies, dark, well = measure(Links(), gpus).gpus.values()
    assert isinstance(full.to_device, Unknown)
    assert isinstance(full.link, Unknown)
    assert "OUT_OF_MEMORY" in full.to_host.detail  # type: ignore[union-attr]
    assert isinstance(full.dma_buf, Known)
    assert isinstance(dies.to_device, Known)
    assert isinstance(dies.to_host, Unknown)
    assert isinstance(dark.to_host, Known)
    assert isinstance(dark.dma_buf, Unknown)
    assert isinstance(well.to_host, Known)
    assert log.count("close 0000:01:00.0") == 1
    assert os.sched_getaffinity(0) == before
