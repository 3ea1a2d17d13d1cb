"""Counters of a running job, from the files that the shim keeps in RAILWEAVE_METRICS: one a process, in Prometheus' text format."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from railweave.nccl import ShimError

__all__ = [
    "PATHS",
    "Look",
    "Nic",
    "NicRates",
    "Peer",
    "RankCounters",
    "Rates",
    "Traffic",
    "Unserved",
    "check_directory",
    "counted_from",
    "merged",
    "nic_rates",
    "parse",
    "rates",
    "read",
    "traffic",
]

# Written each second; a process that has not for so long has died without taking its file along, or does not run.
_SILENT_S = 15.0
# Of a file: a rank with 64 peers and 8 NICs writes some 32 kB, so these are 4,096 of them, which no process has.
_MOST_BYTES = 1 << 27

PATHS = ("direct", "relay", "host", "rail", "cross_rail")
# As the shim writes it, and as Prometheus reads it: a backslash in a value would have a meaning there.
_NAMED = r'[a-z_]\w*="[^"\\]*"'
_LABELS = rf"\{{({_NAMED}(?:,{_NAMED})*)\}}"
# ASCII digits, and no more than the shim's 64 and 32 bits take: int() knows neither `²`, which is a digit to str, nor 5,000 of them.
_LINE = re.compile(rf"^(\w+){_LABELS} ([0-9]{{1,20}})$", re.ASCII)
_RANK = re.compile(r"[0-9]{1,10}")
_HEAD = re.compile(r"^# (HELP|TYPE(?= \w+ (?:counter|gauge)$)) (\w+) .")
# Any family's description or value, and comments that are neither descriptions nor of what is not served.
_OTHER = re.compile(r"^(?:# (?:HELP|TYPE) (\w+)(?: |$)|(\w+)(?:\{.*\})? [-+.0-9IN]|#(?! (?:HELP|TYPE|communicator)(?: |$)))", re.ASCII)
# A comment to Prometheus: what it says has no end of values.
_UNSERVED = re.compile(rf"^# communicator {_LABELS}$", re.ASCII)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclasses.dataclass
class Nic:
    """A NIC of a rank's node. Its rate (bytes/s) and links, `down` and by name, are told by the rank that serves it."""

    sent: int = 0
    rate: int = 0
    links: int = 0
    down: int = 0
    peers_down: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Peer:
    """What a rank has exchanged with one, bytes."""

    sent: int = 0
    received: int = 0


@dataclasses.dataclass
class RankCounters:
    """A rank of a communicator since it was served. Bytes; `by_path` as PATHS, `nics` by name, `peers` by rank; `written`: when, by its
    file's clock (s)."""

    host: str
    communicator: str
    rank: int
    world: int
    enqueued: int = 0
    completed: int = 0
    sent: int = 0
    received: int = 0
    by_path: dict[str, int] = dataclasses.field(default_factory=dict)
    nics: dict[str, Nic] = dataclasses.field(default_factory=dict)
    peers: dict[int, Peer] = dataclasses.field(default_factory=dict)
    written: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Unserved:
    """A rank of a communicator that is left to NCCL, or has failed: `reason` in a word, and `text`, which may be empty."""

    communicator: str
    rank: int
    world: int
    state: str
    reason: str
    text: str


@dataclasses.dataclass
class Look:
    """What a job's processes say at one time: ranks that are served, by communicator and rank, and those that are not."""

    ranks: dict[tuple[str, int], RankCounters] = dataclasses.field(default_factory=dict)
    unserved: list[Unserved] = dataclasses.field(default_factory=list)
    processes: int = 0

    def add(self, other: Look) -> None:
        """What another process says."""
        self.ranks.update(other.ranks)
        self.unserved.extend(other.unserved)
        self.processes += other.processes


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a rank did between two writings of its file: bytes/s, all 0 and not `known` where it has been written once; `waiting` are
    messages under way at the second."""

    counters: RankCounters
    known: bool
    sent: float
    received: float
    by_path: dict[str, float]
    waiting: int


@dataclasses.dataclass(frozen=True)
class NicRates:
    """What went through a NIC, bytes/s, of each rank that sent, `known` where that is of one of its ranks; `rate`, 0 where it is unknown,
    is what it can."""

    host: str
    name: str
    rate: int
    links: int
    down: int
    peers_down: tuple[str, ...]
    known: bool
    by_rank: dict[tuple[str, int], float]

    @property
    def sent(self) -> float:
        """Of all ranks."""
        return sum(self.by_rank.values())


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What ranks of a communicator send each other, bytes/s, by source and destination, without pairs that move nothing. It is known where
    one of the two is in `told`: the ranks whose files are here."""

    communicator: str
    by_pair: dict[tuple[int, int], float]
    told: frozenset[int]


