"""Whether an upstream is trusted: faults counted against successes, a rest, and one trial before it is trusted again.

What lives here: the breaker of one upstream as a table of states and signals, and how much an outcome weighs.
What must not: clocks (time is given in), requests, choosing between upstreams (directory.py).

:data:`TRANSITIONS` says for each state and signal what comes next and what is to be done; a pair that it lacks changes nothing.
So a fault of a request that was sent before the breaker opened is no news while it is open, and none in half-open either as
long as no trial is under way.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum, IntEnum, auto

from ..words.reasons import CloseReason
from ..words.settings import Settings

WINDOW_PARTS = 10
"""Faults that lie closer together than a tenth of the window are counted as one entry: memory is bounded whatever the rate,
and a fault is forgotten at most a tenth of the window too early."""
MOST_RESTS = 12.0
"""The longest rest, in times of breaker_open_s: a minute by default, so that an engine that was replaced is soon found."""
MOST_DOUBLINGS = 8
"""A rest is the longest long before: this keeps the power small, however many there were in a row."""
TRIAL_LIMIT_S = 60.0
"""A trial that has told nothing for so long frees its place: its report may never come, and the engine must not wait for it."""
MAX_REASONS = 4
"""Kinds of faults that are told apart in :attr:`Breaker.why`."""
MAX_REASON_CHARS = 80
MAX_LOOKED_AT_BYTES = 4096
"""So much of an error's body is searched for the words of a prompt that is too long; they are in its first sentence."""
_ROUNDING = 1e-9
"""Weights are added and taken away as floats: what is left of nothing may be as much."""

TOO_LONG = re.compile(
    rb"maximum context length|context[ _](?:length|window|size)[ _]exceeded"
    rb"|exceeds? the (?:model's |maximum |available )?(?:maximum )?(?:context|model length|allowed length)"
    rb"|longer than the (?:maximum|model's) (?:model|context|allowed|input) ?length"
    rb"|exceeds? (?:the )?max(?:imum)?[ _](?:input|seq|sequence|model|num)|(?:prompt|input) is too (?:long|large)",
    re.IGNORECASE,
)
"""How engines say that a prompt does not fit: vLLM answers it with a 500 in some versions, SGLang and llama.cpp did too."""

BLAMELESS_STATUS = frozenset({501, 505})
"""The request asks for what this engine cannot do, and others of its kind cannot either: nobody is to blame, and nobody else
to be asked."""
_FAULTS = frozenset({
    CloseReason.UPSTREAM_FAILED, CloseReason.UPSTREAM_UNREACHABLE, CloseReason.UPSTREAM_RESET, CloseReason.UPSTREAM_INCOMPLETE,
    CloseReason.UPSTREAM_ERROR_EVENT, CloseReason.UPSTREAM_PROTOCOL, CloseReason.UPSTREAM_TIMEOUT,
    CloseReason.CONNECT_TIMEOUT, CloseReason.FIRST_TOKEN_TIMEOUT, CloseReason.TOKEN_SILENCE, CloseReason.TOO_SLOW,
})  # fmt: skip
"""Endings that the engine has to answer for."""


def weigh(reason: CloseReason, status: int, body: bytes = b"") -> float:
    """How much an ending counts against the engine. ``status`` and ``body`` are of its error, where it gave one.

    Whatever lies with the client counts nothing: any 4xx (a 429 says that the engine is full, not that it is ill), what it
    cannot do at all, and a prompt that is too long, whatever status that was given.
    """
    if reason not in _FAULTS or 400 <= status < 500 or status in BLAMELESS_STATUS or is_too_long(body):
        return 0.0
    return 1.0


def is_too_long(body: bytes) -> bool:
    """Whether an error's words say that the prompt does not fit this model."""
    return TOO_LONG.search(body[:MAX_LOOKED_AT_BYTES]) is not None


