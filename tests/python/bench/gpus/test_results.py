"""Results of benchmarks on GPUs: ratios, JSON, tables, page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from railweave.bench import result as lab_result
from railweave.bench.errors import BenchError
from railweave.bench.gpus.result import Beside, Exchange, Kernel, Layer, Ratio, Run, call_ratio, mean_call_ratio, quantile, ratio
from railweave.bench.gpus.table import exchange_rows, markdown, tables
from railweave.cli.bench import command
from railweave.report.gpus import GainRow, gains_picture, page

NCCL, OWN = Kernel("ncclDevKernel_SendRecv", 17, 640), Kernel("railweave::cuda::exchange<16u>", 16, 512)


def make_exchange(system: str, matrix: str, seconds: list[float], kernel: Kernel, wrong: str | None = None) -> Exchange:
    calls = [each + 30e-6 for each in seconds]
    return Exchange(system, matrix, 68 << 20, 64 << 20, seconds, [4e-5] * 3, calls, [3e-5] * 3, 182e-6, wrong, [kernel], [0.25] * 3)


def make_run(own: Kernel = OWN, wrong: str | None = None, digest: int = 7, layers: bool = True) -> Run:
    exchanges = [
        make_exchange("nccl", "hot-pair:64MiB:4MiB", [217e-6, 216e-6, 218e-6], NCCL),
        make_exchange("railweave", "hot-pair:64MiB:4MiB", [194e-6, 193e-6, 195e-6], own, wrong),
        make_exchange("nccl", "balanced:64MiB", [257e-6, 258e-6, 256e-6], NCCL),
        make_exchange("railweave", "balanced:64MiB", [196e-6, 195e-6, 197e-6], OWN),
    ]
    found = [
        Layer("nccl", "zipf:1.2", 1.0, 640, [2.8e-3, 2.9e-3], [7, 8]),
        Layer("railweave", "zipf:1.2", 1.0, 640, [2.6e-3, 2.7e-3], [digest, 8], 1.2e-3, 4e-4),
    ]
    machine = {**lab_result.machine(), "gpu": "A GPU"}
    versions = {"railweave": "0", "python": "3", "torch": "2", "cuda": "13.0", "driver": "1", "nccl (nccl)": "2.28.9"}
    others = [
        Beside("nccl", "gemm", "balanced:64MiB", [1e-4, 1.1e-4], [2e-4, 2.2e-4], 60, [2e-4, 2e-4], [2.4e-2, 2.4e-2]),
        Beside("railweave", "gemm", "balanced:64MiB", [1e-4, 1e-4], [1.5e-4, 1.5e-4], 60, [1.25e-4, 1.25e-4], [2e-2, 2e-2]),
    ]
    return Run(lab_result.now(), "railweave bench", machine, versions, 2, {"rounds": 3}, exchanges, found if layers else [], others)


def test_ratio_is_of_medians_and_its_interval_holds_it() -> None:
    assert ratio([2.0] * 5, [1.0] * 5) == Ratio(2.0, (2.0, 2.0))
    noisy = ratio([2.0, 2.4, 1.6, 2.2, 1.8, 2.0, 2.1], [1.0, 1.1, 1.1, 0.9, 0.95, 1.0, 1.05])
    assert noisy.interval
    assert noisy.interval[0] < noisy.value < noisy.interval[1]
    assert noisy.value == pytest.approx(2.0)
    times = [2.0, 2.4, 1.6, 2.2, 1.8], [1.0, 1.3, 0.7, 0.9, 1.1]
    assert ratio(*times) == ratio(*times), "the draws are always the same"


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_few_rounds_have_no_interval(rounds: int) -> None:
    times = [1.0, 1.1, 0.9, 1.2][:rounds]
    assert ratio([2.0, 2.1, 1.9, 2.2][:rounds], times).interval is None
    calls = [make_exchange(system, "balanced:1KiB", times, NCCL) for system in ("nccl", "railweave")]
    assert call_ratio(*calls, 0.5).interval is None
    run = replace(make_run(layers=False), exchanges=calls, beside=[])
    for _, head, rows in tables(run):
        assert {row[at] for row in rows for at, name in enumerate(head) if name == "95%"} == {""}
        spreads = [row[head.index("±")] for row in rows if "±" in head]
        assert all((text == "") == (rounds == 1) for text in spreads)
    assert page(run).count("<svg") == 2


@pytest.mark.parametrize(("count", "p50", "p99"), [(1, 1, 1), (2, 1, 2), (10, 5, 10), (100, 50, 99), (101, 51, 100), (1000, 500, 990)])
def test_a_quantile_is_the_least_time_that_so_much_does_not_exceed(count: int, p50: int, p99: int) -> None:
    times = list(range(count, 0, -1))
    assert (quantile(times, 0.5), quantile(times, 0.99)) == (p50, p99)


def test_pairs_of_rounds_stay_together() -> None:
    """A machine that is slow for both in a round does not widen the interval."""
    drifting = [1.0, 2.0, 3.0, 4.0, 5.0]
    together = ratio([1.5 * each for each in drifting], drifting)
    assert together.interval == pytest.approx((1.5, 1.5))


def test_the_gain_of_single_calls_has_an_interval_of_rounds() -> None:
    def calls(system: str, *rounds: float) -> Exchange:
        each = make_exchange(system, "balanced:1KiB", list(rounds), NCCL)
        return replace(each, call_seconds=[time for time in rounds for _ in range(100)])

    slow = 9.0  # in one round of five each call took so long: a p99 that one round decides
    unsteady = call_ratio(calls("nccl", 1.2, 1.2, 1.2, 1.2, 1.2), calls("railweave", 1.0, 1.0, slow, 1.0, 1.0), 0.99)
    assert unsteady.value == pytest.approx(1.2 / slow)
    assert unsteady.interval == pytest.approx((1.2 / slow, 1.2)), "without that round it is another one"
    typical = call_ratio(calls("nccl", 1.2, 1.2, 1.2, 1.2, 1.2), calls("railweave", 1.0, 1.0, slow, 1.0, 1.0), 0.5)
    assert typical.value == pytest.approx(1.2)
    uneven = replace(calls("nccl", *[2.0] * 5), call_seconds=[2.0] * 7)
    assert call_ratio(uneven, calls("railweave", *[1.0] * 5), 0.5) == Ratio(2.0), "no telling which call was of which round"


def test_rows_of_single_calls_have_a_mean_with_an_interval() -> None:
    def row(gain: float, unsteady: float, rounds: int = 9) -> tuple[Exchange, Exchange]:
        """In a third of the rounds calls take the rival longer."""
        each = make_exchange("nccl", "balanced:1KiB", [1.0] * rounds, NCCL)
        times = [gain * (unsteady if number % 3 == 0 else 1.0) for number in range(rounds) for _ in range(10)]
        return replace(each, call_seconds=times), replace(each, call_seconds=[1.0] * len(times))

    assert mean_call_ratio([row(4.0, 1.0), row(1.0, 1.0, 5)], 0.5) == Ratio(pytest.approx(2.0), pytest.approx((2.0, 2.0)))
    assert mean_call_ratio([row(4.0, 1.0), row(1.0, 1.0, 4)], 0.5) == Ratio(pytest.approx(2.0)), "a row without an interval"
    alone = row(1.0, 1.5)
    assert mean_call_ratio([alone], 0.5) == call_ratio(*alone, 0.5)
    one, many = mean_call_ratio([alone], 0.5).interval, mean_call_ratio([alone] * 16, 0.5).interval
    assert one == (1.0, 1.5)
    assert many is not None and many[1] < 1.2, "rows that are unsteady at different times make up for one another"


def test_starts_are_drawn_with_all_their_rounds() -> None:
    """Two rounds of each of five starts in turns; where one is slow, so are both of its rounds, and that of every row."""

    def row(slow: Sequence[float], starts: int = 5) -> tuple[Exchange, Exchange]:
        each = replace(make_exchange("nccl", "balanced:1KiB", [1.0] * 2 * len(slow), NCCL), starts=starts)
        own = [time for _ in range(2) for start in slow for time in [start] * 10]
        return replace(each, call_seconds=[1.0] * len(own)), replace(each, call_seconds=own)

    steady, unsteady = row([1.0] * 5), row([1.0, 1.0, 2.0, 2.0, 1.0])
    assert call_ratio(*steady, 0.5) == Ratio(1.0, (1.0, 1.0))
    assert call_ratio(*unsteady, 0.5) == Ratio(1.0, (0.5, 1.0)), "three of five draws may be of the slow ones"
    assert mean_call_ratio([unsteady] * 16, 0.5) == Ratio(1.0, (0.5, 1.0)), "no row has other starts"
    assert call_ratio(*row([1.0, 2.0], starts=2), 0.5).interval is None, "too few"
    assert call_ratio(*row([1.0, 2.0, 1.0], starts=4), 0.5).interval is None, "of other numbers of rounds"


@pytest.mark.parametrize(("rounds", "calls"), [(5, 1), (5, 7), (9, 250)])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99, 1.0])
def test_resampled_rounds_have_the_quantile_of_all_their_calls(rounds: int, calls: int, part: float) -> None:
    """As by putting each draw's calls together; times that are equal among them."""
    random = np.random.default_rng(rounds * calls)
    sides = [random.integers(1, 50, (rounds, calls)) / 10 for _ in range(2)]
    made = [
        replace(make_exchange(name, "balanced:1KiB", [1.0] * rounds, NCCL), call_seconds=times.ravel().tolist())
        for name, times in zip(("nccl", "railweave"), sides, strict=True)
    ]
    draws = np.random.default_rng(0).integers(0, rounds, (400, rounds))
    found = [[quantile(times[draw].ravel(), part) for draw in draws] for times in sides]
    assert call_ratio(*made, part).interval == pytest.approx(tuple(np.percentile(np.divide(*found), [2.5, 97.5])))