_MEMBERS = {
    "railweave_messages_enqueued_total": "enqueued",
    "railweave_messages_completed_total": "completed",
    "railweave_sent_bytes_total": "sent",
    "railweave_received_bytes_total": "received",
}
_NIC_MEMBERS = {
    "railweave_nic_bytes_total": "sent",
    "railweave_nic_bytes_per_second": "rate",
    "railweave_nic_links": "links",
    "railweave_nic_links_down": "down",
}
_PATH_BYTES, _LINK_DOWN = "railweave_path_bytes_total", "railweave_link_down"
_PEER_BYTES, _DIRECTIONS = "railweave_peer_bytes_total", ("sent", "received")
_TOLD_PEERS = 64  # of a rank, at most: those with the most bytes (src/nccl/metrics.cpp)
_OF_PROCESSES = ("railweave_communicators",)
_FAMILIES = frozenset({*_MEMBERS, *_NIC_MEMBERS, _PATH_BYTES, _LINK_DOWN, _PEER_BYTES, *_OF_PROCESSES})


def parse(text: str, source: str = "<string>", written: float = 0.0) -> Look:
    """What a process says, and wrote at that time; what only a newer shim says is passed over. Raises ShimError naming the line that is no
    counter of the shim."""
    look = Look(processes=1)
    for number, line in enumerate(_lines(text), start=1):
        if not line or _is_newer(line) or _HEAD.match(line):
            continue
        match = _UNSERVED.match(line) or _LINE.match(line)
        labels = dict(_LABEL.findall(match[1 if match.re is _UNSERVED else 2])) if match else {}
        if match and match.re is _LINE and match[1] in _OF_PROCESSES:
            continue
        if (
            not match
            or not {"host", "communicator", "rank", "world"} <= labels.keys()
            or not _RANK.fullmatch(labels["rank"])
            or not _RANK.fullmatch(labels["world"])
            or (match.re is _LINE and match[1] == _PEER_BYTES and not _names_peer(labels))
        ):
            raise ShimError(f"{source}:{number}: '{line[:80]}'; expected a counter as the shim writes it")
        key = (labels["communicator"], int(labels["rank"]))
        if match.re is _UNSERVED:
            why = (labels.get(name, "") for name in ("state", "reason", "text"))
            look.unserved.append(Unserved(*key, int(labels["world"]), *why))
        else:
            counters = look.ranks.setdefault(key, RankCounters(labels["host"], *key, int(labels["world"]), written=written))
            _take(counters, match[1], labels, int(match[3]))
    return look


def _lines(text: str) -> list[str]:
    """As the shim ends them: splitlines() would do so in the middle of a reason, too, at what other alphabets have for an end."""
    return text.split("\n")


def _is_newer(line: str) -> bool:
    """Of a family that this version does not know, whatever its values are, or a comment."""
    match = _OTHER.match(line)
    return match is not None and _FAMILIES.isdisjoint(match.groups())


def _names_peer(labels: dict[str, str]) -> bool:
    return labels.get("direction") in _DIRECTIONS and _RANK.fullmatch(labels.get("peer", "")) is not None


