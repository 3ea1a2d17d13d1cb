"""The order in which a GPU of the probe writes to others."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from railweave.bench.gpus.pieces import in_turn, interleaved


def test_equal_shares_go_round_from_the_next_gpu_on() -> None:
    orders = [[to for to, _, _ in interleaved(source, 4, {to: 300 for to in range(4) if to != source}, 100)] for source in range(4)]
    assert orders[0] == [1, 2, 3] * 3
    assert orders[2] == [3, 0, 1] * 3
    for number in range(9):
        assert len({order[number] for order in orders}) == 4, "no receiver has two senders at a time"


def test_in_turn_each_receiver_has_one_sender_at_a_time() -> None:
    words = [{to: 250 for to in range(4) if to != source} for source in range(4)]
    orders = [in_turn(source, 4, words[source], 100) for source in range(4)]
    assert orders[2][:4] == [(3, 0, 100), (3, 100, 100), (3, 200, 50), (0, 0, 100)]
    for number in range(9):
        assert len({order[number][0] for order in orders}) == 4
    assert in_turn(3, 4, {}, 100) == []
    assert in_turn(1, 3, {0: 1, 2: 3}, 2) == [(2, 0, 2), (2, 2, 1), (0, 0, 1)]


def test_a_large_share_is_spread_over_the_whole_list() -> None:
    assert [to for to, _, _ in interleaved(0, 4, {1: 400, 2: 100}, 100)] == [1, 1, 2, 1, 1]
    assert interleaved(0, 2, {1: 250}, 100) == [(1, 0, 100), (1, 100, 100), (1, 200, 50)]
    assert interleaved(3, 4, {}, 100) == []


@given(st.integers(2, 16), st.data())
def test_every_word_is_written_once_and_any_beginning_is_in_proportion(world: int, data: st.DataObject) -> None:
    source = data.draw(st.integers(0, world - 1))
    others = [gpu for gpu in range(world) if gpu != source]
    words = data.draw(st.dictionaries(st.sampled_from(others), st.integers(1, 10_000), min_size=1))
    piece = data.draw(st.integers(1, 5000).filter(lambda size: sum(words.values()) / size < 2000))
    found = interleaved(source, world, words, piece)
    reached = dict.fromkeys(words, 0)
    pieces = {to: math.ceil(count / piece) for to, count in words.items()}
    done = dict.fromkeys(words, 0)
    for number, (to, first, length) in enumerate(found, 1):
        assert first == reached[to] and 0 < length <= piece
        reached[to] += length
        done[to] += 1
        share = number / len(found)
        assert all(abs(done[each] - share * pieces[each]) <= len(words) for each in words)
    assert reached == words
