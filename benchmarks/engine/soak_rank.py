"""One rank of a soak, inside the lab: does the rounds that the driver asks for and checks every byte it gets.

The driver and its ranks talk over a socket, one JSON line each way; see Rank for what is asked and answered.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import soak_work
from soak_work import Message, Operation, Work

from railweave.bench import pattern
from railweave.errors import Error
from railweave.exchange import Exchange, Handle

_MARGIN = 64  # bytes around a receive that nobody may write
_CLEAN, _OVER = 0xA5, 0x5A
_HELD_BYTES = 16 << 20  # of buffers whose operations are over, by exchange: nobody may write them any more


class _Buffer:
    """Where an operation's receives go, at any alignment, with margins."""

    def __init__(self, exchange: Exchange, size: int, own: random.Random) -> None:
        shift = own.choice((0, 0, 1, 3, 8))
        room = size + 2 * _MARGIN + shift
        self.whole = exchange.empty(room) if own.random() < 0.6 else np.zeros(room, np.uint8)
        self.whole[:] = _CLEAN
        self.first = _MARGIN + shift
        self.bytes = self.whole[self.first : self.first + size]

    def spilled(self) -> bool:
        """Whether a margin was written."""
        return bool((self.whole[: self.first] != _CLEAN).any() or (self.whole[self.first + len(self.bytes) :] != _CLEAN).any())

    def retire(self) -> None:
        """From now on nobody may write it."""
        self.bytes[:] = _OVER

    def written_late(self) -> bool:
        """Whether somebody did."""
        return bool((self.bytes != _OVER).any()) or self.spilled()


