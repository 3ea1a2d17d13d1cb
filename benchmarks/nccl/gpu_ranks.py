"""What a rank of check_on_gpus.py does: `python gpu_ranks.py SECTION STORE-FILE`, with RANK and WORLD_SIZE set.

Each section prints one line of JSON on rank 0 and ends with status 0 only when every byte was right.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from nccl_library import Nccl, UniqueId
from random_groups import Runner, make_communicators
from rank_bytes import REMOTE_ERROR, require, rows_of, same
from rank_elastic import elastic
from rank_streams import ordering, parts

_GROUPS = int(os.environ.get("CHECK_GROUPS", "2000"))
_SEED = int(os.environ.get("CHECK_SEED", "1"))
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float64, torch.int32, torch.int8)


Sizes = Callable[[int, int], int]


def _patterns(world: int) -> dict[str, Sizes]:
    """Rows from a rank to another."""
    return {
        "nothing": lambda s, d: 0,
        "one row": lambda s, d: 1,
        "hot pair": lambda s, d: 40_000 if (s, d) == (0, world - 1) else 2_500,
        "only one pair": lambda s, d: 70_001 if (s, d) == (world - 1, 0) else 0,
        "uneven": lambda s, d: 997 * (s + 1) * (2 * d + 1),
        "even": lambda s, d: 8_192,
        "large": lambda s, d: 300_000 if s != d else 3,
    }


def _exchange(rank: int, world: int, sizes: Sizes, dtype: torch.dtype, salt: int, call: Callable[..., None]) -> None:
    width = 64
    in_rows, out_rows = [sizes(rank, d) for d in range(world)], [sizes(s, rank) for s in range(world)]
    send = torch.cat([rows_of(rank, d, in_rows[d], width, dtype, salt) for d in range(world)])
    wanted = torch.cat([rows_of(s, rank, out_rows[s], width, dtype, salt) for s in range(world)])
    output = torch.full((wanted.numel() * dtype.itemsize,), 0xA5, dtype=torch.uint8, device="cuda").view(dtype).view(wanted.shape)
    call(output, send, out_rows, in_rows)
    require(same(output, wanted), f"{dtype}, salt {salt}: wrong bytes")


def collectives(rank: int, world: int) -> dict[str, object]:
    """torch.distributed as programs use it: all-to-all of each kind, point to point, other collectives between them."""
    patterns, done = _patterns(world), 0
    everyone = dist.group.WORLD
    reverse = dist.new_group(list(reversed(range(world))))
    lone = [dist.new_group([r]) for r in range(world)][rank]
    side = torch.cuda.Stream()
    for salt, dtype in enumerate(_DTYPES):
        for sizes in patterns.values():
            for group in (everyone, reverse):
                _exchange(rank, world, sizes, dtype, salt, lambda o, i, a, b, g=group: dist.all_to_all_single(o, i, a, b, group=g))
                done += 1
        even = patterns["even"]
        _exchange(rank, world, even, dtype, salt, lambda o, i, a, b: dist.all_to_all_single(o, i))
        _exchange(rank, world, even, dtype, salt, lambda o, i, a, b: dist.all_to_all_single(o, i, a, b, async_op=True).wait())
        _exchange(rank, world, patterns["uneven"], dtype, salt, lambda o, i, a, b: dist.all_to_all(list(o.split(a)), list(i.split(b))))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _exchange(rank, world, patterns["hot pair"], dtype, salt, lambda o, i, a, b: dist.all_to_all_single(o, i, a, b))
        torch.cuda.current_stream().wait_stream(side)
        done += 4
        _point_to_point(rank, world, dtype, salt)
        _others(rank, world)
    own = torch.full((5,), float(rank), device="cuda")
    dist.all_to_all_single(torch.empty_like(own), own, group=lone)
    return {"exchanges": done}


def _point_to_point(rank: int, world: int, dtype: torch.dtype, salt: int) -> None:
    """Several messages a pair, in order; then a chain of single calls."""
    counts = (1, 3_000, 0, 17)
    operations, checks = [], []
    for peer in range(world):
        if peer == rank:
            continue
        for place, count in enumerate(counts):
            operations.append(dist.P2POp(dist.isend, rows_of(rank, peer, count, 32, dtype, salt * 10 + place), peer))
            wanted = rows_of(peer, rank, count, 32, dtype, salt * 10 + place)
            received = torch.zeros_like(wanted)
            operations.append(dist.P2POp(dist.irecv, received, peer))
            checks.append((received, wanted))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    require(all(same(a, b) for a, b in checks), "batch_isend_irecv: wrong bytes")
    token = rows_of(0, 0, 1000, 8, dtype, salt)
    received = token.clone() if rank == 0 else torch.zeros_like(token)
    if rank > 0:
        dist.recv(received, rank - 1)
    if rank + 1 < world:
        dist.send(received, rank + 1)
    require(same(received, token), "send and recv: wrong bytes")


def _others(rank: int, world: int) -> None:
    """Collectives that stay with NCCL, on the communicator that the exchanges use."""
    value = torch.full((1 << 16,), rank + 1.0, device="cuda")
    dist.all_reduce(value)
    require(bool((value == world * (world + 1) / 2).all()), "all_reduce")
    gathered = torch.empty(world * 1024, device="cuda")
    dist.all_gather_into_tensor(gathered, torch.full((1024,), float(rank), device="cuda"))
    require(bool((gathered.view(world, 1024) == torch.arange(world, device="cuda").unsqueeze(1)).all()), "all_gather")


def graphs(rank: int, world: int) -> dict[str, object]:
    """Exchanges and an all-reduce captured in a CUDA graph and replayed with other data, queued calls between replays."""
    sizes = _patterns(world)["hot pair"]
    in_rows, out_rows = [sizes(rank, d) for d in range(world)], [sizes(s, rank) for s in range(world)]
    send, output = torch.zeros(sum(in_rows), 64, device="cuda"), torch.zeros(sum(out_rows), 64, device="cuda")
    total = torch.zeros(1, device="cuda")

    def step() -> None:
        dist.all_to_all_single(output, send, out_rows, in_rows)
        total.copy_(output.view(torch.int32)[0, 0].float())
        dist.all_reduce(total)
        dist.all_to_all_single(output, send.clone(), out_rows, in_rows)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    replays = 30
    for replay in range(replays):
        send.copy_(torch.cat([rows_of(rank, d, in_rows[d], 64, torch.float32, replay) for d in range(world)]))
        output.fill_(-1)
        graph.replay()
        wanted = torch.cat([rows_of(s, rank, out_rows[s], 64, torch.float32, replay) for s in range(world)])
        require(same(output, wanted), f"replay {replay}: wrong bytes")
        if replay % 7 == 3:
            step()
            require(same(output, wanted), f"between replays, {replay}: wrong bytes")
    del graph
    torch.cuda.synchronize()
    return {"replays": replays}


def lives(rank: int, world: int) -> dict[str, object]:
    """Communicators made, used and destroyed again and again; device memory must come back."""
    rounds, sizes = 12, _patterns(world)["uneven"]
    free = []
    for salt in range(rounds):
        group = dist.new_group(list(range(world)))
        _exchange(rank, world, sizes, torch.float32, salt, lambda o, i, a, b, g=group: dist.all_to_all_single(o, i, a, b, group=g))
        torch.cuda.synchronize()
        dist.destroy_process_group(group)
        torch.cuda.empty_cache()
        time.sleep(0.2)  # the shim frees its side on a thread
        free.append(torch.cuda.mem_get_info()[0])
    return {"communicators": rounds, "bytes_lost_after_the_third": free[2] - free[-1]}


def freed(rank: int, world: int) -> dict[str, object]:
    """Receive buffers that the program gives back to the GPU are free again soon, also once an operation has been captured."""
    nbytes, limit_s = 1 << 30, 3.0
    wanted = 2 * nbytes - (80 << 20)  # the first and the last of each one's pieces of 20 MiB may hold other tensors, too
    small = torch.zeros(2, world << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    result: dict[str, object] = {}
    for state in ("before", "after"):
        if state == "after":
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                dist.all_to_all_single(small[0], small[1])
        output, send = (torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
        for _ in range(2):  # mapped between the first and the second
            dist.all_to_all_single(output, send)
            torch.cuda.synchronize()
            time.sleep(0.5)
        if state == "after":
            graph.replay()
            torch.cuda.synchronize()
        dist.barrier()
        free = torch.cuda.mem_get_info()[0]
        del output, send
        torch.cuda.empty_cache()
        begin = time.monotonic()
        took = None
        # All the time, as mates that wait in a barrier have a kernel that runs, and CUDA unmaps memory of others when none does.
        while time.monotonic() < begin + limit_s:
            back = torch.cuda.mem_get_info()[0] - free
            if took is None and back >= wanted:
                took = round(time.monotonic() - begin, 3)
            time.sleep(0.001)
        require(took is not None, f"{state} a capture: {back >> 20} MiB of {2 * nbytes >> 20} are free {limit_s:.0f} s after")
        result[f"seconds, {state} a capture"] = took
        dist.barrier()
    return result


def buffers(rank: int, world: int) -> dict[str, object]:
    """As a program that keeps its activations: receive buffers in turn, more than any program has, and one alone."""
    nbytes, calls = 32 << 20, 200
    send = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")

    def call_us(outputs: list[torch.Tensor]) -> float:
        for output in outputs:
            dist.all_to_all_single(output, send)
        torch.cuda.synchronize()
        time.sleep(1)  # all are mapped
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        start.record()
        for number in range(calls):
            dist.all_to_all_single(outputs[number % len(outputs)], send)
        stop.record()
        torch.cuda.synchronize()
        return round(start.elapsed_time(stop) * 1e3 / calls, 1)

    many = [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in range(calls)]
    return {"us, one buffer": call_us(many[:1]), f"us, {calls} in turn": call_us(many)}


def random_groups(rank: int, world: int) -> dict[str, object]:
    """See random_groups.py."""
    nccl = Nccl()
    ids = [nccl.unique_id() for _ in range(2)] if rank == 0 else [UniqueId(), UniqueId()]
    texts: list[object] = [each.bytes() for each in ids]
    dist.broadcast_object_list(texts, src=0)
    communicators = make_communicators(nccl, rank, world, [UniqueId.from_buffer_copy(text) for text in texts])  # type: ignore[arg-type]
    runner = Runner(nccl, communicators, rank, _SEED, _GROUPS)
    begin = time.monotonic()
    held: list[Held] = []
    for number in range(_GROUPS):
        runner.run(number)
        if number % 200 == 199:
            _check_random(runner, number)
            held.append(Held.now())
    _check_random(runner, _GROUPS - 1)
    seconds = time.monotonic() - begin
    if folder := os.environ.get("RAILWEAVE_METRICS"):
        require(runner.is_counted(Path(folder)), "bytes by peer are not those that were sent and received")
    grown = held[-1].grown_since(held[1]) if len(held) > 2 else None  # connections and mappings are there after the first groups
    if grown is not None:
        require(not grown.leaks(), f"groups {2 * 200} to {len(held) * 200} have left {grown}")
    for handle in reversed(communicators.handles):
        nccl.destroy(handle)
    return {
        "groups": _GROUPS,
        "seed": _SEED,
        "messages_received": runner.messages,
        "bytes_received": runner.bytes,
        "seconds": round(seconds, 1),
        **({} if grown is None else {"grown since the first 400": dataclasses.asdict(grown)}),
    }


@dataclasses.dataclass(frozen=True)
class Held:
    """What a rank's process, and its GPU, hold that may leak."""

    device_bytes: int  # beside PyTorch's own, whose pools grow with the sizes of comparisons, under NCCL alone as well
    descriptors: int
    shared_memory: int  # files

    @classmethod
    def now(cls) -> Held:
        """Of this moment. Where ranks share a GPU all of them call it, as each other's pools are not to count either."""
        pools = torch.cuda.memory_reserved()
        shared_gpu = "NCCL_HOSTID" in os.environ
        if shared_gpu:
            each: list[tuple[int, int]] = [(0, 0)] * dist.get_world_size()
            dist.all_gather_object(each, (torch.cuda.current_device(), pools))
            pools = sum(reserved for gpu, reserved in each if gpu == torch.cuda.current_device())
        free, total = torch.cuda.mem_get_info()
        if shared_gpu:
            dist.barrier()
        descriptors, shared = (len(list(Path(folder).iterdir())) for folder in ("/proc/self/fd", "/dev/shm"))
        return cls(total - free - pools, descriptors, shared)

    def grown_since(self, earlier: Held) -> Held:
        """The difference."""
        return Held(*(now - then for now, then in zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)))

    def leaks(self) -> bool:
        """Of a difference between thousands of operations. Files are open for a moment, and the driver takes memory 2 MiB at a time."""
        return self.device_bytes > 8 << 20 or self.descriptors > 4 or self.shared_memory > 4


