"""A line through readings: its slope, and how far the interval around it reaches."""

from __future__ import annotations

from random import Random

import pytest
from benchmarks.growth import slope, t_quantile


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.776), (8, 2.306), (18, 2.101), (100, 1.984)])
def test_student_t(freedom: int, exact: float) -> None:
    assert t_quantile(freedom) == pytest.approx(exact, rel=0.01)


def test_a_straight_line_has_no_doubt() -> None:
    xs = [float(x) for x in range(100)]
    found = slope(xs, [3.0 + 2.0 * x for x in xs])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_noise_without_growth_is_inside_the_interval() -> None:
    dice = Random(1)
    inside = 0
    for _ in range(200):
        found = slope([float(x) for x in range(200)], [dice.gauss(0.0, 5.0) for _ in range(200)])
        assert found is not None
        inside += found.low <= 0.0 <= found.high
    assert 180 <= inside <= 199  # 95 %


def test_too_few_or_unmoved_readings_say_nothing() -> None:
    assert slope([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]) is None
    assert slope([5.0] * 100, [1.0] * 100) is None
