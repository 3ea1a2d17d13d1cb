"""A long run of random exchanges between host ranks in labs, under random faults. Everything is checked; findings say how to repeat them.

    python benchmarks/engine/soak.py [--minutes 30] [--seed N] [--job N]

Needs root. One job after the other: a lab of a random shape, ranks that exchange in rounds, faults while they do, until a rank is killed
or a node cut off for good, or the job has had its rounds. All that is drawn follows from the seed; --job repeats one job of it. How far
operations are when a fault comes depends on the machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import soak_faults
import soak_work
from pyroute2 import IPRoute
from soak_faults import Fault, Saboteur
from soak_work import Operation, Work

from railweave.lab import Lab, LabError, LabSpec, Program, labs, shaping, syscalls, wire
from railweave.lab.environment import RENDEZVOUS_PORT
from railweave.lab.fabric import of_lab

_SHAPES = (
    LabSpec(2, 2),
    LabSpec(2, 2, 4),
    LabSpec(2, 2, 1),
    LabSpec(2, 2, isolation="node"),
    LabSpec(3, 1),
    LabSpec(3, 2),
    LabSpec(2, 3),
    LabSpec(2, 4),
    LabSpec(1, 3),
)
_RATES = (50_000_000, 200_000_000, 400_000_000, 2_000_000_000)

# A node that is cut off for _LONGEST_S (soak_faults.py) lives, and so does one whose ranks wait for a CPU of a busy machine meanwhile.
_DEATH_MS = 12_000
_BOOTSTRAP_MS = 40_000
# No fault lasts longer than 5 s, no death is unknown for longer than _DEATH_MS, no exchange waits longer for its ranks than _BOOTSTRAP_MS.
_ROUND_S = 180.0
_ANSWER_S = 120.0
_AGAIN_S = 60.0  # until all rails are used again

_SETTLED = 3  # rounds until a process holds all that it needs: connections, buffers of the allocator
# What it may hold beyond that until the job's end. Jobs were seen to take 3 descriptors, 66 MiB of their own (mostly the allocator's
# arenas of their threads) and 10 MiB of slots that had not been used before; a leak of a buffer or a connection a round is more.
_GROWTH = {
    "descriptors": 12,
    "sockets": 12,
    "threads": 0,
    "private KiB": 96 << 10,
    "shared KiB": 32 << 10,
    "mappings": 160,
    "files in /dev/shm": 0,
}


class Finding(Exception):  # noqa: N818 - it is no error of this program
    """Something that must not be."""


class Hang(Finding):
    """Something that goes on for too long."""


class Ranks:
    """The processes of a job, one a rank."""

    def __init__(self, lab: Lab, seed: str, folder: Path, mark: str) -> None:
        self.lab, self.spec, self.folder = lab, lab.spec, folder
        self.logs = [(folder / f"rank{rank}.log").open("wb+") for rank in range(self.spec.world)]
        description = os.memfd_create("fabric")
        os.write(description, of_lab(self.spec).to_json().encode())
        pairs = [socket.socketpair() for _ in range(self.spec.world)]
        for ours, _ in pairs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # what a rank says comes with its process id, as it is here
        tcp = f"tcp://{self.spec.rank_address(0)}:{RENDEZVOUS_PORT + 1}"
        argv = [sys.executable, str(Path(__file__).with_name("soak_rank.py")), "3", "4", seed, str(folder), tcp]
        self.job = lab.start(
            [
                Program(
                    argv,
                    rank=rank,
                    env={
                        "RAILWEAVE_SOAK": mark,
                        "RAILWEAVE_DEATH_MS": os.environ.get("RAILWEAVE_DEATH_MS", str(_DEATH_MS)),
                        "RAILWEAVE_BOOTSTRAP_MS": os.environ.get("RAILWEAVE_BOOTSTRAP_MS", str(_BOOTSTRAP_MS)),
                    },
                    fds={1: self.logs[rank].fileno(), 2: self.logs[rank].fileno(), 3: theirs.fileno(), 4: description},
                )
                for rank, (_, theirs) in enumerate(pairs)
            ]
        )
        os.close(description)
        for _, theirs in pairs:
            theirs.close()
        self.controls = [ours for ours, _ in pairs]
        self.processes = [-1] * self.spec.world  # pidfds
        self.dead: set[int] = set()
        self._partial = [b""] * self.spec.world
        self._sending = threading.Lock()

    # --- what a saboteur does

    def set_link(self, node: int, rail: int, *, up: bool | None = None, rate: int | None = None) -> None:
        """As Lab.set_link."""
        self.lab.set_link(node, rail, up=up, rate=rate)

    def set_queue(self, node: int, rail: int, limit: int) -> None:
        """How many bytes a NIC holds back before it drops, until its rate is set again."""
        nic = next(nic for nic in self.spec.nics() if (nic.node, nic.rail) == (node, rail))
        _, fds = wire.request(self.lab.name, "enter-rank", rank=nic.ranks[0])
        try:
            with syscalls.in_namespace(fds[0], "net"), IPRoute() as ip:
                burst = shaping.burst(self.spec.rate, self.spec.frame)
                index = ip.link_lookup(ifname=nic.interface)[0]
                ip.tc("replace", "tbf", index, 0x10000, rate=self.spec.rate // 8, burst=burst, limit=limit)
        finally:
            for fd in fds:
                os.close(fd)

    def stop(self, rank: int, stopped: bool) -> None:
        """SIGSTOP or SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.processes[rank], signal.SIGSTOP if stopped else signal.SIGCONT)

    def kill(self, ranks: tuple[int, ...]) -> None:
        """SIGKILL."""
        self.dead |= set(ranks)
        for rank in ranks:
            signal.pidfd_send_signal(self.processes[rank], signal.SIGKILL)

    # --- talk

    @property
    def alive(self) -> list[int]:
        """Ranks that were not killed."""
        return [rank for rank in range(self.spec.world) if rank not in self.dead]

    def ask(self, ranks: Iterable[int], **command: Any) -> None:
        """Tells ranks to do something."""
        line = json.dumps(command).encode() + b"\n"
        with self._sending:
            for rank in ranks:
                with contextlib.suppress(BrokenPipeError):  # its end says how it went
                    self.controls[rank].sendall(line)

    def answers(self, event: str, seconds: float, among: Iterable[int] | None = None) -> dict[int, dict[str, Any]]:
        """What ranks answer; those that are killed meanwhile need not."""
        found: dict[int, dict[str, Any]] = {}
        wanted = set(self.alive if among is None else among)
        end = time.monotonic() + seconds
        while missing := [rank for rank in wanted if rank not in found and rank not in self.dead]:
            if time.monotonic() > end:
                raise Hang(f"no '{event}' from ranks {missing} within {seconds:.0f} s")
            for rank, said in self._hear(min(1.0, max(0.0, end - time.monotonic()))):
                if said["event"] == event:
                    found[rank] = said
        return found

    def _hear(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        heard = []
        with selectors.DefaultSelector() as selector:
            for rank in self.alive:
                if self.controls[rank].fileno() >= 0:
                    selector.register(self.controls[rank], selectors.EVENT_READ, rank)
            selector.register(self.job.events, selectors.EVENT_READ, None)
            for key, _ in selector.select(seconds):
                if key.data is None:
                    self._ended()
                    continue
                data, ancillary, _, _ = self.controls[key.data].recvmsg(1 << 20, 64)
                if not data:  # the job's events say how it ended
                    self.controls[key.data].close()
                    continue
                if self.processes[key.data] < 0:
                    self.processes[key.data] = os.pidfd_open(struct.unpack("3i", ancillary[0][2])[0])
                *lines, self._partial[key.data] = (self._partial[key.data] + data).split(b"\n")
                heard += [(key.data, json.loads(line)) for line in lines]
        return heard

    def _ended(self) -> None:
        for rank, status in self.job.poll(0.0).items():
            if rank not in self.dead:
                raise Finding(f"rank {rank} ended with status {status}")

    def why_nothing_goes_on(self) -> list[str]:
        """What each rank waits for."""
        lines = []
        try:
            self.ask(self.alive, do="describe")
            for rank, said in self.answers("described", 20.0).items():
                lines += [f"rank {rank}: {line}" for line in said["lines"]]
        except (Finding, LabError) as error:
            lines.append(str(error))
        return lines

    def last_lines(self) -> list[str]:
        """What each rank wrote last."""
        lines = []
        for rank, log in enumerate(self.logs):
            log.seek(0)
            lines += [f"rank {rank} said: {line}" for line in log.read().decode(errors="replace").splitlines()[-12:]]
        return lines

    def leave(self) -> None:
        """Every rank closes its exchange and ends well."""
        self.ask(self.alive, do="close")
        for rank in self.alive:
            with contextlib.suppress(OSError):
                self.controls[rank].shutdown(socket.SHUT_WR)  # after its answer there is nothing more to do
        self.job.drain(_ANSWER_S)
        if self.job.running:
            raise Hang(f"ranks that do not end after close: {sorted(set(range(self.spec.world)) - set(self.job.statuses))}")
        wrong = {rank: status for rank, status in self.job.statuses.items() if status != (-signal.SIGKILL if rank in self.dead else 0)}
        if wrong:
            raise Finding(f"exit statuses {wrong}")

    def __enter__(self) -> Ranks:
        """Themselves."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.job.close()
        for fd in self.processes:
            if fd >= 0:
                os.close(fd)
        for control in self.controls:
            control.close()
        for log in self.logs:
            log.close()


class Job:
    """A lab and its ranks, from their start to their end."""

    def __init__(self, seed: int, number: int, until: float) -> None:
        self.name, self.until = f"{seed}/{number}", until
        draws = random.Random(self.name)
        shape = draws.choice(_SHAPES)
        self.spec = LabSpec(shape.nodes, shape.gpus, shape.rails, draws.choice(_RATES), isolation=shape.isolation)
        self.rounds = draws.choice((2, 4, 8, 16))
        self.deadly = draws.random() < 0.75
        self.history: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest = 0.0
        self.settled: dict[int, dict[str, int]] = {}
        self.grown: dict[str, int] = {}
        self.ranks: Ranks
        self._begin = time.monotonic()

    def say(self, what: str) -> None:
        """Into the history that a finding comes with."""
        self.history.append(f"{time.monotonic() - self._begin:8.2f} {what}")

    def run(self, mark: str) -> list[str]:
        """Findings."""
        findings: list[str] = []
        with tempfile.TemporaryDirectory(prefix="railweave-soak-") as folder, Lab.up(self.spec) as lab:
            with Ranks(lab, self.name, Path(folder), mark) as self.ranks:
                try:
                    self._run()
                except Finding as error:
                    findings = [f"job {self.name}, lab {self.spec}: {error}", *self.history[-60:]]
                    if isinstance(error, Hang):
                        findings += self.ranks.why_nothing_goes_on()
                    findings += self.ranks.last_lines()
            left = [path.name for path in Path(folder).rglob("*") if path.is_file() and not path.name.endswith(".log")]
            if left and not findings and not self.ranks.dead and not self.counts["exchanges refused"]:
                findings = [f"job {self.name}, lab {self.spec}: files stay in the rendezvous: {left}", *self.history[-60:]]
        self.counts["jobs"] += 1
        return findings

    def _run(self) -> None:
        self.ranks.answers("up", _ANSWER_S)
        self.say("all ranks are up")
        self._verify(None)
        for number in range(self.rounds):
            if time.monotonic() > self.until:
                break
            deadly = self.deadly and number == self.rounds - 1
            if faults := self._round(str(number), deadly=deadly):
                self._after_death(str(number + 1), faults)
                break
            self._verify(number)
        self.say("closing")
        self.ranks.leave()

    def _round(self, name: str, *, deadly: bool) -> list[Fault]:
        """The faults after which ranks are gone for others."""
        seed = f"{self.name}/{name}"
        death_ms = int(os.environ.get("RAILWEAVE_DEATH_MS", _DEATH_MS))
        faults = soak_faults.draw(seed, self.spec, deadly=deadly, cuts=death_ms <= _DEATH_MS)
        works = soak_work.draw(seed, self.spec.world)
        self.say(f"round {name}: {', '.join(f'{work.name} {sum(map(len, work.batches))}' for work in works)} operations")
        saboteur = Saboteur(faults, self.spec, self.ranks, self.say)
        # A rank that has closed relays no more: where others need its NIC all stay until the work is done.
        calm = not faults and (self.spec.nodes == 1 or self.spec.rails >= self.spec.gpus)
        self.ranks.ask(self.ranks.alive, do="round", name=name, aftermath=False, calm=calm)
        saboteur.start()
        try:
            ran = self.ranks.answers("ran", _ROUND_S)
            if deadly:
                saboteur.hurry()
            self.say("all operations have ended")
            self._judge(works, ran, faults)
            self.ranks.ask(self.ranks.alive, do="finish")
            self.ranks.answers("finished", _ANSWER_S)
        finally:
            saboteur.hurry()
            saboteur.join()
        if saboteur.error is not None:
            raise saboteur.error
        self.say("the round's exchanges are closed")
        for fault in saboteur.made:
            self.counts[fault.kind] += 1
        for nic in self.spec.nics():
            if not any(fault.kind == "cut for good" and fault.node == nic.node for fault in faults):
                self.ranks.lab.set_link(nic.node, nic.rail, up=True, rate=self.spec.rate)
        self.counts["rounds"] += 1
        return [fault for fault in faults if fault.deadly]

    def _after_death(self, name: str, deadly: list[Fault]) -> None:
        """Operations with those that are gone fail, the others go on."""
        works = soak_work.aftermath(f"{self.name}/{name}", self.spec.world)
        self.ranks.ask(self.ranks.alive, do="round", name=name, aftermath=True, calm=False)
        ran = self.ranks.answers("ran", _ROUND_S)
        self.say("all operations after the death have ended")
        self._judge(works, ran, deadly)
        severed = self._severed(deadly)
        for rank, said in ran.items():
            failed = {index for _, index, *_ in said["exchanges"][0]["failed"]}
            for index, operation in enumerate(works[0].batches[0]):
                # What is sent may be small, and on its way when its send ends; an operation without messages may not have heard.
                lacks = any(m.bytes and m.destination == rank and (m.source, rank) in severed for m in operation.messages)
                if lacks and index not in failed:
                    raise Finding(f"rank {rank}: an operation ended well that got nothing from those that are gone: {operation}")
        self.ranks.ask(self.ranks.alive, do="finish")
        self.ranks.answers("finished", _ANSWER_S)

    def _judge(self, works: list[Work], ran: dict[int, dict[str, Any]], faults: list[Fault]) -> None:
        deadly = [fault for fault in faults if fault.deadly]
        for rank, said in ran.items():
            for work, done in zip(works, said["exchanges"], strict=True):
                where = f"rank {rank}, exchange {work.name}"
                self.counts["operations"] += done["operations"]
                self.counts["bytes"] += done["bytes"]
                self.longest = max(self.longest, done["longest"])
                if done["broken"]:
                    raise Finding(f"{where}: {done['broken']}")
                for batch, index, text in done["wrong"]:
                    if not work.operation(batch, index).disagrees:
                        raise Finding(f"{where}: {text}, batch {batch} operation {index}: {work.operation(batch, index)}")
                self.counts["exchanges refused"] += "refused" in done
                if "refused" in done and (done["refused"][0] != "BootstrapError" or not deadly):
                    raise Finding(f"{where} could not be made: {done['refused']}")
                failed = set()
                for batch, index, kind, named, text in done["failed"]:
                    failed.add((batch, index))
                    operation = work.operation(batch, index)
                    if (problem := self._unlikely(operation, kind, named, deadly)) is not None:
                        raise Finding(f"{where}, batch {batch} operation {index}: {problem}: {kind} {text}; {operation}")
                if "refused" not in done and not deadly:
                    self._disagreements_failed(where, rank, work, failed)

    def _severed(self, deadly: list[Fault]) -> set[tuple[int, int]]:
        """Pairs of ranks that cannot reach each other any more."""
        killed = _killed(deadly)
        cut = {fault.node for fault in deadly if fault.kind == "cut for good"}
        for node in range(self.spec.nodes):  # a node all of whose NICs have lost their process
            owners = {nic.ranks[0] for nic in self.spec.nics() if nic.node == node}
            if owners <= killed:
                cut.add(node)
        ranks = range(self.spec.world)
        return {
            (a, b)
            for a, b in itertools.product(ranks, ranks)
            if {a, b} & killed or (self.spec.node_of(a) != self.spec.node_of(b) and {self.spec.node_of(a), self.spec.node_of(b)} & cut)
        }

    def _unlikely(self, operation: Operation, kind: str, named: int | None, deadly: list[Fault]) -> str | None:
        """What is wrong with an operation's failure."""
        severed, killed = self._severed(deadly), _killed(deadly)
        if operation.disagrees and kind == "ExchangeError":
            return None
        if not severed:
            return "it failed without a reason"
        if not operation.collective and not any((message.source, message.destination) in severed for message in operation.messages):
            return "it failed without a message of those that are gone"
        if kind != "RankDied":
            return "an error of another type"
        if named is None or (named not in killed and not any(named in pair for pair in severed if not killed & set(pair))):
            return f"names rank {named}, which is not gone"
        return None

    def _disagreements_failed(self, where: str, rank: int, work: Work, failed: set[tuple[int, int]]) -> None:
        for number, batch in enumerate(work.batches):
            for index, operation in enumerate(batch):
                if operation.disagrees and operation.messages[0].destination == rank and (number, index) not in failed:
                    raise Finding(f"{where}, batch {number} operation {index}: sizes that differ went unnoticed: {operation}")

    def _verify(self, number: int | None) -> None:
        """All rails are used again, and no process holds more than before. `number`: of the round before; None: before the first one."""
        before = {(link["node"], link["rail"]): link for link in self.ranks.lab.links()}
        bytes_each, tag = 1 << 19, itertools.count(((number or 0) + 1) << 12)
        end = time.monotonic() + _AGAIN_S
        while True:
            self.ranks.ask(self.ranks.alive, do="verify", bytes_each=bytes_each, tag=next(tag))
            said = self.ranks.answers("verified", _ROUND_S)
            wrong = {rank: each["wrong"] for rank, each in said.items() if each["wrong"]}
            if wrong:
                raise Finding(f"an exchange between all ranks brought wrong bytes: {wrong} (by receiver: senders)")
            self.counts["operations"] += self.spec.world
            idle = [
                f"node {link['node']} rail {link['rail']} {way}"
                for link in self.ranks.lab.links()
                for way in ("tx_bytes", "rx_bytes")
                if self.spec.nodes > 1 and link[way] - before[link["node"], link["rail"]][way] < bytes_each // 4
            ]
            down = {rank: each["down"] for rank, each in said.items() if each["down"]}
            if not idle and not down:
                break
            if time.monotonic() > end:
                raise Finding(f"rails that are not used again {_AGAIN_S:.0f} s after all faults: {idle}; links down, by rank: {down}")
            time.sleep(0.1)
        for rank, each in said.items():
            if number is not None:
                self._compare(rank, number, each["holds"])

    def _compare(self, rank: int, number: int, holds: dict[str, int]) -> None:
        if number < _SETTLED:
            self.settled[rank] = holds
            return
        grown = {what: holds[what] - held for what, held in self.settled[rank].items()}
        self.grown = {what: max(much, self.grown.get(what, 0)) for what, much in grown.items()}
        if too_much := {what: much for what, much in grown.items() if much > _GROWTH[what]}:
            raise Finding(f"rank {rank} holds more than after round {_SETTLED - 1}: {too_much}; then {self.settled[rank]}, now {holds}")


def _killed(deadly: list[Fault]) -> set[int]:
    return {rank for fault in deadly if fault.kind == "kill" for rank in fault.ranks}


def _marked(mark: str) -> Iterator[str]:
    """Processes that a soak left."""
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RAILWEAVE_SOAK={mark}".encode() in (directory / "environ").read_bytes():
                yield (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _left_behind(mark: str, before: set[str]) -> list[str]:
    end = time.monotonic() + 60
    while (processes := list(_marked(mark))) and time.monotonic() < end:
        time.sleep(0.1)
    own = [name for name in labs() if name.startswith(f"lab-{os.getpid()}-")]
    files = sorted(path.name for path in Path("/dev/shm").iterdir() if path.name not in before and "railweave" in path.name)
    return [f"left behind: {what} {each}" for what, all_ in (("process", processes), ("lab", own), ("/dev/shm", files)) for each in all_]


def main() -> int:
    """Jobs until the time is over; status 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="no job and no round begins after this time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of all that is drawn; the default is drawn, too, and printed")
    parser.add_argument("--job", type=int, default=None, help="only this job of the seed")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    begin, mark, shm = time.monotonic(), str(uuid.uuid4()), {path.name for path in Path("/dev/shm").iterdir()}
    until = begin + 60 * options.minutes
    counts: collections.Counter[str] = collections.Counter()
    grown: dict[str, int] = {}
    findings, longest = 0, 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell
    with contextlib.suppress(KeyboardInterrupt):  # what was found until then counts
        for number in itertools.count() if options.job is None else [options.job]:
            if time.monotonic() > until:
                break
            job = Job(seed, number, until)
            found = job.run(mark)
            counts += job.counts
            longest = max(longest, job.longest)
            grown = {what: max(grown.get(what, 0), job.grown.get(what, 0)) for what in _GROWTH}
            print(f"job {number}: {job.spec.shape}, {job.spec.rails} rails, {dict(job.counts)}, grown {job.grown}", flush=True)
            if found:
                findings += 1
                print("FINDING: " + "\n    ".join(found) + f"\n    again: {Path(__file__).name} --seed {seed} --job {number}", flush=True)
    if left := _left_behind(mark, shm):
        findings += 1
        print("FINDING: " + "\n    ".join(left), flush=True)
    took = (time.monotonic() - begin) / 60
    print(f"seed {seed}: {took:.1f} minutes, {dict(counts)}, longest operation {longest:.1f} s, most growth {grown}, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as failure:
        sys.exit(f"soak: {failure}")
