"""What a benchmark found, and its JSON form (schema/bench.schema.json)."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from railweave.bench.errors import BenchError
from railweave.bench.timed import Timed

FORMAT, VERSION = "railweave-bench", 1


@dataclasses.dataclass(frozen=True)
class RailBytes:
    """Bytes through a NIC in one exchange, as the kernel counted them at its switch port (median over the repetitions)."""

    node: int
    rail: int
    tx_bytes: int
    rx_bytes: int


@dataclasses.dataclass(frozen=True)
class Result(Timed):
    """One matrix under one policy or peer."""

    policy: str
    matrix: str
    seconds: list[float]
    bytes: int  # payload between different ranks
    bound_seconds: float  # no routing can be faster; see docs/bench.md
    wrong: str | None  # first wrong byte
    rails: list[RailBytes]

    @property
    def gbps(self) -> float:
        """Effective rate: payload over median time, 10^9 bytes per second."""
        return self.rate(self.bytes)

    def to_json(self) -> dict[str, Any]:
        """An element of `results`."""
        return {
            "policy": self.policy,
            "matrix": self.matrix,
            "seconds_median": self.seconds_median,
            "seconds_min": min(self.seconds),
            "seconds_max": max(self.seconds),
            "seconds": self.seconds,
            "bytes": self.bytes,
            "gbps": self.gbps,
            "bound_seconds": self.bound_seconds,
            "bound_fraction": self.bound_fraction,
            "bytes_ok": self.wrong is None,
            "wrong": self.wrong,
            "rails": [dataclasses.asdict(each) for each in self.rails],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        """The inverse of `to_json`."""
        rails = [RailBytes(**each) for each in value["rails"]]
        kept = {name: value[name] for name in ("policy", "matrix", "seconds", "bytes", "bound_seconds", "wrong")}
        return cls(**kept, rails=rails)


@dataclasses.dataclass(frozen=True)
class Run:
    """A whole benchmark with its circumstances."""

    date: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    lab: dict[str, Any]
    fabric: str  # where the wiring came from
    results: list[Result]

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        head = {"format": FORMAT, "version": VERSION}
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**head, **body, "results": [result.to_json() for result in self.results]}

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read the JSON document. Raises BenchError naming the file."""
        try:
            value = json.loads(path.read_text())
            if not isinstance(value, dict) or (value.pop("format", None), value.pop("version", None)) != (FORMAT, VERSION):
                raise ValueError(f"expected format {FORMAT}, version {VERSION}")
            if not value.get("results"):
                raise ValueError("expected at least one entry in 'results'")
            return cls(**{**value, "results": [Result.from_json(each) for each in value["results"]]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path}: not a result of `railweave bench`: {error}") from error

    def matrices(self) -> list[str]:
        """In the order they ran."""
        return list(dict.fromkeys(result.matrix for result in self.results))

    def policies(self) -> list[str]:
        """In the order they were asked for."""
        return list(dict.fromkeys(result.policy for result in self.results))

    def find(self, matrix: str, policy: str) -> Result:
        """The result of this pair."""
        return next(each for each in self.results if (each.matrix, each.policy) == (matrix, policy))


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def command_line() -> str:
    """What was typed."""
    name = Path(sys.argv[0]).name
    return shlex.join(["railweave" if name == "__main__.py" else name, *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """The machine that a figure belongs to."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": cpu[1].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory[1]) * 1024 if memory else 0,
        "kernel": platform.release(),
    }


def versions(peers: bool) -> dict[str, str]:
    """Of everything that takes part."""
    found = {"railweave": importlib.metadata.version("railweave"), "python": platform.python_version()}
    if peers:
        for name, command, pattern in (
            ("openmpi", ["mpirun", "--version"], r"(\d+\.\d+\.\d+)"),
            ("peers' ucx", ["dpkg-query", "-W", "-f", "${Version}", "libucx0"], r"(\S+)"),
        ):
            try:
                match = re.search(pattern, subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            except (OSError, subprocess.CalledProcessError):
                match = None
            if match:
                found[name] = match[1]
    return found
