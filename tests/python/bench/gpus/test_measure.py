"""How rounds are put together, with ranks that answer what a test wants."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from railweave.bench.errors import BenchError
from railweave.bench.gpus.beside import beside
from railweave.bench.gpus.compare import Effort, LayerCase, Systems, exchange, layers, measure_bound
from railweave.bench.gpus.session import Place
from railweave.bench.gpus.trace import shares
from railweave.errors import DemandError
from railweave.lab import LabSpec


class Ranks:
    """Two ranks; the second takes 1 us longer."""

    def __init__(self, name: str, seconds: float, ctas: int, order: list[str], late: int = 0, wrong: int | None = None) -> None:
        self.name, self.seconds, self.ctas, self.order, self.late, self.wrong = name, seconds, ctas, order, late, wrong
        self.prepared: list[list[int]] = []
        self.said = name

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        self.order.append(f"{self.said} {do}")
        if do == "prepare":
            self.prepared = command["matrix"]
        if do == "queued":
            self.late -= 1
            times = [self.seconds, self.seconds + 1e-6]
            return [{"seconds": each, "host_seconds": 2e-5, "held": self.late < 0, "busy_cores": 0.5} for each in times]
        if do == "single":
            return [{"seconds": [5e-5 + rank * 1e-6] * command["calls"]} for rank in range(2)]
        if do == "check":
            return [{"wrong": None}, {"wrong": None if self.wrong is None else [0, self.wrong]}]
        if do == "kernels":
            name = f"void {self.name}::(anonymous namespace)::kernel<4>(unsigned, int)"
            return [{"kernels": [{"name": name, "ctas": self.ctas - 1 + rank, "threads": 512}]} for rank in range(2)]
        few = command.get("ctas") == 16
        seconds = {"copy": 9e-5, "push": 1e-4 if few else 8e-5, "interleave": 1.1e-4 if few else 7e-5, "take_turns": 1.2e-4}
        return [{"seconds": seconds.get(do, 0.0)}]


def measure(matrix: Any, *ranks: Ranks, rounds: int = 3, single_calls: int = 4) -> Any:
    systems = Systems([], Place(2), lambda _: None)
    systems.starts = [{each.name: each for each in ranks}]  # type: ignore[misc]
    probe: Any = Ranks("probe", 0, 1, [])
    bound_of = functools.partial(measure_bound, probe)
    (results,) = exchange(systems, bound_of, [("a", np.array(matrix, dtype=np.uint64))], Effort(rounds, 50, single_calls), lambda _: None)
    return results


def test_every_system_is_measured_in_every_round_and_each_begins_one() -> None:
    order: list[str] = []
    first, second = measure([[0, 10_000], [0, 0]], Ranks("a", 1e-4, 17, order), Ranks("b", 5e-5, 16, order))
    assert [first.seconds, second.seconds] == [[pytest.approx(1.01e-4)] * 3, [pytest.approx(5.1e-5)] * 3], "the slowest rank counts"
    assert [each for each in order if each.endswith("queued")][2:] == [f"{name} queued" for name in ("a", "b", "b", "a", "a", "b")]
    assert (first.ctas, first.kernels[0].name) == (17, "void a::kernel<4>"), "the rank with the most CTAs, without arguments"
    assert (first.bytes, first.busiest_bytes) == (10_240, 10_240)
    assert first.call_seconds == [pytest.approx(5.1e-5)] * 12
    assert first.busy_cores == [0.5] * 3
    assert first.bound_seconds == 7e-5, "the fastest way of the probe"


def test_rounds_are_of_each_start_in_turns_and_each_system_begins_as_often() -> None:
    order: list[str] = []
    systems = Systems([], Place(2), lambda _: None)
    systems.starts = [{name: Ranks(f"{name}{number}", 1e-4, 17, order) for name in "ab"} for number in range(2)]  # type: ignore[misc]
    first, later = ([ranks.name for ranks in turn] for turn in systems.turns(8)[:2])
    assert (first, later) == (["a0", "b0"], ["b1", "a1"])
    assert [turn[0].name for turn in systems.turns(8)] == ["a0", "b1", "b0", "a1", "a0", "b1", "b0", "a1"]
    for each in systems.all():
        each.name = each.name[0]
    matrix = np.array([[0, 512], [0, 0]], dtype=np.uint64)
    (results,) = exchange(systems, lambda _: 1e-4, [("m", matrix)], Effort(4, 50, 4), lambda _: None)
    assert [each.system for each in results] == ["a", "b"]
    assert [(len(each.seconds), len(each.call_seconds), each.starts) for each in results] == [(4, 16, 2)] * 2
    for name in ("a0", "a1", "b0", "b1"):
        count = {what: order.count(f"{name} {what}") for what in ("prepare", "check", "queued", "kernels")}
        assert count == {"prepare": 3, "check": 4, "queued": 3, "kernels": 1 if name.endswith("0") else 0}, "all starts are checked"


def test_systems_take_turns_in_single_calls_within_a_round() -> None:
    order: list[str] = []
    first, second = measure([[0, 5], [5, 0]], Ranks("a", 1e-4, 17, order), Ranks("b", 5e-5, 16, order), rounds=2, single_calls=30)
    a, b = ["a single"], ["b single"]
    # Turns of 25 and of 5 calls; the floor beside the first of each round alone.
    assert [each for each in order if each.endswith("single")] == [*a, *a, *b, *b, *a, *b, *b, *b, *a, *a, *b, *a]
    assert (len(first.call_seconds), len(second.floor_seconds)) == (60, 50), "calls that warm up are left out"


@pytest.mark.parametrize(("most", "calls", "floor"), [(64 << 10, 300, 75), ((64 << 10) + 512, 30, 25)])
def test_single_calls_of_larger_messages_are_fewer(most: int, calls: int, floor: int) -> None:
    (found,) = measure([[0, most], [1024, 0]], Ranks("a", 1e-4, 17, []), rounds=1, single_calls=300)
    assert (len(found.call_seconds), len(found.floor_seconds)) == (calls, floor)


def test_a_wrong_byte_is_told_with_its_place() -> None:
    good, bad = measure([[0, 5], [5, 0]], Ranks("a", 1e-4, 17, []), Ranks("b", 1e-4, 16, [], wrong=4))
    assert good.wrong is None
    assert bad.wrong == "rank 1 got a wrong byte from rank 0 at 4"


def test_a_round_in_which_queueing_came_late_is_measured_again() -> None:
    order: list[str] = []
    measure([[0, 5], [5, 0]], Ranks("a", 1e-4, 17, order, late=3), rounds=1)
    assert order.count("a queued") == 1 + 3
    with pytest.raises(BenchError, match="a: this machine's processors are too busy"):
        measure([[0, 5], [5, 0]], Ranks("a", 1e-4, 17, [], late=100), rounds=1)


def test_nothing_to_exchange_is_refused() -> None:
    with pytest.raises(DemandError, match="a: nothing to exchange"):
        measure([[7, 0], [0, 7]], Ranks("a", 1e-4, 17, []))


def test_the_bound_takes_the_matrix_as_it_is() -> None:
    probe: Any = Ranks("probe", 0, 1, [])
    measure_bound(probe, np.array([[0, 512], [1024, 0]], dtype=np.uint64))
    assert probe.prepared == [[0, 512], [1024, 0]]


class Beside(Ranks):
    """Other work takes 1 ms alone; beside exchanges it and they take half as long again, until one of both is over.

    `share`: of what they do alone, exchanges do so much beside the work.
    """

    share = 1 / 1.5

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        if do != "beside":
            return super().ask(timeout, do, **command)
        self.order.append(f"{self.name} {command['work']} {command['pieces']} {command['exchanges']}")
        work, exchanges = command["pieces"] * 1e-3, command["exchanges"] * (self.seconds + 1e-6)
        together = min(work * 1.5, exchanges / self.share)  # until the first of both is over
        took, whole = together + work - together / 1.5, together + exchanges - together * self.share
        first = {"seconds": took / command["pieces"], "exchanges_seconds": whole, "held": True}
        return [first, {**first, "seconds": first["seconds"] + 1e-5 * (command["exchanges"] > 0)}]


def measure_beside(*ranks: Beside, rounds: int = 2) -> Any:
    systems = Systems([], Place(2), lambda _: None)
    systems.starts = [{each.name: each for each in ranks}]  # type: ignore[misc]
    (found,) = beside(systems, ["gemm"], [("m", np.array([[0, 512], [512, 0]], dtype=np.uint64))], rounds, lambda _: None)
    return found


def test_other_work_is_measured_alone_beside_exchanges_that_outlast_it_and_beside_as_many_as_the_first_system_completes() -> None:
    order: list[str] = []
    first, second = Beside("a", 1e-3, 16, order), Beside("b", 0.8e-3, 16, order)
    second.share = 0.9
    found = measure_beside(first, second)
    assert [(each.system, each.work, each.matrix) for each in found] == [("a", "gemm", "m"), ("b", "gemm", "m")]
    assert found[0].alone_seconds == [pytest.approx(1e-3)] * 2
    assert [each.slowed for each in found] == [pytest.approx(1.51)] * 2, "the slowest rank counts"
    # 20 pieces are 20 ms, 30 beside exchanges; 30 exchanges of 1 ms are half as long again, and 20 of them end while the work runs.
    rounds = ["a gemm 20 0", "a gemm 20 30", "a gemm 20 20"]
    assert [each for each in order if each.startswith("a gemm 20")] == ["a gemm 20 30"] * 3 + rounds * 2
    assert [each.equal_exchanges for each in found] == [20, 20]
    assert found[0].equal_slowed == pytest.approx(1.51)
    # 20 exchanges of 0.801 ms at 0.9 of their speed take 17.8 ms, in which the work loses a third.
    assert found[1].equal_seconds == [pytest.approx((20e-3 + 17.8e-3 / 3) / 20 + 1e-5)] * 2
    assert [each.both_seconds for each in found] == [[pytest.approx(30.2e-3)] * 2, [pytest.approx(20 * found[1].equal_seconds[0])] * 2]


def test_more_exchanges_are_queued_until_they_outlast_the_work() -> None:
    order: list[str] = []
    faster = Beside("a", 1e-3, 16, order)
    faster.share = 1.6
    (found,) = measure_beside(faster, rounds=1)
    assert [each for each in order if each.startswith("a gemm 20")][:3] == ["a gemm 20 30", "a gemm 20 60", "a gemm 20 60"]
    assert found.equal_exchanges == 48, "1.6 a ms for 30 ms"


def test_exchanges_that_never_outlast_the_work_are_an_error() -> None:
    endless = Beside("a", 1e-3, 16, [])
    endless.share = 1e9
    with pytest.raises(BenchError, match="a: 3840 exchanges end before 20 pieces of gemm beside them"):
        measure_beside(endless)


class Layers(Ranks):
    """A dispatch takes 1 ms, an expert of width 1024 2 ms; the second rank is busier."""

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        self.order.append(f"{self.name} {do}")
        answers: dict[str, dict[str, Any]] = {
            "moe_prepare": {"ready": True, "hidden": command.get("hidden")},
            "moe_calibrate": {"dispatch_seconds": 1e-3, "expert_seconds": 2e-3},
            "moe_run": {"seconds": self.seconds, "digest": 7},
            "moe_trace": {"span": 3e-3, "busy": 1e-3, "exchange": 5e-4},
        }
        if do == "moe_prepare":
            self.prepared = [[command["hidden"]]]
        answer = answers[do]
        return [answer, {**answer, **{name: value * 1.1 for name, value in answer.items() if isinstance(value, float)}}]


def test_layers_are_as_wide_as_the_rival_says_and_measured_in_turns() -> None:
    order: list[str] = []
    systems = Systems([], Place(2), lambda _: None)
    systems.starts = [{"a": Layers("a", 2e-3, 17, order), "b": Layers("b", 1e-3, 16, order)}]  # type: ignore[dict-item]
    (found,) = layers(systems, 2, 64, 1024, [LayerCase("zipf:1.0", 0.5)], Effort(3), 4, lambda _: None)
    assert [(each.system, each.hidden, each.skew) for each in found] == [("a", 256, "zipf:1.0"), ("b", 256, "zipf:1.0")]
    assert found[1].seconds == [pytest.approx(1.1e-3)] * 3, "the slowest rank counts"
    assert (found[0].busy_seconds, found[0].exchange_seconds) == (pytest.approx(1.1e-3), pytest.approx(5.5e-4))
    assert [each for each in order if each.endswith("run")][4:] == [f"{name} moe_run" for name in ("a", "b", "b", "a", "a", "b")]


def test_a_trace_tells_when_the_gpu_worked() -> None:
    def event(name: str, begin: float, microseconds: float, kind: str = "kernel") -> dict[str, Any]:
        return {"cat": kind, "name": name, "ts": begin, "dur": microseconds}

    events = [
        event("ncclDevKernel_SendRecv", 100, 50),
        event("void gemm", 120, 50),  # beside it
        event("copy", 300, 10, "gpu_memcpy"),
        event("void railweave::cuda::exchange<4>", 400, 20),
        event("cudaLaunchKernel", 0, 1000, "cuda_runtime"),
        {"ph": "M", "name": "process_name"},
    ]
    assert shares(events) == {"span": pytest.approx(320e-6), "busy": pytest.approx(100e-6), "exchange": pytest.approx(70e-6)}
    assert shares([]) == {"span": 0.0, "busy": 0.0, "exchange": 0.0}


class Patience(Layers):
    """Notes how long it may take for what it is asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 2e-3, 17, [])
        self.limits: dict[str, float] = {}

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        self.limits[do] = max(timeout, self.limits.get(do, 0.0))
        return super().ask(timeout, do, **command) if do.startswith("moe") else Ranks.ask(self, timeout, do, **command)


