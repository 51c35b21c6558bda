"""One timer for all streams.

What lives here: calls at a time, gathered by the millisecond.
What must not: what is called.

A timer handle per event costs the loop more than the event itself: at 18,000 events a second that would be the stand-in's
largest expense. Here a stream is appended to the list of its millisecond, and one timer wakes the next list.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from longwire.words.clock import Clock, Timer

TICKS_PER_S = 1000
"""libuv's own resolution; a finer one would only wake early and wait."""


class Sleeper(Protocol):
    """Something that is woken. It cannot be taken off the wheel; one that has ended ignores the call."""

    def wake(self) -> None: ...


class Wheel:
    """Wakes sleepers not before their time, those of one millisecond in the order in which they came."""

    __slots__ = ("_armed", "_clock", "_slots", "_ticks", "_timer", "now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.now
        self._slots: dict[int, list[Sleeper]] = {}
        self._ticks: list[int] = []
        self._armed: int | None = None
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Wheel {self.sleepers} sleepers in {len(self._ticks)} ticks>"

    @property
    def sleepers(self) -> int:
        """How many wait."""
        return sum(map(len, self._slots.values()))

    def call_at(self, at: float, sleeper: Sleeper) -> None:
        """Wake ``sleeper`` at ``at`` (the clock's seconds) or within the millisecond after."""
        tick = int(at * TICKS_PER_S + 0.999)
        slot = self._slots.get(tick)
        if slot is not None:
            slot.append(sleeper)
            return
        self._slots[tick] = [sleeper]
        heapq.heappush(self._ticks, tick)
        if self._armed is None or tick < self._armed:
            self._arm(tick)

    def call_soon(self, sleeper: Sleeper) -> None:
        """Wake ``sleeper`` in the loop's next turn, after others had theirs."""
        self._clock.call_later(0, sleeper.wake)

    def shift(self, pause_s: float) -> None:
        """Wake everyone so much later, or sooner by a pause below zero."""
        late = round(pause_s * TICKS_PER_S)
        # In place: a turn of the wheel may be under way, and holds the list.
        self._ticks[:] = [tick + late for tick in self._ticks]
        shifted = {tick + late: slot for tick, slot in self._slots.items()}
        self._slots.clear()
        self._slots.update(shifted)
        if self._armed is not None and self._ticks:
            self._arm(self._ticks[0])

    def close(self) -> None:
        """Forget everyone."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots.clear()
        self._ticks.clear()
        self._armed = self._timer = None

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._clock.call_later(max(0.0, tick / TICKS_PER_S - self.now()), self._turn)

    def _turn(self) -> None:
        self._armed = self._timer = None
        now_tick = int(self.now() * TICKS_PER_S + 1e-6)
        ticks = self._ticks
        while ticks and ticks[0] <= now_tick:
            for sleeper in self._slots.pop(heapq.heappop(ticks)):
                sleeper.wake()
        if ticks:
            self._arm(ticks[0])  # Whatever a sleeper armed meanwhile is among them.