def test_json_follows_the_schema_and_survives(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    schema = json.loads((Path(request.config.rootpath) / "schema" / "bench-gpus.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(make_run().to_json()))
    jsonschema.validate(json.loads(path.read_text()), schema)
    assert Run.load(path) == make_run_at(json.loads(path.read_text())["date"])


def make_run_at(date: str) -> Run:
    run = make_run()
    return Run(
        date, *(getattr(run, name) for name in ("command", "machine", "versions", "gpus", "settings", "exchanges", "layers", "beside"))
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "railweave-bench", "version": 1}'])
def test_what_is_no_result_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"run\.json: .*expected a result of `railweave bench` on GPUs$"):
        Run.load(path)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("machine",), None, "machine: null; expected an object"),
        (("machine",), {"cpu": "x"}, "machine: no cores; expected cpu, cores, kernel, gpu"),
        (("machine", "kernel"), 6, "machine.kernel: 6; expected text"),
        (("machine", "cpu_stolen"), "x", 'machine.cpu_stolen: "x"; expected a share from 0 to 1'),
        (("gpus",), None, "gpus: null; expected a whole number from 1"),
        (("versions",), {}, "versions: no torch; expected torch, driver"),
        (("settings", "nodes"), 2, "settings: no rails; expected rails, rate_bps"),
        (("settings", "rounds"), "x", 'settings.rounds: "x"; expected a number from 0'),
        (("exchanges",), None, "exchanges: null; expected a list of 0 or more"),
        (("exchanges", 0), None, "exchanges[0]: null; expected an object"),
        (("exchanges", 0, "seconds"), [], "exchanges[0].seconds: []; expected a list of 1 or more"),
        (("exchanges", 0, "seconds"), ["x"], 'exchanges[0].seconds[0]: "x"; expected a positive number of seconds'),
        (("exchanges", 0, "seconds"), [0.0], "exchanges[0].seconds[0]: 0.0; expected a positive number of seconds"),
        (("exchanges", 1, "seconds"), [1e-4], 'exchanges: "hot-pair:64MiB:4MiB" under "railweave": expected as many rounds as "nccl" has'),
        (("exchanges", 0, "call_seconds"), [], "exchanges[0].call_seconds: []; expected a list of 1 or more"),
        (("exchanges", 0, "bound_seconds"), -1, "exchanges[0].bound_seconds: -1; expected 0 or a positive number of seconds"),
        (("exchanges", 0, "kernels"), None, "exchanges[0].kernels: null; expected a list of 0 or more"),
        (("exchanges", 0, "kernels", 0), {"name": "x"}, "exchanges[0].kernels[0]: no ctas; expected name, ctas, threads"),
        (("exchanges", 0, "busy_cores"), ["x"], 'exchanges[0].busy_cores[0]: "x"; expected a number from 0'),
        (("exchanges", 0, "matrix"), "another", 'exchanges: none for "another" under "railweave"; expected every system for every case'),
        (("exchanges", 0, "system"), "x", 'exchanges: none for "hot-pair:64MiB:4MiB" under "nccl"; expected every system for every case'),
        (("layers", 0, "seconds"), [], "layers[0].seconds: []; expected a list of 1 or more"),
        (("layers", 0, "busy_seconds"), "x", 'layers[0].busy_seconds: "x"; expected null or a number of seconds'),
        (("layers", 0, "skew"), "x", 'layers: none for "skew x, compute 1.0" under "railweave"; expected every system for every case'),
        (("beside", 0, "alone_seconds"), [0.0], "beside[0].alone_seconds[0]: 0.0; expected a positive number of seconds"),
        (("beside", 0, "both_seconds"), [], "beside[0].both_seconds: []; expected as many rounds as equal_seconds has"),
        (("beside", 0, "equal_exchanges"), None, "beside[0].equal_exchanges: null; expected a whole number from 1"),
        (("exchanges",), [], "exchanges, layers, beside: none of them; expected at least one result"),
    ],
)
def test_a_damaged_result_says_where(at: tuple[Any, ...], value: object, said: str, tmp_path: Path) -> None:
    document = make_run().to_json()
    place = document
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = value
    if (at, value) == (("exchanges",), []):
        document["layers"] = document["beside"] = []
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    done = CliRunner().invoke(command, ["report", str(path), str(tmp_path / "page.html")])
    assert isinstance(done.exception, BenchError)
    assert str(done.exception).startswith(f"{path}: {said}")


