"""Sections of gpu_ranks.py: the order of operations on several streams, in captured graphs, and on streams with a part of the GPU."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from nccl_library import Nccl, UniqueId, preloaded_shim
from rank_bytes import require, rows_of, same

_RELAXED = 2  # cudaStreamCaptureModeRelaxed


def _runtime() -> Callable[..., None]:
    """Calls of the CUDA runtime that PyTorch has loaded."""
    path = next(line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line)
    library = ctypes.CDLL(path)

    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        require(status == 0, f"{name}: CUDA error {status}")

    return call


def ordering(rank: int, world: int) -> dict[str, object]:
    """Operations of a communicator run in the order of their calls, also where only the communicator orders them: queued calls on a stream
    with a graph's replay on another between them, and streams that are destroyed with work pending. Ranks sleep in other places, so what
    is not ordered overtakes on some of them."""
    nccl = Nccl()
    unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
    dist.broadcast_object_list(unique_id, src=0)
    communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
    rounds, count, naps = 60, 1 << 20, 2_000_000  # clock cycles: some 1 ms
    send, received = (torch.zeros(3, world, count, dtype=torch.uint8, device="cuda") for _ in range(2))

    def exchange(place: int, stream: int) -> None:
        nccl.start()
        for peer in range(world):
            nccl.message(True, send[place, peer].data_ptr(), count, 0, peer, communicator, stream)
            nccl.message(False, received[place, peer].data_ptr(), count, 0, peer, communicator, stream)
        nccl.end()

    def fill(salt: int) -> None:
        for place in range(3):
            for peer in range(world):
                send[place, peer] = rows_of(rank, peer, count, 1, torch.uint8, 3 * salt + place).view(-1)
        received.fill_(0xA5)
        torch.cuda.synchronize()

    def check(salt: int, what: str) -> None:
        torch.cuda.synchronize()
        for place in range(3):
            for peer in range(world):
                wanted = rows_of(peer, rank, count, 1, torch.uint8, 3 * salt + place).view(-1)
                require(same(received[place, peer], wanted), f"{what}, round {salt}, exchange {place}, from {peer}: wrong bytes")

    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    fill(0)
    for place in range(3):
        exchange(place, stream.cuda_stream)
    check(0, "before the capture")
    runtime = torch.cuda.cudart()
    for salt in range(1, rounds):
        fill(salt)
        for place in range(3):
            handle = ctypes.c_void_p()
            require(int(runtime.cudaStreamCreate(ctypes.addressof(handle))) == 0 and bool(handle.value), "cudaStreamCreate")
            with torch.cuda.stream(torch.cuda.ExternalStream(handle.value or 0)):
                torch.cuda._sleep(naps * ((rank + place + salt) % 3))
            exchange(place, handle.value or 0)
            require(int(runtime.cudaStreamDestroy(handle.value or 0)) == 0, "cudaStreamDestroy")
        check(salt, "streams destroyed with work pending")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        exchange(1, stream.cuda_stream)
    for salt in range(rounds):
        fill(salt)
        exchange(0, stream.cuda_stream)
        with torch.cuda.stream(other):
            torch.cuda._sleep(naps * ((rank + salt) % 3))
            graph.replay()
        exchange(2, stream.cuda_stream)
        check(salt, "a replay on another stream")
    del graph
    torch.cuda.synchronize()
    # Two captures at once, and an exchange that is not captured between their parts.
    runtime_calls = _runtime()
    third = torch.cuda.Stream()
    for salt in range(5):
        handles = [stream.cuda_stream, other.cuda_stream]
        graphs = [ctypes.c_void_p(), ctypes.c_void_p()]
        executables = [ctypes.c_void_p(), ctypes.c_void_p()]
        fill(salt)
        for handle in handles:
            runtime_calls("cudaStreamBeginCapture", ctypes.c_void_p(handle), _RELAXED)
        exchange(0, handles[0])
        exchange(1, handles[1])
        exchange(2, third.cuda_stream)
        exchange(1, handles[0])
        exchange(2, handles[1])
        exchange(2, handles[0])
        exchange(0, handles[1])
        for handle, captured, executable in zip(handles, graphs, executables, strict=True):
            runtime_calls("cudaStreamEndCapture", ctypes.c_void_p(handle), ctypes.byref(captured))
            runtime_calls("cudaGraphInstantiate", ctypes.byref(executable), captured, ctypes.c_ulonglong(0))
        for place in (0, 1):
            fill(5 * salt + place)
            with torch.cuda.stream(third):
                torch.cuda._sleep(naps * ((rank + salt) % 3))
            runtime_calls("cudaGraphLaunch", executables[place], ctypes.c_void_p(third.cuda_stream))
            check(5 * salt + place, "captures that are interleaved")
        for executable, captured in zip(executables, graphs, strict=True):
            runtime_calls("cudaGraphExecDestroy", executable)
            runtime_calls("cudaGraphDestroy", captured)
    joined = _joined_streams(rank, world, nccl, communicator)
    nccl.destroy(communicator)
    return {"rounds": 2 * rounds + 10 + joined}


def _joined_streams(rank: int, world: int, nccl: Nccl, communicator: int) -> int:
    """A group's collective on one stream and its messages on another wait for what both streams had before, and both go on after all of
    it; queued and captured."""
    count, naps = 1 << 18, 2_000_000  # clock cycles: some 1 ms
    source, send, received = (torch.zeros(world, count, dtype=torch.uint8, device="cuda") for _ in range(3))
    total = torch.zeros(count, dtype=torch.int32, device="cuda")
    first_sum, second_sum = torch.zeros_like(total), torch.zeros_like(total)
    first_bytes, second_bytes = torch.zeros_like(send), torch.zeros_like(send)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def step(naps_first: int, naps_second: int) -> None:
        """What each stream prepares is for the other's part of the group, and each reads what the other's part has done."""
        with torch.cuda.stream(first):
            torch.cuda._sleep(naps_first)
            send.copy_(source)
        with torch.cuda.stream(second):
            torch.cuda._sleep(naps_second)
            total.copy_(source.view(-1)[:count])
        nccl.start()
        for peer in range(world):
            nccl.message(True, send[peer].data_ptr(), count, 0, peer, communicator, second.cuda_stream)
        nccl.all_reduce(total.data_ptr(), count, communicator, first.cuda_stream)
        for peer in range(world):
            nccl.message(False, received[peer].data_ptr(), count, 0, peer, communicator, second.cuda_stream)
        nccl.end()
        with torch.cuda.stream(first):
            first_sum.copy_(total)
            first_bytes.copy_(received)
        with torch.cuda.stream(second):
            second_sum.copy_(total)
            second_bytes.copy_(received)

    def fill(salt: int) -> None:
        for peer in range(world):
            source[peer] = rows_of(rank, peer, count, 1, torch.uint8, salt).view(-1)
        for tensor in (send, received, first_bytes, second_bytes, total, first_sum, second_sum):
            tensor.fill_(0x25)
        torch.cuda.synchronize()

    def check(salt: int, what: str) -> None:
        torch.cuda.synchronize()
        wanted = sum(rows_of(peer, 0, count, 1, torch.uint8, salt).view(-1).int() for peer in range(world))
        for name, sums, got in (("first", first_sum, first_bytes), ("second", second_sum, second_bytes)):
            require(bool(torch.equal(sums, wanted)), f"{what}, round {salt}: the {name} stream saw a wrong sum")
            for peer in range(world):
                message = rows_of(peer, rank, count, 1, torch.uint8, salt).view(-1)
                require(same(got[peer], message), f"{what}, round {salt}: the {name} stream saw wrong bytes from {peer}")

    rounds = 20
    for salt in range(rounds):
        fill(salt)
        step(naps * ((rank + salt) % 3), naps * ((rank + salt + 1) % 3))
        check(salt, "a group of two streams")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=first, capture_error_mode="thread_local"):
        second.wait_stream(first)
        step(naps * (rank % 3), naps * ((rank + 1) % 3))
        first.wait_stream(second)
    for salt in range(rounds):
        fill(salt)
        graph.replay()
        check(salt, "a captured group of two streams")
    del graph
    torch.cuda.synchronize()
    return 2 * rounds


_DEV_RESOURCE_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_DEV_RESOURCE_BYTES, _SM_COUNT_AT = 144, 96  # of a CUdevResource
_NON_BLOCKING = 1  # CU_GREEN_CTX_DEFAULT_STREAM, CU_STREAM_NON_BLOCKING


def _streams_of_a_part(processors: int, count: int) -> tuple[int, list[int]]:
    """Streams whose kernels run on so many of the current GPU's SMs, or a few more, and how many those are. They are not destroyed."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        require(status == 0, f"{name}: CUDA error {status}")

    whole, part, rest = (ctypes.create_string_buffer(2 * _DEV_RESOURCE_BYTES) for _ in range(3))
    device, groups = ctypes.c_int(), ctypes.c_uint(1)
    call("cuCtxGetDevice", ctypes.byref(device))
    call("cuDeviceGetDevResource", device, whole, _DEV_RESOURCE_SM)
    call("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, processors)
    description, context = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
    call("cuGreenCtxCreate", ctypes.byref(context), description, device, _NON_BLOCKING)
    streams = []
    for _ in range(count):
        stream = ctypes.c_void_p()
        call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        streams.append(stream.value or 0)
    return ctypes.c_uint.from_buffer(part, _SM_COUNT_AT).value, streams


def parts(rank: int, world: int) -> dict[str, object]:
    """Exchanges on streams that have a part of the GPU (green contexts). Under the shim those of two communicators wait for each other on
    such a part, as every other rank queues them the other way round."""
    nccl = Nccl()
    communicators = []
    for _ in range(2):
        unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
        dist.broadcast_object_list(unique_id, src=0)
        communicators.append(nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank))
    most = 16 << 20
    send, received = (torch.zeros(2, world, most, dtype=torch.uint8, device="cuda") for _ in range(2))

    def exchange(place: int, count: int, stream: int) -> None:
        nccl.start()
        for peer in range(world):
            nccl.message(True, send[place, peer].data_ptr(), count, 0, peer, communicators[place], stream)
            nccl.message(False, received[place, peer].data_ptr(), count, 0, peer, communicators[place], stream)
        nccl.end()

    seen: dict[str, list[float]] = {}
    salt = 0
    for wanted in (16, 32, 64):
        processors, streams = _streams_of_a_part(wanted, 2)
        for count in (1, 4096, 1 << 18, 1 << 21, most):
            times = []
            for turn in range(10):
                salt += 1
                for place in range(2):
                    for peer in range(world):
                        send[place, peer, :count] = rows_of(rank, peer, count, 1, torch.uint8, 2 * salt + place).view(-1)
                received.fill_(0xA5)
                torch.cuda.synchronize()
                dist.barrier()
                begin = time.monotonic()
                order = (0, 1) if preloaded_shim() is None or (rank + turn) % 2 == 0 else (1, 0)
                for place in order:
                    exchange(place, count, streams[place])
                torch.cuda.synchronize()
                times.append(time.monotonic() - begin)
                for place in range(2):
                    for peer in range(world):
                        message = rows_of(peer, rank, count, 1, torch.uint8, 2 * salt + place).view(-1)
                        right = same(received[place, peer, :count], message) and int(received[place, peer, count:].ne(0xA5).sum()) == 0
                        require(right, f"{processors} SMs, {count} bytes, communicator {place}, from {peer}: wrong bytes")
            seen.setdefault(f"us of both, {processors} SMs", []).append(round(1e6 * sorted(times)[len(times) // 2], 1))
    for communicator in communicators:
        nccl.destroy(communicator)
    return dict(seen)
