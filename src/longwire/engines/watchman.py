"""One watchman over the pace of all generations.

What lives here: the timer that has every generation looked at, a few at a time, and what is counted, logged and done about it.
What must not: when a clock has run out (clocks.py), what becomes of a stream whose engine is given up (its call's matter).

A timer per stream would be set anew with every token. Here nothing is done per token: a look reads what is there.
"""

from __future__ import annotations

import logging
from math import ceil
from typing import Final, Protocol

from ..observe.instruments import Instruments
from ..words.clock import Clock, Timer
from ..words.reasons import CloseReason
from ..words.sweep import MAX_STEP_ITEMS, MIN_STEP_S
from .clocks import LONGEST_LOOK_S, SILENCE_WARNINGS, Finding, Pace

log = logging.getLogger("longwire.engines")

SLICE_ITEMS: Final = MAX_STEP_ITEMS
"""Generations that are looked at in one turn of the loop, and not many turns in a row: a round is spread over its time. Looking
at 500 in each of eighteen turns, one behind the other, took 40 ms in which every event of 9,000 streams was late."""
MAX_NOTES: Final = 64
"""Lines in the log for one round. Ten thousand streams of an engine that hangs are one line, with their number; models may be
anything that clients make up, so their number is none of ours."""
MAX_MODEL_CHARS: Final = 100
_COUNTERS: Final = {
    Finding.SILENCE: "silence_warnings_total",
    Finding.BUSY_SILENCE: "busy_silences_total",
    Finding.FIRST_TOKEN_TIMEOUT: "clock_first_token_total",
    Finding.TOKEN_SILENCE: "clock_silence_total",
    Finding.TOO_SLOW: "clock_rate_total",
    Finding.TOTAL_TIMEOUT: "clock_total_total",
}

Note = tuple[Finding, str, str]


class Watched(Protocol):
    """One request to an engine that is being answered. The properties are read at every look: they must be cheap."""

    @property
    def pace(self) -> Pace: ...

    @property
    def name(self) -> str:
        """The upstream's."""

    @property
    def model(self) -> str: ...

    def has_moved(self, now: float) -> bool:
        """There is another token, all is well, and its pace knows: nothing else need be read. It must be cheap."""

    @property
    def last_token_at(self) -> float | None:
        """By the clock, and of this request: one that goes on with another's answer has had no token yet."""

    @property
    def tokens(self) -> int:
        """How many there were until now; read only where there is a fewest number per second."""

    def is_generating(self) -> bool:
        """Whether the engine's own count has moved lately; False where it is not known. Asked only after warnings."""

    def is_paused(self) -> bool:
        """Whether we ourselves do not read, for want of room: nothing of that time counts against the engine."""

    def give_up(self, reason: CloseReason, message: str) -> None:
        """A clock has run out. It is not watched any more; it may have others watched, or not, from within."""


