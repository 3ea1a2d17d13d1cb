"""What to start in a lab."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Program:
    """One process to start: where, what, with which file descriptors (number there → number here)."""

    argv: list[str]
    rank: int | None = None
    node: int | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    fds: dict[int, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Program:
        """The inverse of `to_json`; JSON turns the numbers of `fds` into strings."""
        return cls(**{**value, "fds": {int(there): here for there, here in value["fds"].items()}})
