"""Counters of a running job, from the files that the shim keeps in RAILWEAVE_METRICS: one a process, in Prometheus' text format."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from railweave.nccl import ShimError

__all__ = ["PATHS", "RankCounters", "Rates", "merged", "parse", "rates", "read"]

# Written each second; a process that has not for so long has died without taking its file along, or does not run.
_SILENT_S = 15.0

PATHS = ("direct", "relay", "host", "rail", "cross_rail")
# ASCII digits, and no more than the shim's 64 and 32 bits take: int() knows neither `²`, which is a digit to str, nor 5,000 of them.
_LINE = re.compile(r'^(\w+)\{((?:\w+="[^"]*",?)+)\} ([0-9]{1,20})$')
_RANK = re.compile(r"[0-9]{1,10}")
_HEAD = re.compile(r"^# (?:HELP|TYPE) \w+ .")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclasses.dataclass
class RankCounters:
    """A rank of a communicator since it was served. Bytes; `by_path` as PATHS."""

    host: str
    communicator: str
    rank: int
    world: int
    enqueued: int = 0
    completed: int = 0
    sent: int = 0
    received: int = 0
    by_path: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a rank did between two looks: bytes/s, and messages under way at the second."""

    counters: RankCounters
    sent: float
    received: float
    by_path: dict[str, float]
    waiting: int


_MEMBERS = {
    "railweave_messages_enqueued_total": "enqueued",
    "railweave_messages_completed_total": "completed",
    "railweave_sent_bytes_total": "sent",
    "railweave_received_bytes_total": "received",
}


def parse(text: str, source: str = "<string>") -> dict[tuple[str, int], RankCounters]:
    """By communicator and rank. Raises ShimError naming the line that is no counter of the shim."""
    found: dict[tuple[str, int], RankCounters] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line:
            continue
        if line.startswith("#"):
            if not _HEAD.match(line):
                raise ShimError(f"{source}:{number}: '{line[:80]}'; expected a counter as the shim writes it")
            continue
        match = _LINE.match(line)
        labels = dict(_LABEL.findall(match[2])) if match else {}
        if (
            not match
            or not {"host", "communicator", "rank", "world"} <= labels.keys()
            or not _RANK.fullmatch(labels["rank"])
            or not _RANK.fullmatch(labels["world"])
        ):
            raise ShimError(f"{source}:{number}: '{line[:80]}'; expected a counter as the shim writes it")
        key = (labels["communicator"], int(labels["rank"]))
        counters = found.setdefault(key, RankCounters(labels["host"], key[0], key[1], int(labels["world"])))
        if member := _MEMBERS.get(match[1]):
            setattr(counters, member, int(match[3]))
        elif match[1] == "railweave_path_bytes_total":
            counters.by_path[labels.get("path", "")] = int(match[3])
    return found


def _files(directory: Path) -> list[Path]:
    """Of processes that are alive."""
    if not directory.is_dir():
        raise ShimError(f"{directory} is no directory; expected what RAILWEAVE_METRICS names in the job")
    return sorted(path for path in directory.glob("railweave-*.prom") if _age(path) < _SILENT_S)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")  # its process has just ended
    except OSError:
        return 0.0  # a link to itself, say: whoever reads it says so


def _text(path: Path) -> str:
    try:
        with open(path, opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ShimError(f"{path}: no file; expected counters as the shim writes them")
            return file.read()
    except FileNotFoundError:
        return ""  # its process has just ended
    except (OSError, UnicodeDecodeError) as error:
        raise ShimError(f"{path}: {error}; expected counters as the shim writes them") from error


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that somebody put there has perhaps no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _counters(directory: Path, left_out: Callable[[str], None]) -> Iterator[tuple[str, dict[tuple[str, int], RankCounters]]]:
    """The text and what it says of each process that is alive; a file that is none of the shim's is named and hides no other."""
    for path in _files(directory):
        try:
            text = _text(path)
            yield text, parse(text, str(path))
        except ShimError as error:
            left_out(str(error))


def read(directory: Path, left_out: Callable[[str], None]) -> dict[tuple[str, int], RankCounters]:
    """Of all processes of the job that are alive. `left_out` hears why a file does not count."""
    found: dict[tuple[str, int], RankCounters] = {}
    for _, counters in _counters(directory, left_out):
        found.update(counters)
    return found


def merged(directory: Path, left_out: Callable[[str], None]) -> str:
    """One text of all files, each family's description once, as Prometheus wants it. `left_out` hears why a file does not count."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for text, _ in _counters(directory, left_out):
        for line in text.splitlines():
            name = line.split()[2] if line.startswith("#") else line.partition("{")[0]
            head, samples = families.setdefault(name, ([], []))
            if not line.startswith("#"):
                samples.append(line)
            elif line not in head:
                head.append(line)
    return "".join(f"{line}\n" for head, samples in families.values() for line in (*head, *samples))


def rates(before: dict[tuple[str, int], RankCounters], after: dict[tuple[str, int], RankCounters], seconds: float) -> list[Rates]:
    """Of the ranks in both, the busiest sender first."""
    result = []
    for key in before.keys() & after.keys():
        old, new = before[key], after[key]
        by_path = {path: (new.by_path.get(path, 0) - old.by_path.get(path, 0)) / seconds for path in PATHS}
        result.append(
            Rates(new, (new.sent - old.sent) / seconds, (new.received - old.received) / seconds, by_path, new.enqueued - new.completed)
        )
    return sorted(result, key=lambda row: (-row.sent, row.counters.communicator, row.counters.rank))
