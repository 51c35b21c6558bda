"""How evenly tokens come: σ²_TPS.

What lives here: counting a stream's events in windows, pooling variances, and the two values to compare with. Pure functions.
What must not: where the times come from.

A stream's windows begin at its first content event; of 50 windows of 200 ms, those count that end before its last one. The
variance of tokens/s over the windows is taken within each stream and pooled, so that streams of different speed do not look
uneven, and short ones count for what they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .statistics import mean

WINDOW_NS = 200_000_000
MAX_WINDOWS = 50
"""Ten seconds of a stream: what comes later is not looked at, so that long streams do not outweigh others."""
WINDOWS_PER_S = 1_000_000_000 / WINDOW_NS


@dataclass(frozen=True, slots=True)
class Evenness:
    """σ²_TPS of some streams, in (tokens/s)²."""

    variance: float
    tokens_per_s: float
    """The mean over the windows."""
    windows: int
    streams: int
    full_streams: int
    """Those that filled all 50 windows."""

    @property
    def cv(self) -> float:
        """The standard deviation as a share of the mean."""
        return math.sqrt(self.variance) / self.tokens_per_s if self.tokens_per_s else math.nan

    @property
    def periodic(self) -> float:
        """What perfectly even tokens of this rate would have: a window has either of two neighbouring counts."""
        per_window = self.tokens_per_s / WINDOWS_PER_S
        part = per_window - math.floor(per_window) if math.isfinite(per_window) else math.nan
        return part * (1 - part) * WINDOWS_PER_S**2

    @property
    def poisson(self) -> float:
        """What tokens by pure chance at this rate would have."""
        return self.tokens_per_s * WINDOWS_PER_S


def window_counts(times_ns: Sequence[int]) -> list[int]:
    """Events in each whole window of one stream; the first event opens the first window."""
    if not times_ns:
        return []
    start = times_ns[0]
    whole = min(MAX_WINDOWS, (times_ns[-1] - start) // WINDOW_NS)
    counts = [0] * whole
    for at in times_ns:
        window = (at - start) // WINDOW_NS
        if window >= whole:
            break
        counts[window] += 1
    return counts


def evenness(streams: Iterable[Sequence[int]]) -> Evenness:
    """Of streams as the times of their content events. Streams of fewer than two whole windows say nothing."""
    squares = 0.0
    freedom = full = used = total = windows = 0
    for times_ns in streams:
        counts = window_counts(times_ns)
        if len(counts) < 2:
            continue
        middle = mean(counts)
        squares += math.fsum((count - middle) ** 2 for count in counts)
        freedom += len(counts) - 1
        used += 1
        full += len(counts) == MAX_WINDOWS
        total += sum(counts)
        windows += len(counts)
    variance = squares / freedom * WINDOWS_PER_S**2 if freedom else math.nan
    rate = total / windows * WINDOWS_PER_S if windows else math.nan
    return Evenness(variance, rate, windows, used, full)
