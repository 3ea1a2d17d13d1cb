"""Whatever goes wrong with bytes must show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.bench import pattern

SIZES = st.one_of(st.integers(0, 100), st.sampled_from([8 * (1 << 16) - 1, 8 * (1 << 16), 8 * (1 << 16) + 1, 3_000_001]))


def filled(size: int, key: int) -> pattern.Bytes:
    buffer = np.zeros(size, dtype=np.uint8)
    pattern.fill(buffer, key)
    return buffer


@given(SIZES, st.integers(0, 2**64 - 1))
def test_what_is_filled_is_right(size: int, key: int) -> None:
    assert pattern.first_difference(filled(size, key), key) is None


@given(SIZES.filter(bool), st.integers(0, 2**64 - 1), st.data())
def test_one_wrong_byte_is_found_in_its_place(size: int, key: int, data: st.DataObject) -> None:
    buffer = filled(size, key)
    place = data.draw(st.integers(0, size - 1))
    buffer[place] ^= data.draw(st.integers(1, 255))
    assert pattern.first_difference(buffer, key) == place


@given(st.integers(1, 4), st.integers(0, 3))
def test_swapped_and_repeated_chunks_are_found(chunks: int, which: int) -> None:
    size = 256 * 1024
    buffer = filled(size * (chunks + 1), 1)
    first, second = buffer[:size].copy(), buffer[size : 2 * size].copy()
    if which % 2:
        buffer[:size], buffer[size : 2 * size] = second, first
    else:
        buffer[size : 2 * size] = first
    assert pattern.first_difference(buffer, 1) is not None


def test_keys_of_pairs_and_repetitions_differ() -> None:
    keys = {pattern.key(r, s, d) for r in range(8) for s in range(64) for d in range(64)}
    assert len(keys) == 8 * 64 * 64


@pytest.mark.skipif(subprocess.run(["which", "cc"], capture_output=True, check=False).returncode != 0, reason="no C compiler")
def test_the_mpi_peer_has_the_same_pattern(tmp_path: Path) -> None:
    """Takes the pattern's functions out of the C file and runs them."""
    source = Path(pattern.__file__).with_name("mpi_alltoallv.c").read_text()
    start, end = source.index("static uint64_t pattern_key"), source.index("static int place")
    program = tmp_path / "pattern.c"
    program.write_text(
        "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\nstatic long repetition = 5;\n"
        + source[start:end]
        + "int main(void) { unsigned char b[1003]; fill(b, 1003, pattern_key(2, 7)); fwrite(b, 1, 1003, stdout);"
        " return first_difference(b, 1003, pattern_key(2, 7)) == -1 ? 0 : 1; }\n"
    )
    subprocess.run(["cc", "-o", tmp_path / "pattern", program], check=True)
    output = subprocess.run([tmp_path / "pattern"], check=True, capture_output=True).stdout
    assert np.frombuffer(output, dtype=np.uint8).tolist() == filled(1003, pattern.key(5, 2, 7)).tolist()
