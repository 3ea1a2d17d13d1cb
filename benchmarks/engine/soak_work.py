"""What the ranks of a soak do: rounds of operations on several exchanges, drawn from a seed alike by all ranks and by the driver."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

_ITEMS = ("u1", "<i2", "<f4", "<f8", "<c16", "V3")
_PATTERNS = ("balanced", "hot pair", "incast", "outcast", "skewed", "sparse", "own", "nothing")
_EDGES = (4096, 8192, 65536, 131072, 262144)  # of credits, small messages and chunks
_ROUND_BYTES = 24 << 20  # of an exchange: some seconds on the slowest rails
_LARGEST = 4 << 20

# Settings that all ranks of an exchange share: what can be full is full, and the defaults.
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"chunk_bytes": 4096, "multipath_min_bytes": 8192, "slots_per_writer": 2, "rx_slots": 3, "link_window": 1},
    {"chunk_bytes": 16384, "multipath_min_bytes": 0, "slots_per_writer": 6, "rx_slots": 8, "link_window": 3, "eager_bytes": 0},
    {"eager_bytes": 4096, "spin_us": 0},
    {"policy": "single-path"},
)


@dataclasses.dataclass(frozen=True)
class Message:
    """Bytes from one rank to another. `received` differs from `bytes` where the ends are to disagree."""

    source: int
    destination: int
    bytes: int
    received: int
    tag: int


@dataclasses.dataclass(frozen=True)
class Operation:
    """An all_to_all_v of all ranks, or a group of each rank that has a message in it."""

    collective: bool
    communicator: int
    item: str
    messages: tuple[Message, ...]

    @property
    def disagrees(self) -> bool:
        """Whether sizes differ between the two ends."""
        return any(message.bytes != message.received for message in self.messages)

    def of(self, rank: int) -> tuple[list[Message], list[Message]]:
        """What a rank sends and receives, in the order in which it posts."""
        return (
            [message for message in self.messages if message.source == rank],
            [message for message in self.messages if message.destination == rank],
        )

    def __str__(self) -> str:
        """For reports."""
        what = "all_to_all_v" if self.collective else "group"
        pairs = ", ".join(
            f"{m.source}→{m.destination} {m.bytes}" + (f" (receives {m.received})" if m.received != m.bytes else "") for m in self.messages
        )
        return f"{what} on communicator {self.communicator}: {pairs or 'nothing'}"


@dataclasses.dataclass(frozen=True)
class Work:
    """What happens on one exchange in a round: batches of operations that are under way together."""

    name: str
    settings: dict[str, Any]
    over_tcp: bool  # how its ranks meet
    closed: bool  # by close(), or by letting go of it
    batches: tuple[tuple[Operation, ...], ...]

    def operation(self, batch: int, index: int) -> Operation:
        """One of them."""
        return self.batches[batch][index]


class _Draw:
    def __init__(self, seed: str, world: int) -> None:
        self.random, self.world = random.Random(seed), world
        self.left = _ROUND_BYTES
        self.tags = itertools.count(self.random.randrange(1 << 23))

    def size(self) -> int:
        kind = self.random.random()
        if kind < 0.1:
            size = 0
        elif kind < 0.3:
            size = self.random.randrange(1, 64)
        elif kind < 0.5:
            size = self.random.randrange(1, 9000)
        elif kind < 0.65:
            size = self.random.choice(_EDGES) * self.random.randrange(1, 4) + self.random.randrange(-2, 3)
        elif kind < 0.93:
            size = self.random.randrange(1 << 20)
        else:
            size = self.random.randrange(_LARGEST)
        if size > max(self.left, 0):
            size = self.random.randrange(200)
        self.left -= size
        return size

    def message(self, source: int, destination: int, size: int) -> Message:
        return Message(source, destination, size, size, next(self.tags) & 0xFFFFFF)

    def collective(self, communicator: int) -> Operation:
        item = self.random.choice(_ITEMS)
        width = {"u1": 1, "<i2": 2, "<f4": 4, "<f8": 8, "<c16": 16, "V3": 3}[item]
        pattern, special = self.random.choice(_PATTERNS), self.random.randrange(self.world)
        same, part = self.size() // self.world, self.random.random()
        messages = []
        for source, destination in itertools.product(range(self.world), repeat=2):
            if pattern == "balanced":
                size = same
            elif pattern == "hot pair":
                size = self.size() if (source, destination) == (special, (special + self.world // 2) % self.world) else 100
            elif pattern == "incast":
                size = self.size() if destination == special else 0
            elif pattern == "outcast":
                size = self.size() if source == special else 0
            elif pattern == "skewed":
                size = self.size() // (1 + (source + destination) % self.world)
            elif pattern == "sparse":
                size = self.size() if self.random.random() < part else 0
            elif pattern == "own":
                size = self.size() if source == destination else 0
            else:
                size = 0
            messages.append(self.message(source, destination, size // width * width))
        return Operation(True, communicator, item, tuple(messages))

    def group(self, communicator: int) -> Operation:
        messages = []
        for _ in range(self.random.randrange(1, 3 * self.world)):
            source, destination = self.random.randrange(self.world), self.random.randrange(self.world)
            messages += [self.message(source, destination, self.size()) for _ in range(self.random.choice((1, 1, 1, 2, 5)))]
        return Operation(False, communicator, "u1", tuple(messages))

    def disagreement(self, communicator: int) -> Operation:
        source = self.random.randrange(self.world)
        destination = (source + self.random.randrange(1, self.world)) % self.world
        sent = self.size() + 1
        received = sent + self.random.choice((1, 1000, 200_000))
        if self.random.random() < 0.5:
            sent, received = received, sent
        return Operation(False, communicator, "u1", (Message(source, destination, sent, received, next(self.tags) & 0xFFFFFF),))

    def operation(self) -> Operation:
        kind, communicator = self.random.random(), self.random.choice((0, 0, 7, 0xFFFFFFFF))
        if kind < 0.05 and self.world > 1:
            return self.disagreement(communicator)
        return self.collective(communicator) if kind < 0.5 else self.group(communicator)

    def batch(self) -> tuple[Operation, ...]:
        return tuple(self.operation() for _ in range(self.random.choice((1, 1, 2, 3, 4, 6))))


def main_settings(seed: str) -> dict[str, Any]:
    """Of the exchange that lasts as long as its ranks."""
    return random.Random(f"{seed}/settings").choice(_SETTINGS)


def draw(seed: str, world: int) -> list[Work]:
    """A round: work on the exchange that lasts, and on exchanges made for the round."""
    first = _Draw(f"{seed}/main", world)
    works = [Work("main", {}, False, False, tuple(first.batch() for _ in range(first.random.randrange(2, 7))))]
    for number in range(first.random.choice((0, 1, 1, 2, 3))):
        other = _Draw(f"{seed}/{number}", world)
        batches = tuple(other.batch() for _ in range(other.random.choice((0, 1, 1, 2))))
        settings = other.random.choice(_SETTINGS)
        works.append(Work(f"e{number}", settings, other.random.random() < 0.5, other.random.random() < 0.7, batches))
    return works


def aftermath(seed: str, world: int) -> list[Work]:
    """Operations for when ranks have died: those with them fail, those without go on."""
    some = _Draw(f"{seed}/aftermath", world)
    operations = (some.collective(0), some.group(0), some.collective(7), some.group(7), some.group(9))
    return [Work("main", {}, False, False, (operations,))]


def each(works: list[Work]) -> Iterator[Operation]:
    """All operations of a round."""
    return (operation for work in works for batch in work.batches for operation in batch)
