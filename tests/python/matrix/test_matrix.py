"""Generators, sizes and the command line of matrices."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from railweave import _native, matrix
from railweave.cli.matrix import command
from railweave.errors import DemandError, ParseError
from railweave.output import OutputError
from railweave.size import exact_size, figures, format_size, parse_size, size_text

EXAMPLES = [
    "balanced:1MiB",
    "all-to-all:1MiB",
    "hot-pair:16MiB",
    "hot-pair:16MiB:1KiB",
    "bidir-pair:16MiB:1KiB",
    "incast:4MiB",
    "outcast:4MiB",
    "zipf:16MiB:1.2",
    "zipf:16MiB:0.8:7",
    "moe:64:128:16:2:1.0:3",
    "trace:noaux:3:2:512",
    "trace:aux:40:5:2",
    "rotating-hotspot:64KiB",
    "random:1000:5",
]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("7B", 7),
        ("64KiB", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64KB", 64000),
        ("16MiB", 16 << 20),
        ("16M", 16 << 20),
        ("1.5GiB", 3 << 29),
        ("1.5GB", 1_500_000_000),
        ("2TiB", 2 << 40),
        ("8388607TiB", 8388607 << 40),
        ("546.5PiB", 1093 << 49),
        ("3P", 3 << 50),
        ("2PB", 2 * 10**15),
        ("7EiB", 7 << 60),
        ("1E", 1 << 60),
        ("1.1GiB", 1181116006),
        ("4.0", 4),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1e6",
        "4 XB",
        "KiB",
        "16ZiB",
        "8EiB",
        "8388608TiB",
        "0x10",
        "1..5M",
        "nan",
        "1e",
        "9" * 400,
        "9" * 5000,
        f"{'9' * 5000}.5KiB",
    ],
)
def test_bad_sizes_name_themselves(text: str) -> None:
    with pytest.raises(DemandError, match="expected"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1.5", "0.5B", "1000.5", "0.0001KiB"])
def test_parts_of_bytes_are_refused(text: str) -> None:
    with pytest.raises(DemandError, match=f"size '{text}': expected a whole number of bytes"):
        parse_size(text)


@given(st.integers(0, 2**63 - 1))
def test_sizes_that_are_shown_can_be_given_back(size: int) -> None:
    assert parse_size(format_size(size)) == parse_size(exact_size(size)) == size
    assert exact_size(size)[-1] == "B"
    if size < 2**63 * 0.99:  # what is rounded up to 8EiB is too large
        assert parse_size(size_text(size)) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("exact", [1 << 50, 3 << 60])
def test_the_largest_units_are_used(exact: int) -> None:
    assert format_size(exact) == size_text(exact) == {1 << 50: "1PiB", 3 << 60: "3EiB"}[exact]


@pytest.mark.parametrize(("value", "text"), [(0.0625, "0.0625"), (52.734, "52.73"), (9999.4, "9999"), (9999.6, "10000"), (16384, "16384")])
def test_figures_before_the_point_are_all_there(value: float, text: str) -> None:
    assert figures(value) == text


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_generated_matrices_are_demands(text: str, ranks: int) -> None:
    made = matrix.generate(text, ranks)
    assert made.shape == (ranks, ranks)
    assert made.dtype == np.uint64
    assert made.diagonal().any() == text.startswith("all-to-all")
    assert not matrix.between_ranks(made).diagonal().any()
    assert matrix.between_ranks(made).sum() == made.sum() - made.diagonal().sum() > 0
    assert (made == matrix.generate(text, ranks)).all()
    assert (_native.parse_demand(matrix.write(made), text).to_numpy() == made).all()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("all-to-all:5", [[5] * 4] * 4),
        ("balanced:5", [[0, 5, 5, 5], [5, 0, 5, 5], [5, 5, 0, 5], [5, 5, 5, 0]]),
        ("hot-pair:9:1", [[0, 1, 9, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]),
        ("bidir-pair:9", [[0, 0, 9, 0], [0, 0, 0, 0], [9, 0, 0, 0], [0, 0, 0, 0]]),
        ("incast:9", [[0, 0, 9, 0], [0, 0, 9, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        ("outcast:9", [[0, 0, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        ("rotating-hotspot:16", [[0, 0, 16, 2], [2, 0, 0, 16], [16, 2, 0, 0], [0, 16, 2, 0]]),
    ],
)
def test_what_the_generators_mean(text: str, rows: list[list[int]]) -> None:
    assert matrix.generate(text, 4).tolist() == rows


@given(st.integers(2, 12), st.integers(0, 2**50), st.floats(0, 4), st.integers(0, 5))
def test_zipf_sends_exactly_its_size(ranks: int, size: int, s: float, seed: int) -> None:
    made = matrix.zipf(ranks, size, s, seed)
    assert made.sum(axis=1).tolist() == [size] * ranks


def test_zipf_gives_all_senders_the_same_favourite() -> None:
    made = matrix.zipf(8, 1 << 24, 1.2, 3)
    favourite = int(made.sum(axis=0).argmax())
    others = [rank for rank in range(8) if rank != favourite]
    assert (made[others].argmax(axis=1) == favourite).all()


def test_moe_sends_at_most_every_token_to_every_rank() -> None:
    made = matrix.moe(ranks=4, tokens=100, hidden=8, experts=16, topk=2, skew=1.0)
    assert (made % 16 == 0).all()  # two bytes a hidden element
    assert made.max() <= 100 * 16
    assert (made.sum(axis=1) <= 100 * 2 * 16).all()


def test_trace_is_the_recording() -> None:
    with np.load(Path(matrix.__file__).with_name("data") / "moe_trace.npz") as file:
        counts = file["noaux_counts"]
    made = matrix.generate("trace:noaux:7:3:1000", 8)
    assert made[2, 5] == counts[7, 3, 2, 40:48].sum() * 1000
    two = matrix.generate("trace:noaux:7:3:1", 2)
    assert two[0, 1] == counts[7, 3, :4, 32:].sum()
    sixteen = matrix.generate("trace:noaux:7:3:1", 16)
    assert sixteen[4:6, 9].sum() == counts[7, 3, 2, 36:40].sum()  # two ranks share the load of shard 2


def test_trace_reads_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    counts = np.arange(2 * 1 * 2 * 4, dtype=np.uint16).reshape(2, 1, 2, 4)
    np.savez(path, noaux_counts=counts, aux_counts=counts + 1)
    assert matrix.generate(f"trace:{path}:1:0:1", 2).tolist() == [[0, 10 + 11], [12 + 13, 0]]
    assert matrix.generate(f"trace:{path}#aux:1:0:1", 2).tolist() == [[0, 11 + 12], [13 + 14, 0]]


def test_damaged_recordings_are_errors(tmp_path: Path) -> None:
    counts = np.arange(2 * 1 * 2 * 4, dtype=np.int64).reshape(2, 1, 2, 4)
    whole = io.BytesIO()
    np.savez_compressed(whole, noaux_counts=counts)
    path = tmp_path / "damaged.npz"
    for place in range(len(whole.getvalue())):
        damaged = bytearray(whole.getvalue())
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(DemandError):
            matrix.generate(f"trace:{path}:1:0:1", 2)
    np.save(tmp_path / "one.npy", counts)
    with pytest.raises(DemandError, match=r"not an \.npz file"):
        matrix.generate(f"trace:{tmp_path / 'one.npy'}:1:0:1", 2)
    np.savez(path, noaux_counts=-counts)
    with pytest.raises(DemandError, match="a count of -15"):
        matrix.generate(f"trace:{path}:1:0:1", 2)


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        ("nonsense:1", 4, "no generator 'nonsense'"),
        ("balanced", 4, "expected balanced:SIZE"),
        ("balanced:1:2", 4, "expected balanced:SIZE"),
        ("balanced:-1", 4, "SIZE: size '-1'"),
        ("hot-pair:1MiB", 1, "at least 2"),
        ("zipf:1MiB:x", 4, "S: 'x'"),
        ("zipf:1MiB:1:y", 4, "SEED: 'y'"),
        ("balanced:4000000TiB", 4, "2\\^63"),
        ("moe:10:999999999999999999:4:1:0", 4, "less than 2\\^63"),
        ("moe:10:8:6:1:0", 4, "multiple of the ranks"),
        ("moe:10:8:8:9:0", 4, "top 9 of 8"),
        ("moe:999999999999:8:8:1:0", 4, "at most"),
        ("trace:noaux:41:0:1", 8, "no record 41"),
        ("trace:noaux:0:6:1", 8, "no layer 6"),
        ("trace:noaux:0:0:1", 3, "64 experts on 3 ranks"),
        ("trace:/nowhere.npz:0:0:1", 8, "/nowhere.npz"),
        ("trace:noaux:0:0:8000000TiB", 8, "less than 2\\^63"),
    ],
)
def test_errors_say_what_was_expected(text: str, ranks: int, says: str) -> None:
    with pytest.raises(DemandError, match=says):
        matrix.generate(text, ranks)


def test_load_reads_files_and_checks_their_size(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("0 5\n7 0\n")
    assert matrix.load(str(path), 2).tolist() == [[0, 5], [7, 0]]
    with pytest.raises(DemandError, match="matrix of 2 ranks; expected 4"):
        matrix.load(str(path), 4)
    path.write_text("0 5\nseven 0\n")
    with pytest.raises(ParseError, match=r"m\.txt:2"):
        matrix.load(str(path), 2)


def test_files_that_are_no_matrix_say_what_they_are(tmp_path: Path) -> None:
    for name, says in (
        (str(tmp_path), "cannot be read: Is a directory; expected a matrix file, or a generator"),
        (str(tmp_path / "missing"), "cannot be read: No such file or directory; expected a matrix file, or a generator"),
        ("nul\0", "cannot be read: embedded null byte; expected a matrix file, or a generator"),
        ("/dev/null", "/dev/null: no rows; expected one row of bytes"),
        ("/dev/zero", "/dev/zero: more than 1048832 bytes; expected a matrix of 2 ranks"),
    ):
        with pytest.raises(ParseError) as caught:
            matrix.load(name, 2)
        assert says in str(caught.value)
    with pytest.raises(DemandError, match="no generator 'missing' and no such file"):
        matrix.load("missing", 2)


def test_bytes_that_are_no_text_are_told_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"\x1b[2J\xff\x00")
    with pytest.raises(ParseError) as caught:
        matrix.load(str(path), 2)
    assert str(caught.value) == f"{path}:1:1: '\\x1b[2J\\xff\\x00'; expected a number of bytes from 0 to 2^63 - 1"


def test_a_byte_order_mark_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("0 5\n7 0\n", encoding="utf-8-sig")
    assert matrix.load(str(path), 2).tolist() == [[0, 5], [7, 0]]


def test_a_recording_without_end_is_not_read_to_it() -> None:
    with pytest.raises(DemandError, match=r"trace '/dev/zero': more than \d+ bytes"):
        matrix.load("trace:/dev/zero:0:0:1", 2)


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["/bin/sh", "-c", 'printf "0 5\\n7 0\\n" > "$0"', str(pipe)]):
        assert matrix.load(str(pipe), 2).tolist() == [[0, 5], [7, 0]]


def test_command_writes_what_nccl_tests_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    done = CliRunner().invoke(command, ["hot-pair:1MiB", "--ranks", "4", "-o", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert [list(map(int, line.split())) for line in path.read_text().splitlines()] == matrix.hot_pair(4, 1 << 20).tolist()
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.txt"]


def test_command_leaves_no_half_written_file(tmp_path: Path) -> None:
    for target in (str(tmp_path / "missing" / "m.txt"), ""):
        done = CliRunner().invoke(command, ["balanced:1", "--ranks", "4", "-o", target])
        assert done.exit_code == 1
        assert isinstance(done.exception, OutputError)
        assert f"{Path(target)}: cannot be written: " in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_generator() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert all(generator.usage in text for generator in matrix.GENERATORS.values())


@pytest.mark.parametrize(("text", "size"), [("balanced:5", "10B"), ("balanced:16MiB", "32MiB"), ("hot-pair:28227497", "26.9MiB")])
def test_a_file_is_named_with_its_size_in_a_unit(text: str, size: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [text, "--ranks", "2", "-o", str(tmp_path / "m.txt")])
    assert done.output == f"{tmp_path / 'm.txt'}: 2 ranks, {size} in all\n"
