"""The device library, librailweave_cuda.so, from Python: include/railweave/cuda.h by ctypes. Needs no torch and no NCCL."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from railweave import _native
from railweave._native import BootstrapError, Error, ExchangeError, SettingsError, TransportError

__all__ = ["Counters", "DeviceCommunicator", "Transfer"]

_LOGGER = logging.getLogger(__name__)
_VERSION = 1
_LIBRARY = "librailweave_cuda.so"
_SEND, _RECV = 0, 1
# railweave_status; a rank that died is an ExchangeError here, as the interface does not say which it was.
_ERRORS: dict[int, type[Error]] = {1: Error, 2: SettingsError, 3: BootstrapError, 4: TransportError, 5: ExchangeError, 6: ExchangeError}


class _Setting(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("rendezvous", ctypes.c_char_p),
        ("settings", ctypes.POINTER(_Setting)),
        ("setting_count", ctypes.c_size_t),
        ("log", ctypes.c_void_p),
        ("log_context", ctypes.c_void_p),
        ("warn", ctypes.c_void_p),
    )


class _Transfer(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("communicator", ctypes.c_void_p),
        ("kind", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class _Counters(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("enqueued", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("bytes_by_kind", ctypes.c_uint64 * 5),
    )


_Status = ctypes.c_int
_Pointer = ctypes.c_void_p


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("probe", ctypes.CFUNCTYPE(_Status, ctypes.c_int32)),
        ("create", ctypes.CFUNCTYPE(_Status, ctypes.POINTER(_Config), ctypes.POINTER(_Pointer))),
        ("enqueue", ctypes.CFUNCTYPE(_Status, ctypes.POINTER(_Transfer), ctypes.c_size_t, ctypes.POINTER(_Pointer), ctypes.c_size_t)),
        ("async_error", ctypes.CFUNCTYPE(_Status, _Pointer)),
        ("abort", ctypes.CFUNCTYPE(_Status, _Pointer)),
        ("drain", ctypes.CFUNCTYPE(_Status, _Pointer)),
        ("destroy", ctypes.CFUNCTYPE(None, _Pointer)),
        ("register_buffer", ctypes.CFUNCTYPE(_Status, _Pointer, _Pointer, ctypes.c_uint64, ctypes.POINTER(_Pointer))),
        ("deregister_buffer", ctypes.CFUNCTYPE(_Status, _Pointer, _Pointer)),
        ("counters", ctypes.CFUNCTYPE(_Status, _Pointer, ctypes.POINTER(_Counters))),
        ("describe", ctypes.CFUNCTYPE(ctypes.c_size_t, _Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    )


class Transfer(NamedTuple):
    """A message: `peer` is a rank of the communicator, `pointer` device memory of `nbytes` bytes, at least 1."""

    sends: bool
    peer: int
    pointer: int
    nbytes: int


class Counters(NamedTuple):
    """Messages handed over and ended, bytes of the ended ones; `bytes_by_kind`: direct, relay, host, rail, cross_rail."""

    enqueued: int
    completed: int
    bytes_sent: int
    bytes_received: int
    bytes_by_kind: tuple[int, ...]


@functools.cache
def _api(path: str) -> _Api:
    """The library's table; it stays loaded, as streams may hold its kernels until the process ends."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise TransportError(f"no device library: {error}; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it") from None
    entry = library.railweave_cuda_entry
    entry.restype = ctypes.POINTER(_Api)
    table = entry(ctypes.c_uint32(_VERSION))
    if not table or table.contents.size < ctypes.sizeof(_Api) or table.contents.version != _VERSION:
        raise TransportError(f"{path} does not have version {_VERSION} of the device interface; install one build of all of Railweave")
    api: _Api = table.contents
    return api


def library() -> str:
    """The library's path. Raises TransportError where there is none."""
    if named := os.environ.get("RAILWEAVE_CUDA_LIBRARY"):
        return named
    beside = Path(_native.__file__).parent / _LIBRARY
    if beside.exists():
        return str(beside)
    _api(_LIBRARY)  # wherever the loader finds it
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line[line.index("/") :] for line in mapped if line.endswith(f"/{_LIBRARY}"))


class DeviceCommunicator:
    """Ranks that exchange device memory in stream order. All ranks construct it together and close it.

    `rendezvous` is tcp://HOST:PORT, where rank 0 listens; `settings` are those of docs/settings.md. Errors: BootstrapError when ranks do
    not come, TransportError without a device library, ExchangeError when an operation failed. What it decides, and why, goes to the
    logger railweave.device, at the latest with the next call.
    """

    def __init__(self, rank: int, world: int, device: int, rendezvous: str, settings: Mapping[str, str] | None = None) -> None:
        self._handle: int | None = None
        self._api = _api(library())
        chosen = (_Setting * len(settings or {}))(*(_Setting(name.encode(), value.encode()) for name, value in (settings or {}).items()))
        self.rank, self.world, self.device = rank, world, device
        self._log = _native.DeviceLog()
        config = _Config(ctypes.sizeof(_Config), rank, world, device, 0, rendezvous.encode(), chosen, len(chosen))
        config.log, config.log_context, config.warn = self._log.log, self._log.context, self._log.warn
        handle = _Pointer()
        try:
            self._check(self._api.probe(device))
            self._check(self._api.create(ctypes.byref(config), ctypes.byref(handle)))
        except Error:
            self._log.close()
            raise
        self._handle = handle.value

    def _check(self, status: int) -> None:
        self._tell()
        if status == 0:
            return
        text = self._api.last_error() or b"the device library gave no reason"
        raise _ERRORS.get(status, Error)(text.decode(errors="replace"))

    def _tell(self) -> None:
        for is_warning, text in self._log.take():
            _LOGGER.log(logging.WARNING if is_warning else logging.INFO, "rank %d of %d: %s", self.rank, self.world, text)

    def enqueue(self, transfers: Sequence[Transfer], stream: int) -> None:
        """Queues all transfers as one operation on the stream (a cudaStream_t); never waits for a peer. None at all does nothing."""
        if not transfers:
            return
        size = ctypes.sizeof(_Transfer)
        rows = [_Transfer(size, self._handle, _SEND if t.sends else _RECV, t.peer, t.pointer, t.nbytes) for t in transfers]
        self._check(self._api.enqueue((_Transfer * len(rows))(*rows), len(rows), (_Pointer * 1)(stream), 1))

    def check(self) -> None:
        """Raises what ended the communicator, if anything did."""
        self._check(self._api.async_error(self._handle))

    def register(self, pointer: int, nbytes: int) -> int:
        """Memory that will be used often: mapped ahead of its first use, while it is among the rank's 1,024 newest buffers.

        The result goes to deregister().
        """
        handle = _Pointer()
        self._check(self._api.register_buffer(self._handle, pointer, nbytes, ctypes.byref(handle)))
        return handle.value or 0

    def deregister(self, registration: int) -> None:
        """Before the memory is freed."""
        self._check(self._api.deregister_buffer(self._handle, registration))

    def counters(self) -> Counters:
        """Of this rank so far."""
        counters = _Counters(ctypes.sizeof(_Counters))
        self._check(self._api.counters(self._handle, ctypes.byref(counters)))
        return Counters(counters.enqueued, counters.completed, counters.bytes_sent, counters.bytes_received, tuple(counters.bytes_by_kind))

    def abort(self) -> None:
        """Ends everything queued or running; streams go on."""
        self._check(self._api.abort(self._handle))

    def close(self) -> None:
        """Waits for what was queued, however late peers come, then serves these until they need nothing, at most for drain_ms."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._api.destroy(handle)
            self._tell()
            self._log.close()
