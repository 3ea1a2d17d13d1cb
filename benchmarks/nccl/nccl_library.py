"""NCCL's own functions from Python: those of the library that PyTorch has loaded, or of the shim where that is preloaded."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# ncclDataType_t and the bytes of an element, in NCCL's order.
ELEMENT_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
INT32, SUM = 2, 0
_SPLIT_UNDEFINED = ctypes.c_void_p()
_SHRINK_ABORT = 1
_FIRST_THAT_GROWS = 22900


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which calls take by value."""

    _fields_ = (("internal", ctypes.c_char * 128),)

    def bytes(self) -> bytes:
        """All 128 of them; the member's value would end at the first 0."""
        return ctypes.string_at(ctypes.addressof(self), 128)


def preloaded_shim() -> str | None:
    """The shim, where LD_PRELOAD names it."""
    entries = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return next((entry for entry in entries if Path(entry).name == "librailweave_nccl.so"), None)


def _loaded() -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libnccl.so" in line:
            return line.split(maxsplit=5)[5]
    raise RuntimeError("PyTorch has not loaded libnccl.so.2")


class Nccl:
    """Calls raise when NCCL refuses. Communicators and streams are numbers, as ctypes has pointers."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(preloaded_shim() or _loaded())
        self._library.ncclGetLastError.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: NCCL error {status}: {self._library.ncclGetLastError(None)}")

    def unique_id(self) -> UniqueId:
        """Of a new communicator."""
        result = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(result))
        return result

    def init(self, world: int, unique_id: UniqueId, rank: int) -> int:
        """ncclCommInitRank on the current device."""
        communicator = ctypes.c_void_p()
        self._call("ncclCommInitRank", ctypes.byref(communicator), world, unique_id, rank)
        return communicator.value or 0

    def split(self, communicator: int, color: int, key: int) -> int:
        """ncclCommSplit."""
        child = ctypes.c_void_p()
        self._call("ncclCommSplit", ctypes.c_void_p(communicator), color, key, ctypes.byref(child), _SPLIT_UNDEFINED)
        return child.value or 0

    def shrink_without(self, communicator: int, excluded: list[int]) -> int:
        """ncclCommShrink with NCCL_SHRINK_ABORT: what is pending ends first."""
        child = ctypes.c_void_p()
        ranks = (ctypes.c_int * len(excluded))(*excluded)
        self._call("ncclCommShrink", ctypes.c_void_p(communicator), ranks, len(excluded), ctypes.byref(child), None, _SHRINK_ABORT)
        return child.value or 0

    def can_grow(self) -> bool:
        """Has NCCL the calls by which ranks come to a communicator? Those of 2.29 have."""
        version = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(version))
        return version.value >= _FIRST_THAT_GROWS

    def growing_id(self, communicator: int) -> UniqueId:
        """ncclCommGetUniqueId, for those who come."""
        result = UniqueId()
        self._call("ncclCommGetUniqueId", ctypes.c_void_p(communicator), ctypes.byref(result))
        return result

    def grow(self, communicator: int, world: int, unique_id: UniqueId | None, rank: int) -> int:
        """ncclCommGrow. Who comes has no communicator (0), the id and a rank; of those who are there (rank -1) the id's maker has it."""
        child = ctypes.c_void_p()
        pointer = None if unique_id is None else ctypes.byref(unique_id)
        self._call("ncclCommGrow", ctypes.c_void_p(communicator), world, pointer, rank, ctypes.byref(child), None)
        return child.value or 0

    def start(self) -> None:
        """ncclGroupStart."""
        self._call("ncclGroupStart")

    def end(self) -> None:
        """ncclGroupEnd."""
        self._call("ncclGroupEnd")

    def message(self, sends: bool, pointer: int, count: int, kind: int, peer: int, communicator: int, stream: int) -> None:
        """ncclSend or ncclRecv; `kind` is an ncclDataType_t."""
        name = "ncclSend" if sends else "ncclRecv"
        pointers = (ctypes.c_void_p(communicator), ctypes.c_void_p(stream))
        self._call(name, ctypes.c_void_p(pointer), ctypes.c_size_t(count), kind, peer, *pointers)

    def all_reduce(self, pointer: int, count: int, communicator: int, stream: int) -> None:
        """Sum of int32, in place."""
        data, pointers = ctypes.c_void_p(pointer), (ctypes.c_void_p(communicator), ctypes.c_void_p(stream))
        self._call("ncclAllReduce", data, data, ctypes.c_size_t(count), INT32, SUM, *pointers)

    def async_error(self, communicator: int) -> int:
        """ncclCommGetAsyncError."""
        error = ctypes.c_int()
        self._call("ncclCommGetAsyncError", ctypes.c_void_p(communicator), ctypes.byref(error))
        return error.value

    def abort(self, communicator: int) -> None:
        """ncclCommAbort."""
        self._call("ncclCommAbort", ctypes.c_void_p(communicator))

    def destroy(self, communicator: int) -> None:
        """ncclCommDestroy."""
        self._call("ncclCommDestroy", ctypes.c_void_p(communicator))
