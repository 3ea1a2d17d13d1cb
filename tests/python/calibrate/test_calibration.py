"""Calibrations: made of a model's times, written, read, refused, and what follows from them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from railweave import _native
from railweave import fabric as fabrics
from railweave.calibrate import BlockRate, Calibration, CalibrationError, Gpu, SizeTime, link_state, parse, read, settings
from railweave.calibrate.kept import keep, kept, kept_for_another_build
from railweave.calibrate.measure import Matrix, measure
from railweave.cli import root
from railweave.cli.calibrate import where_it_is
from railweave.device import library
from railweave.fabric import VertexKind
from railweave.launch import cache
from railweave.output import OutputError
from railweave.records import replace

GB = 10**9
PAIR = {8: 292, 10: 357, 12: 366, 14: 366, 16: 366}  # GB/s of one pair by blocks (docs/cuda-measured.md); below 8, 45 a block
PER_BLOCK = 14.5  # GB/s a block with three peers, which get half as many blocks again
LIMIT = 350
MEASURED = Path(__file__).parent / "4xH200-2026-11-22.json"
"""As `railweave calibrate` wrote it that day, before it measured sizes between all GPUs."""


class ModelBench:
    """GPUs on an endpoint-bound switch: rates of H200 from docs/cuda-measured.md and docs/gpu-probe.md, as far as they were measured."""

    driver = "CUDA 13.0"

    def __init__(self, world: int = 4) -> None:
        self.gpus = tuple(Gpu("NVIDIA H200", f"0000:{i:02x}:00.0") for i in range(world))
        self.asked: list[str] = []

    def exchange(self, matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
        sent = [sum(row) for row in matrix]
        busiest, peers = max(sent), max(sum(count > 0 for count in row) for row in matrix)
        if max(map(max, matrix)) <= int(settings["gpu_low_latency_bytes"]):
            return 2.3e-6 + busiest / ((100 if peers == 1 else 170) * GB)
        blocks = int(settings["gpu_blocks"])
        one = PAIR.get(blocks, 45 * blocks)
        rate = one if peers == 1 else min(LIMIT, PER_BLOCK * blocks * 1.5)
        return (7e-6 if peers == 1 else 11e-6) + busiest / (rate * GB * (1 if mapped else 0.5))

    def copy(self, source: int, destination: int, nbytes: int) -> float:
        assert source != destination
        return nbytes / (396 * GB)

    def copy_over_host(self, source: int, destination: int, nbytes: int) -> float:
        assert source != destination
        return nbytes / (52.9 * GB)


@pytest.fixture(scope="module")
def four() -> Calibration:
    return measure(ModelBench(4), lambda what: None)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine's own is read or written; the device library is a file there."""
    (tmp_path / "librailweave_cuda.so").write_text("kernels")
    monkeypatch.setenv("RAILWEAVE_CUDA_LIBRARY", str(tmp_path / "librailweave_cuda.so"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "FOR_ALL", str(tmp_path / "for-all"))
    return tmp_path


def test_what_is_measured_is_what_the_bench_did(four: Calibration) -> None:
    assert four.launch_ns == 2300
    assert [round(row.pair_Bps / 1e9) for row in four.blocks] == [45, 90, 179, 290, 363]
    assert [row.blocks for row in four.blocks] == [1, 2, 4, 8, 16]
    assert round(four.blocks[-1].balanced_Bps / 1e9) == 343
    assert len(four.pairs) == 12
    pair = four.pairs[0]
    assert (pair.source, pair.destination) == (0, 1)
    assert [round(rate / 1e9, 1) for rate in (pair.push_Bps, pair.slots_Bps, pair.copy_Bps, pair.host_Bps)] == [362.5, 179.6, 396.0, 52.9]
    half_mib = four.sizes[5]
    assert half_mib == SizeTime(512 << 10, 7543, 8432, 11552, 15520)


def test_a_file_says_all_of_it(four: Calibration) -> None:
    assert parse(four.text(), "file") == four
    assert parse(four.text(), "file").text() == four.text()
    # One of before, without the times between all GPUs, as well.
    assert parse(MEASURED.read_text(), "file").text() == MEASURED.read_text()


def test_sizes_are_measured_with_the_blocks_that_follow() -> None:
    asked = []

    class Eight(ModelBench):
        """Of which 8 blocks are enough."""

        def exchange(self, matrix: Matrix, settings: Mapping[str, str], mapped: bool = True) -> float:
            if max(map(max, matrix)) <= 2 << 20:
                asked.append(settings["gpu_blocks"])
            return super().exchange(matrix, {**settings, "gpu_blocks": str(min(8, int(settings["gpu_blocks"])))}, mapped)

    assert settings(measure(Eight(4), lambda what: None))["gpu_blocks"] == "8"
    assert set(asked) == {"8"}


def test_what_follows_from_four_h200() -> None:
    # With 16 blocks the pair has all of its best rate and all pairs 96.6%, with 8 the pair has 81.0%. With 12, which packets would not
    # make full use of, they would have 98.8% and all.
    assert settings(read(str(MEASURED))) == {
        "gpu_blocks": "16",
        "gpu_low_latency_bytes": str(2 << 20),
        "gpu_host_share": "118",
        "gpu_relays": "0",
        "gpu_pair_rate": "368895",
        "gpu_block_rate": "37328",
    }


def test_a_block_writes_its_part_where_no_destination_reads() -> None:
    """With few blocks both ends move a message: 87 GB/s with one, on four H100."""
    read_half = tuple(BlockRate(blocks, rate * GB, rate * GB) for blocks, rate in ((1, 87), (4, 327), (6, 330), (8, 324.8), (16, 368.7)))
    assert settings(replace(read(str(MEASURED)), blocks=read_half))["gpu_block_rate"] == "40600"
    assert settings(replace(read(str(MEASURED)), blocks=read_half[:2]))["gpu_block_rate"] == "81750", "no other was measured"


RATES = st.integers(1, 1 << 60)
TIMES = st.integers(1, 3600 * 10**9)


@given(
    st.dictionaries(st.integers(1, 64), st.tuples(RATES, RATES), min_size=1, max_size=20),
    st.dictionaries(st.integers(1, 1 << 40), st.lists(TIMES, min_size=2, max_size=4).filter(lambda row: len(row) != 3), min_size=1),
)
def test_settings_follow_from_any_figures(blocks: dict[int, tuple[int, int]], sizes: dict[int, list[int]]) -> None:
    rows = tuple(BlockRate(count, *blocks[count]) for count in sorted(blocks))
    of_size = tuple(SizeTime(size, *sizes[size]) for size in sorted(sizes))
    found = settings(replace(read(str(MEASURED)), blocks=rows, sizes=of_size))
    chosen = next(row for row in rows if row.blocks == int(found["gpu_blocks"]))
    allowed = [row for row in rows if row.blocks in (1, 2, 4, 8, 16)] or [rows[0]]
    assert chosen in allowed

    def share(row: BlockRate) -> float:
        return min(row.pair_Bps / max(other.pair_Bps for other in allowed), row.balanced_Bps / max(other.balanced_Bps for other in allowed))

    # Nothing else would give the worse off over 1% more, and less blocks do not give it as much.
    assert all(share(chosen) >= 0.99 * share(row) for row in allowed)
    assert all(share(row) < 0.99 * max(map(share, allowed)) for row in allowed if row.blocks < chosen.blocks)
    limit = int(found["gpu_low_latency_bytes"])
    ratios = {row.bytes: [Fraction(packets, granted) for packets, granted in row.times()] for row in of_size}
    slower = [size for size, each in ratios.items() if math.prod(each) > 1]
    assert limit == max((row.bytes for row in of_size if not slower or row.bytes < slower[0]), default=0)


def test_blocks_are_the_fewest_that_suffice_for_a_pair_and_for_all(four: Calibration) -> None:
    assert settings(four)["gpu_blocks"] == "16"
    assert settings(measure(ModelBench(2), lambda what: None))["gpu_blocks"] == "16"


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [
        ([(1, 100, 100)], 1),
        ([(8, 100, 100), (16, 100, 100)], 8),
        ([(8, 98, 100), (16, 100, 100)], 16),
        ([(8, 99, 99), (16, 100, 100)], 8),
        ([(8, 100, 98), (16, 100, 100)], 16),
        ([(8, 50, 50), (16, 100, 100), (32, 200, 200)], 16),  # no more than NCCL has
        ([(32, 100, 100)], 32),  # nothing else was measured
        ([(4, 200, 200), (8, 100, 100)], 4),
        ([(4, 100, 50), (8, 90, 80), (16, 50, 100)], 8),  # neither is left behind
        ([(8, 80, 80), (12, 100, 100), (16, 90, 90)], 16),  # packets would have 4 blocks of 12
        ([(6, 80, 80), (12, 100, 100)], 6),  # nothing else was measured
        ([(8, 100, 50), (16, 50, 100)], 8),
    ],
)
def test_blocks(four: Calibration, rows: list[tuple[int, int, int]], blocks: int) -> None:
    assert settings(replace(four, blocks=tuple(BlockRate(*row) for row in rows)))["gpu_blocks"] == str(blocks)


