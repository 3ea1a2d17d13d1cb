"""The GPUs of this machine, for `measure`: the device library moves the bytes, the driver's events take the times. One process for all."""

from __future__ import annotations

import contextlib
import ctypes
import math
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from railweave.calibrate.document import CalibrationError, Gpu
from railweave.calibrate.measure import Matrix
from railweave.device import DeviceCommunicator, Transfer
from railweave.errors import Error

_LIBRARY = "libcuda.so.1"
_OPERATIONS = 10  # of a graph; replays leave the time that the host takes for a launch out
_SECONDS = 0.03  # of one measurement: 40 operations of 256 MiB
_MEASUREMENTS = 3
_MOST_REPLAYS = 200
_COPIES = 4
_PIECE, _PIECES = 4 << 20, 4  # over the host: as large as PCIe needs for its rate, as many as overlap
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_PEER_ACCESS_ALREADY_ENABLED = 704
_STALL_MS = "20000"
_STRAIGHT = {"gpu_host_share": "0", "gpu_relays": "0", "gpu_emulated_mesh": "0"}  # whatever else says otherwise: links are measured

_Graph = tuple[int, ctypes.c_void_p]
"""Of a rank."""


class Cuda:
    """The driver's calls, each checked."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CalibrationError(f"there is nothing to measure here: no NVIDIA driver ({error}); run it on a machine with GPUs") from None
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: object, accept: int = 0) -> None:
        """Raises CalibrationError for another status than 0 and `accept`."""
        status = getattr(self._library, name)(*arguments)
        if status not in (0, accept):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise CalibrationError(f"{name}: {(text.value or b'error').decode()} ({status})")

    def number(self, name: str, *arguments: object) -> int:
        """Of calls that answer with an int."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Of calls that make something."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made


class _Device:
    """A GPU with its context, streams, events and one buffer for each use."""

    def __init__(self, cuda: Cuda, ordinal: int) -> None:
        self.cuda = cuda
        device = ctypes.c_int(cuda.number("cuDeviceGet", ctypes.c_int(ordinal)))
        name, bus_id = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
        cuda.call("cuDeviceGetName", name, ctypes.c_int(128), device)
        cuda.call("cuDeviceGetPCIBusId", bus_id, ctypes.c_int(32), device)
        self.gpu = Gpu(name.value.decode(errors="replace"), bus_id.value.decode().lower())
        self.context = cuda.handle("cuDevicePrimaryCtxRetain", device)
        self.enter()
        self.stream = cuda.handle("cuStreamCreate", ctypes.c_uint(_NON_BLOCKING))
        self.begin, self.end = (cuda.handle("cuEventCreate", ctypes.c_uint(0)) for _ in range(2))
        self._buffers: dict[str, tuple[int, int]] = {}

    def enter(self) -> None:
        self.cuda.call("cuCtxSetCurrent", self.context)

    def buffer(self, use: str, nbytes: int, pooled: bool = False) -> int:
        """Memory that is kept for the next call; `pooled`: of a memory pool, which other ranks cannot map."""
        kept, size = self._buffers.get(use, (0, 0))
        if size >= nbytes:
            return kept
        self.enter()
        if kept:
            self.cuda.call("cuMemFree_v2", ctypes.c_uint64(kept))
        made = ctypes.c_uint64()
        if pooled:
            self.cuda.call("cuMemAllocAsync", ctypes.byref(made), ctypes.c_size_t(nbytes), self.stream)
            self.wait()
        else:
            self.cuda.call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(nbytes))
        self._buffers[use] = (made.value, nbytes)
        return made.value

    def record(self, event: ctypes.c_void_p) -> None:
        self.enter()
        self.cuda.call("cuEventRecord", event, self.stream)

    def wait(self) -> None:
        self.cuda.call("cuStreamSynchronize", self.stream)

    def seconds(self) -> float:
        """Between `begin` and `end`."""
        elapsed = ctypes.c_float()
        self.cuda.call("cuEventElapsedTime", ctypes.byref(elapsed), self.begin, self.end)
        return elapsed.value / 1e3