class BreakerState(IntEnum):
    """The states, as the metric shows them."""

    CLOSED = 0
    """It is trusted."""
    HALF_OPEN = 1
    """It has rested and answers probes: one request may try."""
    OPEN = 2
    """It rests."""


class Signal(Enum):
    """What can happen."""

    FAULT = auto()  # one that can be borne
    TRIP = auto()  # the last of too many, or the trial's
    SUCCESS = auto()
    NEUTRAL = auto()
    SENT = auto()
    RECOVERED = auto()  # a good probe, with the rest over


class Effect(Enum):
    """What is to be done about it."""

    COUNT = auto()
    FORGIVE = auto()
    REST = auto()
    TAKE_PLACE = auto()
    FREE_PLACE = auto()
    RESET = auto()


Transition = tuple[BreakerState, tuple[Effect, ...]]

TRANSITIONS: dict[tuple[BreakerState, Signal], Transition] = {
    (BreakerState.CLOSED, Signal.FAULT): (BreakerState.CLOSED, (Effect.COUNT,)),
    (BreakerState.CLOSED, Signal.TRIP): (BreakerState.OPEN, (Effect.COUNT, Effect.REST)),
    (BreakerState.CLOSED, Signal.SUCCESS): (BreakerState.CLOSED, (Effect.FORGIVE,)),
    (BreakerState.OPEN, Signal.RECOVERED): (BreakerState.HALF_OPEN, (Effect.FREE_PLACE,)),
    (BreakerState.HALF_OPEN, Signal.SENT): (BreakerState.HALF_OPEN, (Effect.TAKE_PLACE,)),
    (BreakerState.HALF_OPEN, Signal.NEUTRAL): (BreakerState.HALF_OPEN, (Effect.FREE_PLACE,)),
    (BreakerState.HALF_OPEN, Signal.SUCCESS): (BreakerState.CLOSED, (Effect.RESET,)),
    (BreakerState.HALF_OPEN, Signal.TRIP): (BreakerState.OPEN, (Effect.REST,)),
}