def test_a_result_without_end_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"a":' * 200_000)
    with pytest.raises(BenchError, match="nested too deep; expected a result of `railweave bench` on GPUs"):
        Run.load(path)


def test_a_run_from_before_threads_were_watched_is_read(tmp_path: Path) -> None:
    value = make_run().to_json()
    for each in value["exchanges"]:
        del each["busy_cores"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value))
    assert Run.load(path).exchanges[0].busy_cores == []
    assert tables(Run.load(path))[1][2][0][7] == ""


def test_a_run_from_before_the_equal_number_of_exchanges_is_read(tmp_path: Path) -> None:
    value = make_run().to_json()
    for each in value["beside"]:
        for name in ("equal_exchanges", "equal_seconds", "equal_slowed", "both_seconds"):
            del each[name]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value))
    run = Run.load(path)
    assert run.beside[0] == Beside("nccl", "gemm", "balanced:64MiB", [1e-4, 1.1e-4], [2e-4, 2.2e-4])
    assert [title for title, _, _ in tables(run)][-2:] == [
        "mixture-of-experts layer, forward and backward",
        "other work beside exchanges that outlast it",
    ]


def test_a_good_run_has_no_problems() -> None:
    assert make_run().problems() == []


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (make_run(wrong="rank 1 got a wrong byte from rank 0 at 17"), "hot-pair:64MiB:4MiB, railweave: rank 1 got a wrong byte"),
        (make_run(own=Kernel("railweave::cuda::exchange<16u>", 18, 512)), "hot-pair:64MiB:4MiB, railweave: 18 CTAs; nccl has 17"),
        (make_run(own=NCCL), "hot-pair:64MiB:4MiB: NCCL ran the exchange, not Railweave"),
        (make_run(digest=9), "layer, skew zipf:1.2, compute 1, railweave: results differ from nccl's"),
    ],
)
def test_what_makes_a_run_fail(run: Run, text: str) -> None:
    assert len(run.problems()) == 1
    assert text in run.problems()[0]


