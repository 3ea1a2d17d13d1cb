from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from railweave import fabric, matrix
from railweave.cli.simulate import command
from railweave.errors import DemandError
from railweave.simulate import PolicyError, Study, parse_policy, study
from railweave.simulate.document import document
from railweave.simulate.page import page
from railweave.simulate.text import LEAST_WIDTH, duration, gigabytes, headline, percent, render, size

ROOT = Path(__file__).parents[3]
POLICIES = ("single-path", "nccl", "nccl-pxn0", "nccl-pxn1", "ucx-rails", "nimble", "railweave")


def predict(machine: str, nodes: int, traffic: str, policies: tuple[str, ...] = POLICIES, exact: bool = False) -> Study:
    loaded = fabric.load(machine, nodes)
    return study(loaded, matrix.load(traffic, loaded.gpu_count), traffic, [parse_policy(name) for name in policies], exact)


@pytest.mark.parametrize("machine", ["h100-4gpu-ndr", "hgx-h100", "xe9680-4hca"])
@pytest.mark.parametrize("traffic", ["hot-pair:64MiB:1MiB", "zipf:32MiB:1.2", "balanced:4MiB", "random:8MiB:1"])
def test_no_policy_beats_the_bound_and_none_loses_bytes(machine: str, traffic: str) -> None:
    result = predict(machine, 2, traffic)
    for each in result.predictions:
        assert each.seconds >= result.bound_seconds * (1 - 1e-9), each.policy
        assert each.seconds >= each.plan_seconds * (1 - 1e-9), each.policy
        assert each.gbps == pytest.approx(result.bytes / each.seconds / 1e9)
        assert all(0 < link.utilisation <= 1 + 1e-9 for link in each.links)
        assert max(flow.finish_seconds for flow in each.last) == each.seconds
        for flow in each.last:
            assert flow.startup_seconds + sum(seconds for _, seconds in flow.waits) == pytest.approx(flow.finish_seconds)


# Single path crosses the spine, which to the planner is no route while the rails are whole.
@pytest.mark.parametrize("exact", [False, True])
def test_policies_with_other_routes_have_a_bound_that_holds_for_them(exact: bool) -> None:
    result = predict("charisma-c", 3, "rotating-hotspot:256MiB", exact=exact)
    assert (result.bound_kind, result.bound_at) == ("node-out", "node0")
    assert result.beyond_routes == (("single-path", "railweave") if exact else ())
    for each in result.predictions:
        assert each.seconds >= result.bound_seconds * (1 - 1e-9), each.policy
        assert each.bound_fraction == pytest.approx(result.bound_seconds / each.seconds), each.policy
    assert (result.optimum_seconds is not None) == exact
    what = "optimum over the planner's routes 57.043 ms, which single-path and railweave beat by others" if exact else ""
    assert headline(result).splitlines()[1] == "bound 48.318 ms (what leaves node0)" + (what and f", {what}")
    text = page(result, "railweave simulate")
    promise = "no routing on this fabric is faster. Over the routes that it considers, Railweave&#x27;s planner expects no less than"
    assert (promise in text) == exact
    assert "no routing on this fabric is faster." in text
    assert "optimum of all routings" not in text
    beaten = dataclasses.replace(result, beyond_routes=("nccl",), optimum_seconds=None, routes_seconds=56.702e-3)
    assert headline(beaten).endswith(", over the planner's routes 56.702 ms, which nccl beats")
    assert promise in page(beaten, "railweave simulate")
    data = json.loads(json.dumps(document(result)))
    jsonschema.validate(data, json.loads((ROOT / "schema/simulation.schema.json").read_text()))
    assert data["bound"]["kind"] == "node-out"


def test_a_bound_of_the_planners_routes_is_called_that() -> None:
    result = predict("charisma-c", 3, "zipf:64MiB:1.2", ("nccl", "railweave"), exact=True)
    assert (result.bound_kind, result.beyond_routes) == ("links", ())
    bound = "bound 14.170 ms (several links together, over the planner's routes), their optimum 14.195 ms"
    assert headline(result).splitlines()[1] == bound
    assert result.predictions[1].bound_fraction == pytest.approx((result.optimum_seconds or 0) / result.predictions[1].seconds)
    text = page(result, "railweave simulate")
    assert "the least over the routes that Railweave&#x27;s planner considers; other routes might be faster" in text
    assert "no routing on this fabric is faster" not in text


