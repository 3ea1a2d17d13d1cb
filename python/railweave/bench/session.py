"""What a benchmark compares: a policy of the engine, or a peer. A session keeps its processes between exchanges."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from railweave.bench.errors import BenchError, how_it_ended
from railweave.fabric import Fabric
from railweave.lab import Lab, Program
from railweave.lab.environment import RENDEZVOUS_PORT, node_name
from railweave.lab.own_process import own_process
from railweave.lab.wire import INSIDE_TMP
from railweave.matrix import Matrix

_START_S = 120.0  # 64 Python processes on 4 busy cores need 30
_LEAD_S = 0.03  # from the command until all ranks start together: waking 64 processes takes less

_MPI_LIMIT = 1 << 31  # counts and places are C ints

PEERS = ("openmpi", "ucx")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One exchange: from the first rank's start to the last one's end, and where a byte was wrong, if any.

    `cpu`: what each rank's process took meanwhile, seconds in user mode and in the kernel. `plan_seconds`: what each rank's planning took,
    0 where there was nothing to plan. `row_seconds`: from the last rank's start until all that plan had the rows of all, or went without;
    `rows_missing`: the most that one went without. Nothing of peers.
    """

    seconds: float
    wrong: str | None
    cpu: tuple[tuple[float, float], ...] = ()
    plan_seconds: tuple[float, ...] = ()
    row_seconds: float = 0.0
    rows_missing: int = 0


class Session(abc.ABC):
    """Processes, one a rank, that exchange on command. All of them are idle between commands."""

    def __init__(self, name: str, lab: Lab) -> None:
        """Start them."""
        self.name, self.lab = name, lab
        self.log: IO[bytes] = os.fdopen(os.memfd_create("log"), "w+b")  # in memory: needs no folder
        self._doing = "starting"

    @abc.abstractmethod
    def exchange(self, matrix: Matrix, repetition: int, timeout: float) -> Sample:
        """Exchange once and check. Raises BenchError if a process ends or `timeout` seconds pass."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the processes."""

    def __enter__(self) -> Session:
        """The session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the processes."""
        self.close()
        self.log.close()

    def fail(self, what: str) -> BenchError:
        """An error with what the processes said last."""
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()[-40:]
        output = "".join(f"\n    {line}" for line in said)
        return BenchError(f"{self.name}, {self._doing}: {what}" + (f"; the last they said:{output}" if said else "; they said nothing"))


class PolicySession(Session):
    """The engine under one policy: a Python process for each rank."""

    def __init__(self, policy: str, lab: Lab, fabric: Fabric, index: int, environment: Mapping[str, str] | None = None) -> None:
        """`index` keeps the rendezvous of several sessions apart; `environment` is added to that of the lab's ranks."""
        super().__init__(policy, lab)
        description = os.memfd_create("fabric")
        os.write(description, fabric.to_json().encode())
        world = lab.spec.world
        rendezvous = f"tcp://{lab.spec.rank_address(0)}:{RENDEZVOUS_PORT + 1 + index}"
        pairs = [socket.socketpair() for _ in range(world)]
        log = self.log.fileno()
        programs = [
            Program(
                own_process("railweave.bench.worker", policy, rendezvous, "3", "4"),
                rank=rank,
                env=dict(environment or {}),
                fds={1: log, 2: log, 3: theirs.fileno(), 4: description},
            )
            for rank, (_, theirs) in enumerate(pairs)
        ]
        self._job = lab.start(programs)
        os.close(description)
        for _, theirs in pairs:
            theirs.close()
        self._controls = [ours for ours, _ in pairs]
        self._partial = [b""] * world
        try:
            self._collect(_START_S)
        except BaseException:
            self._job.close()
            raise

    def exchange(self, matrix: Matrix, repetition: int, timeout: float) -> Sample:
        """Exchange once and check."""
        self._ask(max(timeout, _START_S), "filling the buffers", do="prepare", repetition=repetition, matrix=matrix.tolist())
        times = self._ask(timeout, "exchanging", do="go", at=time.monotonic() + _LEAD_S)
        checks = self._ask(timeout, "checking", do="check")
        wrong = None
        for rank, check in enumerate(checks):
            if check["wrong"] is not None:
                wrong = f"rank {rank} got a wrong byte from rank {check['wrong'][0]} at {check['wrong'][1]}"
                break
        last = max(each["start"] for each in times)
        return Sample(
            max(each["end"] for each in times) - min(each["start"] for each in times),
            wrong,
            tuple((each["cpu"][0], each["cpu"][1]) for each in times),
            tuple(each["plan"] for each in times),
            max(0.0, max(each["start"] + each["row_wait"] for each in times) - last),
            max(each["rows_missing"] for each in times),
        )

    def close(self) -> None:
        """End the processes."""
        for control in self._controls:
            control.close()  # they leave when they notice
        self._job.drain(5.0)
        self._job.close()

    def _ask(self, timeout: float, doing: str, **command: Any) -> list[dict[str, Any]]:
        self._doing = doing
        line = json.dumps(command).encode() + b"\n"
        for control in self._controls:
            with contextlib.suppress(BrokenPipeError):  # the job's events say how that rank ended
                control.sendall(line)
        return self._collect(timeout)

    def _collect(self, timeout: float) -> list[dict[str, Any]]:
        """One line from each rank."""
        answers: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank, control in enumerate(self._controls):
                selector.register(control, selectors.EVENT_READ, rank)
            selector.register(self._job.events, selectors.EVENT_READ, None)
            while len(answers) < len(self._controls):
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready and time.monotonic() >= end:
                    missing = [rank for rank in range(len(self._controls)) if rank not in answers]
                    raise self.fail(f"no answer from rank {', '.join(map(str, missing[:8]))} within {timeout:.0f} s")
                for key, _ in ready:
                    if key.data is None:
                        self._ended()
                        continue
                    data = self._controls[key.data].recv(1 << 20)
                    if not data:
                        selector.unregister(key.fileobj)  # the job's events say how it ended
                        continue
                    self._partial[key.data] += data
                    if self._partial[key.data].endswith(b"\n"):
                        answers[key.data] = json.loads(self._partial[key.data])
                        self._partial[key.data] = b""
        return [answers[rank] for rank in range(len(self._controls))]

    def _ended(self) -> None:
        for rank, status in self._job.poll(0.0).items():
            raise self.fail(f"rank {rank} ({node_name(self.lab.spec.node_of(rank))}) {how_it_ended(status)}")


