"""Percentiles and intervals against what is known of them."""

from __future__ import annotations

import math
import random
import statistics as known

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.bench.statistics import (
    Interval,
    is_shown,
    mean,
    paired_differences,
    percentile,
    percentile_interval,
    t_interval,
    variance,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


@given(VALUES, st.floats(0, 1))
def test_a_percentile_lies_within_and_rises_with_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= percentile(ordered, share) <= ordered[-1]
    assert percentile(ordered, share / 2) <= percentile(ordered, share) + 1e-6
    assert percentile(ordered, 0) == ordered[0] and percentile(ordered, 1) == ordered[-1]


@given(VALUES)
def test_it_is_the_inclusive_rule_of_the_standard_library(values: list[float]) -> None:
    cuts = known.quantiles(values, n=10, method="inclusive")
    ordered = sorted(values)
    assert [percentile(ordered, tenth / 10) for tenth in range(1, 10)] == pytest.approx(cuts, abs=1e-6)
    assert mean(values) == pytest.approx(known.fmean(values))
    assert variance(values) == pytest.approx(known.variance(values), rel=1e-6, abs=1e-6)


def test_of_nothing_nothing_is_known() -> None:
    assert math.isnan(percentile([], 0.5)) and math.isnan(mean([])) and math.isnan(variance([1.0]))
    assert math.isnan(t_interval([3.0]).low) and t_interval([3.0, math.nan]).value == 3
    assert math.isnan(percentile_interval([1.0], 0.5).high)


def test_students_interval_of_five_repeats() -> None:
    found = t_interval([10, 12, 11, 13, 14])
    assert found.value == 12
    assert found.high - found.value == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert t_interval([5.0] * 40) == Interval(5, 5, 5)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    chance = random.Random(1)
    trials = 1000
    means = sum(
        found.low <= 7 <= found.high
        for found in (t_interval([chance.gauss(7, 3) for _ in range(5)]) for _ in range(trials))
    )
    assert 0.93 < means / trials < 0.97
    held = sum(
        found.low <= math.log(2) <= found.high
        for found in (percentile_interval(sorted(chance.expovariate(1) for _ in range(99)), 0.5) for _ in range(trials))
    )
    assert 0.92 < held / trials < 0.98


@given(VALUES, st.floats(0.01, 0.99))
def test_an_interval_holds_its_own_value(values: list[float], share: float) -> None:
    found = percentile_interval(sorted(values), share)
    assert not found.low > found.value and not found.high < found.value


def test_a_p99_of_few_values_has_no_upper_bound() -> None:
    assert math.isnan(percentile_interval(list(range(50)), 0.99).high)
    assert not math.isnan(percentile_interval(list(range(5000)), 0.99).high)


def test_what_repeats_share_cancels_out_in_pairs() -> None:
    before, after = [10.0, 20.0, 30.0], [11.0, 21.5, 31.0, 99.0]
    assert paired_differences(before, after) == [1, 1.5, 1]
    assert is_shown(t_interval(paired_differences(before, after)))
    assert not is_shown(t_interval([-1.0, 1.0, 0.5])) and not is_shown(t_interval([1.0]))
