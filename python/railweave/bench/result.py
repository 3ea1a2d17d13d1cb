"""What a benchmark found, and its JSON form (schema/bench.schema.json)."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import itertools
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
from railweave.fields import Fields, shown
from railweave.lab.spec import ISOLATIONS

FORMAT, VERSION = "railweave-bench", 1
_KIND = "a result of `railweave bench`"

# Beyond what any run has, within what rates and pictures of them can be worked out for.
_LEAST_S, _MOST_S = 1e-15, 1e9
_MOST = 1 << 63
_MOST_OF_LAB = 1024


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
    bound_seconds: float  # the least for it; see docs/bench.md
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
        """Read the JSON document. Raises BenchError naming the file and the place in it."""
        return cls.parse(_Reader(path, _KIND, BenchError).file(), path)

    @classmethod
    def parse(cls, text: str, source: Path) -> Run:
        """The same of a text that was read before; `source` is its file in errors."""
        reader = _Reader(source, _KIND, BenchError)
        return reader.run(reader.document(text, FORMAT, VERSION))

    def matrices(self) -> list[str]:
        """In the order they ran."""
        return list(dict.fromkeys(result.matrix for result in self.results))

    def policies(self) -> list[str]:
        """In the order they were asked for."""
        return list(dict.fromkeys(result.policy for result in self.results))

    def find(self, matrix: str, policy: str) -> Result:
        """The result of this pair."""
        return next(each for each in self.results if (each.matrix, each.policy) == (matrix, policy))


class _Reader(Fields):
    """Checks what the page and the table go by, so that neither fails halfway.

    What else stands in `machine`, `versions`, `lab` and `results` passes: it follows from the rest, or another version wrote it.
    """

    def run(self, found: dict[str, Any]) -> Run:
        self.only_keys("the whole", found, ("format", "version", *(field.name for field in dataclasses.fields(Run))))
        lab = self._lab(found["lab"])
        results = [self._result(f"results[{place}]", each, lab) for place, each in enumerate(self.rows("results", found["results"], 1))]
        run = Run(
            self.text("date", found["date"]),
            self.text("command", found["command"]),
            self._machine(found["machine"]),
            {name: self.text(f"versions.{name}", text) for name, text in self.keys("versions", found["versions"], ()).items()},
            lab,
            self.text("fabric", found["fabric"]),
            results,
        )
        there = {(each.matrix, each.policy) for each in results}
        for pair in itertools.product(run.matrices(), run.policies()):
            if pair not in there:
                matrix, policy = map(shown, pair)
                raise BenchError(f"{self.source}: results: none for matrix {matrix} under {policy}; expected every policy for every matrix")
        return run

    def _machine(self, found: object) -> dict[str, Any]:
        machine = self.keys("machine", found, ("cpu", "cores", "memory_bytes", "kernel"))
        for name in ("cpu", "kernel"):
            self.text(f"machine.{name}", machine[name])
        self.whole("machine.cores", machine["cores"], 1, _MOST)
        self.whole("machine.memory_bytes", machine["memory_bytes"], 0, _MOST)
        for name in ("cpu_stolen", "cpu_others"):
            if name in machine:
                self.number(f"machine.{name}", machine[name], 0.0, 1.0, "a share from 0 to 1")
        return machine

    def _lab(self, found: object) -> dict[str, Any]:
        lab = self.keys("lab", found, ("nodes", "gpus", "rails", "rate", "spine_rate", "isolation", "mtu"))
        for name in ("nodes", "gpus", "rails"):
            self.whole(f"lab.{name}", lab[name], 1, _MOST_OF_LAB)
        for name in ("rate", "spine_rate", "mtu"):
            self.whole(f"lab.{name}", lab[name], 1, _MOST)
        if lab["isolation"] not in ISOLATIONS:
            raise self.fail("lab.isolation", lab["isolation"], f"one of {', '.join(ISOLATIONS)}")
        return lab

    def _result(self, at: str, found: object, lab: dict[str, Any]) -> Result:
        row = self.keys(at, found, tuple(field.name for field in dataclasses.fields(Result)))
        seconds = self.rows(f"{at}.seconds", row["seconds"], 1)
        for place, each in enumerate(seconds):
            self.number(f"{at}.seconds[{place}]", each, _LEAST_S, _MOST_S, f"a positive number of seconds ({_LEAST_S:g} to {_MOST_S:g})")
        bound = self.number(
            f"{at}.bound_seconds",
            row["bound_seconds"],
            _LEAST_S if row["bound_seconds"] else 0,
            _MOST_S,
            f"0 or a positive number of seconds ({_LEAST_S:g} to {_MOST_S:g})",
        )
        return Result(
            self.text(f"{at}.policy", row["policy"]),
            self.text(f"{at}.matrix", row["matrix"]),
            seconds,
            self.whole(f"{at}.bytes", row["bytes"], 0, _MOST),
            bound,
            None if row["wrong"] is None else self.text(f"{at}.wrong", row["wrong"]),
            [self._rail(f"{at}.rails[{place}]", each, lab) for place, each in enumerate(self.rows(f"{at}.rails", row["rails"]))],
        )

    def _rail(self, at: str, found: object, lab: dict[str, Any]) -> RailBytes:
        row = self.keys(at, found, tuple(field.name for field in dataclasses.fields(RailBytes)))
        return RailBytes(
            self.whole(f"{at}.node", row["node"], 0, lab["nodes"] - 1),
            self.whole(f"{at}.rail", row["rail"], 0, lab["rails"] - 1),
            *(self.whole(f"{at}.{name}", row[name], 0, _MOST) for name in ("tx_bytes", "rx_bytes")),
        )


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
