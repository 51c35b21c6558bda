"""Percentiles and how sure they are.

What lives here: pure functions of numbers. What must not: what the numbers mean.

Two kinds of interval: over repeats, Student's t of the repeats' own figures, because what one run's samples share (a noisy
neighbour, a warm cache) makes them look surer than they are; within a single run, the order statistics around a percentile,
which assume nothing about the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for 95 % on both sides, by degrees of freedom from 1 on."""
Z_975 = 1.96
"""Its limit for many."""


class Interval(NamedTuple):
    """A figure and where it lies with 95 % confidence. Without bounds (NaN) there was too little to tell."""

    value: float
    low: float
    high: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value with ``share`` of the values at or below it, linear between neighbours; NaN of none.

    The same rule as NumPy's default, so that figures can be compared with other tools'.
    """
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    part = place - below
    return low if low == high or not part else low + (high - low) * part


def mean(values: Sequence[float]) -> float:
    """NaN of none. Summed exactly, so that the order of values changes nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def variance(values: Sequence[float]) -> float:
    """Of a sample (divided by n - 1); NaN of fewer than two."""
    if len(values) < 2:
        return math.nan
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def t_interval(values: Sequence[float]) -> Interval:
    """The mean of repeats' figures with Student's interval. Figures that do not exist (NaN) are left out."""
    known = [value for value in values if not math.isnan(value)]
    middle = mean(known)
    if len(known) < 2:
        return Interval(middle, math.nan, math.nan)
    freedom = len(known) - 1
    t = T_975[freedom - 1] if freedom <= len(T_975) else Z_975
    reach = t * math.sqrt(variance(known) / len(known))
    return Interval(middle, middle - reach, middle + reach)


def percentile_interval(ordered: Sequence[float], share: float) -> Interval:
    """A percentile of one run between two of its own order statistics.

    How many of n values lie below the true percentile is binomial; its normal approximation picks the two. Where n is too small
    for the upper one to exist, there is no bound on that side.
    """
    n = len(ordered)
    value = percentile(ordered, share)
    if n < 2:
        return Interval(value, math.nan, math.nan)
    reach = Z_975 * math.sqrt(n * share * (1 - share))
    below, above = math.floor(n * share - reach), math.ceil(n * share + reach)
    low = ordered[below - 1] if below >= 1 else math.nan
    high = ordered[above] if above < n else math.nan
    return Interval(value, min(low, value), max(high, value))


def paired_differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """After less before, repeat by repeat; those that only one side has are left out."""
    return [later - earlier for earlier, later in zip(before, after, strict=False)]


def is_shown(difference: Interval) -> bool:
    """Whether the interval leaves no doubt that there is a difference."""
    return difference.low > 0 or difference.high < 0