def place(rate: int | None) -> Place:
    """In a lab of two nodes of two ranks with four rails each, or none."""
    lab: Any = SimpleNamespace(spec=LabSpec(2, 2, 4, rate or 0))
    return Place(4, lab) if rate else Place(4)


@pytest.mark.parametrize(
    ("bound", "rate", "seconds"),
    [
        (1e-3, None, 60 + 60 * 0.02),
        (1e-3, 8_000_000_000, 60 + 60 * 0.02),
        # A call may take as long as two of its nodes' 4 MB over one rail of 1 MB/s; the bound has four of them.
        (1.0, 8_000_000, 60 + 13 * 20),
        (0.0, 8_000_000, 60 + 60 * 2 * 2 * 2),
    ],
)
def test_what_takes_long_on_slow_rails_has_time_for_it(bound: float, rate: int | None, seconds: float) -> None:
    systems = Systems([], place(rate), lambda _: None)
    ranks = Patience("a")
    systems.starts = [{"a": ranks}]  # type: ignore[dict-item]
    matrix = np.zeros((4, 4), dtype=np.uint64)
    matrix[0, 2] = 2_000_000
    (_,) = exchange(systems, lambda _: bound, [("a", matrix)], Effort(1, 50, 4), lambda _: None)
    assert {name: ranks.limits[name] for name in ("queued", "kernels", "check")} == {
        name: pytest.approx(seconds, rel=1e-3) for name in ("queued", "kernels", "check")
    }
    assert ranks.limits["prepare"] == 60, "nothing is sent"