class MpiSession(Session):
    """MPI_Alltoallv of the system's OpenMPI, over its own TCP transport or over UCX, started by mpirun in the same lab."""

    def __init__(self, peer: str, lab: Lab, program: Path) -> None:
        """`program` is `mpi_alltoallv.c`, built, at the same path on all nodes."""
        super().__init__(peer, lab)
        spec = lab.spec
        hosts = ",".join(f"{node_name(node)}:{spec.gpus}" for node in range(spec.nodes))
        command = ["mpirun", "-np", str(spec.world), "--host", hosts, *_mpi_options(peer, spec.rails), str(program)]
        commands_read, self._commands = os.pipe()
        answers_write: int
        self._answers, answers_write = os.pipe()
        self._partial = b""
        self._job = lab.start([Program(command, node=0, fds={0: commands_read, 1: answers_write, 2: self.log.fileno()})])
        os.close(commands_read)
        os.close(answers_write)

    def exchange(self, matrix: Matrix, repetition: int, timeout: float) -> Sample:
        """Exchange once and check."""
        if beyond := beyond_mpi(matrix):
            raise BenchError(f"{self.name}: {beyond}")
        numbers = " ".join(map(str, matrix.ravel().tolist()))
        self._ask(max(timeout, _START_S), "filling the buffers", f"prepare {repetition} {numbers}")
        at = time.monotonic() + 2 * _LEAD_S  # the command takes a way of several hops, each with a pause
        _, first, last = self._ask(timeout, "exchanging", f"go {round(at * 1e9)}").split()
        check = self._ask(timeout, "checking", "check").split()
        wrong = None if check[0] == "ok" else f"rank {check[1]} got a wrong byte from rank {check[2]} at {check[3]}"
        return Sample((int(last) - int(first)) / 1e9, wrong)

    def close(self) -> None:
        """End the processes."""
        os.close(self._commands)  # rank 0 reads the end and tells the others
        self._job.drain(5.0)
        self._job.close()
        os.close(self._answers)

    def _ask(self, timeout: float, doing: str, command: str) -> str:
        self._doing = doing
        end = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self._job.events, selectors.EVENT_READ)
            with contextlib.suppress(BrokenPipeError):  # the job's events say how it ended
                os.write(self._commands, command.encode() + b"\n")
            while not self._partial.endswith(b"\n"):
                ready = [key.fd for key, _ in selector.select(max(0.0, end - time.monotonic()))]
                if not ready and time.monotonic() >= end:
                    raise self.fail(f"no answer within {timeout:.0f} s")
                if self._answers in ready:
                    data = os.read(self._answers, 65536)
                    self._partial += data
                    if not data:
                        selector.unregister(self._answers)  # readable for ever, and nothing but the job's events is worth a look
                elif ready:
                    self._job.poll(0.0)
                    for status in self._job.statuses.values():
                        raise self.fail(f"mpirun {how_it_ended(status)}")
        answer, self._partial = self._partial.decode().strip(), b""
        return answer


def beyond_mpi(matrix: Matrix) -> str:
    """What a matrix has that MPI_Alltoallv cannot; nothing where it can."""
    for totals, does in ((matrix.sum(axis=1), "sends"), (matrix.sum(axis=0), "receives")):
        if int(totals.max()) >= _MPI_LIMIT:
            return f"rank {int(totals.argmax())} {does} {int(totals.max())} bytes; MPI_Alltoallv counts to 2^31"
    return ""


def _mpi_options(peer: str, rails: int) -> list[str]:
    if peer == "openmpi":
        # Shared memory is vader in OpenMPI 4, which refuses sm, and sm in 5, which still takes vader for it.
        return ["--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self"]
    return [
        *("--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"),
        *("-x", "UCX_TLS=tcp,sm,self", "-x", f"UCX_MAX_RNDV_RAILS={min(rails, 4)}"),
    ]


def build_peer(lab: Lab) -> Path:
    """Compile the MPI peer on each node of the lab, in whose memory it is gone with the lab, however that ends; where the host keeps its
    temporary files, and whether programs may be started from there, is no matter. The system's mpicc knows where its MPI is."""
    if shutil.which("mpicc") is None:
        raise BenchError("peers need OpenMPI's compiler: apt-get install openmpi-bin libopenmpi-dev")
    source, program = Path(__file__).with_name("mpi_alltoallv.c"), INSIDE_TMP / "mpi_alltoallv"
    command = ["mpicc", "-O2", "-o", str(program), str(source)]
    with os.fdopen(os.memfd_create("log"), "w+b") as log:
        said = {1: log.fileno(), 2: log.fileno()}
        if lab.start([Program(command, node=node, fds=said) for node in range(lab.spec.nodes)]).wait() != 0:
            log.seek(0)
            raise BenchError(f"mpicc cannot build {source}:\n{log.read().decode(errors='replace').strip()}")
    return program
