"""The reserve of connections: within its bounds, steady at every edge, and ahead of a burst."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.elastic import (
    FAST_S,
    GROW,
    HIGH_SHARE,
    LEAST_HORIZON_S,
    LOW_SHARE,
    MAX_OPENING,
    MOST_HORIZON_S,
    SAMPLE_S,
    SHRINK,
    Rate,
    Reserve,
    Span,
    Use,
    Zone,
    arrived,
    begun,
    forecast,
    missed,
    note_connect,
    sampled,
    to_open,
    used_of,
    wanted,
    zone_of,
)

SPAN = Span()
spans = st.tuples(st.integers(0, 50), st.integers(0, 5000)).map(lambda each: Span(each[0], each[0] + each[1]))


def sizes(reserve: Reserve, uses: list[int], span: Span = SPAN) -> list[int]:
    """The size after each sample."""
    found = []
    for used in uses:
        reserve = sampled(reserve, used, span)
        found.append(reserve.size)
    return found


# The table.


@pytest.mark.parametrize(
    ("used", "size", "zone"),
    [
        (0, 4, Zone.LOW), (1, 4, Zone.LOW), (2, 4, Zone.MIDDLE), (3, 4, Zone.MIDDLE), (4, 4, Zone.HIGH), (40, 4, Zone.HIGH),
        (29, 100, Zone.LOW), (30, 100, Zone.MIDDLE), (85, 100, Zone.MIDDLE), (86, 100, Zone.HIGH),
        (0, 0, Zone.LOW), (1, 0, Zone.HIGH),
    ],
)  # fmt: skip
def test_zones(used: int, size: int, zone: Zone) -> None:
    assert zone_of(used, size) is zone


def test_two_more_at_once_and_one_less_after_three() -> None:
    assert sizes(Reserve(8), [8]) == [10]
    assert sizes(Reserve(8), [1] * 7) == [8, 8, 7, 7, 7, 6, 6]
    assert sizes(Reserve(8), [1, 1, 4, 1, 1, 4]) == [8] * 6, "in a row"
    assert sizes(Reserve(8), [1, 1, 8, 1, 1]) == [8, 8, 10, 10, 10], "growing counts as a break, too"


def test_what_was_used_is_what_was_gone_at_once_and_what_was_missed() -> None:
    assert used_of(Reserve(8), Use(least_ready=8)) == 0
    assert used_of(Reserve(8), Use(least_ready=3)) == 5
    assert used_of(Reserve(8), Use(least_ready=0, missed=6)) == 14
    assert used_of(Reserve(8), Use(least_ready=30)) == 0, "connections that answers have left are more than it wants"


# Bounds.


@given(spans, st.lists(st.integers(0, 6000) | st.just(-1), max_size=100))
def test_never_below_the_floor_nor_above_the_ceiling(span: Span, happenings: list[int]) -> None:
    reserve = begun(span)
    for used in happenings:
        reserve = missed(reserve, span) if used < 0 else sampled(reserve, used, span)
        assert span.floor <= reserve.size <= span.ceiling


@given(spans, st.integers(0, 6000), st.integers(0, 10))
def test_a_reserve_of_another_span_comes_within_this_one(span: Span, size: int, used: int) -> None:
    """As after a reload."""
    assert span.floor <= sampled(Reserve(size), used, span).size <= span.ceiling


@pytest.mark.parametrize(("floor", "ceiling"), [(5, 4), (-1, 4)])
def test_a_floor_over_the_ceiling_is_refused(floor: int, ceiling: int) -> None:
    with pytest.raises(ValueError, match="floor"):
        Span(floor, ceiling)


# No flapping.


@given(st.integers(4, 3000), st.lists(st.floats(0.84, 0.86), min_size=20, max_size=60))
def test_at_the_edge_it_only_grows(size: int, shares: list[float]) -> None:
    reserve, seen = Reserve(size), [size]
    for share in shares:
        reserve = sampled(reserve, round(share * reserve.size), Span(4, 5000))
        seen.append(reserve.size)
    assert all(after >= before for before, after in pairwise(seen))


@given(st.integers(4, 3000), st.integers(0, 3000))
def test_at_any_constant_use_it_goes_one_way(size: int, used: int) -> None:
    steps = {after - before for before, after in pairwise([size, *sizes(Reserve(size), [used] * 300, Span(4, 9000))])}
    assert steps - {0} in ({GROW}, {-SHRINK}, set())


@given(st.integers(4, 60), st.integers(0, 60))
def test_where_it_rests_use_lies_between_the_bounds(size: int, used: int) -> None:
    rest = sizes(Reserve(size), [used] * 400, Span(4, 5000))[-1]
    assert used <= HIGH_SHARE * rest
    assert rest == 4 or used >= LOW_SHARE * rest


# Bursts.


def test_a_burst_raises_it_without_a_sample() -> None:
    """From idle to ten times the floor within a second, the next sample four seconds off."""
    reserve, rate, idle, seen = begun(SPAN), Rate(0.0), SPAN.floor, []
    for request in range(10 * SPAN.floor):
        now = 100.0 + request / 40
        rate = arrived(rate, now)
        if idle:
            idle -= 1
        else:
            reserve = missed(reserve, SPAN)
        seen.append(wanted(reserve, rate, now, 0.25, SPAN))
    assert now - 100.0 < 1.0 < SAMPLE_S
    assert seen[0] == SPAN.floor and seen[-1] == SPAN.ceiling
    assert seen.index(SPAN.ceiling) <= 12, "early in the burst, not at its end"


def test_the_ceiling_can_be_thousands() -> None:
    span, reserve, rate = Span(4, 4000), Reserve(4), Rate(0.0)
    for request in range(8000):
        rate = arrived(rate, request / 8000)
    assert 1000 < wanted(reserve, rate, 1.0, 0.25, span) <= 4000


# The rate.


@pytest.mark.parametrize("per_s", [1, 7.3, 50, 300])
def test_of_a_steady_rate_it_expects_that_rate(per_s: float) -> None:
    rate, now = Rate(0.0), 0.0
    for _ in range(int(30 * per_s)):
        now += 1 / per_s
        rate = arrived(rate, now)
    assert forecast(rate, now, 1.0) == pytest.approx(per_s, rel=0.05, abs=1.6 / FAST_S)


def test_of_a_ramp_it_expects_more_than_there_was() -> None:
    """The rate rises by 20 per second each second: after 10 s it is 200, and 210 on average over the next second."""
    rate, now, due = Rate(0.0), 0.0, 0.0
    while now < 10.0:
        now += 0.001
        due += 20 * now * 0.001
        while due >= 1.0:
            due -= 1.0
            rate = arrived(rate, now)
    assert forecast(rate, now, 1.0) == pytest.approx(210, rel=0.06)


@given(st.lists(st.floats(0, 10), max_size=50).map(sorted), st.floats(0, 100), st.floats(0, 10))
def test_it_is_never_negative_nor_endless_and_falls_in_silence(
    at: list[float], later_s: float, horizon_s: float
) -> None:
    rate = Rate(0.0)
    for moment in at:
        rate = arrived(rate, moment)
    now = at[-1] if at else 0.0
    expected = forecast(rate, now, horizon_s)
    assert 0 <= expected < 1e6
    assert forecast(rate, now + 60.0 + later_s, horizon_s) <= max(1e-3, expected)


def test_a_clock_that_seems_to_go_back_is_borne() -> None:
    rate = arrived(Rate(5.0), 4.0)
    assert (rate.at, rate.fast) == (5.0, 1 / FAST_S)


@given(st.floats(0, 1e9), st.floats(0, 1e6), spans)
def test_what_is_wanted_is_within_the_span(connect_s: float, fast: float, span: Span) -> None:
    assert span.floor <= wanted(begun(span), Rate(0.0, fast), 0.0, connect_s, span) <= span.ceiling


def test_the_horizon_is_bounded() -> None:
    rate, span = Rate(0.0, fast=100.0, slow=100.0), Span(0, 10_000)
    assert wanted(Reserve(0), rate, 0.0, 0.0, span) == round(100 * LEAST_HORIZON_S)
    assert wanted(Reserve(0), rate, 0.0, 1e9, span) == round(100 * MOST_HORIZON_S)


# What is opened.


@pytest.mark.parametrize(
    ("ready", "idle", "opening", "count"),
    [
        (4, 0, 0, 4),
        (4, 1, 2, 1),
        (4, 4, 0, 0),
        (4, 9, 0, 0),
        (1000, 0, 0, MAX_OPENING),
        (1000, 0, 10, MAX_OPENING - 10),
        (9, 0, 99, 0),
    ],
)
def test_how_many_to_open(ready: int, idle: int, opening: int, count: int) -> None:
    assert to_open(ready, idle, opening) == count


def test_the_time_to_connect_is_averaged() -> None:
    assert note_connect(0.0, 0.2) == 0.2
    assert note_connect(0.2, 0.6) == pytest.approx(0.3)