class GpuBench:
    """All GPUs that this process sees. Raises CalibrationError where there are fewer than two, or they are not served."""

    def __init__(self) -> None:
        self._cuda = Cuda()
        count = self._cuda.number("cuDeviceGetCount")
        if count < 2:
            raise CalibrationError(f"there is nothing to measure here: {count} GPU; expected at least two, between which bytes can move")
        self._devices = [_Device(self._cuda, ordinal) for ordinal in range(count)]
        self.gpus = tuple(device.gpu for device in self._devices)
        version = self._cuda.number("cuDriverGetVersion")
        self.driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
        for device in self._devices:
            for peer in self._devices:
                if device is not peer:
                    device.enter()
                    self._cuda.call("cuCtxEnablePeerAccess", peer.context, ctypes.c_uint(0), accept=_PEER_ACCESS_ALREADY_ENABLED)
        self._ranks: list[DeviceCommunicator] = []
        self._settings: dict[str, str] | None = None

    def close(self) -> None:
        """Ends the ranks; memory goes with the process."""
        ranks, self._ranks, self._settings = self._ranks, [], None
        for rank in ranks:
            rank.close()

    def _communicator(self, settings: Mapping[str, str]) -> list[DeviceCommunicator]:
        """A rank for each GPU, with those settings."""
        if self._settings == dict(settings):
            return self._ranks
        self.close()
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            rendezvous = f"tcp://127.0.0.1:{place.getsockname()[1]}"
        world = len(self._devices)
        chosen = {"gpu_timeout_ms": _STALL_MS, **_STRAIGHT, **settings}
        with ThreadPoolExecutor(world) as threads:  # each waits for the others
            made = [threads.submit(DeviceCommunicator, rank, world, rank, rendezvous, chosen) for rank in range(world)]
            try:
                self._ranks = [each.result() for each in made]
            except Error as error:
                for each in made:
                    if each.exception() is None:
                        each.result().abort()
                        each.result().close()
                raise CalibrationError(f"the GPUs of this machine are not served: {error}") from error
        self._settings = dict(settings)
        return self._ranks

    def exchange(self, matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
        """Seconds of one exchange, among many replays of a graph; the median of several measurements."""
        ranks = self._communicator(settings)
        transfers = [self._transfers(matrix, rank, mapped) for rank in range(len(ranks))]
        with self._graphs(ranks, transfers, 1) as graphs:
            alone = self._warm_replay(graphs)
        # Ten that take long would take long for nothing: what is between two graphs does not matter to them.
        operations = _OPERATIONS if alone * _OPERATIONS < _SECONDS else 1
        with self._graphs(ranks, transfers, operations) as graphs:
            replays = min(_MOST_REPLAYS, math.ceil(_SECONDS / max(self._warm_replay(graphs), 1e-9)))
            seconds = statistics.median(self._replay(graphs, replays) for _ in range(_MEASUREMENTS))
        for rank in ranks:
            rank.check()
        return seconds / (replays * operations)

    @contextlib.contextmanager
    def _graphs(self, ranks: list[DeviceCommunicator], transfers: list[list[Transfer]], operations: int) -> Iterator[list[_Graph]]:
        """Of the ranks that have something to send or to receive."""
        with contextlib.ExitStack() as kept:
            yield [
                (rank, kept.enter_context(self._captured(ranks[rank], rank, own, operations))) for rank, own in enumerate(transfers) if own
            ]

    def _warm_replay(self, graphs: list[_Graph]) -> float:
        """Seconds of one replay after another one, which leaves idle clocks."""
        self._replay(graphs, 1)
        return self._replay(graphs, 1)

    def _transfers(self, matrix: Matrix, rank: int, mapped: bool) -> list[Transfer]:
        device = self._devices[rank]
        sent, received = sum(matrix[rank]), sum(row[rank] for row in matrix)
        out = device.buffer("send", sent) if sent else 0
        into = device.buffer("mapped" if mapped else "pooled", received, pooled=not mapped) if received else 0
        transfers = []
        for peer in range(len(matrix)):
            if matrix[rank][peer]:
                transfers.append(Transfer(True, peer, out, matrix[rank][peer]))
                out += matrix[rank][peer]
            if matrix[peer][rank]:
                transfers.append(Transfer(False, peer, into, matrix[peer][rank]))
                into += matrix[peer][rank]
        return transfers

    @contextlib.contextmanager
    def _captured(self, rank: DeviceCommunicator, number: int, transfers: list[Transfer], operations: int) -> Iterator[ctypes.c_void_p]:
        """A graph of so many operations."""
        device, cuda = self._devices[number], self._cuda
        device.enter()
        cuda.call("cuStreamBeginCapture_v2", device.stream, ctypes.c_int(_THREAD_LOCAL))
        graph = ctypes.c_void_p()
        try:
            for _ in range(operations):
                rank.enqueue(transfers, device.stream.value or 0)
        finally:
            cuda.call("cuStreamEndCapture", device.stream, ctypes.byref(graph))
        launchable = cuda.handle("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
        cuda.call("cuGraphDestroy", graph)
        try:
            yield launchable
        finally:
            cuda.call("cuGraphExecDestroy", launchable)

    def _replay(self, graphs: list[_Graph], replays: int) -> float:
        """Seconds on the slowest GPU."""
        devices = [self._devices[rank] for rank, _ in graphs]
        for device in devices:
            device.record(device.begin)
        for _ in range(replays):
            for device, (_, graph) in zip(devices, graphs, strict=True):
                device.enter()
                self._cuda.call("cuGraphLaunch", graph, device.stream)
        for device in devices:
            device.record(device.end)
        for device in devices:
            device.wait()
        return max(device.seconds() for device in devices)

    def copy(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy from one GPU to the other."""
        here, there = self._devices[source], self._devices[destination]
        out, into = here.buffer("send", nbytes), there.buffer("mapped", nbytes)
        size = ctypes.c_size_t(nbytes)

        def copies() -> None:
            for _ in range(_COPIES):
                self._cuda.call(
                    "cuMemcpyPeerAsync", ctypes.c_uint64(into), there.context, ctypes.c_uint64(out), here.context, size, here.stream
                )

        return self._timed(here, copies) / _COPIES

    def copy_over_host(self, source: int, destination: int, nbytes: int) -> float:
        """Seconds of a copy in pieces, each to the host and on."""
        here, there, cuda = self._devices[source], self._devices[destination], self._cuda
        out, into = here.buffer("send", nbytes), there.buffer("mapped", nbytes)
        here.enter()
        host = cuda.handle("cuMemAllocHost_v2", ctypes.c_size_t(_PIECE * _PIECES))
        filled = [cuda.handle("cuEventCreate", ctypes.c_uint(0)) for _ in range(_PIECES)]
        there.enter()
        emptied = [cuda.handle("cuEventCreate", ctypes.c_uint(0)) for _ in range(_PIECES)]

        def copies() -> None:
            for number, at in enumerate(range(0, nbytes, _PIECE)):
                place, size = number % _PIECES, ctypes.c_size_t(min(_PIECE, nbytes - at))
                piece = ctypes.c_void_p((host.value or 0) + place * _PIECE)
                here.enter()
                if number >= _PIECES:
                    cuda.call("cuStreamWaitEvent", here.stream, emptied[place], ctypes.c_uint(0))
                cuda.call("cuMemcpyDtoHAsync_v2", piece, ctypes.c_uint64(out + at), size, here.stream)
                cuda.call("cuEventRecord", filled[place], here.stream)
                there.enter()
                cuda.call("cuStreamWaitEvent", there.stream, filled[place], ctypes.c_uint(0))
                cuda.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(into + at), piece, size, there.stream)
                cuda.call("cuEventRecord", emptied[place], there.stream)
            # The end is taken where the begin was: events of two GPUs have no common clock.
            for event in emptied[: min(_PIECES, -(-nbytes // _PIECE))]:
                cuda.call("cuStreamWaitEvent", here.stream, event, ctypes.c_uint(0))

        try:
            return self._timed(here, copies)
        finally:
            for event in (*filled, *emptied):
                cuda.call("cuEventDestroy_v2", event)
            cuda.call("cuMemFreeHost", host)

    def _timed(self, device: _Device, work: Callable[[], None]) -> float:
        work()  # leaves idle clocks
        device.record(device.begin)
        work()
        device.record(device.end)
        device.wait()
        return device.seconds()
