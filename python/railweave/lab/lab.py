"""A lab from its owner's side: bring it up, run programs in it, break its links, take it down."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from railweave.lab import syscalls, wire
from railweave.lab.errors import LabError, what_rights_it_needs
from railweave.lab.own_process import own_process
from railweave.lab.program import Program
from railweave.lab.spec import LabSpec

_DOWN_S = 60.0  # the kernel kills the programs and frees the namespaces within milliseconds; this is for a machine on its knees

_SUPERVISOR = "railweave.lab.supervisor"
_WITHOUT_SUPERVISOR = "the lab '{name}' has lost its supervisor, but a process holds its socket: end that one (`ss -xlp` names it)"

_numbers = itertools.count(1)


class Lab:
    """A lab that is up. As a context manager it goes down at the end of the block; it also goes down when this process dies."""

    def __init__(self, name: str, spec: LabSpec, owner: int = -1, supervisor: subprocess.Popen[bytes] | None = None) -> None:
        """Not for callers: see `up` and `find`."""
        self.name, self.spec = name, spec
        self._owner, self._supervisor = owner, supervisor
        self._jobs: list[Job] = []

    @classmethod
    def up(cls, spec: LabSpec, name: str | None = None) -> Lab:
        """Build a lab that belongs to this process."""
        name = f"lab-{os.getpid()}-{next(_numbers)}" if name is None else name
        owner_read, owner_write = os.pipe()
        ready_read, ready_write = os.pipe()
        command = own_process(_SUPERVISOR, name, json.dumps(spec.to_json()), str(owner_read), str(ready_write))
        try:
            supervisor = _start_as_init(command, (owner_read, ready_write))
        except BaseException:
            os.close(owner_write)
            os.close(ready_read)
            raise
        finally:
            os.close(owner_read)
            os.close(ready_write)
        try:
            with os.fdopen(ready_read, "rb") as ready:
                answer = ready.read().decode()
            if answer != "ok":
                raise LabError(answer or "the lab's supervisor died while it built the lab; its message is above")
        except BaseException:
            os.close(owner_write)
            supervisor.wait()
            raise
        return cls(name, spec, owner_write, supervisor)

    @classmethod
    def find(cls, name: str) -> Lab:
        """A lab that is up already, by name."""
        answer, _ = wire.request(name, "describe")
        return cls(name, LabSpec.from_json(answer["spec"]))

    def release(self) -> None:
        """Let the lab live on when this process ends."""
        os.write(self._owner, wire.RELEASE)
        os.close(self._owner)
        self._owner = -1

    def down(self) -> None:
        """Kill what runs in the lab and remove it. Does nothing if it is gone already."""
        for job in self._jobs:  # a supervisor ends when all processes of its namespace have been collected, and these are ours
            job.kill()
        if self._supervisor is not None:
            self._supervisor.kill()  # a child that has not been collected, so this cannot be another process
        else:
            _kill_supervisor(self.name)
        if self._owner >= 0:
            os.close(self._owner)
            self._owner = -1
        if self._supervisor is not None:
            try:
                self._supervisor.wait(_DOWN_S)
            except subprocess.TimeoutExpired as error:
                raise LabError(f"the lab '{self.name}' is still there {_DOWN_S:.0f} s after it was killed") from error

    def describe(self) -> dict[str, Any]:
        """Name, spec, and each NIC's state, rate and counters."""
        return wire.request(self.name, "describe")[0]

    def links(self) -> list[dict[str, Any]]:
        """State, rate and kernel counters of each NIC."""
        links = wire.request(self.name, "links")[0]["links"]
        assert isinstance(links, list)
        return links

    def set_link(self, node: int, rail: int, *, up: bool | None = None, rate: int | None = None) -> None:
        """Take a NIC's switch port down or up, or change the rate of NIC and port (bits per second)."""
        wire.request(self.name, "set-link", node=node, rail=rail, up=up, rate=rate)

    def start(self, programs: Sequence[Program], *, new_session: bool = True) -> Job:
        """Start programs in the lab. `new_session` takes the terminal from them: its input and its Ctrl-C."""
        with _uninterrupted():  # a process that nobody knows of would keep the lab from going down
            job = Job(self, programs, new_session)
            self._jobs = [*(other for other in self._jobs if other.events >= 0), job]
        return job

    def __enter__(self) -> Lab:
        """The lab itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take it down."""
        self.down()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect when this ends. Its signal is not held back, as whatever other thread then takes it hands it to this one."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # nothing is raised here
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(*came[0])


