"""Faults of a soak: which come when in a round, drawn from a seed, and the thread that makes them."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from railweave.lab import LabSpec

# Bytes that a NIC holds back before it drops. None at all: nothing gets out, and all gets in. Less than a large frame: acknowledgements and
# small messages pass, what is large does not. Some frames: bursts lose their ends.
_QUEUES = {"mute": 40, "black hole": 2000, "lossy": 30_000}
_MILD = ("down", "flap", "slow", "stop", *_QUEUES, "cut")
_BEGINS_S = (0.3, 2.0)  # a round takes 0.3 s on fast rails of an idle machine, and seconds on others
_LONGEST_S = 5.0
_LONGEST_STOP_S = 3.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """One of them: from `at` seconds after the round's start for `lasts` seconds; for ever if it is deadly."""

    kind: str
    at: float
    lasts: float
    node: int = 0
    rail: int = 0
    ranks: tuple[int, ...] = ()
    rate: int = 0

    @property
    def deadly(self) -> bool:
        """Whether ranks are gone after it."""
        return self.kind in ("kill", "cut for good")

    def __str__(self) -> str:
        """For reports."""
        where = {
            "kill": f"ranks {self.ranks}",
            "stop": f"rank {self.ranks}",
            "cut": f"node {self.node}",
            "cut for good": f"node {self.node}",
        }
        what = f"{self.kind} {where.get(self.kind, f'node {self.node} rail {self.rail}')}"
        return f"{what}{f' to {self.rate / 1e6:g} mbit' if self.rate else ''} at {self.at:.2f} s" + (
            "" if self.deadly else f" for {self.lasts:.2f} s"
        )


def draw(seed: str, spec: LabSpec, *, deadly: bool, cuts: bool) -> list[Fault]:
    """Of a round. `deadly`: one that ranks do not survive is among them; `cuts`: that may be a node of which nothing is heard any more."""
    draws = random.Random(f"{seed}/faults")
    kinds = [kind for kind in _MILD if spec.nodes > 1 or kind == "stop"]
    if spec.isolation == "gpu" and spec.rails < spec.gpus:  # the NIC is not the ranks' own
        kinds = [kind for kind in kinds if kind not in _QUEUES]
    faults = []
    for _ in range(draws.choice((0, 1, 1, 2, 3))):
        kind = draws.choice(kinds)
        lasts = draws.choice((0.05, 0.3, 1.0, 2.0, _LONGEST_S)) * draws.uniform(0.5, 1.0)
        fault = Fault(kind, draws.uniform(0, draws.choice(_BEGINS_S)), lasts, draws.randrange(spec.nodes), draws.randrange(spec.rails))
        if kind == "stop":
            fault = dataclasses.replace(fault, lasts=min(lasts, _LONGEST_STOP_S), ranks=(draws.randrange(spec.world),))
        elif kind == "slow":
            fault = dataclasses.replace(fault, rate=max(10**6, spec.rate // draws.choice((2, 5, 20, 100))))
        faults.append(fault)
    if deadly:
        faults += _deadly(draws, spec, cuts)
        cut = {fault.node for fault in faults if fault.kind == "cut for good"}
        faults = [fault for fault in faults if fault.deadly or fault.kind == "stop" or fault.node not in cut]  # whose end would mend it
    return sorted(faults, key=lambda fault: fault.at)


def _deadly(draws: random.Random, spec: LabSpec, cuts: bool) -> list[Fault]:
    at, first = draws.uniform(0, draws.choice(_BEGINS_S)), draws.randrange(spec.world)
    if not cuts:
        # Its mates have to tell the other nodes, over another NIC than its own.
        told = spec.nodes == 1 or (spec.gpus > 1 and spec.rails >= spec.gpus)
        return [Fault("kill", at, 0.0, ranks=(first,))] if told else []
    if spec.nodes > 1 and draws.random() < 0.3:
        return [Fault("cut for good", at, 0.0, draws.randrange(spec.nodes))]
    node = first - first % spec.gpus
    several = draws.choice(((first,), (first,), tuple(sorted({first, draws.randrange(spec.world)})), tuple(range(node, node + spec.gpus))))
    return [Fault("kill", at, 0.0, ranks=several if len(several) < spec.world else (first,))]


class Actions(Protocol):
    """What a saboteur can do; the driver's ranks and lab do it."""

    def set_link(self, node: int, rail: int, *, up: bool | None = None, rate: int | None = None) -> None:
        """As Lab.set_link."""

    def set_queue(self, node: int, rail: int, limit: int) -> None:
        """How many bytes the NIC holds back before it drops."""

    def stop(self, rank: int, stopped: bool) -> None:
        """SIGSTOP or SIGCONT."""

    def kill(self, ranks: tuple[int, ...]) -> None:
        """SIGKILL."""


class Saboteur(threading.Thread):
    """Makes the faults of a round and mends them again; deadly ones come at the latest when hurry() is called, and stay."""

    def __init__(self, faults: list[Fault], spec: LabSpec, do: Actions, say: Callable[[str], None]) -> None:
        super().__init__(name="saboteur", daemon=True)
        self.spec, self.do, self.say = spec, do, say
        self.error: BaseException | None = None
        self.made: set[Fault] = set()
        self._over = threading.Event()
        self._steps: list[tuple[float, Fault, bool]] = []
        for fault in faults:
            self._steps += [(fault.at, fault, True)] + ([] if fault.deadly else [(fault.at + fault.lasts, fault, False)])
            if fault.kind == "flap":
                self._steps += [(fault.at + fault.lasts * part, fault, part in (0.4, 0.8)) for part in (0.2, 0.4, 0.6, 0.8)]
        self._steps.sort(key=lambda step: step[0])

    def hurry(self) -> None:
        """There is nothing more to disturb."""
        self._over.set()

    def run(self) -> None:
        """One step after the other."""
        begin = time.monotonic()
        try:
            for at, fault, begins in self._steps:
                late = self._over.wait(max(0.0, begin + at - time.monotonic()))
                if late and not fault.deadly and fault not in self.made:
                    continue
                self.made.add(fault)
                self.say(f"{'begin' if begins else 'end'} of {fault}")
                self._apply(fault, begins)
        except BaseException as error:
            self.error = error

    def _apply(self, fault: Fault, begins: bool) -> None:
        if fault.kind in ("down", "flap"):
            self.do.set_link(fault.node, fault.rail, up=not begins)
        elif fault.kind in ("cut", "cut for good"):
            for rail in range(self.spec.rails):
                self.do.set_link(fault.node, rail, up=not begins)
        elif fault.kind == "slow":
            self.do.set_link(fault.node, fault.rail, rate=fault.rate if begins else self.spec.rate)
        elif fault.kind in _QUEUES and begins:
            self.do.set_queue(fault.node, fault.rail, _QUEUES[fault.kind])
        elif fault.kind in _QUEUES:
            self.do.set_link(fault.node, fault.rail, rate=self.spec.rate)
        elif fault.kind == "stop":
            self.do.stop(fault.ranks[0], begins)
        else:
            self.do.kill(fault.ranks)
