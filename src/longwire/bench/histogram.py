"""Counts in bins whose width grows with the value, so that 0.1 ms and 10 s fit on one axis.

What lives here: which value belongs to which bin. Pure functions. What must not: drawing (svg.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LOWEST_MS = 0.01
"""Less is put into the first bin: no client's clock and loop can tell such times apart."""
BINS_PER_OCTAVE = 8
"""Each bin is 9 % wider than the one before."""
MAX_BIN = 200
"""About six minutes; more is put there."""


def bin_of(value_ms: float) -> int:
    """The bin of a value."""
    if value_ms <= LOWEST_MS:
        return 0
    return min(MAX_BIN, int(math.log2(value_ms / LOWEST_MS) * BINS_PER_OCTAVE))


def edge_of(number: int) -> float:
    """The least value of a bin, in ms."""
    return LOWEST_MS * math.exp2(number / BINS_PER_OCTAVE)


def histogram(values_ms: Iterable[float]) -> dict[int, int]:
    """How many values each bin has; empty bins are left out."""
    counts: dict[int, int] = {}
    for value in values_ms:
        number = bin_of(value)
        counts[number] = counts.get(number, 0) + 1
    return dict(sorted(counts.items()))


def merged(histograms: Iterable[dict[int, int]]) -> dict[int, int]:
    """Several histograms as one."""
    counts: dict[int, int] = {}
    for each in histograms:
        for number, count in each.items():
            counts[number] = counts.get(number, 0) + count
    return dict(sorted(counts.items()))
