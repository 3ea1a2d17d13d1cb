"""The device library, librailweave_cuda.so, from Python: include/railweave/cuda.h. Needs no torch and no NCCL."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from railweave import _native
from railweave._native import Error

__all__ = ["Counters", "DeviceCommunicator", "Transfer"]

_LOGGER = logging.getLogger(__name__)
_LIBRARY = "librailweave_cuda.so"


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


def library() -> str:
    """The library's path. Raises TransportError where there is none."""
    if named := os.environ.get("RAILWEAVE_CUDA_LIBRARY"):
        return named
    beside = Path(_native.__file__).parent / _LIBRARY
    if beside.exists():
        return str(beside)
    return _native.device_library_file(_LIBRARY)  # wherever the loader finds it


class DeviceCommunicator:
    """Ranks that exchange device memory in stream order. All ranks construct it together and close it.

    `rendezvous` is tcp://HOST:PORT, where rank 0 listens; `settings` are those of docs/settings.md. Errors: BootstrapError when ranks do
    not come, TransportError without a device library, ExchangeError when an operation failed or after close(). What it decides, and why,
    goes to the logger railweave.device, at the latest with the next call. Any thread may call; close() keeps enqueue() and all_to_all_v()
    of others waiting, and abort() ends its wait.
    """

    def __init__(self, rank: int, world: int, device: int, rendezvous: str, settings: Mapping[str, str] | None = None) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._log = _native.DeviceLog()
        try:
            self._native = _native.DeviceCommunicator(self._log, library(), rank, world, device, rendezvous, dict(settings or {}))
        except Error:
            self._tell()
            self._log.close()
            raise
        self._tell()

    def _tell(self) -> None:
        for is_warning, text in self._log.take():
            _LOGGER.log(logging.WARNING if is_warning else logging.INFO, "rank %d of %d: %s", self.rank, self.world, text)

    def enqueue(self, transfers: Sequence[Transfer], stream: int) -> None:
        """Queues all transfers as one operation on the stream (a cudaStream_t); never waits for a peer. None at all does nothing."""
        self._tell()
        self._native.enqueue(transfers, stream)

    def all_to_all_v(self, output: int, output_sizes: Sequence[int], input_: int, input_sizes: Sequence[int], stream: int) -> None:
        """Queues an operation that sends each rank the next of `input_sizes` bytes at the address `input_`, and writes what each sends,
        in the order of ranks, to `output`. Raises what ended the communicator, if anything did."""
        self._tell()
        self._native.all_to_all_v(output, output_sizes, input_, input_sizes, stream)

    def check(self) -> None:
        """Raises what ended the communicator, if anything did."""
        self._tell()
        self._native.check()

    def register(self, pointer: int, nbytes: int) -> int:
        """Memory that will be used often: mapped ahead of its first use, while it is among the rank's 1,024 newest buffers.

        The result goes to deregister().
        """
        self._tell()
        return self._native.register(pointer, nbytes)

    def deregister(self, registration: int) -> None:
        """Before the memory is freed."""
        self._tell()
        self._native.deregister(registration)

    def counters(self) -> Counters:
        """Of this rank so far."""
        self._tell()
        enqueued, completed, sent, received, by_kind = self._native.counters()
        return Counters(enqueued, completed, sent, received, tuple(by_kind))

    def abort(self) -> None:
        """Ends everything queued or running; streams go on."""
        self._tell()
        self._native.abort()

    def close(self) -> None:
        """Waits for what was queued, however late peers come, then serves these until they need nothing, at most for drain_ms."""
        self._native.close()
        self._tell()
        self._log.close()
