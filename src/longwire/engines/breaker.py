"""Whether an upstream is trusted: for now, always.

What lives here: the breaker of one upstream. What must not: requests, choosing between upstreams (directory.py).
"""

from __future__ import annotations

from enum import IntEnum

from ..words.settings import Settings


class BreakerState(IntEnum):
    """The states, as the metric shows them."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """The breaker of one upstream. ``why`` says what opened it, and is empty while it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.state = BreakerState.CLOSED
        self.why = ""

    def may_try(self, now: float) -> bool:
        """Whether a request may be sent."""
        return self.state is BreakerState.CLOSED
