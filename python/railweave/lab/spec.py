"""What a lab looks like: nodes, ranks, rails, rates, and the address of each NIC."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from railweave.lab.errors import LabError

ISOLATIONS = ("node", "gpu")

# Ethernet + IPv4 + TCP with timestamps: what a segment of `mtu` bytes carries besides its payload, as tbf counts it.
_FRAME_HEADER = 14
_SEGMENT_HEADERS = 20 + 32

# tbf takes rates up to 2^32 bytes/s in the form that every kernel understands.
MAX_RATE = 32 * 10**9

MTU = (68, 65535)  # RFC 791's least; veth's most

_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_rate(text: str) -> int:
    """Bits per second from `400mbit`, `8gbit`, `1.5gbit` (the notation of tc)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)", text.strip().lower())
    if not match:
        raise LabError(f"rate '{text}': expected a number and one of bit, kbit, mbit, gbit, such as 400mbit")
    rate = float(match[1]) * _RATE_UNITS[match[2]]  # infinite with hundreds of digits
    if not 10**6 <= rate <= MAX_RATE:
        raise LabError(f"rate '{text}': expected between 1mbit and 32gbit")
    return round(rate)


def parse_shape(text: str) -> tuple[int, int]:
    """(nodes, GPUs a node) from `2x4`."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text.strip())
    if not match:
        raise LabError(f"lab shape '{text}': expected NODESxGPUS, such as 2x4")
    return int(match[1]), int(match[2])


@dataclasses.dataclass(frozen=True)
class Nic:
    """A NIC of a node. `ranks` may use it; with `gpu` isolation they share it like virtual functions when there are several."""

    node: int
    rail: int
    ranks: tuple[int, ...]

    @property
    def interface(self) -> str:
        """The interface's name inside the node."""
        return f"rail{self.rail}"

    def address(self, function: int = 0) -> str:
        """The address of the NIC, or of its n-th virtual function."""
        return f"10.{self.rail + 1}.{self.node}.{function + 1}"


@dataclasses.dataclass(frozen=True)
class LabSpec:
    """A lab. Rates are in bits per second, sizes in bytes."""

    nodes: int
    gpus: int
    rails: int = 0  # 0: one a GPU
    rate: int = 400_000_000
    spine_rate: int = 0  # of each leaf's uplink; 0: as much as all NICs of the leaf together (no oversubscription), at most MAX_RATE
    isolation: str = "gpu"
    mtu: int = 9000  # goodput 99.3% of the shaped rate, where 1500 gives 95.6% (docs/lab.md)

    def __post_init__(self) -> None:
        """Fill in defaults that depend on other fields, and refuse what cannot be built."""
        if self.rails == 0:
            object.__setattr__(self, "rails", self.gpus)
        for name, low, high in (("nodes", 1, 250), ("gpus", 1, 64), ("rails", 1, 64), ("mtu", *MTU)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise LabError(f"lab {name} = {value}: expected {low} to {high}")
        if self.world > 256:
            raise LabError(f"a lab of {self.world} ranks: expected at most 256 on one machine")
        if self.isolation not in ISOLATIONS:
            raise LabError(f"isolation '{self.isolation}': expected one of {', '.join(ISOLATIONS)}")
        if self.gpus % self.rails and self.rails % self.gpus:
            raise LabError(f"{self.rails} rails for {self.gpus} GPUs a node: expected one number to divide the other")
        if self.spine_rate == 0:
            object.__setattr__(self, "spine_rate", min(self.rate * self.nodes, MAX_RATE))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus

    @property
    def oversubscription(self) -> float:
        """What a leaf's NICs have together, in parts of its uplink."""
        return self.rate * self.nodes / self.spine_rate

    @property
    def shape(self) -> str:
        """As written on the command line."""
        return f"{self.nodes}x{self.gpus}"

    @property
    def frame(self) -> int:
        """Bytes of the largest frame, as tbf counts them."""
        return self.mtu + _FRAME_HEADER

    @property
    def goodput(self) -> float:
        """Payload bytes per second that a TCP connection gets through one rail."""
        return self.rate / 8 * (self.mtu - _SEGMENT_HEADERS) / self.frame

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.gpus

    def rails_of(self, local_rank: int) -> list[int]:
        """The rails whose NIC belongs to this local rank: its own ones, or the one it shares.

        In the order of ranks, because that is how the engine counts a node's NICs, and a fabric's must be the same ones.
        """
        if self.rails >= self.gpus:
            each = self.rails // self.gpus
            return list(range(local_rank * each, (local_rank + 1) * each))
        return [local_rank * self.rails // self.gpus]

    def nics(self) -> list[Nic]:
        """All NICs, by node and rail."""
        return [
            Nic(node, rail, tuple(node * self.gpus + g for g in range(self.gpus) if rail in self.rails_of(g)))
            for node in range(self.nodes)
            for rail in range(self.rails)
        ]

    def rank_address(self, rank: int) -> str:
        """The address by which the others reach a rank."""
        local = rank % self.gpus
        rail = self.rails_of(local)[0]
        return f"10.{rail + 1}.{self.node_of(rank)}.{self._function(local, rail) + 1}"

    def _function(self, local_rank: int, rail: int) -> int:
        if self.isolation == "node":
            return 0
        return [g for g in range(self.gpus) if rail in self.rails_of(g)].index(local_rank)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LabSpec:
        """The inverse of `to_json`."""
        return cls(**value)


def host_address(node: int) -> str:
    """Address of a node's own namespace with `gpu` isolation, on a network for launchers that no rank sees."""
    return f"172.31.{1 + node // 250}.{1 + node % 250}"
