"""Exchanges: all-to-all-v and grouped send/recv of NumPy arrays between ranks, over all paths of the fabric."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from railweave import _native
from railweave._native import BootstrapError, ExchangeError, RankDied, SettingsError, TransportError

__all__ = [
    "BootstrapError",
    "Exchange",
    "ExchangeError",
    "Group",
    "Handle",
    "OperationReport",
    "RankDied",
    "SettingsError",
    "TransportError",
    "settings",
]

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# Ctrl-C is noticed between slices of waiting.
_WAIT_SLICE_SECONDS = 0.1


def settings() -> list[dict[str, Any]]:
    """The settings of an exchange: name, environment variable, default, unit, help, and the measurement behind the default."""
    rows: list[dict[str, Any]] = _native.exchange_settings()
    return rows


@dataclasses.dataclass(frozen=True)
class OperationReport:
    """What an operation did on this rank. Bytes by kind and by NIC are bytes sent, repeated ones included.

    `bytes_by_nic` counts what this rank sent through each NIC of its node, in the node's order (on a railed fabric: by rail).
    """

    serial: int
    seconds: float
    bytes_sent: int
    bytes_received: int
    bytes_by_kind: Mapping[str, int]
    bytes_by_nic: Sequence[int]
    mapped_bytes: int
    resent_chunks: int
    plan_seconds: float
    row_wait_seconds: float
    rows_missing: int
    plan_id: int
    plan_z_seconds: float


def _contiguous(array: _Array, role: str, writable: bool) -> _Array:
    if not isinstance(array, np.ndarray):
        raise ExchangeError(f"{role} is a {type(array).__name__}; expected a NumPy array")
    if not array.flags.c_contiguous:
        raise ExchangeError(f"{role} of shape {array.shape} is not C-contiguous; pass numpy.ascontiguousarray(...) of it")
    if array.dtype.hasobject:
        raise ExchangeError(f"{role} has dtype {array.dtype}, which holds Python objects; expected plain data")
    if writable and not array.flags.writeable:
        raise ExchangeError(f"{role} is read-only; expected a writable array")
    return array


class Handle:
    """A posted operation. Its arrays live until it has ended, also without this: do not write what it sends, or read what it receives,
    before."""

    def __init__(self, exchange: Exchange, native: Any, arrays: list[_Array]) -> None:
        self._exchange = exchange
        self._native = native
        self._arrays = arrays
        exchange._keep(native, arrays)

    def wait(self) -> OperationReport:
        """Blocks until the operation has ended. Raises RankDied or ExchangeError if it failed."""
        while not self._native.wait_for(_WAIT_SLICE_SECONDS):
            pass
        return self._ended()

    def test(self) -> bool:
        """Whether the operation has ended; raises like wait() if it failed."""
        if not self._native.test():
            return False
        self._ended()
        return True

    def _ended(self) -> OperationReport:
        self._arrays.clear()
        report = OperationReport(**self._native.report())
        self._exchange._last = report
        return report


def _over(native: Any) -> bool:
    try:
        return bool(native.test())
    except _native.Error:  # whoever waits for it is told
        return True


def _word(number: int, what: str) -> int:
    """A number that the engine has 32 bits for; it says itself which ranks there are."""
    try:
        word = operator.index(number)
    except TypeError as error:
        raise ExchangeError(f"{what} {number!r}: {error}; expected a whole number") from error
    if not 0 <= word < 1 << 32:
        raise ExchangeError(f"{what} {word}; expected 0 to 4294967295")
    return word


class Group:
    """Sends and receives that start together. As a context manager it posts itself at the end and waits."""

    def __init__(self, exchange: Exchange, native: Any) -> None:
        self._exchange = exchange
        self._native = native
        self._arrays: list[_Array] = []

    def send(self, array: _Array, peer: int) -> None:
        """Sends all bytes of a contiguous array to `peer`."""
        array = _contiguous(array, f"send to rank {peer}", writable=False)
        self._native.send(array.ctypes.data, array.nbytes, _word(peer, "peer"))
        self._arrays.append(array)

    def recv(self, array: _Array, peer: int) -> None:
        """Receives as many bytes as the contiguous array has, from `peer`."""
        array = _contiguous(array, f"receive from rank {peer}", writable=True)
        self._native.recv(array.ctypes.data, array.nbytes, _word(peer, "peer"))
        self._arrays.append(array)

    def end(self) -> Handle:
        """Posts the group."""
        return Handle(self._exchange, self._native.end(), self._arrays)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.end().wait()


class _Mapped:
    """Keeps memory of Exchange.empty() alive for the arrays made of it."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.__array_interface__ = {"data": (buffer.address, False), "shape": (buffer.bytes,), "typestr": "|u1", "version": 3}


