"""Asks NVIDIA's management library (NVML) about all GPUs, and writes down its answers as JSON, so that a recording holds them.

Each answer is `{"value": ...}` or `{"error": "NVML_ERROR_..."}`: a GPU that falls off the bus between two questions keeps what it had
answered.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from railweave.machine.gpus import reason_of
from railweave.machine.source import Reason, Unreadable

VERSION = 1
_PATH = "library:nvml"


def read_json() -> str:
    """The answers. Raises Unreadable when there is no NVML or no driver."""
    try:
        import pynvml
    except ImportError as error:
        raise Unreadable(_PATH, Reason.tool_missing, "no Python package nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        reason = Reason.tool_missing if isinstance(error, pynvml.NVMLError_LibraryNotFound) else reason_of(error_name(error))
        raise Unreadable(_PATH, reason, f"nvmlInit: {error_name(error)}") from error
    try:
        return json.dumps(Reader(pynvml).document(), indent=1)
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # of a driver that has lost its GPUs; what was read counts
            pynvml.nvmlShutdown()


def error_name(error: Any) -> str:
    """An error of NVML by its name in nvml.h."""
    import pynvml

    names: dict[Any, str] = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    return names.get(getattr(error, "value", None)) or str(error)


class Reader:
    """Asks the library, given as its Python module, and keeps errors as answers."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def ask(self, call: Callable[[], Any]) -> dict[str, Any]:
        """The call's value, or the name of its error."""
        try:
            value = call()
        except self._nvml.NVMLError as error:
            return {"error": error_name(error)}
        except AttributeError:  # a Python package older than the question
            return {"error": "NVML_ERROR_FUNCTION_NOT_FOUND"}
        return {"value": value.decode(errors="replace") if isinstance(value, bytes) else value}

    def document(self) -> dict[str, Any]:
        """All answers. Raises Unreadable when the library does not even say how many GPUs there are."""
        nvml = self._nvml
        count = self.ask(nvml.nvmlDeviceGetCount)
        if "error" in count:
            raise Unreadable(_PATH, Reason.error, f"nvmlDeviceGetCount: {count['error']}")
        handles = [self._handle(index) for index in range(count["value"])]
        return {
            "version": VERSION,
            "driver": self.ask(nvml.nvmlSystemGetDriverVersion),
            "nvml": self.ask(nvml.nvmlSystemGetNVMLVersion),
            "gpus": [
                {"index": index, "error": handle} if isinstance(handle, str) else self._gpu(index, handle, handles)
                for index, handle in enumerate(handles)
            ],
        }

    def _handle(self, index: int) -> Any:
        """A handle, or the name of the error."""
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            return error_name(error)

    def _gpu(self, index: int, gpu: Any, all_gpus: list[Any]) -> dict[str, Any]:
        nvml, ask = self._nvml, self.ask
        return {
            "index": index,
            "bus_id": ask(lambda: nvml.nvmlDeviceGetPciInfo(gpu).busId),
            "name": ask(lambda: nvml.nvmlDeviceGetName(gpu)),
            "uuid": ask(lambda: nvml.nvmlDeviceGetUUID(gpu)),
            "minor": ask(lambda: nvml.nvmlDeviceGetMinorNumber(gpu)),
            "compute_capability": ask(lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(gpu))),
            "memory_B": ask(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total),
            "pcie_generation": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
            "pcie_width": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
            "pcie_generation_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
            "pcie_width_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
            "sm_clock_MHz": ask(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "sm_clock_max_MHz": ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "throttle_reasons": ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
            "persistence": ask(lambda: nvml.nvmlDeviceGetPersistenceMode(gpu)),
            "mig": ask(lambda: nvml.nvmlDeviceGetMigMode(gpu)[0]),
            "fabric_state": ask(lambda: self._fabric_state(gpu)),
            "cpu_affinity": ask(lambda: [int(word) for word in nvml.nvmlDeviceGetCpuAffinity(gpu, 64)]),
            "nvlinks": [self._nvlink(gpu, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)],
            "common_ancestor": {
                str(other): ask(partial(nvml.nvmlDeviceGetTopologyCommonAncestor, gpu, peer))
                for other, peer in enumerate(all_gpus)
                if other != index and not isinstance(peer, str)
            },
        }

    def _fabric_state(self, gpu: Any) -> int:
        info = self._nvml.c_nvmlGpuFabricInfo_t()
        self._nvml.nvmlDeviceGetGpuFabricInfo(gpu, self._nvml.byref(info))
        return int(info.state)

    def _nvlink(self, gpu: Any, link: int) -> dict[str, Any]:
        nvml, ask = self._nvml, self.ask
        state = ask(lambda: nvml.nvmlDeviceGetNvLinkState(gpu, link))
        if state.get("value") != nvml.NVML_FEATURE_ENABLED:
            return {"state": state}
        return {
            "state": state,
            "version": ask(lambda: nvml.nvmlDeviceGetNvLinkVersion(gpu, link)),
            "remote_type": ask(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)),
            "remote_bus_id": ask(lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId),
            "errors": {
                name: ask(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, link, counter))
                for name, counter in (
                    ("replay", nvml.NVML_NVLINK_ERROR_DL_REPLAY),
                    ("recovery", nvml.NVML_NVLINK_ERROR_DL_RECOVERY),
                    ("crc_flit", nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
                    ("crc_data", nvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
                )
            },
        }
