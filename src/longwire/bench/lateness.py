"""The client's own lag: how late its loop comes to what is due.

What lives here: the ticks and what they found. What must not: what is sent.

A client that stands still sees every answer stand still. Without this it would be blamed on the endpoint.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left

from .records import TIME

TICK_NS = 10_000_000
"""A hundred looks a second: 0.1 % of a core."""
NOTED_NS = 100_000_000
"""A tick that is so late is kept with its time: it can explain a gap of 500 ms in part."""


class Lateness:
    """Ticks every 10 ms; ``lags`` are the nanoseconds by which each was late."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self.lags = array(TIME)
        self._noted_at: list[int] = []
        self._noted: list[int] = []

    def __repr__(self) -> str:
        return f"<Lateness of {len(self.lags)} ticks>"

    def start(self) -> None:
        """Tick from now on."""
        self._due_ns = time.monotonic_ns() + TICK_NS
        self._timer = self._loop.call_later(TICK_NS / 1e9, self._tick)

    def stop(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self.note(now_ns, max(0, now_ns - self._due_ns))
        self.start()

    def note(self, now_ns: int, lag_ns: int) -> None:
        """A tick that came at ``now_ns`` and was late by ``lag_ns``."""
        self.lags.append(lag_ns)
        if lag_ns >= NOTED_NS:
            self._noted_at.append(now_ns)
            self._noted.append(lag_ns)

    def was_late(self, start_ns: int, end_ns: int) -> bool:
        """Whether the loop stood still for half of that time or more; the tick that is due right now counts as well."""
        half_ns = (end_ns - start_ns) // 2
        first = bisect_left(self._noted_at, start_ns)
        if any(lag_ns >= half_ns for lag_ns in self._noted[first:]):
            return True
        return bool(self._due_ns) and end_ns - self._due_ns >= half_ns
