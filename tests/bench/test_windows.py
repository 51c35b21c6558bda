"""σ²_TPS: known schedules are recovered exactly."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.bench.windows import MAX_WINDOWS, WINDOW_NS, evenness, window_counts

COUNTS = st.lists(st.integers(0, 6), min_size=2, max_size=MAX_WINDOWS)


def stream_of(counts: list[int]) -> list[int]:
    """A stream with so many events in each window, and one behind them that closes the last."""
    times = [7 + window * WINDOW_NS + number for window, count in enumerate(counts) for number in range(count)]
    return [*times, 7 + len(counts) * WINDOW_NS]


@given(COUNTS.map(lambda counts: [counts[0] + 1, *counts[1:]]))
def test_counts_are_recovered_exactly(counts: list[int]) -> None:
    assert window_counts(stream_of(counts)) == counts


@given(st.lists(COUNTS.map(lambda counts: [counts[0] + 1, *counts[1:]]), min_size=1, max_size=5))
def test_variances_are_pooled_within_streams(streams: list[list[int]]) -> None:
    found = evenness(map(stream_of, streams))
    squares = sum(sum((c - sum(counts) / len(counts)) ** 2 for c in counts) for counts in streams)
    assert found.variance == pytest.approx(25 * squares / sum(len(counts) - 1 for counts in streams))
    assert found.windows == sum(map(len, streams)) and found.streams == len(streams)
    assert found.full_streams == sum(len(counts) == MAX_WINDOWS for counts in streams)


def test_streams_of_different_speed_are_even_each() -> None:
    found = evenness([stream_of([1] * 50), stream_of([9] * 50)])
    assert (found.variance, found.tokens_per_s, found.cv) == (0, 25, 0)


@pytest.mark.parametrize("rate", [7, 13, 20, 33])
def test_even_tokens_reach_the_periodic_reference(rate: int) -> None:
    found = evenness([[number * 1_000_000_000 // rate for number in range(rate * 11)]] * 3)
    assert found.tokens_per_s == pytest.approx(rate, rel=0.01)
    assert found.variance == pytest.approx(found.periodic, abs=1)
    assert found.variance < found.poisson / 5


def test_a_token_at_a_window_s_edge_falls_on_either_side() -> None:
    """Where a whole number of tokens fills a window, the least jitter costs up to half a token squared per window."""
    chance = random.Random(1)
    streams = [[int((number + chance.random() * 0.001) * 5e7) for number in range(220)] for _ in range(200)]
    found = evenness(streams)
    assert found.periodic < 1 < found.variance < 12.5


def test_tokens_by_chance_reach_the_poisson_reference() -> None:
    chance = random.Random(3)
    streams = [[int(at * 1e9) for at in accumulate(chance.expovariate(30) for _ in range(340))] for _ in range(200)]
    found = evenness(streams)
    assert found.variance == pytest.approx(found.poisson, rel=0.05)
    assert found.poisson == pytest.approx(150, rel=0.05)


def test_what_cannot_fill_two_windows_says_nothing() -> None:
    found = evenness([[], [5], [5, 5 + WINDOW_NS], [0, WINDOW_NS * 2 - 1]])
    assert found.windows == found.streams == 0
    assert math.isnan(found.variance) and math.isnan(found.cv) and math.isnan(found.periodic)


def test_what_comes_after_ten_seconds_is_not_looked_at() -> None:
    assert len(window_counts([0, WINDOW_NS * 500])) == MAX_WINDOWS