def _check_random(runner: Runner, number: int) -> None:
    torch.cuda.synchronize()
    bad = runner.wrong.nonzero().flatten().tolist()
    require(not bad, f"wrong bytes in groups {bad[:10]} of the first {number + 1}")


def host_cost(rank: int, world: int) -> dict[str, object]:
    """What queueing a group takes the host: a send to and a receive from each peer. The GPU sleeps meanwhile, so nothing has to wait."""
    nccl = Nccl()
    unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
    dist.broadcast_object_list(unique_id, src=0)
    communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
    data = torch.zeros(2, world, 1 << 20, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream()
    result: dict[str, object] = {}
    groups = 200
    for nbytes in (0, 4 << 10, 1 << 20):
        times = []
        for _ in range(7):
            dist.barrier()
            torch.cuda.synchronize()
            torch.cuda._sleep(60_000_000)
            begin = time.perf_counter()
            for _ in range(groups):
                nccl.start()
                for peer in range(world):
                    if peer != rank:
                        nccl.message(True, data[0, peer].data_ptr(), nbytes, 0, peer, communicator, stream.cuda_stream)
                        nccl.message(False, data[1, peer].data_ptr(), nbytes, 0, peer, communicator, stream.cuda_stream)
                nccl.end()
            times.append((time.perf_counter() - begin) / groups * 1e6)
            torch.cuda.synchronize()
        times = sorted(times[1:])
        result[f"us a group of {nbytes} bytes"] = [round(times[len(times) // 2], 1), round(times[0], 1), round(times[-1], 1)]
    nccl.destroy(communicator)
    return result


def memory(rank: int, world: int) -> dict[str, object]:
    """What a communicator takes of the GPU, with buffers of its first messages; the difference to NCCL alone is the shim's."""
    nccl = Nccl()
    data = torch.zeros(2, world, 16 << 20, dtype=torch.uint8, device="cuda")
    taken = []
    for _ in range(3):
        unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
        dist.broadcast_object_list(unique_id, src=0)
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
        nccl.start()
        for peer in range(world):
            for sends in (True, False):
                pointer = data[0 if sends else 1, peer].data_ptr()
                nccl.message(sends, pointer, 16 << 20, 0, peer, communicator, torch.cuda.current_stream().cuda_stream)
        nccl.end()
        torch.cuda.synchronize()
        taken.append(round((before - torch.cuda.mem_get_info()[0]) / 2**20, 1))
    return {"MiB of each of three communicators": taken}


def stall(rank: int, world: int) -> dict[str, object]:
    """The last rank posts its receive late, then the replay of a captured one: rank 0's log has to say what it waits for."""
    data = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
    dist.all_to_all_single(torch.empty(world, device="cuda"), torch.zeros(world, device="cuda"))  # set up
    torch.cuda.synchronize()
    if rank not in (0, world - 1):
        return {}

    def message() -> None:
        dist.send(data, world - 1) if rank == 0 else dist.recv(data, 0)

    late_s = 2.0
    time.sleep(late_s if rank != 0 else 0)
    message()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        message()
    dist.barrier(group=dist.new_group([0, world - 1], backend="gloo", use_local_synchronization=True))
    time.sleep(late_s if rank != 0 else 0)
    graph.replay()
    torch.cuda.synchronize()
    return {"late_by_s": late_s}


def death(rank: int, world: int) -> dict[str, object]:
    """The last rank dies while it writes into rank 0's memory, and the others wait for its messages: they hear of it, can abort, their
    streams go on, and nothing is written into their buffers any more."""
    nccl = Nccl()
    unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
    dist.broadcast_object_list(unique_id, src=0)
    communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
    data = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def queue(messages: int) -> None:
        for _ in range(messages if rank in (0, world - 1) else 0):
            sends = rank != 0
            nccl.message(sends, data.data_ptr(), data.numel(), 0, 0 if sends else world - 1, communicator, stream.cuda_stream)

    for _ in range(3):  # mapped from then on
        queue(1)
        torch.cuda.synchronize()
        time.sleep(0.1)
    dist.barrier()
    torch.cuda.synchronize()
    queue(100)  # 70 ms
    if rank == world - 1:
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != 0:
        nccl.message(False, data.data_ptr(), data.numel(), 0, world - 1, communicator, stream.cuda_stream)
    begin = time.monotonic()
    while (error := nccl.async_error(communicator)) == 0 and time.monotonic() < begin + 20:
        time.sleep(0.001)
    told = time.monotonic() - begin
    nccl.abort(communicator)
    stream.synchronize()
    ended = time.monotonic() - begin
    data.fill_(0x5A)
    torch.cuda.synchronize()
    time.sleep(0.5)
    require(bool((data == 0x5A).all()), "bytes were written after the stream had gone on")
    result = {"async_error": error, "told_after_s": round(told, 3), "stream_went_on_after_s": round(ended, 3)}
    if rank == 0:
        print(json.dumps({"section": "death", **result}), flush=True)
    os._exit(0 if error == REMOTE_ERROR else 1)


def goodbye(rank: int, world: int) -> dict[str, object]:
    """The last rank's program ends and destroys nothing, as many do: the others go on without it, and hear of it when they need it."""
    nccl = Nccl()
    unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
    dist.broadcast_object_list(unique_id, src=0)
    communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
    process = [os.getpid()]
    dist.broadcast_object_list(process, src=world - 1)
    count, stream = 2 << 20, torch.cuda.current_stream()

    def exchange(ranks: range, salt: int) -> None:
        send = torch.cat([rows_of(rank, peer, count, 1, torch.uint8, salt) for peer in ranks])
        wanted = torch.cat([rows_of(peer, rank, count, 1, torch.uint8, salt) for peer in ranks])
        received = torch.zeros_like(wanted)
        nccl.start()
        for place, _ in enumerate(ranks):
            nccl.message(True, send[place * count].data_ptr(), count, 0, ranks[place], communicator, stream.cuda_stream)
            nccl.message(False, received[place * count].data_ptr(), count, 0, ranks[place], communicator, stream.cuda_stream)
        nccl.end()
        torch.cuda.synchronize()
        require(same(received, wanted), f"exchange {salt}: wrong bytes")

    exchange(range(world), 0)
    if rank == world - 1:
        sys.exit(0)
    watched = select.poll()
    watched.register(os.pidfd_open(process[0]), select.POLLIN)
    require(bool(watched.poll(30_000)), "the last rank's process has not ended")
    exchanges = 50
    for salt in range(1, exchanges + 1):
        exchange(range(world - 1), salt)
        require(nccl.async_error(communicator) == 0, f"exchange {salt}: an error without the last rank")
        time.sleep(0.01)
    others = torch.zeros(count, dtype=torch.uint8, device="cuda")
    if rank == 0:
        nccl.message(False, others.data_ptr(), count, 0, world - 1, communicator, torch.cuda.Stream().cuda_stream)
    begin = time.monotonic()
    while (error := nccl.async_error(communicator)) == 0 and time.monotonic() < begin + 20:
        time.sleep(0.001)
    told = time.monotonic() - begin
    nccl.abort(communicator)
    torch.cuda.synchronize()
    result = {"exchanges_without_it": exchanges, "async_error": error, "told_after_s": round(told, 3)}
    if rank == 0:
        print(json.dumps({"section": "goodbye", **result}), flush=True)
    os._exit(0 if error == REMOTE_ERROR else 1)


def aborted_receive(rank: int, world: int) -> dict[str, object]:
    """Rank 0 aborts a receive, and its buffer is its own from then on: whether the sender writes right then, or its kernel waits behind
    computing and its host does nothing until that has ended."""
    nccl, filled = Nccl(), 0x5A
    size_late, size_writing = 64 << 20, 4 << 30
    data = torch.zeros(size_writing, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    result: dict[str, object] = {}
    cases = [("late", size, 0.2) for size in (1 << 20, size_late, size_late)]
    cases += [("writing", size_writing, delay_ms / 1e3) for delay_ms in (1, 2, 3, 4, 6, 8)]
    for number, (case, nbytes, delay_s) in enumerate(cases):
        unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
        dist.broadcast_object_list(unique_id, src=0)
        communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
        sends = rank == world - 1
        for _ in range(3 if sends or rank == 0 else 0):  # the buffer is mapped after the first
            nccl.message(sends, data.data_ptr(), nbytes, 0, world - 1 - rank, communicator, stream.cuda_stream)
            torch.cuda.synchronize()
            time.sleep(0.2)
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.monotonic()
        if sends:
            data.fill_(number + 1)
            if case == "late":
                torch.cuda.current_stream().synchronize()
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(4_000_000_000)  # clock cycles: some 2 s
            stream.wait_stream(torch.cuda.current_stream())
            nccl.message(True, data.data_ptr(), nbytes, 0, 0, communicator, stream.cuda_stream)
            if case == "late" and nbytes == size_late:  # a message in packets needs no mate
                time.sleep(0.5)
                require(nccl.async_error(communicator) != 0, "the sender has not been told")
                before = time.process_time()
                time.sleep(0.5)
                require(time.process_time() - before < 0.25, "threads of a communicator that has failed are busy")
            stream.synchronize()
            nccl.abort(communicator)
        elif rank == 0:
            nccl.message(False, data.data_ptr(), nbytes, 0, world - 1, communicator, stream.cuda_stream)
            time.sleep(delay_s)
            aborted = time.monotonic()
            nccl.abort(communicator)
            returned = time.monotonic() - aborted
            stream.synchronize()
            went_on = time.monotonic() - aborted
            came = bool((data[nbytes - (1 << 20) : nbytes] == number + 1).all())
            data.fill_(filled)
            torch.cuda.synchronize()
            result[f"{case} {number}: s until the call returned, and the stream went on; all had come"] = [
                round(returned, 3),
                round(went_on, 3),
                came,
            ]
            if case == "late":
                require(time.monotonic() < begin + 1.5, "the sender's kernel has begun before the buffer was the program's again")
        else:
            nccl.abort(communicator)
        dist.barrier()
        torch.cuda.synchronize()
        if rank == 0:
            wrong = int((data != filled).sum())
            require(wrong == 0, f"{case} {number}: {wrong} bytes were written after the abort")
    return result


def contexts(rank: int, world: int) -> dict[str, object]:
    """A rank has a CUDA context on its own GPU alone, after exchanges through communicators of each kind."""
    driver = ctypes.CDLL("libcuda.so.1")
    sizes = _patterns(world)["uneven"]
    _exchange(rank, world, sizes, torch.float32, 0, lambda o, i, a, b: dist.all_to_all_single(o, i, a, b))
    torch.cuda.synchronize()
    time.sleep(1)  # its threads have mapped
    for device in range(torch.cuda.device_count()):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        require(driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0, "cuDevicePrimaryCtxGetState")
        require(bool(active.value) == (device == torch.cuda.current_device()), f"GPU {device}: a context is {active.value}")
    return {"GPUs": torch.cuda.device_count()}


def wrong_groups(rank: int, world: int) -> dict[str, object]:
    """A group with a wrong message does nothing, its collectives included, and the next one works."""
    nccl = Nccl()
    unique_id = [nccl.unique_id().bytes() if rank == 0 else b""]
    dist.broadcast_object_list(unique_id, src=0)
    communicator = nccl.init(world, UniqueId.from_buffer_copy(unique_id[0]), rank)
    stream = torch.cuda.current_stream().cuda_stream
    total = torch.ones(1024, dtype=torch.int32, device="cuda")
    data = torch.zeros(2, world, 1 << 20, dtype=torch.uint8, device="cuda")
    rounds = 5
    for salt in range(rounds):
        for wrong_first in (True, False):
            told = []
            nccl.start()
            calls = [
                lambda: nccl.all_reduce(total.data_ptr(), total.numel(), communicator, stream),
                lambda: nccl.message(False, data.data_ptr(), 1 << 20, 0, world + 3, communicator, stream),
            ]
            for call in (*(reversed(calls) if wrong_first else calls), nccl.end):
                try:
                    call()
                except RuntimeError as error:
                    told.append(str(error))
            require(len(told) == 2 and "ncclRecv" in told[0] and "ncclGroupEnd" in told[1], f"a wrong group was answered by {told}")
        for peer in range(world):
            data[0, peer] = rows_of(rank, peer, 1 << 20, 1, torch.uint8, salt).view(-1)
        nccl.start()
        for peer in range(world):
            nccl.message(True, data[0, peer].data_ptr(), 1 << 20, 0, peer, communicator, stream)
            nccl.message(False, data[1, peer].data_ptr(), 1 << 20, 0, peer, communicator, stream)
        nccl.end()
        torch.cuda.synchronize()
        require(bool((total == 1).all()), "a wrong group's collective has run")
        for peer in range(world):
            require(same(data[1, peer], rows_of(peer, rank, 1 << 20, 1, torch.uint8, salt).view(-1)), "the next group: wrong bytes")
    nccl.destroy(communicator)
    return {"groups": 2 * rounds}


def torch_interface(rank: int, world: int) -> dict[str, object]:
    """railweave.torch on CUDA tensors: values, gradients and their gradients, async_op, registered memory."""
    from railweave.torch import all_to_all_single, close, deregister, register

    done = 0
    for salt, dtype in enumerate(_DTYPES):
        for sizes in _patterns(world).values():
            _exchange(rank, world, sizes, dtype, salt, all_to_all_single)
            _exchange(rank, world, sizes, dtype, salt, lambda o, i, a, b: all_to_all_single(o, i, a, b, async_op=True).wait())
            done += 2
    sizes = _patterns(world)["uneven"]
    in_rows, out_rows = [sizes(rank, d) for d in range(world)], [sizes(s, rank) for s in range(world)]
    # By the rank that each row went to.
    factors = torch.cat([torch.full((rows, 16), d + 1.0, dtype=torch.float64, device="cuda") for d, rows in enumerate(in_rows)])
    for options in ({}, {"async_op": True}):
        input_ = torch.randn(sum(in_rows), 16, dtype=torch.float64, device="cuda", requires_grad=True)
        output = torch.empty(sum(out_rows), 16, dtype=torch.float64, device="cuda")
        result = all_to_all_single(output, input_, out_rows, in_rows, **options)
        result = result.wait() if options else result
        (gradient,) = torch.autograd.grad((result**2).sum() * (rank + 1), input_, create_graph=True)
        require(torch.equal(gradient, 2 * factors * input_), f"gradients {options}")
        (gradient**2).sum().backward()
        require(input_.grad is not None and torch.equal(input_.grad, 8 * factors * (factors * input_)), f"second gradients {options}")
    output = torch.empty(sum(out_rows), 64, device="cuda")
    registrations = [register(output), register(input_.detach())]
    _exchange(rank, world, sizes, torch.float32, 99, all_to_all_single)
    for registration in registrations:
        deregister(registration, output.device)
    torch.cuda.synchronize()
    close()
    return {"exchanges": done + 7}


SECTIONS = {
    f.__name__: f
    for f in (
        collectives,
        graphs,
        ordering,
        freed,
        buffers,
        lives,
        random_groups,
        host_cost,
        memory,
        stall,
        death,
        elastic,
        goodbye,
        aborted_receive,
        contexts,
        parts,
        wrong_groups,
        torch_interface,
    )
}


def main(arguments: Sequence[str]) -> None:
    """Runs one section on this rank."""
    section, store = arguments
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    if world > gpus and "CHECK_HIDDEN" not in os.environ:  # NCCL refuses two ranks of a host on one GPU
        os.environ["NCCL_HOSTID"] = str(rank)
    limit = datetime.timedelta(seconds=60)
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=Path(store).as_uri(), rank=rank, world_size=world, timeout=limit, device_id=device)
    begin = time.monotonic()
    result = SECTIONS[section](rank, world)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        print(json.dumps({"section": section, "section_seconds": round(time.monotonic() - begin, 1), **result}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