class Counted(Ranks):
    """Notes how many calls it is asked for at once."""

    def __init__(self) -> None:
        super().__init__("a", 1e-3, 16, [])
        self.calls: dict[str, list[int]] = {}

    def ask(self, timeout: float, do: str, **command: Any) -> list[dict[str, Any]]:
        if "calls" in command:
            self.calls.setdefault(do, []).append(command["calls"])
        return super().ask(timeout, do, **command)


@pytest.mark.parametrize(
    ("bound", "queued", "single"),
    [
        (1e-6, 50, [35] * 5),  # of 100 in turns of 25, with ten that warm up; the floor in one of four
        (17e-3, 50, [6] * 2),
        (34.4e-3, 50, [6] * 2),  # the slowest row of the evaluation's labs
        (0.1, 20, [6] * 2),
        (10.0, 3, [6] * 2),
    ],
)
def test_rows_of_labs_at_8_gbit_have_all_their_calls_and_much_slower_ones_fewer(bound: float, queued: int, single: list[int]) -> None:
    systems, ranks = Systems([], Place(2), lambda _: None), Counted()
    systems.starts = [{"a": ranks}]  # type: ignore[dict-item]
    matrix = np.array([[0, 512], [0, 0]], dtype=np.uint64)
    (found,) = exchange(systems, lambda _: bound, [("a", matrix)], Effort(1, 50, 100), lambda _: None)
    assert ranks.calls["queued"] == [queued] * 2, "the first is not counted"
    assert ranks.calls["single"] == single, "the call and the floor"
    assert len(found[0].call_seconds) == {35: 100, 6: 3}[single[0]]


