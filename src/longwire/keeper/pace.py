"""How soon what has failed is tried again.

What lives here: failures in a row by kind of process, the pause that follows, and what is put off until when.
What must not: processes, the clock (both are given).
"""

from __future__ import annotations

from collections import Counter

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Before a process is started whose predecessors failed; doubled for each of them. An interpreter that starts takes a core for
half a second: more often than that, and failing would cost those that serve."""
FORGET_S = 60.0
"""A failure so long ago has nothing to do with the next one."""
START = "start"
"""As a kind: a process that could not be started, or a shard that ended before it was warm. What there is to take over has no
part in such a failure, so whoever serves already may fare better with it."""


class Pace:
    """Times are of the machine's monotonic clock, so that they mean the same to a keeper's successor."""

    def __init__(self, again: dict[str, float] | None = None) -> None:
        self._failures: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self.again: dict[str, float] = {} if again is None else again
        """When each kind that was put off is due."""

    def __repr__(self) -> str:
        return f"<Pace {dict(self._failures)}, put off {sorted(self.again)}>"

    def failures(self, kind: str) -> int:
        """How often it failed in a row."""
        return self._failures[kind]

    def note_failure(self, kind: str, now: float) -> None:
        if now - self._last.get(kind, now) > FORGET_S:
            self._failures[kind] = 0
        self._failures[kind] += 1
        self._last[kind] = now

    def forgive(self, kind: str) -> None:
        """It works."""
        self._failures[kind] = 0

    def put_off(self, kind: str, now: float) -> None:
        """Let it be due after a pause; one that is put off already stays so."""
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(16, self._failures[kind] - 1))
        self.again.setdefault(kind, now + pause_s)

    def take_due(self, now: float) -> list[str]:
        """The kinds whose pause is over."""
        due = [kind for kind, at in self.again.items() if at <= now]
        for kind in due:
            del self.again[kind]
        return due

    def wait_s(self, now: float, most_s: float) -> float:
        """How long nothing is due."""
        return max(0.0, min([most_s, *(at - now for at in self.again.values())]))
