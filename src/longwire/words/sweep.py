"""Looking at everything once in a while, a few at a time.

What lives here: the sweep. What must not: what is looked at, or why.

A timer per connection or stream costs memory for each; one call that looks at ten thousand of them holds up the loop for
milliseconds, which every stream feels. A sweep goes through all of them within its period in small steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from .clock import Clock

Item = TypeVar("Item")

MAX_STEP_ITEMS = 64
"""At about a microsecond a look, a step takes no longer than two events on their way through the gateway."""
MIN_STEP_S = 0.002


class Sweep(Generic[Item]):
    """Calls ``visit(item, now)`` for each of ``items()`` about once per ``period_s``, for as long as it is not stopped.

    What appears during a round is visited in the next one; ``visit`` must cope with an item that is gone by then.
    """

    __slots__ = ("_clock", "_is_stopped", "_items", "_left", "_on_round", "_period_s", "_step_s", "_visit")

    def __init__(
        self,
        clock: Clock,
        period_s: float,
        items: Callable[[], Iterable[Item]],
        visit: Callable[[Item, float], object],
        on_round: Callable[[float], object] | None = None,
    ) -> None:
        self._clock = clock
        self._period_s = period_s
        self._items = items
        self._visit = visit
        self._on_round = on_round
        self._left: list[Item] = []
        self._step_s = period_s
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<Sweep every {self._period_s:g} s, {len(self._left)} left in this round>"

    def start(self) -> None:
        """Begin; the first round comes after one period."""
        self._clock.call_later(self._period_s, self._step)

    def stop(self) -> None:
        """Visit nothing more."""
        self._is_stopped = True
        self._left.clear()

    def _step(self) -> None:
        if self._is_stopped:
            return
        now = self._clock.now()
        try:
            if not self._left:
                self._begin_round(now)
            for _ in range(min(MAX_STEP_ITEMS, len(self._left))):
                self._visit(self._left.pop(), now)
        finally:
            # Whatever goes wrong with one item is told to the loop, and the others are looked at all the same.
            self._clock.call_later(self._step_s, self._step)

    def _begin_round(self, now: float) -> None:
        if self._on_round is not None:
            self._on_round(now)
        self._left = list(self._items())
        steps = max(1, -(-len(self._left) // MAX_STEP_ITEMS))
        self._step_s = max(MIN_STEP_S, self._period_s / steps)