@pytest.mark.parametrize("system", ["railweave-torch", "railweave-checksums"])
def test_more_ctas_are_wrong_of_the_shim_as_it_comes_alone(system: str) -> None:
    run = make_run(own=Kernel("railweave::cuda::exchange<16u>", 32, 512))
    named = [replace(each, system=system if each.system == "railweave" else each.system) for each in run.exchanges]
    assert len(run.problems()) == 1
    assert replace(run, exchanges=named, layers=[]).problems() == [], "one asks no NCCL, the other has kernels of its own"


def test_tables_say_the_gain_and_the_share_of_the_bound() -> None:
    found = {title: (head, rows) for title, head, rows in tables(make_run())}
    head, rows = found["device time of a call among queued ones"]
    row = dict(zip(head, rows[1], strict=True))
    assert (row["system"], row["gain"], row["of bound"], row["CTAs"]) == ("railweave", "1.12×", "0.94", "16")
    assert row["gain at bound"] == "1.19×", "217 us over 182"
    assert rows[0][head.index("gain")] == rows[0][head.index("gain at bound")] == ""
    calls = found["single calls, each waited for"]
    assert dict(zip(calls[0], calls[1][1], strict=True))["busy cores"] == "0.25"
    layers = found["mixture-of-experts layer, forward and backward"][1]
    assert layers[1][-1] == "equal"
    assert (layers[0][5:7], layers[1][5:7]) == (["", ""], ["1200", "400.0"]), "of a run that has no trace, and of one that has"
    outlasting, equal = (found[f"other work beside {what}"] for what in ("exchanges that outlast it", "the same number of exchanges"))
    others = dict(zip(outlasting[0], outlasting[1][1], strict=True))
    assert (others["slowed"], others["gain"]) == ("1.50×", "1.40×"), "210 us over 150"
    others = dict(zip(equal[0], equal[1][1], strict=True))
    assert (others["exchanges"], others["slowed"], others["gain"]) == ("60", "1.25×", "1.60×"), "200 us over 125"
    assert (others["both over us"], others["both gain"], others["both 95%"]) == ("20000", "1.20×", "")
    text = markdown(head, rows)
    assert text.count("\n") == len(rows) + 2
    assert "| `hot-pair:64MiB:4MiB` | nccl |" in text


