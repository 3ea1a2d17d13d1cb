"""A section of gpu_ranks.py: communicators that ranks come to, and that go on after a rank has died."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from nccl_library import Nccl, UniqueId
from rank_bytes import REMOTE_ERROR, require, rows_of, same

_COUNT = 6 << 20  # bytes to each rank


class _Member:
    """A communicator and this process's rank in it."""

    def __init__(self, nccl: Nccl, handle: int, rank: int, world: int) -> None:
        self.nccl, self.handle, self.rank, self.world = nccl, handle, rank, world

    def exchange(self, salt: int) -> None:
        """All ranks with all, every byte compared."""
        send = torch.cat([rows_of(self.rank, peer, _COUNT, 1, torch.uint8, salt) for peer in range(self.world)])
        wanted = torch.cat([rows_of(peer, self.rank, _COUNT, 1, torch.uint8, salt) for peer in range(self.world)])
        received = torch.zeros_like(wanted)
        stream = torch.cuda.current_stream().cuda_stream
        self.nccl.start()
        for peer in range(self.world):
            self.nccl.message(True, send[peer * _COUNT].data_ptr(), _COUNT, 0, peer, self.handle, stream)
            self.nccl.message(False, received[peer * _COUNT].data_ptr(), _COUNT, 0, peer, self.handle, stream)
        self.nccl.end()
        torch.cuda.synchronize()
        require(same(received, wanted), f"{self.world} ranks, exchange {salt}: wrong bytes")


def elastic(rank: int, world: int) -> dict[str, object]:
    """The last process is rank 0 of a communicator and made its id; process 0 comes to it later. The last process dies with messages of
    the others pending; those shrink the communicator, and process 0 comes again, where NCCL can grow."""
    require(world >= 4, "needs four ranks")
    nccl, exchanges = Nccl(), 20
    store = dist.FileStore(sys.argv[2] + "-elastic", world)
    comes, grows = rank == 0, nccl.can_grow()
    result: dict[str, object] = {"grows": grows}

    def unique_id(name: str, maker: bool, make: Callable[[], UniqueId]) -> UniqueId:
        if maker:
            store.set(name, make().bytes().hex())
        return UniqueId.from_buffer_copy(bytes.fromhex(store.get(name).decode()))

    def grown(name: str, old: _Member | None, size: int) -> _Member:
        maker = old is not None and old.rank == 0
        made = unique_id(name, maker, lambda: nccl.growing_id(old.handle if old else 0))
        begin = time.monotonic()
        handle = nccl.grow(old.handle if old else 0, size, made if old is None or maker else None, size - 1 if old is None else -1)
        result[f"s to grow: {name}"] = round(time.monotonic() - begin, 3)
        return _Member(nccl, handle, size - 1 if old is None else old.rank, size)

    first = None
    if not comes:
        own = world - 1 - rank
        first = _Member(nccl, nccl.init(world - 1, unique_id("first", own == 0, nccl.unique_id), own), own, world - 1)
        for salt in range(exchanges):
            first.exchange(salt)
    if grows:
        larger = grown("all there", first, world)
        for salt in range(exchanges):
            larger.exchange(100 + salt)
            if first is not None:
                first.exchange(200 + salt)
        nccl.destroy(larger.handle)
    dist.barrier()
    torch.cuda.synchronize()
    if rank == world - 1:
        time.sleep(0.2)  # the others wait for its messages
        os.kill(os.getpid(), signal.SIGKILL)
    second = None
    if first is not None:
        data, stream = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
        nccl.message(False, data.data_ptr(), data.numel(), 0, 0, first.handle, stream.cuda_stream)
        begin = time.monotonic()
        while (error := nccl.async_error(first.handle)) == 0 and time.monotonic() < begin + 20:
            time.sleep(0.001)
        told = time.monotonic()
        require(error == REMOTE_ERROR, f"the death was told as {error}")
        second = _Member(nccl, nccl.shrink_without(first.handle, [0]), first.rank - 1, world - 2)
        shrunk = time.monotonic()
        stream.synchronize()
        for salt in range(exchanges):
            second.exchange(300 + salt)
        nccl.abort(first.handle)
        seconds = {"s until told": round(told - begin, 3), "s to shrink": round(shrunk - told, 3)}
        if rank == 1:
            store.set("seconds", json.dumps(seconds))
    if grows:
        again = grown("after a death", second, world - 1)
        for salt in range(exchanges):
            again.exchange(400 + salt)
        nccl.destroy(again.handle)
    if second is not None:
        second.exchange(500)
        nccl.destroy(second.handle)
    if rank == 0:
        result |= json.loads(store.get("seconds"))
        print(json.dumps({"section": "elastic", **result}), flush=True)
    store.add("ends", 1)
    while store.add("ends", 0) < world - 1:
        time.sleep(0.01)
    os._exit(0)
