"""Asking an engine how busy it is.

What lives here: one look at an engine's own metrics, and the loop that repeats it.
What must not: reading them (load_kinds.py), whether the engine is up (probe.py): an engine that keeps its metrics to itself is
as good as any other.
"""

from __future__ import annotations

import asyncio

from ..words.settings import Settings
from .asking import Question, Refused, wait_answer
from .dialing import ConnectFailed
from .exchange import Expect
from .load import Load, Odometer, has_moved, smooth
from .load_kinds import read_load
from .pool import Upstream
from .series import MAX_METRICS_BYTES

ABSENT_S = 60.0
"""An engine that has no metrics is asked less and less often, at last once a minute: it may be started anew with them."""
NOT_UP_S = 0.1
"""How often it is looked whether the engine is up: until it has told what its cache holds, requests go there unreckoned."""
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Refusals that say nothing about whether there are metrics."""


class LoadProbe:
    """Looks at one engine's load every ``load_probe_s`` seconds, one look at a time."""

    def __init__(self, upstream: Upstream, settings: Settings) -> None:
        self.upstream = upstream
        self._every_s = settings.load_probe_s
        self._stale_s = settings.load_stale_s
        self._sheds = settings.shed
        self._limit_s = min(settings.connect_timeout_s * 2, settings.load_stale_s)
        target = upstream.abilities.metrics_path.encode()
        self._question = Question(
            target, "its metrics", MAX_METRICS_BYTES, Expect.ANY, b"text/plain, application/json;q=0.9, */*;q=0.1", True
        )
        self._odometer = Odometer()
        self._last: Load | None = None
        self._absences = 0

    def __repr__(self) -> str:
        return f"<LoadProbe {self.upstream.name}, {self._last}>"

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self.upstream.is_up:
                await self.look()
                await asyncio.sleep(self.pause_s)
            else:
                await asyncio.sleep(min(self._every_s, NOT_UP_S))

    @property
    def pause_s(self) -> float:
        """How long until the next look."""
        longest = max(ABSENT_S, self._every_s)
        return min(longest, self._every_s * 2.0 ** min(self._absences, 16))

    async def look(self) -> bool:
        """Ask once; True if the engine told its load. What it told before is kept where it did not, and grows old."""
        try:
            async with asyncio.timeout(self._limit_s):
                page = await wait_answer(self.upstream, self._question)
        except Refused as exc:
            self._absences += exc.status not in _PASSING_STATUS
            return False
        except (ConnectFailed, TimeoutError):
            return False
        return self.take(page)

    def take(self, page: bytes) -> bool:
        """Note what the engine said; True if it could be read."""
        upstream = self.upstream
        now = upstream.now()
        load = self._odometer.advance(read_load(upstream.kind, page, now))
        if not load.is_known:
            self._absences += 1
            return False
        self._absences = 0
        if has_moved(self._last, load):
            upstream.moved_at = now
        self._last = load
        old = upstream.load
        upstream.load = smooth(None if old is None or old.is_stale(now, self._stale_s) else old, load)
        if self._sheds:
            upstream.occupancy.note_load(upstream.load, now, self._stale_s)
        return True
