"""Processes of a benchmark on GPUs: one a rank and system, which stay between measurements; idle ones take no GPU time."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from railweave.bench.errors import BenchError, how_it_ended
from railweave.lab import Lab, Program
from railweave.lab.own_process import own_process
from railweave.nccl import preloaded

_LOOK_S = 0.2  # how often silent ranks are looked after
_CUDA_CUPTI = Path("/usr/local/cuda/extras/CUPTI/lib64")
_START_S = 120.0  # PyTorch loads 3 GB of libraries, from a cold disk once

# More channels for sends and receives than NCCL takes by itself: what helped most where NCCL starves NVLink (docs/results.md).
_TUNED = {"NCCL_MIN_P2P_NCHANNELS": "32", "NCCL_MAX_P2P_NCHANNELS": "32"}
# Over rails NCCL by itself takes two to four for each peer, for those on NVLink as well, since it goes by the least of all peers.
_TUNED_OVER_RAILS = {"NCCL_MIN_P2P_NCHANNELS": "16", "NCCL_NCHANNELS_PER_NET_PEER": "4"}


# By which a system's ranks know what they call (railweave.bench.gpus.interface); without it torch.distributed.
INTERFACE = "BENCH_INTERFACE"
_FOLDER = "{folder}"  # in a system's environment: that of its run


@dataclasses.dataclass(frozen=True)
class System:
    """How PyTorch's processes are started: what is compared."""

    name: str
    environment: Mapping[str, str]


SYSTEMS = (
    *("nccl", "nccl-tuned", "nccl-shim-off", "railweave", "railweave-torch", "railweave-torch-registered", "railweave-torch-async"),
    *("railweave-counters", "railweave-checksums", "railweave-nvtx"),
)


def shimmed() -> str:
    """LD_PRELOAD with the shim first."""
    return preloaded(os.environ)["LD_PRELOAD"]


def _cupti() -> str:
    """CUPTI of PyTorch's packages or of CUDA: a profiler that takes NVTX's ranges and does nothing with them."""
    packages = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (packages.submodule_search_locations or ())] if packages else []
    found = [*(path for place in places for path in place.glob("*/lib/libcupti.so*")), *_CUDA_CUPTI.glob("libcupti.so*")]
    if not found:
        raise BenchError("railweave-nvtx: no libcupti.so with PyTorch or CUDA, which is to listen")
    return str(found[0])


def systems(names: Sequence[str], other_nccl: Path | None, over_rails: bool = False) -> list[System]:
    """By name; `other_nccl`, a libnccl.so.2, is one more rival, nccl-other. `over_rails`: ranks are in several nodes of a lab."""
    own = shimmed()
    bare = own.partition(":")[2]
    found = {
        "nccl": System("nccl", {"LD_PRELOAD": bare}),
        "nccl-tuned": System("nccl-tuned", {"LD_PRELOAD": bare, **(_TUNED_OVER_RAILS if over_rails else _TUNED)}),
        "nccl-shim-off": System("nccl-shim-off", {"LD_PRELOAD": own, "RAILWEAVE_SHIM": "off"}),
        "railweave": System("railweave", {"LD_PRELOAD": own}),
        "railweave-torch": System("railweave-torch", {"LD_PRELOAD": bare, INTERFACE: "plain"}),
        "railweave-torch-registered": System("railweave-torch-registered", {"LD_PRELOAD": bare, INTERFACE: "registered"}),
        "railweave-torch-async": System("railweave-torch-async", {"LD_PRELOAD": bare, INTERFACE: "async"}),
        "railweave-counters": System("railweave-counters", {"LD_PRELOAD": own, "RAILWEAVE_METRICS": f"{_FOLDER}/counters"}),
        "railweave-checksums": System("railweave-checksums", {"LD_PRELOAD": own, "RAILWEAVE_CHECKSUM": "1"}),
    }
    if "railweave-nvtx" in names:
        found["railweave-nvtx"] = System("railweave-nvtx", {"LD_PRELOAD": own, "NVTX_INJECTION64_PATH": _cupti()})
    result = [found[name] for name in names]
    if other_nccl:
        result.insert(1, System("nccl-other", {"LD_PRELOAD": ":".join(filter(None, (str(other_nccl), bare)))}))
    return result