def test_iterations_of_a_layer_have_time_for_them() -> None:
    systems, ranks = Systems([], place(8_000_000), lambda _: None), Patience("a")
    systems.starts = [{"a": ranks}]  # type: ignore[dict-item]
    (_,) = layers(systems, 4, 64, 1024, [LayerCase("zipf:1.0", 1.0)], Effort(1), 10_000, lambda _: None)
    # An iteration: four exchanges of 1.1 ms and three times the experts' 1.1, where one of four ranks has all tokens.
    assert ranks.limits["moe_run"] == ranks.limits["moe_trace"] == pytest.approx(60 + 3 * 10_000 * 4 * (4 * 1.1e-3 + 3 * 1.1e-3), rel=0.05)
    assert ranks.limits["moe_calibrate"] > 60 + 100 * 48 * 2048 * 8 / 8_000_000, "100 exchanges of 48 tokens of 2 KiB over a rail"


def test_all_matrices_are_looked_at_before_one_is_measured() -> None:
    systems, ranks = Systems([], Place(2), lambda _: None), Ranks("a", 1e-4, 17, [])
    systems.starts = [{"a": ranks}]  # type: ignore[dict-item]
    cases = [(name, np.array([[0, size], [0, 0]], dtype=np.uint64)) for name, size in (("a", 512), ("b", 0))]
    with pytest.raises(DemandError, match="b: nothing to exchange"):
        next(exchange(systems, lambda _: 1e-3, cases, Effort(1), lambda _: None))
    assert ranks.order == []