def test_where_nothing_is_limited_there_is_no_gain_at_the_bound() -> None:
    """In labs whose ranks share GPUs, of what stays inside nodes."""
    run = make_run()
    head, rows = exchange_rows(replace(run, exchanges=[replace(each, bound_seconds=0.0) for each in run.exchanges]))
    assert [row[head.index("gain at bound")] for row in rows] == [""] * 4


def test_an_emulated_mesh_is_called_so_everywhere() -> None:
    run = make_run(layers=False)
    exchanges = [replace(each, system={"nccl": "single-path"}.get(each.system, each.system), kernels=[OWN]) for each in run.exchanges]
    mesh = replace(run, settings={"rounds": 3, "emulated_mesh_GBps": 120}, exchanges=exchanges, beside=[])
    assert mesh.problems() == []
    assert mesh.place == "2 × A GPU, EMULATED NVLink mesh of 120 GB/s a link"
    assert run.place == "2 × A GPU"
    text = page(mesh)
    assert mesh.place in text
    assert "what links of that rate, and the GPUs themselves, allow" in text and "asks nobody" not in text
    assert '"emulated_mesh_GBps": 120' in json.dumps(mesh.to_json())
    # NCCL's kernel is wrong under either name of Railweave's.
    beside = replace(mesh, exchanges=[replace(exchanges[0], kernels=[NCCL]), *exchanges[1:]])
    assert any("NCCL ran the exchange" in problem for problem in beside.problems())


@pytest.mark.parametrize(("ranks", "how"), [(2, "one process a GPU"), (4, "4 processes that share them")])
def test_a_page_of_rails_says_so(ranks: int, how: str) -> None:
    run = make_run(layers=False)
    rails = replace(run, settings={"rounds": 3, "nodes": 2, "ranks": ranks, "rails": 4, "rate_bps": 8_000_000_000})
    text = page(rails)
    assert f"2 × A GPU as 2 nodes of {ranks // 2} on 4 rails of 8 Gbit/s, PyTorch" in text
    assert how in text
    assert "what the rails allow" in text


