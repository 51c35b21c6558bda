"""How long an engine may take, and what the pace of one generation says about it.

What lives here: the clocks of a request, out of settings, the model's table and the request's own wishes; and the state of one
generation's pace, which is looked at once in a while.
What must not: timers and counters (watchman.py), connecting and the first byte (call.py has a timer for each), what becomes of
a stream whose clock has run out.

*Whose time.* Only time in which the gateway could have noticed a token counts against an engine. A process that was stopped,
suspended or held up finds its sockets full afterwards, and reads them later than it looks at the clock: time between two looks
that is far beyond what was asked for is forgiven, and so is time in which we read nothing ourselves. The total
is a promise to whoever waits, and its end is no engine's fault: it forgives nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final

from ..words.model_specs import find_model
from ..words.reasons import CloseReason
from ..words.settings import ModelSettings, Settings
from ..words.wishes import FIRST_BYTE, FIRST_TOKEN, MIN_RATE, SILENCE, TOTAL

SILENCE_WARNINGS: Final = 2
"""So many silences in a row are only warned about; at the next one the engine is given up."""
LONGEST_LOOK_S: Final = 2.0
"""Clocks are seconds, so little is found later than it could be: a quarter of the silence that comes with the gateway. Looking
at 9,000 streams every second was a tenth of all that their events cost, for what a look reads is in no cache."""
SHORTEST_LOOK_S: Final = 0.05
"""Whatever clock a request wishes: looking more often would cost more than it tells."""
LOOKS_PER_CLOCK: Final = 4
"""A clock is found to have run out at most a quarter of itself too late."""
LATE_LOOKS: Final = 2.0
"""Of the time between two looks, so many times what was asked for counts at most. It must be over one, for a busy loop is
always a little late, and little, for the rest of it may be one stop of our own."""
RATE_SAMPLES: Final = 8
"""Counts of tokens that are kept for one window: the window that is judged is at most an eighth too long."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What one generation is given; 0: never. ``shortened``: by which wishes its client was stricter than the operator.

    How long a connection may take to be made is the same for all (pool.py)."""

    first_byte_s: float
    first_token_s: float
    silence_s: float
    min_tokens_per_s: float
    rate_window_s: float
    total_s: float
    shortened: frozenset[str] = frozenset()

    def is_clients_own(self, reason: CloseReason) -> bool:
        """Whether this ending was found by a clock that the client has shortened. It says nothing about the engine then, and
        must weigh nothing at its breaker: one client's impatience would take the engine away from all others."""
        return _CLOCK_OF.get(reason) in self.shortened

    def without_tokens(self) -> Clocks:
        """For an answer of which nothing is known, and which may pause as it likes: what is left is its head and the total."""
        return replace(self, first_token_s=0.0, silence_s=0.0, min_tokens_per_s=0.0)

    def in_one_piece(self) -> Clocks:
        """For an answer in one piece: its head is waited for, and then its bytes, for as long as between two tokens."""
        return replace(self, first_token_s=0.0, min_tokens_per_s=0.0)

    def by_wish(self) -> dict[str, float]:
        """Each clock by the name that a request has for it."""
        return {
            FIRST_BYTE: self.first_byte_s,
            FIRST_TOKEN: self.first_token_s,
            SILENCE: self.silence_s,
            TOTAL: self.total_s,
            MIN_RATE: self.min_tokens_per_s,
        }

    @property
    def shortest_s(self) -> float:
        """The shortest of those that are looked at; infinite where there is none."""
        window_s = self.rate_window_s if self.min_tokens_per_s else 0.0
        return min((s for s in (self.first_token_s, self.silence_s, window_s, self.total_s) if s > 0), default=inf)

    @property
    def look_every_s(self) -> float:
        """How often a generation must be looked at."""
        return max(SHORTEST_LOOK_S, min(LONGEST_LOOK_S, self.shortest_s / LOOKS_PER_CLOCK))


_CLOCK_OF: Final = {
    CloseReason.UPSTREAM_TIMEOUT: FIRST_BYTE,
    CloseReason.FIRST_TOKEN_TIMEOUT: FIRST_TOKEN,
    CloseReason.TOKEN_SILENCE: SILENCE,
    CloseReason.TOO_SLOW: MIN_RATE,
    CloseReason.TOTAL_TIMEOUT: TOTAL,
}