class Exchange:
    """One rank's end of an exchange between `world` ranks.

    `rendezvous` is tcp://HOST:PORT (rank 0 listens there) or file:///DIRECTORY (ranks of one machine, also in different network
    namespaces). `fabric` is the job's fabric as JSON text; without it one is derived: a GPU a rank, its interfaces as NICs, rails by
    position. Keywords are settings (see `settings()`), which override RAILWEAVE_* variables. Use as a context manager, or close().
    """

    def __init__(self, rank: int, world: int, rendezvous: str, *, fabric: str | None = None, **settings: object) -> None:
        chosen = {name: int(value) if isinstance(value, bool) else value for name, value in settings.items()}
        self._native = _native.Exchange(_word(rank, "rank"), _word(world, "world"), rendezvous, fabric, chosen)
        self._last: OperationReport | None = None
        # Goes after _native, which ends what is under way.
        self._running: dict[int, tuple[Any, list[_Array]]] = {}
        self._numbers = itertools.count()

    def _keep(self, native: Any, arrays: list[_Array]) -> None:
        """Until the operation has ended, which those that nobody waited for are asked here. Threads may post side by side: each step is one
        of the dictionary's own. Pairs would be made one by one, and finalizers, that let others run, could come between them."""
        for number in list(self._running):
            entry = self._running.get(number)
            if entry is not None and _over(entry[0]):
                self._running.pop(number, None)
        if arrays:
            self._running[next(self._numbers)] = (native, arrays)

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self._native.rank)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return int(self._native.world)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self._native.nodes)

    def fabric_json(self) -> str:
        """The fabric in use, as JSON."""
        return str(self._native.fabric_json())

    def links_down(self) -> list[str]:
        """Links of this node to others that are down now, in words."""
        return list(self._native.links_down())

    def empty(self, shape: int | Sequence[int], dtype: Any = np.uint8) -> _Array:
        """An array in memory that ranks of the same node write to directly; zeroed."""
        kind = np.dtype(dtype)
        dimensions = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
        size = math.prod(dimensions) * kind.itemsize
        if kind.hasobject:
            raise ExchangeError(f"an array of dtype {kind}, which holds Python objects; expected plain data")
        if min(dimensions, default=0) < 0 or size >= 2**63:
            raise ExchangeError(f"an array of shape {dimensions} and {size} bytes; expected sizes from 0 and less than 2^63 bytes in all")
        memory = np.asarray(_Mapped(self._native.allocate(max(1, size))))
        array: _Array = memory[:size].view(kind).reshape(dimensions)
        return array

    def all_to_all_v(
        self, send: _Array, recv: _Array, send_counts: Sequence[int], recv_counts: Sequence[int], *, communicator: int = 0
    ) -> OperationReport:
        """Gives rank r the next send_counts[r] items of `send`; fills `recv` with recv_counts[r] items of each rank r. Waits.

        Counts are in items of the array they belong to. All ranks take part.
        """
        return self.all_to_all_v_async(send, recv, send_counts, recv_counts, communicator=communicator).wait()

    def all_to_all_v_async(
        self, send: _Array, recv: _Array, send_counts: Sequence[int], recv_counts: Sequence[int], *, communicator: int = 0
    ) -> Handle:
        """all_to_all_v that does not wait."""
        send = _contiguous(send, "send buffer", writable=False)
        recv = _contiguous(recv, "receive buffer", writable=True)
        out, out_offsets = self._layout(send, send_counts, "send")
        into, into_offsets = self._layout(recv, recv_counts, "recv")
        native = self._native.all_to_all_v(
            send.ctypes.data, out, out_offsets, recv.ctypes.data, into, into_offsets, _word(communicator, "communicator")
        )
        return Handle(self, native, [send, recv])

    def _layout(self, array: _Array, counts: Sequence[int], role: str) -> tuple[list[int], list[int]]:
        try:
            sizes = [operator.index(count) for count in counts]
        except TypeError as error:  # cut to whole numbers, floats would send less than was asked for
            raise ExchangeError(f"{role}_counts: {error}; expected whole numbers of items") from error
        if len(sizes) != self.world:
            raise ExchangeError(f"{role}_counts has {len(sizes)} entries; expected one for each of {self.world} ranks")
        if any(size < 0 for size in sizes):
            raise ExchangeError(f"{role}_counts has a negative entry ({min(sizes)}); expected items from 0")
        if sum(sizes) > array.size:
            raise ExchangeError(f"{role}_counts add up to {sum(sizes)} items; the {role} buffer has {array.size}")
        bytes_of = [size * array.itemsize for size in sizes]
        return bytes_of, list(itertools.accumulate(bytes_of[:-1], initial=0))

    def group(self, *, communicator: int = 0) -> Group:
        """Begins a group of sends and receives. The k-th send to a rank meets that rank's k-th receive on the same communicator."""
        return Group(self, self._native.group(_word(communicator, "communicator")))

    def last_operation(self) -> OperationReport | None:
        """The report of the operation that was last waited for."""
        return self._last

    def close(self) -> None:
        """Waits for own operations, then relays what ranks of this node had posted; for drain_ms at most once nothing moves.

        In a forked child it does nothing.
        """
        self._native.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
