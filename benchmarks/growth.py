"""Whether something grows: the slope of a straight line through readings, and how far it may really be higher.

What lives here: a least-squares slope with the bounds of its 95 % confidence interval.
What must not: memory, processes and clocks.

Readings that follow each other closely err together (memory that is taken stays taken for a while), which would make an
interval too narrow. So a line is drawn through the means of a few blocks of readings, each long enough to stand alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

BLOCKS = 20
MIN_BLOCKS = 4
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Slope:
    """How much of one thing there is more for one more of another."""

    value: float
    low: float
    high: float


def slope(xs: Sequence[float], ys: Sequence[float], blocks: int = BLOCKS) -> Slope | None:
    """Of ``ys`` over ``xs``, readings in the order of time; None where they are too few or nothing moved."""
    size = max(1, len(xs) // blocks)
    starts = range(0, len(xs) - size + 1, size)
    points = [(_mean(xs[at : at + size]), _mean(ys[at : at + size])) for at in starts]
    if len(points) < MIN_BLOCKS:
        return None
    middle_x, middle_y = _mean([x for x, _ in points]), _mean([y for _, y in points])
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    if spread == 0:
        return None
    value = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    left = sum((y - middle_y - value * (x - middle_x)) ** 2 for x, y in points)
    freedom = len(points) - 2
    margin = t_quantile(freedom) * sqrt(left / freedom / spread)
    return Slope(value, value - margin, value + margin)


def t_quantile(freedom: int) -> float:
    """Student's t at 97.5 %, by Cornish and Fisher's expansion: 1 % off at 4 degrees of freedom, exact enough beyond."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