def _take(counters: RankCounters, name: str, labels: dict[str, str], value: int) -> None:
    if member := _MEMBERS.get(name):
        setattr(counters, member, value)
    elif name == _PATH_BYTES:
        counters.by_path[labels.get("path", "")] = value
    elif name == _PEER_BYTES:
        setattr(counters.peers.setdefault(int(labels["peer"]), Peer()), labels["direction"], value)
    elif "nic" in labels:
        nic = counters.nics.setdefault(labels["nic"], Nic())
        if member := _NIC_MEMBERS.get(name):
            setattr(nic, member, value)
        elif name == _LINK_DOWN:
            nic.peers_down.append(labels.get("peer", ""))


def check_directory(directory: Path) -> None:
    """Raises ShimError for what is no directory, or cannot be read."""
    _entries(directory)


def _entries(directory: Path) -> list[Path]:
    expected = "expected what RAILWEAVE_METRICS names in the job"
    try:
        return list(directory.iterdir())  # glob() takes a directory that cannot be read for an empty one
    except (FileNotFoundError, NotADirectoryError):
        raise ShimError(f"{directory} is no directory; {expected}") from None
    except OSError as error:
        raise ShimError(f"{directory}: cannot be read: {error.strerror}; {expected}") from error


def _files(directory: Path, left_out: Callable[[str], None]) -> list[Path]:
    """Of processes that are alive."""
    files = [(path, _age(path)) for path in _entries(directory) if path.name.startswith("railweave-") and path.suffix == ".prom"]
    if silent := sum(_SILENT_S <= age < float("inf") for _, age in files):
        which = "1 file that has" if silent == 1 else f"{silent} files that have"
        left_out(
            f"{which} not been written for {_SILENT_S:.0f} s, of processes that were killed or of hosts whose clocks differ from this one's"
        )
    return sorted(path for path, age in files if age < _SILENT_S)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")  # its process has just ended
    except OSError:
        return 0.0  # a link to itself, say: whoever reads it says so


