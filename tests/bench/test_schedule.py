"""Schedules: as many as asked for, where they should be, and the same again from the same seed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.bench.schedule import (
    CHANCE,
    MAX_ARRIVALS,
    Load,
    ScheduleError,
    arrivals,
    parse_burst,
    parse_ramp,
    share_of,
    slots_of,
)

RATES = st.floats(0.1, 200)
SECONDS = st.floats(0.5, 20)


@given(RATES, SECONDS)
def test_even_arrivals_are_even(rate: float, duration_s: float) -> None:
    due = arrivals(Load(rate, rate, duration_s), 0)
    assert abs(len(due) - rate * duration_s) <= 1
    assert all(later - earlier == pytest.approx(1 / rate, abs=1e-9) for earlier, later in pairwise(due))
    assert all(0 < at <= duration_s * (1 + 1e-9) for at in due)


@given(RATES, RATES, SECONDS, st.integers(0, 99))
def test_arrivals_by_chance_are_in_order_inside_and_repeatable(
    rate: float, end_rate: float, duration_s: float, seed: int
) -> None:
    load = Load(rate, end_rate, duration_s, CHANCE)
    due = arrivals(load, seed)
    assert due == sorted(due) == arrivals(load, seed)
    assert all(0 <= at <= duration_s * (1 + 1e-9) for at in due)


def test_arrivals_by_chance_have_the_rate_and_the_spread_of_chance() -> None:
    due = arrivals(Load(100, 100, 100, CHANCE), 7)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    middle = sum(gaps) / len(gaps)
    assert len(due) == pytest.approx(10_000, rel=0.05)
    assert sum((gap - middle) ** 2 for gap in gaps) / len(gaps) == pytest.approx(middle**2, rel=0.1)
    assert arrivals(Load(100, 100, 100, CHANCE), 8) != due


def test_a_ramp_has_three_quarters_in_its_second_half() -> None:
    due = arrivals(Load(0, 20, 10), 0)
    assert len(due) == 100
    assert sum(at <= 5 for at in due) == 25
    assert len(arrivals(Load(20, 0, 10), 0)) == 100


def test_a_burst_comes_at_once_and_on_top() -> None:
    due = arrivals(Load(1, 1, 10, burst=5, burst_every_s=4), 0)
    assert due.count(4) == due.count(8) == 5
    assert len(due) == 20 and due == sorted(due)


def test_more_than_a_machine_can_send_is_refused() -> None:
    with pytest.raises(ScheduleError, match="lower the rate"):
        arrivals(Load(MAX_ARRIVALS, MAX_ARRIVALS, 2), 0)


@given(st.lists(st.floats(0, 9), max_size=30), st.integers(1, 5))
def test_processes_share_a_schedule_without_rest(due: list[float], workers: int) -> None:
    parts = [share_of(due, worker, workers) for worker in range(workers)]
    assert sorted(each for part in parts for each in part) == list(enumerate(due))
    assert sum(slots_of(len(due), worker, workers) for worker in range(workers)) == len(due)


def test_ramps_and_bursts_are_read() -> None:
    assert parse_ramp("2:50") == (2, 50)
    assert parse_burst("100@2.5") == (100, 2.5)


@pytest.mark.parametrize("text", ["2", "a:b", "0:0", "-1:3", "1:inf", "nan:1"])
def test_other_ramps_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="2:50"):
        parse_ramp(text)


@pytest.mark.parametrize("text", ["100", "0@1", "5@0", "5@nan", "x@1", "5@inf"])
def test_other_bursts_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="100@10"):
        parse_burst(text)