class Job:
    """Programs that run in a lab. All of them die when the job is closed, or when this process dies."""

    def __init__(self, lab: Lab, programs: Sequence[Program], new_session: bool) -> None:
        """Not for callers: see `Lab.start`."""
        _, (processes,) = wire.request(lab.name, "processes")
        parent_read, parent_write = os.pipe()
        programs_fd = os.memfd_create("programs")
        os.write(programs_fd, json.dumps([program.to_json() for program in programs]).encode())
        os.lseek(programs_fd, 0, os.SEEK_SET)
        self.events, events_write = os.pipe()
        command = own_process("railweave.lab.launch", lab.name, *map(str, (parent_read, programs_fd, events_write)))
        passed = {parent_read, programs_fd, events_write, *(here for program in programs for here in program.fds.values())}
        try:
            with syscalls.in_namespace(processes, "pid"):
                stdin = subprocess.DEVNULL if new_session else None
                self._process = subprocess.Popen(command, stdin=stdin, pass_fds=sorted(passed), start_new_session=new_session)
        finally:
            for fd in (processes, parent_read, parent_write, programs_fd, events_write):
                os.close(fd)
        self._partial = b""
        self.statuses: dict[int, int] = {}
        self._count = len(programs)

    @property
    def running(self) -> bool:
        """Whether any of the programs has not ended yet."""
        return len(self.statuses) < self._count

    def poll(self, timeout: float | None = 0.0) -> dict[int, int]:
        """Wait up to `timeout` seconds (None: for ever) for programs to end; {index: exit status} of those that did just now.

        `events` is a file descriptor that is readable when there is something to poll.
        """
        if not _is_readable(self.events, timeout):
            return {}
        data = os.read(self.events, 65536)
        if not data and self.running:
            raise LabError("the lab went down, or the process that starts programs in it died")
        *lines, self._partial = (self._partial + data).split(b"\n")
        ended = {event["index"]: event["status"] for event in map(json.loads, lines)}
        self.statuses.update(ended)
        return ended

    def wait(self) -> int:
        """Wait for all programs; as soon as one fails, kill the others. Exit status of the first that failed, or 0."""
        while self.running:
            for status in self.poll(None).values():
                if status != 0:
                    self.close()
                    return status
        self.close()
        return 0

    def drain(self, seconds: float) -> None:
        """Give the programs this long to end by themselves; a lab that went down has ended them."""
        end = time.monotonic() + seconds
        with contextlib.suppress(LabError):
            while self.running and time.monotonic() < end:
                self.poll(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """Kill what still runs; what ended can still be polled."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill what still runs, and forget the rest."""
        if self.events >= 0:
            self.kill()
            os.close(self.events)
            self.events = -1

    def __enter__(self) -> Job:
        """The job itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Kill what still runs."""
        self.close()


def take_down(name: str) -> bool:
    """Remove a lab, also one whose supervisor no longer answers. False if there is none of this name."""
    if wire.supervisor(name) is None:
        return False
    Lab(name, LabSpec(1, 1)).down()
    return True


def labs() -> list[str]:
    """Names of this user's labs that are up on this machine."""
    return wire.names()


def foreign_labs() -> dict[str, int]:
    """Labs of other users, which are theirs alone to use, and these users."""
    return {name: owner for name, owner in wire.owners().items() if owner != os.geteuid()}


def _kill_supervisor(name: str) -> None:
    """Does nothing if the lab is gone. Raises LabError, having killed nothing, where its process is no supervisor of such a lab."""
    pid = wire.supervisor(name)
    if pid is None:
        return
    try:
        holder = os.pidfd_open(pid)
    except OSError as error:  # 0 stands for a process of another process namespace
        if wire.supervisor(name) is None:
            return
        raise LabError(_WITHOUT_SUPERVISOR.format(name=name)) from error
    try:
        if _is_supervisor(pid, name) and not _is_readable(holder, 0.0):  # it lives, so what was read is not of another one of its number
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(holder, signal.SIGKILL)
            if not _is_readable(holder, _DOWN_S):
                raise LabError(f"the lab '{name}' is still there {_DOWN_S:.0f} s after it was killed")
        else:
            _is_readable(holder, 1.0)  # one that dies has no command line any more, and its socket for another moment
            if wire.supervisor(name) is not None:
                raise LabError(_WITHOUT_SUPERVISOR.format(name=name))
    finally:
        os.close(holder)


def _is_supervisor(pid: int, name: str) -> bool:
    """By its user, and its command line, which `Lab.up` made."""
    process = Path(f"/proc/{pid}")
    try:
        words = process.joinpath("cmdline").read_bytes().split(b"\0")
        mine = process.stat().st_uid == os.geteuid()
    except OSError:
        return False
    return mine and (_SUPERVISOR.encode(), name.encode()) in itertools.pairwise(words)


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    """Whether it is within this time (None: for ever). With poll(), as select() knows no descriptor above 1023."""
    with selectors.PollSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _start_as_init(command: list[str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start a process as the first of a new process namespace."""
    home = syscalls.open_namespace("pid")
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWPID)
    except PermissionError as error:
        raise LabError(what_rights_it_needs()) from error
    finally:
        os.close(home)