def clocks_for(settings: Settings, model: str, wishes: Mapping[str, float]) -> Clocks:
    """The gateway's clocks, but for what the model's table says, but for what the request wishes.

    A wish may shorten any clock. It may lengthen one to ``max_request_timeout_s``, or to what is configured where that is
    longer; beyond that it is cut down. Fewest tokens per second can only be raised: no setting bounds how slow it may be.
    """
    own = find_model(settings.models, model) or _AS_THE_GATEWAY
    first_byte_s = _configured(settings.first_byte_timeout_s, own.first_byte_timeout_s)
    first_token_s = _configured(settings.first_token_timeout_s, own.first_token_timeout_s)
    silence_s = _configured(settings.token_silence_s, own.token_silence_s)
    min_tokens_per_s = _configured(settings.min_tokens_per_s, own.min_tokens_per_s)
    total_s = _configured(settings.total_timeout_s, own.total_timeout_s)
    if not wishes:
        return Clocks(
            first_byte_s,
            first_token_s,
            silence_s,
            min_tokens_per_s,
            settings.rate_window_s,
            total_s,
        )
    times = {FIRST_BYTE: first_byte_s, FIRST_TOKEN: first_token_s, SILENCE: silence_s, TOTAL: total_s}
    longest_s = settings.max_request_timeout_s
    granted = {name: _granted(has_s, wishes.get(name), longest_s) for name, has_s in times.items()}
    rate = max(min_tokens_per_s, wishes.get(MIN_RATE, 0.0))
    shortened = {name for name, has_s in times.items() if _or_never(granted[name]) < _or_never(has_s)}
    return Clocks(
        granted[FIRST_BYTE],
        granted[FIRST_TOKEN],
        granted[SILENCE],
        rate,
        settings.rate_window_s,
        granted[TOTAL],
        frozenset(shortened | {MIN_RATE} if rate > min_tokens_per_s else shortened),
    )


_AS_THE_GATEWAY: Final = ModelSettings()


def _configured(gateways: float, models: float) -> float:
    return gateways if models < 0 else models


def _or_never(seconds: float) -> float:
    return seconds or inf


def _granted(configured_s: float, wish_s: float | None, longest_s: float) -> float:
    if wish_s is None:
        return configured_s
    granted_s = min(_or_never(wish_s), max(_or_never(configured_s), longest_s))
    return 0.0 if granted_s == inf else granted_s


class Finding(Enum):
    """What a look can find."""

    SILENCE = "token_silence", None
    """No token for a while. It is warned about."""
    BUSY_SILENCE = "busy_silence", None
    """No token for long, but the engine generates for others: it is busy, and moving load would make that worse."""
    FIRST_TOKEN_TIMEOUT = "clock_fired", CloseReason.FIRST_TOKEN_TIMEOUT
    TOKEN_SILENCE = "clock_fired", CloseReason.TOKEN_SILENCE
    TOO_SLOW = "clock_fired", CloseReason.TOO_SLOW
    TOTAL_TIMEOUT = "clock_fired", CloseReason.TOTAL_TIMEOUT

    def __init__(self, event: str, reason: CloseReason | None) -> None:
        self.event = event
        """What it is called in the log."""
        self.reason = reason
        """Why the engine is given up; None: it is not."""

    def words(self, clocks: Clocks) -> str:
        """A sentence for whoever reads the stream; empty where nobody is told."""
        match self:
            case Finding.FIRST_TOKEN_TIMEOUT:
                return f"The engine sent no token within {clocks.first_token_s:g} s."
            case Finding.TOKEN_SILENCE:
                return f"The engine sent no token for {(SILENCE_WARNINGS + 1) * clocks.silence_s:g} s in mid-answer."
            case Finding.TOO_SLOW:
                least, window_s = clocks.min_tokens_per_s, clocks.rate_window_s
                return f"The engine sent fewer than {least:g} tokens per second over {window_s:g} s."
            case Finding.TOTAL_TIMEOUT:
                return f"The generation was not over after {clocks.total_s:g} s."
        return ""


