"""How long to wait before trying again, and how often.

What lives here: the bounds of one stream's patience.
What must not: clocks and sleeping (the skins do that), what counts as a failure (reader.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, jittered, bounded.

    The defaults give up before the 30 s for which the gateway keeps a generation running without a reader have passed.
    """

    attempts: int = 8
    """Failed connections in a row, without one new event, after which the stream's error is raised."""
    first_s: float = 0.25
    factor: float = 2.0
    cap_s: float = 8.0
    deferrals: int = 60
    """How often in a row a gateway may say "come back later" (``retry:`` and close): it is alive, so more than attempts."""
    longest_wait_s: float = 60.0
    """The most that a gateway's own ``retry:`` or ``Retry-After`` can make the client wait."""
    random: Callable[[], float] = field(default=random.random, repr=False)
    """A number in [0, 1): the jitter, so that the clients of a restarted gateway do not come back in one instant."""

    def delay_s(self, failures: int) -> float:
        """The wait after the ``failures``-th failure in a row: between half of the exponential step and the whole."""
        step_s = min(self.cap_s, self.first_s * self.factor ** (failures - 1))
        return step_s * (0.5 + 0.5 * self.random())

    def bounded_s(self, asked_s: float) -> float:
        """What the gateway asked for, within reason."""
        return min(max(asked_s, 0.0), self.longest_wait_s)