# Nimble leaves a background of 1 MiB a pair whole, so that the bound that prices prove of the rest is above the optimum.
def test_no_bound_is_above_the_optimum() -> None:
    result = predict("dgx-1v", 2, "bidir-pair:256MiB:1MiB", ("single-path", "nimble", "railweave"), exact=True)
    assert result.optimum_seconds == pytest.approx(6.767e-3, rel=1e-3)
    assert result.bound_seconds <= result.optimum_seconds
    assert result.beyond_routes == ()


def test_a_closed_standard_output_leaves_the_page(tmp_path: Path) -> None:
    report = tmp_path / "page.html"
    arguments = ["--fabric", "h100-4gpu-ndr", "--matrix", "hot-pair:64MiB", "--exact", "--report", str(report)]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "railweave", "simulate", *arguments]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    assert report.read_text().endswith("</html>\n")


def test_hot_pair_gains_what_the_rails_allow() -> None:
    # Four NICs of 50 GB/s: one carries the pair today, all four can (the paper's inter-node case: 3.8x).
    result = predict("h100-4gpu-ndr", 2, "hot-pair:256MiB:1MiB", ("single-path", "railweave"), exact=True)
    single, railweave = result.predictions
    assert single.seconds == pytest.approx(2**28 / 50e9, rel=0.02)
    assert 3.6 < single.seconds / railweave.seconds <= 4.0
    assert result.optimum_seconds is not None
    assert railweave.bound_fraction > 0.97
    assert single.last[0].waits[0][0] == "node0/nic0 -> leaf0 (rail)"
    assert single.links[0].name == "node0/nic0 -> leaf0 (rail)"


def test_relays_fill_a_pipeline() -> None:
    result = predict("h100-4gpu-ndr", 2, "hot-pair:256MiB", ("single-path", "railweave"))
    straight = result.predictions[0].last[0]
    relayed = next(flow for flow in result.predictions[1].last if "relayed" in flow.way)
    assert relayed.startup_seconds > straight.startup_seconds


def test_empty_matrix() -> None:
    result = predict("hgx-h100", 1, "balanced:0", ("single-path",))
    assert result.predictions[0].seconds == 0.0
    assert result.predictions[0].links == ()
    jsonschema.validate(document(result), json.loads((ROOT / "schema/simulation.schema.json").read_text()))
    assert "Prediction" in page(result, "railweave simulate")


def test_equal_inputs_give_equal_documents() -> None:
    first, second = (json.dumps(document(predict("dgx-1v", 2, "zipf:16MiB:1"))) for _ in range(2))
    assert first == second


