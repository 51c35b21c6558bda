"""When requests are sent: computed whole before the first one, from a seed.

What lives here: arrivals at a steady or changing rate, evenly or by chance, with bursts. Pure functions.
What must not: clocks, sending.

An open loop's sender must not wait for answers, or a slow endpoint would slow the questions down and its delays would be left
out of the figures ("coordinated omission"). So the schedule is fixed first, and delays are counted from it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

MAX_ARRIVALS = 5_000_000
"""Of one repeat: eight bytes each, and more than one machine sends in hours."""

EVEN = "constant"
CHANCE = "poisson"


class ScheduleError(ValueError):
    """What was asked for is no schedule; the text says what would be."""


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals per second, over time."""

    rate: float
    """At the beginning."""
    end_rate: float
    """At the end; it changes linearly."""
    duration_s: float
    arrivals: str = EVEN
    burst: int = 0
    """So many more at once ..."""
    burst_every_s: float = 0.0
    """... each time that so much has passed."""

    @property
    def expected(self) -> float:
        """How many are due in all, bursts aside."""
        return (self.rate + self.end_rate) / 2 * self.duration_s


def arrivals(load: Load, seed: int) -> list[float]:
    """Seconds from the beginning at which requests are due, in order.

    Raises:
        ScheduleError: there would be too many.
    """
    bursts = int(load.duration_s / load.burst_every_s) * load.burst if load.burst and load.burst_every_s else 0
    if load.expected + bursts > MAX_ARRIVALS:
        raise ScheduleError(f"That is more than {MAX_ARRIVALS} requests: lower the rate or the duration.")
    due = [_time_of(load, count) for count in _counts(load, seed)]
    if bursts:
        due += [load.burst_every_s * (1 + number // load.burst) for number in range(bursts)]
        due.sort()
    return due


def _counts(load: Load, seed: int) -> Iterator[float]:
    """The arrivals on a scale on which one is due per unit: evenly in the middle of each, or by chance at rate one."""
    if load.arrivals == EVEN:
        yield from (number + 0.5 for number in range(int(load.expected + 0.5)) if number + 0.5 <= load.expected)
        return
    chance = random.Random(seed)
    at = chance.expovariate(1.0)
    while at <= load.expected:
        yield at
        at += chance.expovariate(1.0)


def _time_of(load: Load, count: float) -> float:
    """When ``count`` arrivals are due: the inverse of rate * t + slope * t² / 2."""
    slope = (load.end_rate - load.rate) / load.duration_s
    if not slope:
        return count / load.rate
    # The usual formula loses all digits where the slope is small; this form of it does not.
    root = math.sqrt(max(0.0, load.rate * load.rate + 2 * slope * count))
    return 2 * count / (load.rate + root)


def share_of(due: list[float], worker: int, workers: int) -> list[tuple[int, float]]:
    """The part of one of several processes: every so-many-th, with its number in the whole."""
    return [(number, due[number]) for number in range(worker, len(due), workers)]


def slots_of(concurrency: int, worker: int, workers: int) -> int:
    """How many of a closed loop's slots are one process's."""
    return concurrency // workers + (worker < concurrency % workers)


def parse_ramp(text: str) -> tuple[float, float]:
    """``2:50`` as the rates at both ends.

    Raises:
        ScheduleError: it is something else.
    """
    start, colon, end = text.partition(":")
    try:
        rates = float(start), float(end)
    except ValueError:
        rates = (-1.0, -1.0)
    if not colon or not all(math.isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
        raise ScheduleError(f"A ramp is two rates with a colon between, as in 2:50, and not {text!r}.")
    return rates


def parse_burst(text: str) -> tuple[int, float]:
    """``100@10`` as how many, and after how many seconds each.

    Raises:
        ScheduleError: it is something else.
    """
    count, at, every = text.partition("@")
    try:
        every_s = float(every)
        if at and int(count) > 0 and math.isfinite(every_s) and every_s > 0:
            return int(count), every_s
    except ValueError:
        pass
    raise ScheduleError(f"A burst is a number of requests and the seconds between two, as in 100@10, and not {text!r}.")
