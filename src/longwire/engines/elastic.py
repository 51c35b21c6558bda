"""How many connections to an upstream stand ready before anybody asks for one: a number that breathes with their use.

What lives here: the reserve as a value, the table by which it grows and shrinks, the rate of requests and where it is heading.
What must not: connecting (pool.py), what bounds the requests at an engine (saturation.py, room.py), clocks.

**What breathes, and what does not.** It is the *reserve*: connections that are idle or being made, beyond those that carry an
answer. It is no bound of concurrency, for three reasons. An LLM's engine batches: vLLM runs hundreds of streams at once better
than sixteen, and over HTTP/1.1 each stream has a connection for as long as it lasts, minutes often; a bound of sixteen would
let the seventeenth client wait for somebody else's whole answer while the engine has room for it (the well-known fault of
clients whose default is a hundred connections). Second, a burst to ten times the floor is to be served within a fraction of
a second, and with a ceiling of sixteen concurrent requests twenty-four of forty would wait for an end. Third, what a warm
connection is good for is the time to connect, and that is paid by requests that are *added*, however many run already: with
three hundred streams under way the next one should still find a connection ready. So ceiling and floor bound what is kept
ready; a request that finds nothing ready connects at once, and never waits for the reserve.

How many requests may be at an engine is decided elsewhere, and there is no such bound until somebody has a reason for one:
the operator who sets one, or an engine that was saturated and has taught one. Only where one of the two holds do requests
queue, fairly, with a deadline.

**How it breathes.** Every SAMPLE_S the most that was taken of the reserve at once is looked at. Above 85 % of it, it grows by
two; below 30 % for three samples in a row, it shrinks by one. So 84 to 86 % can make it grow and never shrink, and growing by
two brings the share down by a step that is nowhere near 30 %: at no constant use does it go up and down. A request that found
nothing ready is a sample by itself, because a burst is over before the next one.

**Ahead of need.** Besides what the past has shown to be needed, the reserve holds what is expected to arrive while one more
connection is made: the rate of requests and its slope, over the time that connecting has lately taken. Two averages of
different memory give both: on a ramp each lags by the slope times its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil, exp

SAMPLE_S = 5.0
HIGH_SHARE = 0.85
LOW_SHARE = 0.30
GROW = 2
SHRINK = 1
LOWS_IN_A_ROW = 3
"""A quarter of a minute without need: pauses between two questions of the same people are shorter."""

FAST_S = 0.5
"""Memory of the quick average: half a second tells a burst from two requests that happened to meet."""
SLOW_S = 4.0
"""Memory of the slow one. The two differ by 3.5 times the slope of a ramp."""
LEAST_HORIZON_S = 0.05
"""Nearer than this nothing is foreseen: a connection over loopback takes less than the loop's next turn may."""
MOST_HORIZON_S = 5.0
"""Whoever needs longer to connect is in trouble, and a slope that far ahead is fiction."""
CONNECT_MEMORY = 0.25
"""Weight of the newest time to connect."""
MAX_OPENING = 16
"""Connections that are made at once for the reserve. More at the same moment overflow the backlog of engines that have a small
one, and then even those that are needed take a second."""


class Zone(Enum):
    """How much of the reserve was used."""

    LOW = "low"
    MIDDLE = "middle"
    HIGH = "high"


class Change(Enum):
    """What follows."""

    GROW = "grow"
    STAY = "stay"
    COUNT = "count"
    """One more low sample: it shrinks once there are enough in a row."""


CHANGES: dict[Zone, Change] = {Zone.LOW: Change.COUNT, Zone.MIDDLE: Change.STAY, Zone.HIGH: Change.GROW}


@dataclass(frozen=True, slots=True)
class Span:
    """Between how many and how many connections stand ready."""

    floor: int = 4
    ceiling: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.ceiling:
            raise ValueError(f"a floor of {self.floor} and a ceiling of {self.ceiling}")

    def clip(self, size: int) -> int:
        """The nearest size within."""
        return min(self.ceiling, max(self.floor, size))


@dataclass(frozen=True, slots=True)
class Reserve:
    """How many are wanted, by what was used so far; ``lows`` counts the low samples in a row."""

    size: int
    lows: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """Of the reserve, since the last sample: how many stood ready at the least, and how many requests found none."""

    least_ready: int
    missed: int = 0


def begun(span: Span) -> Reserve:
    """The reserve of an upstream that nobody has used yet."""
    return Reserve(span.floor)


def used_of(reserve: Reserve, use: Use) -> int:
    """How much of the reserve was taken at once; more than all of it where requests found nothing."""
    return max(0, reserve.size - use.least_ready) + use.missed


def zone_of(used: int, size: int) -> Zone:
    """Where this use lies. Of a reserve of none, any use is too much."""
    if used > HIGH_SHARE * size:
        return Zone.HIGH
    return Zone.LOW if used < LOW_SHARE * size or not used else Zone.MIDDLE


def sampled(reserve: Reserve, used: int, span: Span) -> Reserve:
    """The reserve after a sample, which is due each SAMPLE_S."""
    change = CHANGES[zone_of(used, reserve.size)]
    if change is Change.GROW:
        return Reserve(span.clip(reserve.size + GROW))
    if change is Change.STAY:
        return Reserve(span.clip(reserve.size))
    if reserve.lows + 1 < LOWS_IN_A_ROW:
        return Reserve(span.clip(reserve.size), reserve.lows + 1)
    return Reserve(span.clip(reserve.size - SHRINK))


def missed(reserve: Reserve, span: Span) -> Reserve:
    """The reserve after a request that found nothing ready: at once, whenever the next sample is due."""
    return Reserve(span.clip(reserve.size + GROW))


# The rate.


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second as two averages of different memory, as they were ``at``."""

    at: float
    fast: float = 0.0
    slow: float = 0.0

    def until(self, now: float) -> Rate:
        """As it is now, if nothing came since."""
        passed_s = max(0.0, now - self.at)
        return Rate(max(now, self.at), self.fast * exp(-passed_s / FAST_S), self.slow * exp(-passed_s / SLOW_S))


def arrived(rate: Rate, now: float, count: int = 1) -> Rate:
    """With one more request, or so many."""
    rate = rate.until(now)
    return Rate(rate.at, rate.fast + count / FAST_S, rate.slow + count / SLOW_S)


def forecast(rate: Rate, now: float, horizon_s: float) -> float:
    """How many requests come within ``horizon_s`` seconds, if the rate goes on as it rises now. Where it falls, as it is."""
    rate = rate.until(now)
    slope = max(0.0, (rate.fast - rate.slow) / (SLOW_S - FAST_S))
    level = rate.fast + slope * FAST_S
    return level * horizon_s + slope * horizon_s * horizon_s / 2


# What is to be done.


def wanted(reserve: Reserve, rate: Rate, now: float, connect_s: float, span: Span) -> int:
    """How many connections are to stand ready now: what use has shown, or what is about to come, within the span."""
    horizon_s = min(MOST_HORIZON_S, max(LEAST_HORIZON_S, connect_s))
    return span.clip(max(reserve.size, ceil(forecast(rate, now, horizon_s))))


def to_open(wanted_ready: int, idle: int, opening: int) -> int:
    """How many connections to make for the reserve. ``opening`` are those under way that no request waits for."""
    return max(0, min(wanted_ready - idle - opening, MAX_OPENING - opening))


def note_connect(known_s: float, took_s: float) -> float:
    """How long connecting takes, after one more; 0: not known yet."""
    return took_s if known_s <= 0.0 else known_s + CONNECT_MEMORY * (took_s - known_s)
