"""Processes of a benchmark on GPUs: one a rank and system, which stay between measurements; idle ones take no GPU time."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from railweave.bench.errors import BenchError
from railweave.nccl import preloaded

_START_S = 120.0  # PyTorch loads 3 GB of libraries, from a cold disk once

# More channels for sends and receives than NCCL takes by itself: what helped most where NCCL starves NVLink (docs/results.md).
_TUNED = {"NCCL_MIN_P2P_NCHANNELS": "32", "NCCL_MAX_P2P_NCHANNELS": "32"}


@dataclasses.dataclass(frozen=True)
class System:
    """How PyTorch's processes are started: what is compared."""

    name: str
    environment: Mapping[str, str]


SYSTEMS = ("nccl", "nccl-tuned", "railweave")


def systems(names: Sequence[str], other_nccl: Path | None) -> list[System]:
    """By name; `other_nccl`, a libnccl.so.2, is one more rival, nccl-other."""
    shimmed = preloaded(os.environ)["LD_PRELOAD"]
    bare = shimmed.partition(":")[2]
    found = {
        "nccl": System("nccl", {"LD_PRELOAD": bare}),
        "nccl-tuned": System("nccl-tuned", {"LD_PRELOAD": bare, **_TUNED}),
        "railweave": System("railweave", {"LD_PRELOAD": shimmed}),
    }
    result = [found[name] for name in names]
    if other_nccl:
        result.insert(1, System("nccl-other", {"LD_PRELOAD": ":".join(filter(None, (str(other_nccl), bare)))}))
    return result


class Processes:
    """Ranks that answer commands, a line of JSON each; the first after ready()."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the processes)
        self._doing = "starting"
        self._controls: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.hello: dict[str, Any] = {}
        try:
            for environment in environments:
                ours, theirs = socket.socketpair()
                self._controls.append(ours)
                with theirs:
                    command = [sys.executable, "-m", module, str(theirs.fileno()), *arguments]
                    self._processes.append(
                        subprocess.Popen(
                            command,
                            env=dict(environment),
                            stdout=self._log,
                            stderr=self._log,
                            stdin=subprocess.DEVNULL,
                            pass_fds=[theirs.fileno()],
                        )
                    )
        except BaseException:
            self.kill()
            raise

    def ready(self) -> None:
        """Waits until all are up; rank 0 says what it runs on."""
        self.hello = self._collect(_START_S)[0]

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        """All ranks do it; their answers. Raises BenchError when one ends, or `timeout` seconds pass."""
        self._doing = do
        line = json.dumps({"do": do, **command}).encode() + b"\n"
        for control in self._controls:
            control.sendall(line)
        return self._collect(timeout)

    def close(self) -> None:
        """They leave when they notice; those that do not are killed."""
        for control in self._controls:
            control.close()
        end = time.monotonic() + 20.0
        while time.monotonic() < end and any(process.poll() is None for process in self._processes):
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """At once."""
        for process in self._processes:
            process.kill()
            process.wait()
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
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready and time.monotonic() >= end:
                    missing = [rank for rank in range(len(self._controls)) if rank not in answers]
                    raise self._failed(f"no answer from rank {', '.join(map(str, missing[:8]))} within {timeout:.0f} s")
                for key, _ in ready:
                    data = self._controls[key.data].recv(1 << 20)
                    if not data:
                        raise self._failed(f"rank {key.data} ended with status {self._processes[key.data].wait()}")
                    partial[key.data] += data
                    if partial[key.data].endswith(b"\n"):
                        answers[key.data] = json.loads(partial[key.data])
        return [answers[rank] for rank in range(len(self._controls))]

    def _failed(self, what: str) -> BenchError:
        time.sleep(0.5)  # the others say what they saw
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-40:]
        output = "".join(f"\n    {line}" for line in said)
        return BenchError(f"{self.name}, {self._doing}: {what}" + (f"; the last they said:{output}" if said else "; they said nothing"))


def start(chosen: System, gpus: int, folder: Path) -> Processes:
    """The ranks of a system. `folder` holds the file by which they meet, which ends with the run."""
    store = folder / f"store-{chosen.name}"
    base = {**os.environ, **chosen.environment}
    ranks = [{**base, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(gpus)} for rank in range(gpus)]
    return Processes(chosen.name, "railweave.bench.gpus.worker", [str(store)], ranks)


def start_probe(gpus: int) -> Processes:
    """The probe sees as many GPUs as there are ranks."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")[:gpus]
    return Processes("probe", "railweave.bench.gpus.probe", [], [{**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)}])