def test_a_page_says_what_the_host_took_of_the_machine() -> None:
    run = make_run(layers=False)
    assert "took" not in page(run)
    assert "took 20% of the CPU time" in page(replace(run, machine={**run.machine, "cpu_stolen": 0.2}))


def test_page_needs_nothing_else_and_shows_both_kinds() -> None:
    for run in (make_run(), make_run(layers=False), Run(*(*vars(make_run()).values(),)[:6], [], make_run().layers)):
        text = page(run)
        assert "<script" not in text
        assert text.count("<svg") >= 1
        assert text.count('<th class="text">system</th>') == text.count("<table>")  # words stand left, figures right
        assert "A GPU" in text
        assert ("Every byte was checked" if run.exchanges else "Results and gradients were equal bit for bit") in text


def only(kind: str) -> Run:
    """What one command writes: exchanges, layers, or other work."""
    run = make_run()
    return replace(run, **{each: [] for each in ("exchanges", "layers", "beside") if each != kind})  # type: ignore[arg-type]


def test_other_work_has_a_page() -> None:
    text = page(only("beside"))
    assert "Other work beside exchanges between GPUs</h1>" in text
    assert "<b>1.60×</b><span>other work over nccl, gemm beside balanced:64MiB" in text, "200 us over 125, beside as many exchanges"
    assert "bit for bit" not in text and "Every byte" not in text
    assert text.count("<svg") == 1
    before = replace(only("beside"), beside=[replace(each, equal_seconds=[], both_seconds=[]) for each in make_run().beside])
    assert "<b>1.40×</b>" in page(before), "210 us over 150, beside exchanges that outlast it"


def test_where_nothing_is_limited_the_page_has_no_bound(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = only("exchanges")
    nothing = replace(run, exchanges=[replace(each, bound_seconds=0.0) for each in run.exchanges])
    schema = json.loads((Path(request.config.rootpath) / "schema" / "bench-gpus.schema.json").read_text())
    jsonschema.validate(nothing.to_json(), schema)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(nothing.to_json()))
    assert page(Run.load(path)).count("<svg") == 2


def test_any_name_is_text() -> None:
    """Formulas of dollar signs, and systems that this version does not have."""
    run = only("exchanges")
    names = {"nccl": "nccl-3", "railweave": 'new"><b>'}
    exchanges = [replace(each, system=names[each.system], matrix=f"a$\\frac$<b>{each.matrix}", kernels=[OWN]) for each in run.exchanges]
    text = page(replace(run, exchanges=exchanges))
    assert "a$\\frac$&lt;b&gt;" in text
    assert 'new"><b>' not in text
    assert text.count("<svg") == 2
    layers = replace(only("layers"), layers=[replace(each, system=names[each.system]) for each in make_run().layers])
    assert page(layers).count("<svg") == 1


@pytest.mark.parametrize(("largest", "ticks"), [(1.6, []), (11.6, ["1", "2", "4", "8"])])
def test_gains_that_differ_much_are_as_far_apart_as_they_are_times_as_fast(largest: float, ticks: list[str]) -> None:
    def row(name: str, gain: float, wanted: float | None = None) -> GainRow:
        return GainRow(name, 1e-3, {"railweave": Ratio(gain, (gain * 0.9, gain * 1.1))}, wanted)

    picture = gains_picture([row("a$b$", 1.0), row("c", largest, 1.2)], "nccl", "a < b")
    assert picture == gains_picture([row("a$b$", 1.0), row("c", largest, 1.2)], "nccl", "a < b"), "equal results, equal files"
    assert picture.startswith("<?xml")
    assert 'aria-label="Gains over nccl: a &lt; b"' in picture
    assert all(f"<!-- {text} -->" in picture for text in (*ticks, "a$b$", "times as fast as nccl", "wanted of Railweave"))
    assert "wanted" not in gains_picture([row("a", 1.0)], "nccl", "a")
