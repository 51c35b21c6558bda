"""The one clock.

What lives here: what time it is and when to be called, as a protocol, the real clock and a virtual one.
What must not: policies about time (settings) or anything that waits (server, engines).

Everything that has a deadline takes a :class:`Clock`, so that a test of a ten-minute retention takes microseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timer(Protocol):
    """A pending call; :meth:`cancel` is idempotent."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds from an arbitrary origin, and calls in the future."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Seconds since the epoch, for people; never used for deadlines."""

    def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        """Call once, not before ``delay_s`` seconds have passed."""


class LoopClock:
    """The running event loop's clock."""

    __slots__ = ("_loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def wall(self) -> float:
        return time.time()

    def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        return self._loop.call_later(delay_s, call, *args)


class _VirtualTimer:
    __slots__ = ("args", "at", "call", "cancelled")

    def __init__(self, at: float, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self.at = at
        self.call = call
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """A clock that moves only when told to; timers fire in order inside :meth:`advance`."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = count()
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_700_000_000.0 + self._now

    def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        timer = _VirtualTimer(self._now + delay_s, call, args)
        heapq.heappush(self._timers, (timer.at, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``, firing what falls due on the way (timers set meanwhile included)."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, at)
            if not timer.cancelled:
                timer.call(*timer.args)
        self._now = end

    def lose(self, seconds: float) -> None:
        """Move on as for a process that was stopped: what falls due meanwhile fires late, with the next :meth:`advance`."""
        self._now += seconds