class _Tally:
    """Weighted faults of the window, less the successes that came after them; never below nothing, so that a good past is no
    credit: an engine that dies after a million answers is found out as soon as any other."""

    __slots__ = ("_parts", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._parts: deque[list[float]] = deque()

    def level(self, now: float) -> float:
        parts = self._parts
        while parts and parts[0][0] <= now - self._window_s:
            parts.popleft()
        return sum(weight for _, weight in parts)

    def add(self, now: float, weight: float) -> None:
        if self._parts and now - self._parts[-1][0] < self._window_s / WINDOW_PARTS:
            self._parts[-1][1] += weight
        else:
            self._parts.append([now, weight])

    def take_one(self) -> None:
        """A success: the oldest faults are forgiven first."""
        left = 1.0
        while self._parts and left > 0:
            taken = min(left, self._parts[0][1])
            left -= taken
            self._parts[0][1] -= taken
            if self._parts[0][1] <= _ROUNDING:
                self._parts.popleft()

    def clear(self) -> None:
        self._parts.clear()


class Breaker:
    """The breaker of one upstream. ``why`` says what opened it, and is empty while it is closed."""

    __slots__ = ("_faults", "_open_s", "_reasons", "_rests", "_tally", "_trial_at", "_window_s", "opened_total",
                 "rested_at", "state", "why")  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._faults = settings.breaker_faults
        self._window_s = settings.breaker_window_s
        self._open_s = settings.breaker_open_s
        self.state = BreakerState.CLOSED
        self.why = ""
        self.opened_total = 0
        self.rested_at = 0.0
        """When the rest is over; of meaning only while it is open."""
        self._rests = 0
        self._tally = _Tally(settings.breaker_window_s)
        self._reasons: dict[str, int] = {}
        self._trial_at: float | None = None

    def __repr__(self) -> str:
        return f"<Breaker {self.state.name.lower()}{': ' if self.why else ''}{self.why}>"

    def may_try(self, now: float) -> bool:
        """Whether a request may be sent. A pure look; who sends one says so with :meth:`begin_trial`."""
        if self.state is BreakerState.HALF_OPEN:
            return self._trial_at is None or now - self._trial_at >= TRIAL_LIMIT_S
        return self.state is BreakerState.CLOSED

    def rest_left_s(self, now: float) -> float:
        """How long it still rests; 0 where it does not."""
        return max(0.0, self.rested_at - now) if self.state is BreakerState.OPEN else 0.0

    def begin_trial(self, now: float) -> None:
        """A request is sent. In half-open it takes the one place there is."""
        self._signal(Signal.SENT, now)

    def note_success(self, now: float) -> None:
        """The engine did its part (its first token is enough): a whole answer need not be waited for."""
        self._signal(Signal.SUCCESS, now)

    def note_neutral(self, now: float) -> None:
        """A request is over and tells nothing of the engine: its client left, or was at fault."""
        self._signal(Signal.NEUTRAL, now)

    def note_fault(self, now: float, weight: float, why: str) -> bool:
        """The engine failed a request; True if that opened the breaker. A fault without weight is none."""
        if weight <= 0:
            self.note_neutral(now)
            return False
        return self._fault(now, weight, why, self._trial_at is not None)

    def note_probe(self, now: float, ok: bool) -> bool:
        """The engine was asked for its models; True if the answer, or that there was none, opened the breaker."""
        if not ok:
            return self._fault(now, 1.0, "its model list was not answered", True)
        if now >= self.rested_at:
            self._signal(Signal.RECOVERED, now)
        return False

    def statistics(self) -> dict[str, float]:
        """State and counts."""
        return {"state": int(self.state), "opened_total": self.opened_total, "rests": self._rests}

    # Inside.

    def _fault(self, now: float, weight: float, why: str, ends_trial: bool) -> bool:
        reason = " ".join(why.split())[:MAX_REASON_CHARS] or "a fault"
        if self.state is BreakerState.HALF_OPEN:
            trips, said = ends_trial, f"It failed again after a rest: {reason}."
        else:
            level = self._tally.level(now)
            trips = level + weight >= self._faults - _ROUNDING
            if self.state is BreakerState.CLOSED:
                self._note_reason(reason, is_first=level <= _ROUNDING)
            said = f"{level + weight:g} faults within {self._window_s:g} s: {self._told_reasons()}."
        opened = trips and (self.state, Signal.TRIP) in TRANSITIONS
        self._signal(Signal.TRIP if trips else Signal.FAULT, now, weight)
        if opened:
            self.why = said
        return opened

    def _signal(self, happened: Signal, now: float, weight: float = 0.0) -> None:
        self.state, effects = TRANSITIONS.get((self.state, happened), (self.state, ()))
        for effect in effects:
            self._act(effect, now, weight)

    def _act(self, effect: Effect, now: float, weight: float) -> None:
        match effect:
            case Effect.COUNT:
                self._tally.add(now, weight)
            case Effect.FORGIVE:
                self._tally.take_one()
            case Effect.REST:
                rest_s = self._open_s * min(MOST_RESTS, 2.0 ** min(self._rests, MOST_DOUBLINGS))
                self._rests += 1
                self.opened_total += 1
                self.rested_at = now + rest_s
                self._trial_at = None
            case Effect.TAKE_PLACE:
                self._trial_at = now
            case Effect.FREE_PLACE:
                self._trial_at = None
            case Effect.RESET:
                self._rests, self._trial_at, self.why = 0, None, ""
                self._tally.clear()
                self._reasons.clear()

    def _note_reason(self, reason: str, is_first: bool) -> None:
        if is_first:
            self._reasons.clear()
        if reason not in self._reasons and len(self._reasons) >= MAX_REASONS:
            reason = "other"
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def _told_reasons(self) -> str:
        most_first = sorted(self._reasons.items(), key=lambda item: -item[1])
        return ", ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in most_first)
