"""What is measured: matrices of whole rows, and which tokens go where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.bench.gpus.compare import busiest, rows_of, schedule
from railweave.errors import DemandError
from railweave.matrix import balanced, hot_pair, zipf


def test_matrices_become_rows_and_small_messages_stay() -> None:
    matrix = np.array([[7, 10_000], [511, 0]], dtype=np.uint64)
    rows = rows_of(matrix)
    assert rows.tolist() == [[7, 10_240], [512, 0]]
    assert rows_of(balanced(3, 16)).tolist() == balanced(3, 16).tolist()


@given(st.integers(2, 8), st.integers(1, 1 << 28), st.floats(0.1, 2.0))
def test_rows_keep_the_matrix_to_half_a_row(ranks: int, size: int, skew: float) -> None:
    matrix = zipf(ranks, size, skew)
    rows = rows_of(matrix)
    assert (np.abs(rows.astype(np.int64) - matrix.astype(np.int64)) <= 256).all()
    assert ((rows > 0) == (matrix > 0)).all()


def test_the_busiest_rank_is_counted_in_its_busier_direction() -> None:
    assert busiest(hot_pair(4, 1000, 10)) == 1020
    assert busiest(np.array([[0, 5], [9, 0]], dtype=np.uint64)) == 9


@pytest.mark.parametrize("skew", ["none", "zipf:1.2", "rotating"])
def test_each_rank_sends_all_its_tokens_in_each_iteration(skew: str) -> None:
    plan = np.array(schedule(skew, 4, 1000, 6))
    assert plan.shape == (6, 4, 4)
    assert (plan.sum(axis=2) == 1000).all()
    assert plan.tolist() == schedule(skew, 4, 1000, 6), "the same for all systems"


def test_skews_are_what_they_say() -> None:
    even = np.array(schedule("none", 4, 1024, 2))
    assert (even == 256).all()
    rotating = np.array(schedule("rotating", 4, 4000, 8)).sum(axis=1)
    assert rotating.argmax(axis=1).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (np.abs(rotating.max(axis=1) / 16000 - 0.75) < 0.05).all()
    skewed = np.array(schedule("zipf:1.2", 4, 4000, 3)).sum(axis=1)
    assert (skewed.max(axis=1) > 1.3 * 4000).all()
    with pytest.raises(DemandError, match="skew 'steep': expected none, zipf:S or rotating"):
        schedule("steep", 4, 1, 1)
