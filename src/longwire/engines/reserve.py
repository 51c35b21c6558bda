"""How many connections to one upstream are to stand ready now: the state that elastic.py's decisions are made from.

What lives here: the reserve, the rate of requests and the time that connecting takes, as one upstream has seen them.
What must not: connections (pool.py), the decisions themselves (elastic.py).

A request costs an addition and two comparisons. The averages are brought up to date at most every LOOK_S: what came between
counts as having come at once.
"""

from __future__ import annotations

from ..words.settings import Settings
from .elastic import Rate, Reserve, Span, Use, arrived, begun, missed, note_connect, sampled, to_open, used_of, wanted

LOOK_S = 0.01
"""Between two looks at the rate: a twentieth of the least horizon is seen, and a look (some microseconds) costs no more of a
core at 10,000 requests a second than at 100."""
RENEW_SHARE = 0.75
"""Of upstream_keep_alive_s: older connections do not count as ready any more, so that others are there when they are closed."""
RENEW_LOOKS = 8
"""Looks at the connections' age per upstream_keep_alive_s: a renewal begins with an eighth of it to spare."""
LEAST_RENEW_LOOK_S = 0.1
REST_S = 1.0
"""After a connection that could not be made, or that the engine closed before it was of any use: an engine that does so to all
must not be connected to in a circle."""
UNWARMED_KINDS = frozenset({"llamacpp"})
"""Its server keeps a thread of a small pool for each connection, from the moment that it accepts it: one that stands ready
takes the thread that a request over another needs."""


def span_of(settings: Settings, kind: str) -> Span:
    """Between how many and how many connections to an upstream of this kind stand ready."""
    if kind in UNWARMED_KINDS or not settings.upstream_keep_alive_s:
        return Span(0, 0)
    most = settings.max_upstream_idle
    return Span(min(settings.warm_floor, most), min(settings.warm_ceiling, most))


def renew_look_s(settings: Settings) -> float:
    """Between two looks at the age of what stands ready."""
    return max(LEAST_RENEW_LOOK_S, settings.upstream_keep_alive_s / RENEW_LOOKS)


class Warming:
    """One upstream's reserve. ``wanted`` is how many connections are to stand ready now."""

    __slots__ = ("_answer_s", "_arrivals", "_connect_s", "_least_ready", "_looks_at", "_missed", "_rate", "is_stopped",
                 "reserve", "rests_until", "span", "wanted")  # fmt: skip

    def __init__(self, span: Span, now: float) -> None:
        self.span = span
        self.reserve: Reserve = begun(span)
        self.wanted = span.floor
        self.is_stopped = span.ceiling == 0
        """Nothing is warmed, for good."""
        self.rests_until = now
        self._rate = Rate(now)
        self._connect_s = 0.0
        self._answer_s = 0.0
        self._arrivals = 0
        self._looks_at = now
        self._least_ready = span.floor
        self._missed = 0

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else f"{self.wanted} wanted"
        return f"<Warming {state}, {self.reserve}, connects in {self.connect_s:.3f} s>"

    def statistics(self) -> dict[str, int]:
        """How many are wanted, by the past alone and with what is foreseen, and how many requests found none since a sample."""
        return {"size": self.reserve.size, "wanted": self.wanted, "missed": self._missed}

    @property
    def connect_s(self) -> float:
        """How long it takes until a new connection is of use. The kernel accepts for an engine that is still busy, so the time
        to connect can say nothing; that to a probe's answer, which comes over a new connection, bounds it from above."""
        return max(self._connect_s, self._answer_s)

    # Called for each request.

    def note_taken(self, ready: int, now: float) -> None:
        """A request has found a connection, and so many are left."""
        self._arrivals += 1
        if ready < self._least_ready:
            self._least_ready = ready
        if now >= self._looks_at:
            self.look(now)

    def note_missed(self, now: float) -> None:
        """A request has found none."""
        self._arrivals += 1
        self._missed += 1
        self._least_ready = 0
        self.reserve = missed(self.reserve, self.span)
        self.look(now)

    # Now and then.

    def look(self, now: float) -> None:
        """Bring the rate up to date, and with it what is wanted."""
        if self._arrivals:
            self._rate = arrived(self._rate, now, self._arrivals)
            self._arrivals = 0
        self.wanted = wanted(self.reserve, self._rate, now, self.connect_s, self.span)
        self._looks_at = now + LOOK_S

    def sample(self, now: float) -> None:
        """Every SAMPLE_S: let the reserve grow or shrink by what requests used of it. What is missing for another reason (it is
        being made, or the engine has closed it) was not used."""
        use = Use(self._least_ready, self._missed)
        self.reserve = sampled(self.reserve, used_of(self.reserve, use), self.span)
        self._least_ready, self._missed = self.reserve.size, 0
        self.look(now)

    def note_connect(self, took_s: float) -> None:
        """A connection was made."""
        self._connect_s = note_connect(self._connect_s, took_s)

    def note_answer(self, took_s: float) -> None:
        """A probe was answered over a new connection, which includes that it was made."""
        self._answer_s = note_connect(self._answer_s, took_s)

    def rest(self, now: float) -> None:
        """Connecting ahead of need has failed."""
        self.rests_until = now + REST_S

    def stop(self) -> None:
        """Warm nothing any more."""
        self.is_stopped = True
        self.wanted = 0

    def to_open(self, ready: int, opening: int, now: float) -> int:
        """How many connections to make; ``opening`` are under way and nobody waits for them."""
        if self.is_stopped or now < self.rests_until:
            return 0
        return to_open(self.wanted, ready, opening)