class Watchman:
    """Looks at whatever was added, for as long as there is anything."""

    __slots__ = (
        "_clock", "_every_s", "_instruments", "_is_looking", "_left", "_notes", "_order", "_places", "_planned_s",
        "_round_s", "_rounds", "_slice", "_step_s", "_timer",
    )  # fmt: skip

    def __init__(self, clock: Clock, instruments: Instruments) -> None:
        self._clock = clock
        self._instruments = instruments
        # Looked at from the last place to the first, so that the last may take the place of one that leaves in mid-round:
        # it has been looked at already, or comes once more.
        self._order: list[Watched] = []
        self._places: dict[Watched, int] = {}
        self._left = 0
        self._every_s = LONGEST_LOOK_S
        self._timer: Timer | None = None
        self._is_looking = False
        self._notes: dict[Note, int] = {}
        self._rounds = 0
        self._slice = SLICE_ITEMS
        self._step_s = self._round_s = 0.0
        self._planned_s = LONGEST_LOOK_S

    def __repr__(self) -> str:
        return f"<Watchman over {len(self._order)} every {self._every_s:g} s, {self._left} left in this round>"

    def add(self, watched: Watched) -> None:
        """Have it looked at from now on; nothing happens where it is already."""
        if watched in self._places:
            return
        self._places[watched] = len(self._order)
        self._order.append(watched)
        every_s = watched.pace.look_every_s
        is_sooner = every_s < (self._planned_s if self._left else self._every_s)
        self._every_s = min(self._every_s, every_s)
        if self._is_looking:
            return  # whoever looks goes on afterwards
        if self._left:
            if is_sooner:  # the round under way is not to be waited for: it may take a second
                self._plan(every_s)
                self._wait(self._step_s)
        elif is_sooner or self._timer is None:
            self._wait(self._every_s)

    def discard(self, watched: Watched) -> None:
        """Do not look at it any more; nothing happens where it was not added."""
        place = self._places.pop(watched, None)
        if place is None:
            return
        last = self._order.pop()
        if last is not watched:
            self._order[place] = last
            self._places[last] = place
        if not self._order:
            self._left = 0
            self._every_s = LONGEST_LOOK_S
            self._rest()

    def close(self) -> None:
        """Look at nothing any more."""
        self._order.clear()
        self._places.clear()
        self._left = 0
        self._rest()

    def statistics(self) -> dict[str, float]:
        """How many are looked at, how often, and how many rounds there were."""
        return {"watched": len(self._order), "every_s": self._every_s, "rounds_total": self._rounds}

    # Inside.

    def _rest(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._rest()
        self._timer = self._clock.call_later(seconds, self._look_on)

    def _look_on(self) -> None:
        """The next of a round, or the first of a new one."""
        self._timer = None
        if not self._left:
            self._left = len(self._order)
            self._plan(self._every_s)
            self._every_s = LONGEST_LOOK_S  # those that are looked at make it shorter
            self._rounds += 1
        lowest = max(0, self._left - self._slice)
        self._is_looking = True
        self._look_at_some(self._left - 1, lowest - 1, self._clock.now())
        self._is_looking = False
        self._left = min(lowest, len(self._order))
        if not self._left:
            self._tell()
        if self._order:
            self._wait(self._step_s if self._left else max(0.0, self._every_s - self._round_s))

    def _plan(self, every_s: float) -> None:
        """How many at a time, and how long in between: the rest of a round within ``every_s``, in steps that events hardly
        notice. Where that is too short for small steps they are larger: a clock of a quarter of a second is kept, too."""
        self._planned_s = every_s
        self._slice = max(SLICE_ITEMS, ceil(self._left * MIN_STEP_S / every_s))
        steps = ceil(self._left / self._slice)
        self._step_s = every_s / max(1, steps)
        self._round_s = self._step_s * (steps - 1)

    def _look_at_some(self, first: int, end: int, now: float) -> None:
        """The hot path: ten thousand times a second where there are so many. Nothing is made here where nothing is found."""
        order = self._order
        shortest_s = self._every_s
        for place in range(first, end, -1):
            if place >= len(order):
                continue  # so many have left since this round began
            watched = order[place]
            try:
                pace = watched.pace
                if pace.look_every_s < shortest_s:
                    shortest_s = pace.look_every_s
                if watched.has_moved(now):
                    continue
                found = pace.look(
                    now,
                    last_token_at=watched.last_token_at,
                    tokens=watched.tokens if pace.clocks.min_tokens_per_s else 0,
                    is_generating=pace.silences >= SILENCE_WARNINGS and watched.is_generating(),
                    is_paused=watched.is_paused(),
                )
                if found is not None:
                    self._act(watched, found)
            except Exception:
                log.exception("watch_fault")
                self._drop(watched)
        self._every_s = min(self._every_s, shortest_s)  # what was added meanwhile has been taken into account there

    def _act(self, watched: Watched, found: Finding) -> None:
        counter = _COUNTERS[found]
        setattr(self._instruments, counter, getattr(self._instruments, counter) + 1)
        note = found, watched.name, watched.model[:MAX_MODEL_CHARS]
        if note not in self._notes and len(self._notes) >= MAX_NOTES:
            note = found, "", ""
        self._notes[note] = self._notes.get(note, 0) + 1
        if found.reason is not None:
            words = found.words(watched.pace.clocks)
            self.discard(watched)
            watched.give_up(found.reason, words)

    def _drop(self, watched: Watched) -> None:
        """A fault of ours in one of them. It ends in a turn of its own, so that the others hear nothing of a second one."""
        self.discard(watched)
        reason = CloseReason.INTERNAL_ERROR
        self._clock.call_later(0, watched.give_up, reason, reason.help)

    def _tell(self) -> None:
        """What this round has found, one line for all streams of an upstream's model that it holds for."""
        notes, self._notes = self._notes, {}
        for (found, name, model), count in notes.items():
            fields: dict[str, object] = {"engine": name, "model": model, "streams": count}
            if found.reason is not None:
                fields["reason"] = found.reason.value
            log.warning(found.event, extra={"fields": fields})
