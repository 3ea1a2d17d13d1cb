"""When GPUDirect RDMA and GDRCopy should be on: the rules as a table, the seeds' conclusions, measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from railweave import fabric
from railweave.advise.advice import advise
from railweave.advise.errors import AdviceError
from railweave.advise.gdr import Decision, decide
from railweave.advise.host import Distance, Gpu, compute_capability, read_host
from railweave.advise.mapping import Workload
from railweave.advise.measured import Measurement, decide_measured, parse_measurements, read_measurements
from railweave.advise.text import render
from railweave.errors import ParseError


def gpu(model: str) -> Gpu:
    return Gpu(0, 0, "gpu0", model, "", True, 0, compute_capability(model))


@pytest.mark.parametrize(
    ("model", "distance", "bandwidth_gdr", "caveat"),
    [
        ("V100 SXM2", Distance.PIX, True, False),
        ("V100 SXM2", Distance.PXB, True, False),
        ("V100 SXM2", Distance.PHB, False, True),
        ("V100 SXM2", Distance.SYS, False, False),
        ("A100 SXM4 80GB", Distance.PIX, True, False),
        ("A100 SXM4 80GB", Distance.PHB, True, True),
        ("H100 SXM5 80GB", Distance.SYS, False, False),
        ("", Distance.PHB, True, True),
    ],
)
def test_rules(model: str, distance: Distance, bandwidth_gdr: bool, caveat: bool) -> None:
    latency, bandwidth = decide(gpu(model), distance)
    assert (latency.metric, latency.last_B, latency.gdr, latency.gdrcopy) == (Workload.latency, 8192, True, True)
    assert (bandwidth.metric, bandwidth.first_B, bandwidth.gdr, bandwidth.gdrcopy) == (Workload.bandwidth, 8193, bandwidth_gdr, True)
    assert bool(bandwidth.caveat) == caveat
    assert latency.source
    assert bandwidth.source


@pytest.mark.parametrize(
    ("model", "sm"),
    [
        ("Tesla V100-SXM2-32GB", 70),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("H100 SXM5", 90),
        ("NVIDIA GH200 480GB", 90),
        ("B200", 100),
        ("MI300X", None),
    ],
)
def test_generation_by_name(model: str, sm: int | None) -> None:
    assert compute_capability(model) == sm


def decided(name: str, workload: Workload) -> list[Decision]:
    advice = advise(read_host(fabric.load(name)), workload)
    return [next(d for d in of_rank if d.covers(workload, advice.size_B)) for of_rank in advice.decisions]


@pytest.mark.parametrize("name", ["charisma-ab", "charisma-c", "charisma-e"])
def test_charisma_latency_both_on_everywhere(name: str) -> None:
    assert all((d.gdr, d.gdrcopy, d.last_B) == (True, True, 8192) for d in decided(name, Workload.latency))


@pytest.mark.parametrize(("name", "gdr"), [("charisma-ab", False), ("charisma-c", False), ("charisma-e", True)])
def test_charisma_bandwidth_as_the_study_concludes(name: str, gdr: bool) -> None:
    assert all((d.gdr, d.gdrcopy) == (gdr, True) for d in decided(name, Workload.bandwidth))


@pytest.mark.parametrize("name", ["charisma-ab", "charisma-c"])
def test_charisma_contradictions_are_told(name: str) -> None:
    near = [d for d in decided(name, Workload.bandwidth) if "disagree" in d.caveat]
    assert near
    assert "16 KB" in near[0].caveat
    assert "64 KB" in near[0].caveat


def test_kisti_a100_keeps_gpudirect_on() -> None:
    assert all(d.gdr for d in decided("kisti-a100-8gpu", Workload.bandwidth))


# ---- measurements ----

HEAD = "metric,size_B,gdr,gdrcopy,value\n"


def measured(*rows: tuple[str, int, bool, bool, float]) -> list[Decision]:
    return decide_measured([Measurement(Workload(metric), *rest) for metric, *rest in rows], "runs.csv")


def test_measurements_decide_by_size_and_neighbours_merge() -> None:
    rows = [
        ("bandwidth", size, gdr, True, 100.0 + (50 if gdr == (size <= 16384) else 0))
        for size in (4096, 16384, 65536, 1 << 20)
        for gdr in (True, False)
    ]
    first, second = measured(*rows)
    # Both lines cross in the middle of 16 and 64 KiB, on a logarithmic scale; below 4 KiB and above 1 MiB nobody measured.
    assert (first.first_B, first.last_B, first.gdr) == (4096, 32768, True)
    assert (second.first_B, second.last_B, second.gdr) == (32769, 1 << 20, False)
    assert second.caveat == "between 16KiB and 64KiB interpolated"
    assert second.source == "runs.csv"
    assert "150 MB/s" in second.why


def test_nothing_is_decided_between_sizes_that_were_not_measured_alike() -> None:
    first, second = measured(
        ("bandwidth", 4096, True, True, 9.0), ("bandwidth", 65536, True, True, 9.0), ("bandwidth", 65536, False, True, 12.0)
    )
    assert (first.first_B, first.last_B, second.first_B, second.last_B) == (4096, 4096, 65536, 65536)


def test_a_size_beyond_the_measured_ones_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "bandwidth,4096,on,on,9000\nbandwidth,4096,off,on,12000\n")
    runs = read_measurements(path)
    for size, said in ((4096, 0), (8192, 1), (2048, 1)):
        advice = advise(read_host(fabric.load("xe9680-4hca")), size=size, measurements=runs, measured_in="runs.csv")
        assert ("UCX_IB_GPU_DIRECT_RDMA" in {s.name for s in advice.settings}) == (not said)
        assert sum("runs.csv has measurements of bandwidth from 4KiB to 4KiB" in text for text in advice.missing) == said


@pytest.mark.parametrize(
    ("name", "gdr", "expected"),
    [
        ("xe9680-4hca", True, {}),  # PIX: NCCL does so itself
        ("xe9680-4hca", False, {"NCCL_NET_GDR_LEVEL": "LOC"}),
        ("charisma-c", False, {}),  # PHB: NCCL does so itself
        ("charisma-c", True, {"NCCL_NET_GDR_LEVEL": "PHB"}),
        ("kisti-v100-2gpu", True, {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": "1"}),  # V100 without NVLink, one per socket
    ],
)
def test_what_was_measured_moves_nccl_where_its_default_differs(name: str, gdr: bool, expected: dict[str, str]) -> None:
    other = Measurement(Workload.bandwidth, 4 << 20, not gdr, True, 5000.0)
    advice = advise(read_host(fabric.load(name)), measurements=[replace(other, gdr=gdr, value=9000.0), other], measured_in="runs.csv")
    assert {s.name: s.values[0] for s in advice.settings if s.name.startswith("NCCL_NET_GDR")} == expected
    assert not any(s.name.startswith("NCCL_NET_GDR") for s in advise(read_host(fabric.load(name))).settings)


def test_lower_latency_wins() -> None:
    [decision] = measured(("latency", 8, True, True, 5.0), ("latency", 8, False, True, 3.0))
    assert not decision.gdr


def test_a_difference_within_the_repetitions_leaves_the_default() -> None:
    overlap = [("bandwidth", 8, True, True, v) for v in (90.0, 104.0)] + [("bandwidth", 8, False, True, v) for v in (103.0, 110.0)]
    [decision] = measured(*overlap)
    assert decision.gdr
    assert "repetitions" in decision.why
    apart = [("bandwidth", 8, True, True, v) for v in (90.0, 100.0)] + [("bandwidth", 8, False, True, v) for v in (103.0, 110.0)]
    [decision] = measured(*apart)
    assert not decision.gdr


def test_a_file_replaces_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    runs = HEAD + "# one pair, idle fabric\nbandwidth,4194304,on,on,9000\nbandwidth,4194304,on,off,12000\n"
    path.write_text(runs, encoding="utf-8-sig")  # as spreadsheets write it
    advice = advise(read_host(fabric.load("xe9680-4hca")), measurements=read_measurements(path), measured_in=str(path))
    assert {s.name: s.values for s in advice.settings}["UCX_TLS"] == ("^gdr_copy",)
    with pytest.raises(AdviceError, match="no measurement of latency"):
        advise(read_host(fabric.load("xe9680-4hca")), Workload.latency, measurements=read_measurements(path), measured_in=str(path))


def test_values_far_apart_have_a_crossing() -> None:
    runs = "latency,1,on,on,1e-9\nlatency,1,off,off,1e15\nlatency,4096,on,on,1e15\nlatency,4096,off,off,1e-9\n"
    first, second = decide_measured(parse_measurements(HEAD + runs, "runs.csv"), "runs.csv")
    assert (first.first_B, first.last_B, second.first_B, second.last_B) == (1, 64, 65, 4096)
    assert second.caveat == "between 1B and 4KiB interpolated"


def test_sizes_have_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "bandwidth,1,on,on,1\nbandwidth,8,on,on,2\n")
    host = read_host(fabric.load("xe9680-4hca"))
    text = render(advise(host, size=1_000_000, measurements=read_measurements(path), measured_in="runs.csv"))
    assert "advice for bandwidth, 1000000B messages" in text
    assert re.search(r"bandwidth +1B to 8B ", text)
    assert "messages of 1000000B: runs.csv has measurements of bandwidth from 1B to 8B, and" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no measurement"),
        (HEAD, "no measurement"),
        ("metric,size\n", "runs.csv:1: columns metric, size; expected"),
        (HEAD + "bandwidth,1,on,on\n", "runs.csv:2: 4 fields; expected 5"),
        (HEAD + "speed,1,on,on,1\n", "runs.csv:2: metric: 'speed'"),
        (HEAD + "latency,1,yes,on,1\n", "runs.csv:2: gdr: 'yes'; expected on or off"),
        (HEAD + "latency,-1,on,on,1\n", "size_B: '-1'; expected a number of bytes"),
        (HEAD + "latency,1,on,on,nan\n", "value: 'nan'; expected a positive number"),
        (HEAD + "latency,1,on,on,0\n", "value: '0'"),
        (HEAD + "latency,1,on,on,1e999\n", "value: '1e999'"),
        (HEAD + "latency,1,on,on,1e-160\n", "value: '1e-160'; expected a positive number, 1e-9 to 1e15"),
        (HEAD + "latency,1,on,on,1e300\n", "value: '1e300'"),
    ],
)
def test_bad_measurements_are_named(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message.replace("(", r"\(")):
        parse_measurements(text, "runs.csv")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="cannot be read"):
        read_measurements(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParseError, match="UTF-8"):
        read_measurements(tmp_path / "binary.csv")
    with pytest.raises(ParseError, match="/dev/zero: more than"):
        read_measurements(Path("/dev/zero"))