@pytest.mark.parametrize(
    ("gpus", "pair", "balanced", "relays"),
    [
        (4, 369, 275, "0"),  # behind an NVSwitch
        (4, 120, 350, "1"),  # a mesh
        (3, 100, 149, "0"),
        (3, 100, 150, "1"),
        (2, 100, 200, "0"),  # no third one
        (8, 50, 300, "1"),
        (9, 50, 300, "0"),  # more than lend each other memory
    ],
)
def test_relays_where_pairs_have_links_of_their_own(four: Calibration, gpus: int, pair: int, balanced: int, relays: str) -> None:
    machine = replace(four, gpus=(four.gpus[0],) * gpus, blocks=(BlockRate(16, pair * GB, balanced * GB),))
    assert settings(machine)["gpu_relays"] == relays


@pytest.mark.parametrize(("push", "host", "share"), [(369, 50, "119"), (300, 0, "0"), (10, 10, "500"), (10, 30, "500"), (999, 1, "1")])
def test_the_host_gets_its_part_of_both_rates(four: Calibration, push: int, host: int, share: str) -> None:
    # One pair that is far off changes nothing.
    pairs = [replace(row, push_Bps=push * GB, host_Bps=host * GB) for row in four.pairs]
    pairs[0] = replace(pairs[0], push_Bps=GB, host_Bps=400 * GB)
    assert settings(replace(four, pairs=tuple(pairs)))["gpu_host_share"] == share


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        ([(1, 5, 5)], 1),
        ([(1, 6, 5)], 0),
        ([(1, 1, 5), (2, 6, 5), (4, 1, 5)], 1),  # one fast size beyond is no reason
        ([(1, 1, 5), (2, 4, 5), (4, 6, 5)], 2),
        ([(1, 1, 5, 9, 9), (2, 4, 5, 9, 8), (4, 4, 5, 6, 5)], 4),  # what one loses the other may gain
        ([(1, 1, 5, 9, 9), (2, 4, 5, 9, 7), (4, 1, 5, 1, 9)], 1),
        ([(1, 6, 5, 5, 6), (2, 7, 5, 5, 6), (4, 1, 5, 1, 9)], 1),
        # 2 x H200 (docs/calibrate.md)
        ([(512 << 10, 5300, 8500, 7800, 9800), (1 << 20, 8300, 9700, 11300, 10900), (2 << 20, 12300, 12600, 17200, 14000)], 1 << 20),
        ([(1 << 20, 8439, 9715, 22000, 24000), (2 << 20, 12382, 12655, 33000, 34400)], 2 << 20),
    ],
)
def test_packets_go_as_far_as_they_are_no_slower_taken_together(four: Calibration, rows: list[tuple[int, ...]], limit: int) -> None:
    assert settings(replace(four, sizes=tuple(SizeTime(*row) for row in rows)))["gpu_low_latency_bytes"] == str(limit)