class _Posted:
    """An operation under way."""

    def __init__(self, exchange: Exchange, operation: Operation, rank: int, own: random.Random) -> None:
        sends, recvs = operation.of(rank)
        self.operation, self.recvs, self.since = operation, recvs, time.monotonic()
        self.into = _Buffer(exchange, sum(message.received for message in recvs), own)
        shift = own.choice((0, 0, 1, 3, 8))
        self.out = np.zeros(sum(message.bytes for message in sends) + shift, np.uint8)[shift:]
        for message, place in _places(sends, "bytes"):
            pattern.fill(self.out[place : place + message.bytes], _key(message))
        self.handle = self._post(exchange, sends)

    def _post(self, exchange: Exchange, sends: list[Message]) -> Handle:
        operation = self.operation
        if operation.collective:
            item = np.dtype(operation.item)
            counts = [[message.bytes // item.itemsize for message in messages] for messages in (sends, self.recvs)]
            arrays = self.out.view(item), self.into.bytes.view(item)
            return exchange.all_to_all_v_async(*arrays, *counts, communicator=operation.communicator)
        group = exchange.group(communicator=operation.communicator)
        for message, place in _places(sends, "bytes"):
            group.send(self.out[place : place + message.bytes], message.destination)
        for message, place in _places(self.recvs, "received"):
            group.recv(self.into.bytes[place : place + message.received], message.source)
        return group.end()

    def wrong(self) -> str | None:
        """Where a byte differs from what was sent."""
        for message, place in _places(self.recvs, "received"):
            at = pattern.first_difference(self.into.bytes[place : place + message.bytes], _key(message))
            if at is not None:
                return f"byte {at} of {message.bytes} from rank {message.source}"
        return "bytes around the buffer were written" if self.into.spilled() else None


def _places(messages: list[Message], of: str) -> list[tuple[Message, int]]:
    place, places = 0, []
    for message in messages:
        places.append((message, place))
        place += getattr(message, of)
    return places


def _key(message: Message) -> int:
    return pattern.key(message.tag, message.source, message.destination)


class _Worker(threading.Thread):
    """The work of a round on one exchange."""

    def __init__(self, rank: Rank, work: Work, exchange: Exchange | None, rendezvous: str, seed: str, leaves: bool) -> None:
        super().__init__(name=work.name, daemon=True)
        self.rank, self.work, self.exchange, self.rendezvous, self.leaves = rank, work, exchange, rendezvous, leaves
        self.own = random.Random(f"{seed}/{work.name}/rank {rank.rank}")
        self.doing = "starting"
        self.waiting: list[tuple[int, int, _Posted]] = []
        self.held: list[tuple[str, _Buffer]] = []
        self.done: dict[str, Any] = {
            "name": work.name,
            "operations": 0,
            "bytes": 0,
            "longest": 0.0,
            "failed": [],
            "wrong": [],
            "broken": None,
        }

    def run(self) -> None:
        try:
            if self.exchange is None:
                self.doing = "creating the exchange"
                try:
                    self.exchange = self.rank.exchange(self.rendezvous, self.work.settings)
                except Error as error:
                    self.done["refused"] = [type(error).__name__, str(error)]
                    return
            for number, batch in enumerate(self.work.batches):
                self._batch(number, batch)
            self._look_at_held()
            if self.leaves:
                self.leave()
            self.doing = "done"
        except BaseException:
            self.done["broken"] = traceback.format_exc()

    def _batch(self, number: int, batch: tuple[Operation, ...]) -> None:
        assert self.exchange is not None
        self.doing = f"posting batch {number}"
        for index, operation in enumerate(batch):
            if not operation.collective and not any(operation.of(self.rank.rank)):
                continue
            self.waiting.append((number, index, _Posted(self.exchange, operation, self.rank.rank, self.own)))
            if self.own.random() < 0.1:
                time.sleep(self.own.random() * 0.02)  # a rank that comes late
        order = list(self.waiting)
        self.own.shuffle(order)
        for entry in order:
            self.doing = f"waiting for batch {number}"
            self._wait(*entry)
            self.waiting.remove(entry)

    def _wait(self, number: int, index: int, posted: _Posted) -> None:
        try:
            if self.own.random() < 0.2:
                while not posted.handle.test():
                    time.sleep(0.002)
            else:
                posted.handle.wait()
        except Error as error:
            self.done["failed"].append([number, index, type(error).__name__, getattr(error, "rank", None), str(error)])
        else:
            if (wrong := posted.wrong()) is not None:
                self.done["wrong"].append([number, index, wrong])
            self.done["bytes"] += len(posted.into.bytes)
        self.done["operations"] += 1
        self.done["longest"] = max(self.done["longest"], time.monotonic() - posted.since)
        posted.into.retire()
        self.held.append((f"batch {number} operation {index}", posted.into))
        while sum(len(buffer.whole) for _, buffer in self.held) > _HELD_BYTES:
            self._look_at(*self.held.pop(0))

    def _look_at(self, name: str, buffer: _Buffer) -> None:
        if buffer.written_late():
            self.done["broken"] = f"the buffer of {name} was written after the operation had ended"

    def _look_at_held(self) -> None:
        while self.held:
            self._look_at(*self.held.pop(0))

    def leave(self) -> None:
        """Ends an exchange of the round."""
        if self.work.name != "main" and self.exchange is not None:
            self.doing = "closing"
            if self.work.closed:
                self.exchange.close()
            self.exchange = None

    def state(self) -> list[str]:
        """For whoever asks why nothing goes on."""
        lines = [f"exchange {self.work.name}: {self.doing}"]
        for number, index, posted in list(self.waiting):
            lines.append(f"  batch {number} operation {index} for {time.monotonic() - posted.since:.1f} s: {posted.operation}"[:600])
        if self.exchange is not None:
            lines += [f"  down: {link}" for link in self.exchange.links_down()]
        return lines


class Rank:
    """Does what it is asked: {"do": "round" | "finish" | "verify" | "describe" | "close", …}."""

    def __init__(self, control: socket.socket, seed: str, folder: Path, fabric: str, tcp: str) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.seed, self.folder, self.fabric, self.tcp = seed, folder, fabric, tcp
        self.lines, self.writing = control.makefile("rw"), threading.Lock()
        self.workers: list[_Worker] = []
        self.main = self.exchange(self._rendezvous("main"), soak_work.main_settings(seed))

    def exchange(self, rendezvous: str, settings: dict[str, Any]) -> Exchange:
        """A new one."""
        return Exchange(self.rank, self.world, rendezvous, fabric=self.fabric, **settings)

    def _rendezvous(self, name: str) -> str:
        return f"file://{self.folder / name}"

    def say(self, **what: Any) -> None:
        """One line for the driver."""
        with self.writing:
            self.lines.write(json.dumps(what) + "\n")
            self.lines.flush()

    def serve(self) -> None:
        """Until the driver says close, or goes away."""
        self.say(event="up")
        for line in self.lines:
            asked = json.loads(line)
            getattr(self, "do_" + asked.pop("do"))(**asked)

    def do_round(self, name: str, aftermath: bool, calm: bool) -> None:
        """Starts a round; says "ran" when its operations have ended. In a calm one exchanges of the round are ended at once, too."""
        seed = f"{self.seed}/{name}"
        works = soak_work.aftermath(seed, self.world) if aftermath else soak_work.draw(seed, self.world)
        self.workers = []
        for number, work in enumerate(works):
            port = int(self.tcp.rsplit(":", 1)[1]) + int(name) * 4 % 20000 + number
            rendezvous = f"{self.tcp.rsplit(':', 1)[0]}:{port}" if work.over_tcp else self._rendezvous(f"{name}-{number}")
            self.workers.append(_Worker(self, work, self.main if work.name == "main" else None, rendezvous, seed, calm))
        for worker in self.workers:
            worker.start()
        threading.Thread(target=self._ran, args=(name, list(self.workers)), daemon=True).start()

    def _ran(self, name: str, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.join()
        self.say(event="ran", round=name, exchanges=[worker.done for worker in workers])

    def do_finish(self) -> None:
        """Ends the exchanges of the round: no rank needs them any more."""
        for worker in self.workers:
            worker.leave()
        self.workers = []
        self.say(event="finished")

    def do_verify(self, bytes_each: int, tag: int) -> None:
        """An exchange between all ranks, which uses all rails; then says what this process holds."""
        send = np.empty(bytes_each * self.world, np.uint8)
        into = self.main.empty(len(send))
        for peer in range(self.world):
            pattern.fill(send[peer * bytes_each : (peer + 1) * bytes_each], pattern.key(tag, self.rank, peer))
        self.main.all_to_all_v(send, into, [bytes_each] * self.world, [bytes_each] * self.world)
        differ = [
            peer
            for peer in range(self.world)
            if pattern.first_difference(into[peer * bytes_each : (peer + 1) * bytes_each], pattern.key(tag, peer, self.rank)) is not None
        ]
        del send, into
        gc.collect()
        self.say(event="verified", wrong=differ, down=self.main.links_down(), holds=_holds())

    def do_describe(self) -> None:
        """Who waits for what."""
        frames = sys._current_frames()
        lines = [line for worker in self.workers for line in worker.state()]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.ident in frames:
                last = traceback.extract_stack(frames[thread.ident])[-1]
                lines.append(f"thread {thread.name}: {Path(last.filename).name}:{last.lineno} {last.name}")
        self.say(event="described", lines=lines)

    def do_close(self) -> None:
        """Ends the exchange, and so the program."""
        self.main.close()
        self.say(event="closed")


def _holds() -> dict[str, int]:
    """What a leak would make grow."""
    kinds: dict[str, int] = {"descriptors": 0, "sockets": 0}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that reads this folder
            kinds["sockets"] += str(entry.readlink()).startswith("socket:")
            kinds["descriptors"] += 1
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kinds["threads"] = int(status["Threads"])
    kinds["private KiB"] = int(status["RssAnon"].split()[0])
    kinds["shared KiB"] = int(status["RssShmem"].split()[0])
    kinds["mappings"] = Path("/proc/self/maps").read_text().count("\n")
    kinds["files in /dev/shm"] = len(list(Path("/dev/shm").iterdir()))
    return kinds


def main(control_fd: str, fabric_fd: str, seed: str, folder: str, tcp: str) -> None:
    """Serve the driver."""
    faulthandler.enable()
    fabric = Path(f"/proc/self/fd/{fabric_fd}").read_text()  # opened anew: all ranks share the offset of the descriptor
    with socket.socket(fileno=int(control_fd)) as control:
        Rank(control, seed, Path(folder), fabric, tcp).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
