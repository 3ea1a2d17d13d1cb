"""Starts the programs of one job in a lab, in a process namespace of their own: when the job's owner dies, all of them do.

owner ── this process (dies with its owner) ── first process of the namespace (dies with this one) ── the programs
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from railweave.lab import environment, syscalls
from railweave.lab.enter import enter
from railweave.lab.errors import LabError
from railweave.lab.program import Program

_NOT_FOUND, _CANNOT_EXECUTE = 127, 126  # as shells say it


def main(lab: str, parent: str, programs_fd: str, events_fd: str) -> None:
    """Run the programs that stand as JSON in `programs_fd`; write one JSON line to `events_fd` for each that ends."""
    syscalls.die_with_parent()
    if os.read(int(parent), 1) != b"":  # the owner closes its end once we run: by then it cannot have died unnoticed
        os._exit(1)
    os.close(int(parent))
    with os.fdopen(int(programs_fd)) as file:
        programs = [Program.from_json(value) for value in json.load(file)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the programs; this process waits for them
    number = os.getpid()
    syscalls.unshare(syscalls.CLONE_NEWPID)
    first = os.fork()
    if first == 0:
        syscalls.die_with_parent()
        _spread_process_ids(number)
        _first_process(lab, programs, int(events_fd))
    _, status = os.waitpid(first, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _spread_process_ids(job: int) -> None:
    """Start counting elsewhere in each job: programs take process ids for unique when they name shared memory (OpenMPI, UCX)."""
    with contextlib.suppress(FileNotFoundError):  # kernels without CONFIG_CHECKPOINT_RESTORE
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(300 + job * 512 % 30000))


def _first_process(lab: str, programs: list[Program], events: int) -> None:
    running = {}
    passed = {here for program in programs for here in program.fds.values()}
    for fd in passed:
        os.set_inheritable(fd, False)  # no program shall have those of the others
    for index, program in enumerate(programs):
        pid = os.fork()
        if pid == 0:
            _become(lab, program, events)
        running[pid] = index
    for fd in passed:
        os.close(fd)
    while running:
        ended = [os.wait()]
        with contextlib.suppress(ChildProcessError):  # there is none any more
            while (another := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(another)
        codes = [(running.pop(pid), os.waitstatus_to_exitcode(status)) for pid, status in ended if pid in running]
        # The kernel gives those that wait to be collected in the order of their start. A killed one is why others ended, not the other
        # way round, and the owner names the first.
        codes.sort(key=lambda each: each[1] >= 0)
        try:
            os.write(events, b"".join(json.dumps({"index": index, "status": code}).encode() + b"\n" for index, code in codes))
        except BrokenPipeError:  # who asked for them has gone
            os._exit(1)
    os._exit(0)


def _become(lab: str, program: Program, events: int) -> None:
    status = _CANNOT_EXECUTE
    try:
        spec = enter(lab, rank=program.rank, node=program.node)
        os.close(events)
        if program.rank is not None:
            variables = environment.for_rank(spec, program.rank)
        else:
            assert program.node is not None
            variables = environment.for_node(spec, program.node)
        _place_fds(program.fds)
        # What is ignored stays so in the program; Python ignores the last two, so a reader that leaves would go unnoticed.
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(program.argv[0], program.argv, {**os.environ, **variables, **program.env})
        except OSError as error:  # names the last folder of PATH that was tried
            if isinstance(error, FileNotFoundError):
                status = _NOT_FOUND
            raise LabError(error.strerror) from None
    except BaseException as error:  # there is nobody else in this process to hear it
        sys.stderr.write(f"railweave lab: cannot start {program.argv[0]}: {error}\n")
        sys.stderr.flush()
    os._exit(status)


def _place_fds(wanted: dict[int, int]) -> None:
    held = {there: os.dup(here) for there, here in wanted.items()}  # dup first: numbers may overlap
    for there, here in held.items():
        os.dup2(here, there, inheritable=True)
        if here not in wanted:
            os.close(here)


if __name__ == "__main__":
    main(*sys.argv[1:])