def named(*names: str) -> tuple[Gpu, ...]:
    """Four GPUs, of one name or of one each."""
    return tuple(Gpu(name, f"0000:{i:02x}:00.0") for i, name in enumerate(names * (4 // len(names))))


def test_links_of_a_mesh_have_their_pairs_rate(four: Calibration) -> None:
    fabric = fabrics.load("h100-4gpu-ndr", 2)
    rates = tuple(replace(row, push_Bps=10**9 * (1 + 10 * row.source + row.destination)) for row in four.pairs)
    links = link_state(replace(four, gpus=named("NVIDIA H100 80GB HBM3"), pairs=rates), fabric)
    for node in range(2):
        gpus = fabric.gpus_of(node)
        for i, a in enumerate(gpus):
            for j, b in enumerate(gpus):
                edge = fabric.find_edge(a, b)
                if i != j:
                    assert edge is not None
                    assert links.rate_Bps(edge) == 10**9 * (1 + 10 * i + j)
    others = [number for number, edge in enumerate(fabric.edges) if fabric.vertex(edge.src).kind == VertexKind.nic]
    assert all(links.rate_Bps(edge) == fabric.edge(edge).capacity_Bps for edge in others)


def test_links_to_a_switch_carry_the_most_of_their_pairs() -> None:
    eight = measure(ModelBench(8), lambda what: None)
    fabric = fabrics.load("hgx-h200")
    rates = tuple(replace(row, push_Bps=10**9 * (1 + 10 * row.source + row.destination)) for row in eight.pairs)
    links = link_state(replace(eight, pairs=rates), fabric)
    gpus = fabric.gpus_of(0)
    switch = next(number for number, vertex in enumerate(fabric.vertices) if vertex.kind == VertexKind.nvswitch)
    out, into = fabric.find_edge(gpus[2], switch), fabric.find_edge(switch, gpus[2])
    assert out is not None and into is not None
    assert links.rate_Bps(out) == 10**9 * 28
    assert links.rate_Bps(into) == 10**9 * 73


def test_a_fabric_of_other_machines_is_refused(four: Calibration) -> None:
    with pytest.raises(CalibrationError, match="has 8 GPUs; expected 4, as the calibration has"):
        link_state(four, fabrics.load("hgx-h200"))


@pytest.mark.parametrize(
    ("names", "fabric", "refused"),
    [
        (["NVIDIA H100 80GB HBM3"], "h100-4gpu-ndr", None),
        (["GH100 [H100 SXM5 80GB]"], "h100-4gpu-ndr", None),
        (["Tesla V100-SXM2-32GB"], "kisti-v100-4gpu", None),
        (["NVIDIA Graphics Device"], "kisti-v100-4gpu", None),  # which tells no part
        (["GH100"], "kisti-v100-4gpu", None),  # nor does a chip
        (["NVIDIA H200"], "kisti-v100-4gpu", "GPU 0 of node0 is 'V100 SXM2'; expected 'NVIDIA H200'"),
        (["GH100 [H200 SXM 141GB]"], "h100-4gpu-ndr", "GPU 0 of node0 is 'H100 SXM5'; expected 'GH100 "),
        (["NVIDIA H100 NVL", "NVIDIA H200"], "h100-4gpu-ndr", "GPU 1 of node0 is 'H100 SXM5'; expected 'NVIDIA H200'"),
    ],
)
def test_a_fabric_of_other_gpus_is_refused(four: Calibration, names: list[str], fabric: str, refused: str | None) -> None:
    measured = replace(four, gpus=named(*names))
    if refused is None:
        link_state(measured, fabrics.load(fabric, 1))
    else:
        with pytest.raises(CalibrationError, match=f"^fabric '{fabric}': {re.escape(refused)}"):
            link_state(measured, fabrics.load(fabric, 1))


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(name)


def _without_in(rows: str, row: int, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[rows][row].pop(name)


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            document = document[step]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("format", "railweave-fabric"), "no format railweave-calibration"),
        (_set("version", 2), "version: 2; expected version 1 of a "),
        (_without("sizes"), "the whole: no sizes; expected format, version"),
        (_set("extra", 1), 'the whole: "extra"; expected only format'),
        (_set("date", 5), "date: 5; expected printable text"),
        (_set("driver", "a\nb"), "driver: "),
        (_set("launch_ns", 0), "launch_ns: 0; expected a whole number from 1"),
        (_set("launch_ns", True), "launch_ns: true; expected a whole number"),
        (_set("launch_ns", 1.5), "launch_ns: 1.5; expected a whole number"),
        (_set("gpus", []), r"gpus: \[\]; expected a list of 2 to 64"),
        (_set("gpus.1.name", None), r"gpus\[1\].name: null; expected printable text"),
        (_set("blocks.0", 3), r"blocks\[0\]: 3; expected an object"),
        (_set("blocks.1.blocks", 1), "blocks: 1; expected more than 1, which stands before it"),
        (_set("blocks.1.pair_Bps", -1), r"blocks\[1\].pair_Bps: -1; expected a whole number"),
        (_set("sizes.2.bytes", 1), "sizes: 1; expected more than"),
        (_set("sizes.0.more_ns", 1), r'sizes\[0\]: "more_ns"; expected only bytes, packets_ns'),
        (_without_in("sizes", 1, "balanced_packets_ns"), r"sizes\[1\]: no balanced_packets_ns; expected bytes, packets_ns"),
        (_set("sizes.0.balanced_granted_ns", None), r"sizes\[0\].balanced_granted_ns: null; expected a whole number"),
        (_set("pairs", []), r"pairs: \[\]; expected a list of 12$"),
        (_set("pairs.0.to", 0), r"pairs\[0\].to: 0; expected another GPU"),
        (_set("pairs.0.from", 4), r"pairs\[0\].from: 4; expected a whole number from 0 to 3"),
        (_set("pairs.1.to", 1), "pairs: one stands twice"),
        (_set("pairs.3.host_Bps", 2**61), r"pairs\[3\].host_Bps: "),
    ],
)
def test_a_damaged_file_says_where_and_what(four: Calibration, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = json.loads(four.text())
    change(document)
    with pytest.raises(CalibrationError, match=f"^FILE: .*{says}"):
        parse(json.dumps(document), "FILE")


@pytest.mark.parametrize("text", ["", "[1", "null", "[" * 100_000, '"railweave-calibration"', " " * (1 << 20) + "{}", "NaN"])
def test_what_is_no_calibration_is_refused(text: str) -> None:
    with pytest.raises(CalibrationError, match=r"^FILE: .*railweave calibrate"):
        parse(text, "FILE")


def test_what_can_be_read_but_not_written_again_is_told(four: Calibration) -> None:
    for depth in range(800, 1000):  # about as deep as Python's reader of JSON goes; its writer goes less deep
        text = four.text().replace('"CUDA 13.0"', "[" * depth + "]" * depth)
        with pytest.raises(CalibrationError, match=r"^FILE: (driver: a list of 1; expected printable text|nested too deep)"):
            parse(text, "FILE")


def test_the_device_library_finds_what_is_kept(four: Calibration, own_folder: Path) -> None:
    nothing = {"path": "", "settings": {}, "problem": ""}
    assert _native.find_calibration(library(), cache.FOR_ALL) == nothing
    with pytest.raises(CalibrationError, match="no calibration is kept"):
        kept()
    place = keep(four)
    assert place is not None
    assert kept() == four
    assert _native.find_calibration(library(), cache.FOR_ALL) == {"path": place, "settings": settings(four), "problem": ""}
    assert _native.find_calibration("/another/librailweave_cuda.so", cache.FOR_ALL)["path"] == ""
    shown = CliRunner().invoke(root, ["calibrate", "--show"])
    assert shown.exit_code == 0 and "gpu_low_latency_bytes 524288" in shown.output


def test_what_is_kept_is_shown_without_the_device_library(four: Calibration, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise _native.TransportError("no device library: none; build one")

    place = Path(str(keep(four)))
    monkeypatch.setattr("railweave.calibrate.kept.library", missing)
    shown = CliRunner().invoke(root, ["calibrate", "--show"])
    assert shown.exit_code == 0, shown.output
    assert "4 x NVIDIA H200, CUDA 13.0" in shown.stdout
    assert shown.stderr == f"railweave: {place} is shown, but no program goes by it here: no device library: none; build one\n"
    text = place.read_text()
    for change, says in (
        (text.replace("boot: ", "boot: 0", 1), f"{place} does not hold here (another boot)"),
        (text[: text.index("\n")] + "\n{}\n{}", f"{place}: no format"),
    ):
        place.write_text(change)
        with pytest.raises(CalibrationError, match=f"^{re.escape(says)}"):
            kept_for_another_build()
    place.unlink()
    refused = CliRunner().invoke(root, ["calibrate", "--show"])
    assert isinstance(refused.exception, CalibrationError)
    assert str(refused.exception).startswith("no calibration is kept on this machine")


def test_what_cannot_be_kept_is_not_called_kept(four: Calibration, own_folder: Path) -> None:
    for folder in cache.folders():
        (Path(folder) / "calibration").mkdir()
    assert keep(four) is None


def test_how_long_it_is_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    own = "/run/user/1000/railweave-1000/calibration"
    says = f"kept in {own} until this user logs out, for programs with the same XDG_RUNTIME_DIR"
    assert where_it_is(own) == says
    for path in ("/run/railweave-placement/calibration", "/tmp/railweave-1000/calibration"):
        assert where_it_is(path) == f"kept in {path} until the next boot"
    assert where_it_is(None).startswith("not kept: ")


def test_root_keeps_it_for_all_users_or_where_it_can(four: Calibration, own_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    assert keep(four) == str(own_folder / "for-all" / "calibration")
    assert kept() == four
    (own_folder / "for-all" / "calibration").unlink()
    (own_folder / "for-all").rmdir()
    (own_folder / "for-all").write_text("no folder")
    place = keep(four)
    assert place == str(own_folder / "railweave-0" / "calibration")
    assert _native.find_calibration(library(), cache.FOR_ALL)["path"] == place


def test_what_no_longer_holds_is_not_shown(four: Calibration, own_folder: Path) -> None:
    place = Path(str(keep(four)))
    text = place.read_text()
    place.write_text(text.replace("boot: ", "boot: 0", 1))
    with pytest.raises(CalibrationError, match=re.escape(f"{place} does not hold here (another boot)")):
        kept()
    fingerprint = text.partition("\n")[0]
    for rest, says in (("{}\n{", "not JSON"), ("{}\n{}", "no format"), ("{}", "cannot be read"), ("", ":2:1: not JSON")):
        place.write_text(f"{fingerprint}\n{rest}")
        with pytest.raises(CalibrationError, match=f"^{re.escape(str(place))}.*{says}"):
            kept()


def test_the_command_shows_a_file_and_plans_by_it(four: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(four.text())
    shown = CliRunner().invoke(root, ["calibrate", "--from", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "4 x NVIDIA H200, CUDA 13.0" in shown.output
    assert "gpu_blocks 16" in shown.output and "gpu_low_latency_bytes 524288" in shown.output
    path.write_text(replace(four, gpus=named("NVIDIA H100 80GB HBM3")).text())
    arguments = ["plan", "--fabric", "h100-4gpu-ndr", "--nodes", "1", "--matrix", "hot-pair:256MiB", "--policy", "single-path", "--json"]
    times = []
    for more in ([], ["--calibration", str(path)]):
        planned = CliRunner().invoke(root, [*arguments, *more])
        assert planned.exit_code == 0, planned.output
        times.append(json.loads(planned.output)["z_seconds"])
    assert times[0] != times[1]


@pytest.mark.parametrize("sizes", [None, (SizeTime(512 << 10, 5799, 8602, 11460, 15950),)])
def test_the_command_shows_tables(tmp_path: Path, sizes: tuple[SizeTime, ...] | None) -> None:
    measured = read(str(MEASURED))
    path = tmp_path / "calibration.json"
    path.write_text((replace(measured, sizes=sizes) if sizes else measured).text())
    lines = CliRunner().invoke(root, ["calibrate", "--from", str(path)], env={"COLUMNS": "40"}).output.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert ["0", "1", "368.6", "10.5", "394.5", "49.4"] in rows
    assert ["12", "364.6", "275.9"] in rows
    assert (["512KiB", "5.8", "8.6", "11.5", "15.9"] if sizes else ["2MiB", "12.4", "12.7"]) in rows
    # Every number of a row stands in one line.
    assert len(rows) == len(measured.pairs) + len(measured.blocks) + len(sizes or measured.sizes)
    assert lines[-7:-5] == ["us of the smallest operation: 2.3", "gpu_blocks 16"]
    assert lines[-4:] == ["gpu_host_share 118", "gpu_relays 0", "gpu_pair_rate 368895", "gpu_block_rate 37328"]


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railweave.cli.calibrate._measured", lambda: pytest.fail("measured"))
    result = CliRunner().invoke(root, ["calibrate", "--output", str(tmp_path / "none" / "node.json")])
    assert isinstance(result.exception, OutputError)
    result = CliRunner().invoke(root, ["calibrate", "--output", str(tmp_path)])
    assert isinstance(result.exception, OutputError) and "it is a directory" in str(result.exception)


def test_the_command_needs_gpus_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railweave.calibrate.gpus._LIBRARY", "libno-such-driver.so")
    result = CliRunner().invoke(root, ["calibrate"])
    assert isinstance(result.exception, CalibrationError)
    assert "no NVIDIA driver" in str(result.exception)