def _text(path: Path) -> tuple[str, float] | None:
    """What is there, and when it was written. The shim writes each text into a file of its own, which takes the place of the one before."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ShimError(f"{path}: no file; expected counters as the shim writes them")
            if status.st_size > _MOST_BYTES:
                raise ShimError(f"{path}: more than {_MOST_BYTES} bytes; expected counters as the shim writes them")
            found = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None  # its process has just ended
    except OSError as error:
        raise ShimError(f"{path}: cannot be read: {error.strerror}; expected counters as the shim writes them") from error
    # An odd byte in a reason, as an older shim writes it, hides no counter.
    return found.decode(errors="replace"), status.st_mtime


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that somebody put there has perhaps no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _looks(directory: Path, left_out: Callable[[str], None]) -> Iterator[tuple[str, Look]]:
    """The text and what it says of each process that is alive; a file that is none of the shim's is named and hides no other, and those
    that are old are counted."""
    for path in _files(directory, left_out):
        try:
            if (found := _text(path)) is not None:
                text, written = found
                yield text, parse(text, str(path), written)
        except ShimError as error:
            left_out(str(error))


def read(directory: Path, left_out: Callable[[str], None]) -> Look:
    """Of all processes of the job that are alive. `left_out` hears why a file does not count."""
    look = Look()
    for _, of_process in _looks(directory, left_out):
        look.add(of_process)
    return look


def merged(directory: Path, left_out: Callable[[str], None]) -> str:
    """One text of all files, each family's description once, as Prometheus wants it: of several builds the first one's. Families that this
    version does not know are not in it, as nobody has looked whether they are as Prometheus wants them. `left_out` hears why a file does
    not count."""
    families: dict[str, tuple[dict[str, str], list[str]]] = {}
    for text, _ in _looks(directory, left_out):
        for line in _lines(text):
            if head := _HEAD.match(line):
                if head[2] in _FAMILIES:
                    families.setdefault(head[2], ({}, []))[0].setdefault(head[1], line)
            elif (sample := _LINE.match(line)) and sample[1] in _FAMILIES:
                families.setdefault(sample[1], ({}, []))[1].append(line)
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads.values(), *samples))


def counted_from(before: Look, last: Look, after: Look) -> Look:
    """The ranks of `after` as they were at the writing before: in `last`, or, where nothing has been written since, in the `before` of the
    last look. Files are written once a second: between two looks there may be several writings of one, or none."""
    result = Look()
    for key, new in after.ranks.items():
        old = last.ranks.get(key)
        if old is not None:
            result.ranks[key] = old if old.written != new.written else before.ranks.get(key, old)
    return result


def _in_both(before: Look, after: Look) -> Iterable[tuple[RankCounters, RankCounters]]:
    return ((before.ranks[key], new) for key, new in after.ranks.items() if key in before.ranks)


def _seconds(old: RankCounters, new: RankCounters) -> float:
    """Between the two writings; infinite, for rates of 0, where they are one."""
    return new.written - old.written if new.written > old.written else float("inf")


def _rate(old: int, new: int, seconds: float) -> float:
    """Bytes/s; 0 where the counter went back, as in a file that was begun anew."""
    return max(0, new - old) / seconds


def rates(before: Look, after: Look) -> list[Rates]:
    """Of the ranks in both, the busiest sender first."""
    result = []
    for old, new in _in_both(before, after):
        seconds = _seconds(old, new)
        sent, received = _rate(old.sent, new.sent, seconds), _rate(old.received, new.received, seconds)
        by_path = {path: _rate(old.by_path.get(path, 0), new.by_path.get(path, 0), seconds) for path in PATHS}
        result.append(Rates(new, new.written > old.written, sent, received, by_path, new.enqueued - new.completed))
    return sorted(result, key=lambda row: (-row.sent, row.counters.communicator, row.counters.rank))


def traffic(before: Look, after: Look) -> list[Traffic]:
    """Of each communicator in which anything moves, the busiest first. Where both ends of a pair say what it moves the source is believed,
    as their files are written at different moments."""
    pairs: dict[str, dict[tuple[int, int], float]] = {}
    told: dict[str, set[int]] = {}
    for old, new in _in_both(before, after):
        if new.written <= old.written:
            continue
        told.setdefault(new.communicator, set()).add(new.rank)
        of_communicator, seconds = pairs.setdefault(new.communicator, {}), _seconds(old, new)
        for rank, peer in new.peers.items():
            if rank not in old.peers and len(old.peers) >= _TOLD_PEERS:
                continue  # it was not among them, and may have had any number of bytes
            was = old.peers.get(rank, Peer())
            of_communicator[new.rank, rank] = _rate(was.sent, peer.sent, seconds)
            of_communicator.setdefault((rank, new.rank), _rate(was.received, peer.received, seconds))
    moving = {communicator: {pair: rate for pair, rate in found.items() if rate > 0} for communicator, found in pairs.items()}
    result = [Traffic(communicator, found, frozenset(told[communicator])) for communicator, found in moving.items() if found]
    return sorted(result, key=lambda each: (-sum(each.by_pair.values()), each.communicator))


def nic_rates(before: Look, after: Look) -> list[NicRates]:
    """Of the NICs of the ranks in both, by host and name. Communicators share a host's NICs: each has links of its own, and the most that
    are down in one of them count."""
    nics: dict[tuple[str, str], list[tuple[RankCounters, float, Nic]]] = {}
    known = set()
    for old, new in _in_both(before, after):
        for name, nic in new.nics.items():
            sent = _rate(old.nics.get(name, Nic()).sent, nic.sent, _seconds(old, new))
            nics.setdefault((new.host, name), []).append((new, sent, nic))
            if new.written > old.written:
                known.add((new.host, name))
    result = []
    for (host, name), uses in nics.items():
        worst = max((nic for *_, nic in uses), key=lambda nic: (nic.down, nic.links))
        by_rank = {(of.communicator, of.rank): sent for of, sent, _ in uses if sent > 0}
        rate = max(nic.rate for *_, nic in uses)
        result.append(NicRates(host, name, rate, worst.links, worst.down, tuple(worst.peers_down), (host, name) in known, by_rank))
    return sorted(result, key=lambda nic: (nic.host, _natural(nic.name)))


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """mlx5_2 comes before mlx5_10."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name))
