"""The machine as hwloc sees it, exported as XML by the library itself.

Called through ctypes and not through `lstopo`: the library is where MPI, UCX or Slurm are, the program often is not; one call takes
milliseconds. hwloc's own GPU back ends stay off, because they would initialise CUDA or open displays only to learn what NVML says.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from railweave.machine.source import Reason, Unreadable

_PATH = "library:hwloc"
_NAMES = ("libhwloc.so.15", "libhwloc.so.23")
# hwloc.h, unchanged since 2.0.
_KEEP_IMPORTANT = 3
_COMPONENTS = "-opencl,-cuda,-nvml,-rsmi,-levelzero,-gl"


def export_xml() -> str:
    """hwloc's XML of this machine with PCI devices, bridges and OS devices. Raises Unreadable."""
    library = _load()
    topology = ctypes.c_void_p()
    before = os.environ.get("HWLOC_COMPONENTS")
    os.environ["HWLOC_COMPONENTS"] = _COMPONENTS
    try:
        _check(library.hwloc_topology_init(ctypes.byref(topology)), "hwloc_topology_init")
        try:
            _check(library.hwloc_topology_set_io_types_filter(topology, _KEEP_IMPORTANT), "hwloc_topology_set_io_types_filter")
            _check(library.hwloc_topology_load(topology), "hwloc_topology_load")
            return _export(library, topology)
        finally:
            library.hwloc_topology_destroy(topology)
    finally:
        if before is None:
            del os.environ["HWLOC_COMPONENTS"]
        else:
            os.environ["HWLOC_COMPONENTS"] = before


def _load() -> Any:
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.hwloc_topology_init.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
        library.hwloc_topology_set_io_types_filter.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.hwloc_topology_load.argtypes = [ctypes.c_void_p]
        library.hwloc_topology_destroy.argtypes = [ctypes.c_void_p]
        library.hwloc_topology_export_xmlbuffer.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_int),
            ctypes.c_ulong,
        ]
        library.hwloc_free_xmlbuffer.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        return library
    raise Unreadable(_PATH, Reason.tool_missing, f"none of {', '.join(_NAMES)}")


def _export(library: Any, topology: ctypes.c_void_p) -> str:
    text, size = ctypes.c_void_p(), ctypes.c_int()
    _check(library.hwloc_topology_export_xmlbuffer(topology, ctypes.byref(text), ctypes.byref(size), 0), "hwloc_topology_export_xmlbuffer")
    try:
        return ctypes.string_at(text, max(size.value - 1, 0)).decode("utf-8", errors="replace")
    finally:
        library.hwloc_free_xmlbuffer(topology, text)


def _check(result: int, call: str) -> None:
    if result != 0:
        raise Unreadable(_PATH, Reason.error, f"{call} failed")
