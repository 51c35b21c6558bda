"""How busy an engine is, by its own account.

What lives here: the load as a value. What must not: asking for it, what follows from it (directory.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine said at ``at``; None: it said nothing of that."""

    kv_used: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None
    generated: float | None
    at: float

    def is_stale(self, now: float, stale_s: float) -> bool:
        """Whether it is too old to be believed."""
        return now - self.at >= stale_s
