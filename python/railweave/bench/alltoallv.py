"""The benchmark: all matrices under all policies and peers, interleaved, in one lab."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence

from railweave._native import Demand, Planner
from railweave.bench import result
from railweave.bench.errors import BenchError
from railweave.bench.session import MpiSession, PolicySession, Session, beyond_mpi, build_peer
from railweave.fabric import Fabric, LinkState
from railweave.lab import Lab, LabSpec
from railweave.matrix import Matrix

# An exchange that takes longer hangs: 20 times its bound, or twice as many times as there are rails, of which single-path takes one; half a
# minute; and 5 s a rank, because 64 ranks may have to share one core.
_TIMEOUT_BOUNDS, _TIMEOUT_RAILS, _TIMEOUT_S, _TIMEOUT_RANK_S = 20.0, 2.0, 30.0, 5.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A matrix with its name and its `lower_bound`."""

    name: str
    matrix: Matrix
    bound_seconds: float


def lower_bound(fabric: Fabric, matrix: Matrix) -> float:
    """Seconds that an endpoint or a node's NICs need under any routing, or links together over the routes that the planner considers."""
    bound = Planner(fabric).plan(Demand.from_numpy(matrix), LinkState(fabric)).bound
    return float(bound.seconds)


def run(
    spec: LabSpec,
    fabric: Fabric,
    cases: Sequence[Case],
    policies: Sequence[str],
    peers: Sequence[str],
    repeat: int,
    step: Callable[[str], None],
    keep: Callable[[list[result.Result]], None] = lambda _: None,
) -> list[result.Result]:
    """Bring a lab up, run everything, take it down. `step` hears of each exchange before it starts, `keep` gets the results of each matrix
    as soon as they are there.

    Raises BenchError, before there is a lab, for a matrix that this machine's memory or a peer's integers cannot hold.
    """
    memory, systems = int(result.machine()["memory_bytes"]), len(policies) + len(peers)
    for case in cases:
        # Every system keeps its ranks, and they their buffers, until all have had their turns.
        if 0 < memory < 2 * systems * (size := int(case.matrix.sum())):
            what = f"matrix '{case.name}': {size} bytes to send and as many to receive, for each of {systems} policies and peers at once"
            raise BenchError(f"{what}, all on this machine, which has {memory} bytes of memory; expected at most that")
        if peers and (beyond := beyond_mpi(case.matrix)):
            raise BenchError(f"matrix '{case.name}' under {', '.join(peers)}: {beyond}")
    with contextlib.ExitStack() as stack:
        step("building the lab")
        lab = stack.enter_context(Lab.up(spec))
        sessions: list[Session] = []
        if peers:
            program = build_peer(lab)
        for index, policy in enumerate(policies):
            step(f"starting {policy}")
            sessions.append(stack.enter_context(PolicySession(policy, lab, fabric, index)))
        for peer in peers:
            step(f"starting {peer}")
            sessions.append(stack.enter_context(MpiSession(peer, lab, program)))
        found: list[result.Result] = []
        for case in cases:
            results = _compare(case, sessions, repeat, step, time_limit(case, spec.rails))
            keep(results)
            found += results
        return found


def steps(cases: int, sessions: int, repeat: int) -> int:
    """How often `run` calls `step`."""
    return 1 + sessions + cases * sessions * (repeat + 1)


def time_limit(case: Case, rails: int) -> float:
    """Seconds after which an exchange hangs. What goes over one rail alone takes as many bounds as there are rails."""
    bounds = max(_TIMEOUT_BOUNDS, _TIMEOUT_RAILS * rails)
    return bounds * case.bound_seconds + _TIMEOUT_S + _TIMEOUT_RANK_S * len(case.matrix)


def _compare(case: Case, sessions: Sequence[Session], repeat: int, step: Callable[[str], None], timeout: float) -> list[result.Result]:
    """One warm-up each, then rounds in which every session has its turn, each round starting with the next one."""
    seconds: dict[str, list[float]] = {session.name: [] for session in sessions}
    rails: dict[str, list[list[result.RailBytes]]] = {session.name: [] for session in sessions}
    wrong: dict[str, str] = {}
    for repetition in range(repeat + 1):
        for turn in range(len(sessions)):
            session = sessions[(turn + repetition) % len(sessions)]
            step(f"{case.name}, {session.name}")
            before = session.lab.links()
            sample = session.exchange(case.matrix, repetition, timeout)
            after = session.lab.links()
            if sample.wrong is not None:
                wrong.setdefault(session.name, f"repetition {repetition}: {sample.wrong}")
            if repetition > 0:
                seconds[session.name].append(sample.seconds)
                rails[session.name].append(
                    [
                        result.RailBytes(a["node"], a["rail"], a["tx_bytes"] - b["tx_bytes"], a["rx_bytes"] - b["rx_bytes"])
                        for b, a in zip(before, after, strict=True)
                    ]
                )
    total = int(case.matrix.sum()) - int(case.matrix.trace())
    return [
        result.Result(s.name, case.name, seconds[s.name], total, case.bound_seconds, wrong.get(s.name), _median_rails(rails[s.name]))
        for s in sessions
    ]


def _median_rails(rounds: list[list[result.RailBytes]]) -> list[result.RailBytes]:
    return [
        result.RailBytes(
            same[0].node,
            same[0].rail,
            round(statistics.median(each.tx_bytes for each in same)),
            round(statistics.median(each.rx_bytes for each in same)),
        )
        for same in zip(*rounds, strict=True)
    ]