class Pace:
    """The pace of one request to one engine. Values in, a finding out.

    ``asked_at``: from when on its engine is waited for; after an adoption, when that was over, for nobody looked meanwhile.
    ``started_at``: from when on :attr:`Clocks.total_s` counts, which is earlier for a second upstream or after an adoption.
    """

    __slots__ = (
        "_forgiven_s", "_is_looked_at", "_looked_at", "_most_s", "_samples", "_silence_from", "_started_at", "_token_at",
        "clocks", "look_every_s", "silences",
    )  # fmt: skip

    def __init__(self, clocks: Clocks, asked_at: float, started_at: float | None = None) -> None:
        self.clocks = clocks
        self.look_every_s = clocks.look_every_s
        self.silences = 0
        """Silences in a row that were found; the next token makes it 0."""
        self._started_at = asked_at if started_at is None else started_at
        self._most_s = LATE_LOOKS * self.look_every_s
        self._looked_at = asked_at
        self._is_looked_at = False
        self._forgiven_s = 0.0
        # From here on times are the engine's: the clock's, less what was forgiven until then.
        self._silence_from = asked_at
        self._token_at: float | None = None  # but this one is compared only with what it was
        self._samples: deque[tuple[float, int]] | None = deque() if clocks.min_tokens_per_s else None

    def __repr__(self) -> str:
        began = "waits" if self._token_at is None else f"silent {self.silences} times"
        return f"<Pace {began}, {self._forgiven_s:g} s forgiven>"

    def note_progress(self, now: float) -> None:
        """The engine has shown that it works on the prompt, though there is no token yet."""
        self._silence_from = max(self._silence_from, now - self._forgiven_s)

    def moved(self, now: float) -> bool:
        """The ordinary look, made cheap: there has been another token since the last one. False where :meth:`look` has to
        think: about the first token, a rate, a look that came late, or the total."""
        if self._token_at is None or self._samples is not None or now - self._looked_at > self._most_s:
            return False
        if 0 < self.clocks.total_s <= now - self._started_at:
            return False
        self._looked_at = self._token_at = now
        self._silence_from = now - self._forgiven_s
        self.silences = 0
        return True

    def look(
        self, now: float, *, last_token_at: float | None, tokens: int, is_generating: bool, is_paused: bool = False
    ) -> Finding | None:
        """What is to be said about a generation as it stands now; None: nothing.

        ``is_generating``: the engine's own count of what it generates has moved lately; it is of meaning only when
        :attr:`silences` has come to ``SILENCE_WARNINGS``. ``is_paused``: we do not read what the engine sends.
        """
        clocks = self.clocks
        looked_at = self._looked_at - self._forgiven_s
        passed_s = now - self._looked_at
        counted_s = 0.0 if is_paused else min(passed_s, self._most_s) if self._is_looked_at else passed_s
        if counted_s < passed_s:
            self._forgiven_s += passed_s - counted_s
        self._looked_at = now
        self._is_looked_at = True
        at = now - self._forgiven_s
        if last_token_at != self._token_at:
            self._token_at = last_token_at
            if last_token_at is not None:
                # It came since the last look, wherever between the two the forgiven time lies.
                self._silence_from = max(self._silence_from, looked_at, last_token_at - self._forgiven_s)
                self.silences = 0
        if 0 < clocks.total_s <= now - self._started_at:
            return Finding.TOTAL_TIMEOUT
        silent_s = at - self._silence_from
        if self._token_at is None:
            return Finding.FIRST_TOKEN_TIMEOUT if 0 < clocks.first_token_s <= silent_s else None
        if 0 < clocks.silence_s * (self.silences + 1) <= silent_s:
            return self._fell_silent(is_generating)
        if self._samples is not None and self._is_too_slow(at, tokens, self._samples):
            return Finding.TOO_SLOW
        return None

    def _fell_silent(self, is_generating: bool) -> Finding:
        if self.silences >= SILENCE_WARNINGS and not is_generating:
            return Finding.TOKEN_SILENCE
        self.silences += 1
        return Finding.SILENCE if self.silences <= SILENCE_WARNINGS else Finding.BUSY_SILENCE

    def _is_too_slow(self, at: float, tokens: int, samples: deque[tuple[float, int]]) -> bool:
        """The window begins at the youngest sample that is old enough; before there is one, nothing can be said."""
        window_s = self.clocks.rate_window_s
        if not samples or at - samples[-1][0] >= window_s / RATE_SAMPLES:
            samples.append((at, tokens))
        while len(samples) > 1 and at - samples[1][0] >= window_s:
            samples.popleft()
        span_s = at - samples[0][0]
        return span_s >= window_s and tokens - samples[0][1] < self.clocks.min_tokens_per_s * span_s

    def statistics(self) -> dict[str, float]:
        """Silences in a row, and the seconds that were not counted."""
        return {"silences": self.silences, "forgiven_s": self._forgiven_s}
