"""Random groups of sends and receives over NCCL's own interface, every byte compared: what ranks send is known to all of them."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from nccl_library import ELEMENT_BYTES, Nccl, UniqueId

_POOL = 8 << 20  # bytes that each rank sends from
_ARENA = 512 << 20  # bytes that a rank can receive into in one group
_POISON = 0xA5
_GAP = 64  # most bytes between received messages, which have to stay as they were
_COUNTED = re.compile(r'(?m)^railweave_peer_bytes_total\{.*communicator="([^"]*)".*,peer="(\d+)",direction="(\w+)"\} (\d+)$')
_COUNTED_WITHIN_S = 10.0  # files are written each second


@dataclass(frozen=True)
class Message:
    """The k-th of its pair and communicator is the k-th in the list; ranks are those of the job."""

    communicator: int
    source: int
    destination: int
    kind: int  # ncclDataType_t
    count: int
    offset: int  # in the source's pool

    @property
    def nbytes(self) -> int:
        """Of all its elements."""
        return self.count * ELEMENT_BYTES[self.kind]


def _size(chosen: random.Random) -> int:
    """Bytes: a quarter 0, most small, some that take many blocks."""
    most = chosen.choice((0, 0, 64, 64, 4 << 10, 32 << 10, 160 << 10, 512 << 10))
    if chosen.random() < 0.04:
        most = 6 << 20
    return chosen.randint(0, most)


def make_group(chosen: random.Random, world: int, communicators: int) -> list[Message]:
    """The same on all ranks, which share the generator's state."""
    result = []
    for communicator in chosen.sample(range(communicators), chosen.randint(1, communicators)):
        for source in range(world):
            for destination in range(world):
                for _ in range(chosen.choice((0, 0, 1, 1, 1, 2, 3))):
                    kind = chosen.randrange(len(ELEMENT_BYTES))
                    element = ELEMENT_BYTES[kind]
                    count = _size(chosen) // element
                    offset = chosen.randrange((_POOL - count * element) // element + 1) * element
                    result.append(Message(communicator, source, destination, kind, count, offset))
    return result


Moved = dict[tuple[int, str], int]  # bytes that are not 0, by peer and direction ("sent", "received"), of a communicator


def counted(folder: Path) -> list[Moved]:
    """What the shim of this process has counted of each of its communicators."""
    found: dict[str, Moved] = {}
    for path in folder.glob(f"railweave-*-{os.getpid()}.prom"):
        for communicator, peer, direction, value in _COUNTED.findall(path.read_text()):
            if value != "0":
                found.setdefault(communicator, {})[int(peer), direction] = int(value)
    return list(found.values())


@dataclass
class Communicators:
    """The world, its split with ranks reversed, and a second one of its own: what a rank is called in each differs."""

    handles: list[int]
    world: int

    def rank_in(self, communicator: int, rank: int) -> int:
        """Number of a rank of the job in that communicator."""
        return self.world - 1 - rank if communicator == 1 else rank


def make_communicators(nccl: Nccl, rank: int, world: int, ids: Sequence[UniqueId]) -> Communicators:
    """Takes two unique ids."""
    first = nccl.init(world, ids[0], rank)
    return Communicators([first, nccl.split(first, 0, world - 1 - rank), nccl.init(world, ids[1], rank)], world)


class Runner:
    """A rank: queues groups, and compares what came with what was sent, on the device and without waiting."""

    def __init__(self, nccl: Nccl, communicators: Communicators, rank: int, seed: int, groups: int) -> None:
        self._nccl, self._communicators, self.rank, self.world = nccl, communicators, rank, communicators.world
        self._shared, self._own = random.Random(seed), random.Random(f"{seed} {rank}")
        pools = []
        for source in range(self.world):
            generator = torch.Generator().manual_seed(seed * 1000 + source)
            pools.append(torch.randint(0, 256, (_POOL,), dtype=torch.uint8, generator=generator).cuda())
        self._pools = pools
        self._arena = torch.empty(_ARENA, dtype=torch.uint8, device="cuda")
        self._expected = torch.empty_like(self._arena)
        self._streams = [torch.cuda.Stream() for _ in range(3)]
        self._sum = torch.empty(257, dtype=torch.int32, device="cuda")
        self.wrong = torch.zeros(groups, dtype=torch.bool, device="cuda")
        self.messages = self.bytes = 0
        self._moved: list[Counter[tuple[int, str]]] = [Counter() for _ in communicators.handles]

    def run(self, number: int) -> None:
        """One group."""
        group = make_group(self._shared, self.world, len(self._communicators.handles))
        reduced = self._shared.randrange(len(self._communicators.handles)) if self._shared.random() < 0.1 else None
        places, end = self._lay_out([m for m in group if m.destination == self.rank])
        arena, expected = self._arena[:end], self._expected[:end]
        arena.fill_(_POISON)
        expected.fill_(_POISON)
        for message, place in places:
            expected[place : place + message.nbytes] = self._pools[message.source][message.offset : message.offset + message.nbytes]
        self._sum.fill_(self.rank + 1)
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        self._post(group, {id(message): place for message, place in places}, reduced)
        for stream in self._streams:
            main.wait_stream(stream)
        self.wrong[number] = (arena != expected).any()
        if reduced is not None:
            self.wrong[number] |= (self._sum != self.world * (self.world + 1) // 2).any()
        self.messages += len(places)
        self.bytes += sum(message.nbytes for message, _ in places)
        for message in group:
            for rank, peer, direction in ((message.source, message.destination, "sent"), (message.destination, message.source, "received")):
                if rank == self.rank and message.nbytes != 0:
                    self._moved[message.communicator][self._communicators.rank_in(message.communicator, peer), direction] += message.nbytes

    def is_counted(self, folder: Path) -> bool:
        """Whether the shim comes to tell, in the files of its counters, of each peer all bytes and no more. Once all groups have ended."""
        end = time.monotonic() + _COUNTED_WITHIN_S
        while any(dict(moved) not in counted(folder) for moved in self._moved if moved):
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def _lay_out(self, received: list[Message]) -> tuple[list[tuple[Message, int]], int]:
        places, end = [], 0
        for message in received:
            element = ELEMENT_BYTES[message.kind]
            begin = -(-(end + self._own.randint(0, _GAP)) // element) * element
            places.append((message, begin))
            end = begin + message.nbytes
        if end + _GAP > _ARENA:
            raise RuntimeError(f"a group of {end} bytes; the arena has {_ARENA}")
        return places, end + _GAP

    def _post(self, group: list[Message], places: dict[int, int], reduced: int | None) -> None:
        """The rank's calls in an order of its own, in which only messages of one pair and direction keep theirs."""
        queues: dict[tuple[bool, int, int], list[Message]] = {}
        for message in group:
            if message.source == self.rank:
                queues.setdefault((True, message.communicator, message.destination), []).append(message)
            if message.destination == self.rank:
                queues.setdefault((False, message.communicator, message.source), []).append(message)
        nested = self._own.random() < 0.3
        self._nccl.start()
        if reduced is not None:
            self._reduce(reduced)
        while queues:
            if nested:
                self._nccl.start()
            key = self._own.choice(sorted(queues))
            sends, communicator, peer = key
            message = queues[key].pop(0)
            if not queues[key]:
                del queues[key]
            pool = self._pools[self.rank].data_ptr() + message.offset
            pointer = pool if sends else self._arena.data_ptr() + places[id(message)]
            handle, number = self._communicators.handles[communicator], self._communicators.rank_in(communicator, peer)
            stream = self._own.choice(self._streams).cuda_stream
            self._nccl.message(sends, pointer, message.count, message.kind, number, handle, stream)
            if nested:
                self._nccl.end()
        self._nccl.end()

    def _reduce(self, communicator: int) -> None:
        handle, stream = self._communicators.handles[communicator], self._own.choice(self._streams).cuda_stream
        self._nccl.all_reduce(self._sum.data_ptr(), self._sum.numel(), handle, stream)