def test_unknown_policy_and_wrong_size() -> None:
    with pytest.raises(PolicyError, match="no policy 'fastest'; expected one of"):
        parse_policy("fastest")
    with pytest.raises(DemandError):
        study(fabric.load("hgx-h100", 1), np.zeros((4, 4), dtype=np.uint64), "x", [parse_policy("nccl")])


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, ["--fabric", "h100-4gpu-ndr", "--nodes", "2", "--matrix", "zipf:8MiB:1.2", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_command_prints_json_of_its_schema() -> None:
    schema = json.loads((ROOT / "schema/simulation.schema.json").read_text())
    data = json.loads(run("--json", "--policy", ",".join(POLICIES), "--exact"))
    jsonschema.validate(data, schema)
    assert [each["policy"] for each in data["results"]] == list(POLICIES)


def test_command_prints_a_table() -> None:
    output = run()
    assert re.search(r"railweave +[\d.]+ [mµ]s +[\d.]+ +[\d.]+%", output)
    assert "waited for" in output


@pytest.mark.parametrize("width", [LEAST_WIDTH, 100, 140])
def test_figures_are_whole_in_terminals_of_any_width(width: int) -> None:
    result = predict("xe9680-4hca", 2, "zipf:64MiB:1.2", ("nccl", "railweave"))
    console = Console(width=width, file=io.StringIO())
    console.print(render(result, width))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert "…" not in output
    for each in result.predictions:
        assert re.search(rf"^{each.policy} +{re.escape(duration(each.seconds))} +{each.gbps:.2f} +{each.bound_fraction:.1%} ", output, re.M)
        first = each.links[0]
        figures = (f"{size(first.capacity)}/s", size(first.bytes), f"{first.utilisation:.1%}", duration(first.waited_seconds))
        assert re.search(" +".join(map(re.escape, figures)), output)
    assert ("over time" in output) == (width == 140)


@pytest.mark.parametrize("matrix", ["balanced:1", "balanced:4KiB", "balanced:64KiB", "balanced:64MiB", "hot-pair:1GiB"])
def test_use_over_time_is_of_the_time_that_busy_is_of(matrix: str) -> None:
    for each in predict("hgx-h100", 2, matrix, ("nccl", "railweave")).predictions:
        drawn = [link for link in each.links if link.over_time is not None]
        assert drawn
        for link in drawn:
            assert link.over_time is not None
            slices = len(link.over_time)
            assert slices <= 256
            assert each.slice_seconds * (slices - 1) < each.seconds <= each.slice_seconds * slices * (1 + 1e-9)
            width = np.full(slices, each.slice_seconds)
            width[-1] = each.seconds - each.slice_seconds * (slices - 1)
            assert (link.over_time * width).sum() / each.seconds == pytest.approx(link.utilisation, rel=1e-6)


def test_what_takes_next_to_no_time_is_not_shown_as_nothing() -> None:
    assert [gigabytes(rate) for rate in (0, 0.00125, 0.05, 1.5, 1096.219)] == ["0.00", "0.00125", "0.05", "1.50", "1096.22"]
    assert [duration(seconds) for seconds in (0, 1.6e-10, 1.6e-7, 1.6e-6, 1.6e-3, 1.6)] == [
        "0.0 ns",
        "0.16 ns",
        "160.0 ns",
        "1.600 µs",
        "1.600 ms",
        "1.600 s",
    ]
    assert [percent(part) for part in (0, 3.4e-5, 4e-4, 0.001, 0.5, 1)] == ["0.0%", "0.003%", "0.04%", "0.1%", "50.0%", "100.0%"]
    text = CliRunner().invoke(command, ["--fabric", "hgx-h100", "--nodes", "2", "--matrix", "balanced:1"]).output
    assert "bound 0.16 ns" in text
    assert not re.search(r"\b0\.000 | 0(\.0)?%", text)


def test_a_policy_that_does_not_exist_is_wrong_use() -> None:
    result = CliRunner().invoke(command, ["--fabric", "hgx-h100", "--matrix", "balanced:1MiB", "--policy", "nccl,"])
    assert (result.exit_code, result.output.count("no policy ''; expected one of")) == (2, 1)


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    report = tmp_path / "page.html"
    run("--report", str(report))
    text = report.read_text()
    assert not re.search(r"<(script|link|img|iframe)\b|url\(http", text)
    assert text.count("<svg") == 2
    assert list(tmp_path.iterdir()) == [report]


@pytest.mark.browser
def test_page_in_a_browser(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    report = tmp_path / "page.html"
    run("--report", str(report))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dump = subprocess.run(
        [chromium, *options, "--dump-dom", report.as_uri()], capture_output=True, text=True, check=True, timeout=500
    ).stdout
    assert "Who waits for what" in dump
    assert "railweave over single-path" in dump


def test_any_name_is_text(tmp_path: Path) -> None:
    """As rich would take it: markup that nothing opened, markup that vanishes, an emoji."""
    named = tmp_path / "fabric.json"
    whole = fabric.load("h100-4gpu-ndr", 2).to_json().replace('"leaf0"', '"leaf[/0]"')
    named.write_text(json.dumps({**json.loads(whole), "name": "rack[/a]:m:"}))
    traffic = tmp_path / "m[x][" / "y].txt"
    traffic.parent.mkdir()
    traffic.write_text(matrix.write(matrix.generate("balanced:1MiB", 8)))
    result = CliRunner().invoke(command, ["--fabric", str(named), "--matrix", str(traffic)])
    assert result.exit_code == 0, result.exception
    assert f"{traffic} on rack[/a]:m:: 2 nodes" in result.output
    assert "leaf[/0]" in result.output