def under_mps() -> bool:
    """Do this machine's programs share GPUs through a Multi-Process Service? CUDA finds it by the same socket."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps") / "control").is_socket()


class Ranks(Protocol):
    """Processes, one a rank."""

    def ended(self) -> dict[int, int]:
        """Exit statuses of those that have ended."""

    def kill(self) -> None:
        """All at once."""


class LocalRanks:
    """Children of this process."""

    def __init__(
        self, module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], controls: Sequence[int], log: int
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for environment, control in zip(environments, controls, strict=True):
                self._processes.append(
                    subprocess.Popen(
                        own_process(module, str(control), *arguments),
                        env=dict(environment),
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                        pass_fds=[control],
                    )
                )
        except BaseException:
            self.kill()
            raise

    def ended(self) -> dict[int, int]:
        """Exit statuses of those that have ended."""
        return {rank: status for rank, process in enumerate(self._processes) if (status := process.poll()) is not None}

    def kill(self) -> None:
        """All at once."""
        for process in self._processes:
            process.kill()
            process.wait()


class LabRanks:
    """Programs in a lab, each where its rank is; environments come on top of what the lab gives them."""

    _CONTROL = 3

    def __init__(
        self,
        lab: Lab,
        module: str,
        arguments: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        controls: Sequence[int],
        log: int,
    ) -> None:
        argv = own_process(module, str(self._CONTROL), *arguments)
        self._job = lab.start(
            [
                Program(argv, rank=rank, env=dict(environment), fds={1: log, 2: log, self._CONTROL: control})
                for rank, (environment, control) in enumerate(zip(environments, controls, strict=True))
            ]
        )

    def ended(self) -> dict[int, int]:
        """Exit statuses of those that have ended."""
        if self._job.running:
            self._job.poll()
        return self._job.statuses

    def kill(self) -> None:
        """All at once."""
        self._job.close()


class Processes:
    """Ranks that answer commands, a line of JSON each; the first after ready()."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], lab: Lab | None = None
    ) -> None:
        """In a lab, or here; the module's first argument is the number of its control socket."""
        self.name = name
        self._log: IO[bytes] = os.fdopen(os.memfd_create("log"), "w+b")  # in memory: needs no folder
        self._doing = "starting"
        self.hello: dict[str, Any] = {}
        pairs = [socket.socketpair() for _ in environments]
        self._controls = [ours for ours, _ in pairs]
        common = (module, arguments, environments, [theirs.fileno() for _, theirs in pairs], self._log.fileno())
        try:
            self._ranks: Ranks = LabRanks(lab, *common) if lab else LocalRanks(*common)
        except BaseException:
            for ours in self._controls:
                ours.close()
            self._log.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()

    def ready(self) -> None:
        """Waits until all are up; rank 0 says what it runs on."""
        self.hello = self._collect(_START_S)[0]

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        """All ranks do it; their answers. Raises BenchError when one ends or says that it failed, or `timeout` seconds pass."""
        self._doing = do
        line = json.dumps({"do": do, **command}).encode() + b"\n"
        for control in self._controls:
            with contextlib.suppress(ConnectionError):  # ended() says how that rank ended
                control.sendall(line)
        return self._collect(timeout)

    def close(self) -> None:
        """They leave when they notice; those that do not are killed."""
        for control in self._controls:
            control.close()
        end = time.monotonic() + 20.0
        while time.monotonic() < end and len(self._ranks.ended()) < len(self._controls):
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """At once."""
        self._ranks.kill()
        for control in self._controls:
            control.close()
        self._log.close()

    def __enter__(self) -> Processes:
        """Themselves."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends them."""
        if kind is None:
            self.close()
        else:
            self.kill()

    def _collect(self, timeout: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        partial = [b""] * len(self._controls)
        end = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank, control in enumerate(self._controls):
                selector.register(control, selectors.EVENT_READ, rank)
            while len(answers) < len(self._controls):
                ready = selector.select(min(_LOOK_S, max(0.0, end - time.monotonic())))
                for key, _ in ready:
                    try:
                        data = self._controls[key.data].recv(1 << 20)
                    except ConnectionResetError:  # ended before it had read what it was told
                        data = b""
                    if data:
                        partial[key.data] += data
                    else:
                        selector.unregister(key.fileobj)
                    if partial[key.data].endswith(b"\n"):
                        answers[key.data] = json.loads(partial[key.data])
                        if why := answers[key.data].get("failed"):
                            raise BenchError(f"{self.name}, {self._doing}: rank {key.data}: {why}")
                if ready:
                    continue
                # In a lab a process that starts the ranks holds the sockets as well, so they do not say it.
                for rank, status in self._ranks.ended().items():
                    if rank not in answers:
                        raise self._failed(f"rank {rank} {how_it_ended(status)}")
                if time.monotonic() >= end:
                    missing = [rank for rank in range(len(self._controls)) if rank not in answers]
                    raise self._failed(f"no answer from rank {', '.join(map(str, missing[:8]))} within {timeout:.0f} s")
        return [answers[rank] for rank in range(len(self._controls))]

    def _failed(self, what: str) -> BenchError:
        time.sleep(0.5)  # the others say what they saw
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-40:]
        output = "".join(f"\n    {line}" for line in said)
        return BenchError(f"{self.name}, {self._doing}: {what}" + (f"; the last they said:{output}" if said else "; they said nothing"))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where ranks run: on this machine, one a GPU, or in a lab."""

    world: int
    lab: Lab | None = None
    # What each rank gets in a lab, by rank: which GPUs it sees, and how NCCL finds the rails.
    environments: tuple[Mapping[str, str], ...] = ()

    def environment(self, rank: int) -> dict[str, str]:
        """Of a rank, before what its system wants."""
        if self.lab:
            return dict(self.environments[rank])
        return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world)}


def start(chosen: System, place: Place, folder: Path) -> Processes:
    """The ranks of a system. `folder` holds the file by which they meet and what the shim logs; both end with the run."""
    log = {"RAILWEAVE_LOG": "info", "RAILWEAVE_LOG_FILE": str(folder / f"{chosen.name}.log.%p")}
    own = {name: value.replace(_FOLDER, str(folder)) for name, value in chosen.environment.items()}
    ranks = [{**place.environment(rank), **log, **own} for rank in range(place.world)]
    return Processes(chosen.name, "railweave.bench.gpus.worker", [str(folder / f"store-{chosen.name}")], ranks, place.lab)


@contextlib.contextmanager
def folder_for_run() -> Iterator[Path]:
    """A new one for temporary files, gone with the run. Raises BenchError where none can be made."""
    try:
        made = tempfile.TemporaryDirectory(prefix="railweave-")
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""  # else the text names the folders that were tried
        raise BenchError(f"no folder for temporary files: {error.strerror}{where}; set TMPDIR to one that can be written") from error
    with made as path:
        yield Path(path)


def check_served(name: str, folder: Path) -> None:
    """Raises BenchError with the shim's reason where it has left a communicator of the system to NCCL."""
    for path in sorted(folder.glob(f"{name}.log.*")):
        for line in path.read_text().splitlines():
            _, left, reason = line.partition(": left to NCCL: ")
            if left and reason != "it has one rank":
                raise BenchError(f"{name}: NCCL serves its exchanges, not Railweave: {reason}")


def calibrated(name: str, folder: Path) -> dict[str, str]:
    """Settings by which the system's ranks go because this machine was calibrated, as they say in their logs; those that somebody has set
    are not among them. Raises BenchError where they could not read the calibration."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob(f"{name}.log.*")):
        for line in path.read_text().splitlines():
            _, followed, rest = line.partition(": as calibrated (")
            if followed:
                settings = rest.partition("): ")[2].partition("; set otherwise: ")[0]
                found |= dict(each.split(" ") for each in settings.split(", ") if each != "nothing")
            head, damaged, reason = line.partition(": not as calibrated: ")
            if damaged and " WARN " in head:
                raise BenchError(f"{name}: its ranks cannot go by the calibration of this machine: {reason}")
    return found


def start_probe(gpus: int) -> Processes:
    """The probe sees as many GPUs as there are ranks."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")[:gpus]
    return Processes("probe", "railweave.bench.gpus.probe", [], [{**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)}])
