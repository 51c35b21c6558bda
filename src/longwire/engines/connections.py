"""The connections to one upstream: who gets which, which are kept, and which are made ahead of need.

What lives here: idle and busy connections, those that are being made, and the queue of who waits for one.
What must not: how one is made (dialing.py), how many are to stand ready (reserve.py), what goes over it (exchange.py), what is
known of the upstream (pool.py).

Whoever finds nothing idle has a connection made at once, and gets the first that is made, warmed or freed after those before
have got theirs. So one that is freed earlier saves the time of connecting, and one that was made for somebody who got another
is given up, or joins the reserve where that is short.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import takewhile

from ..words.clock import Clock
from ..words.settings import Settings
from .dialing import ConnectFailed, ConnectTimeout, Place, dial
from .elastic import Span
from .reserve import RENEW_SHARE, Warming
from .transport import UpstreamConnection

MAX_DRAIN_PURGES = 2
"""So many purges (one per probe) is the end of a body waited for behind its end marker; it usually takes microseconds."""


class Connections:
    """Connections are taken last-in first-out, so that the surplus grows old and is closed."""

    def __init__(self, settings: Settings, clock: Clock, span: Span) -> None:
        self.is_retired = False
        """It is no endpoint any more: what runs goes on to its end, and no connection is kept."""
        self.warming = Warming(span, clock.now())
        self._place = Place("", "", 0, "", None)
        self._settings = settings
        self._keeps_idle = settings.upstream_keep_alive_s > 0
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._warm: deque[UpstreamConnection] = deque()
        """Made ahead of need and never used; the oldest stands first."""
        self._old = 0
        """How many of both are to be renewed; counted anew with each look, so that it may lag behind what is taken."""
        self._busy: set[UpstreamConnection] = set()
        self._waiting: OrderedDict[asyncio.Future[UpstreamConnection], None] = OrderedDict()
        self._dials: dict[asyncio.Task[None], None] = {}
        """Connections that are being made for whoever waits longest, or for nobody yet; the latest stands last."""
        self._own_dials = 0

    def __repr__(self) -> str:
        return f"<Connections {self.statistics()}, {len(self._waiting)} wait>"

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that is fresh enough, or None: then :meth:`wait_connection`. The last that came back is taken
        first, then what was warmed, longest ago first: its engine has had the most time to accept it."""
        now = self._clock.now()
        connection = self._take(now)
        warming = self.warming
        if warming.is_stopped:
            return connection
        ready = len(self._idle) + len(self._warm)
        if connection is not None:
            warming.note_taken(ready, now)
        elif self._may_warm():
            warming.note_missed(now)
        if ready < warming.wanted:
            self._open(ready, now)
        return connection

    def _take(self, now: float) -> UpstreamConnection | None:
        oldest = now - self._settings.upstream_keep_alive_s
        while self._idle or self._warm:
            connection = self._idle.pop() if self._idle else self._pop_warm()
            if connection.is_closed:
                continue
            if connection.idle_since >= oldest:
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    async def wait_connection(self) -> UpstreamConnection:
        """The next connection: one that is made for whoever waits here, or an earlier one that is freed or warmed. Each goes to
        who has waited longest, and who leaves passes on what was given to it.

        Raises:
            ConnectTimeout: there was none within connect_timeout_s.
            ConnectFailed: with a sentence that names the upstream and the cause, but no address of it.
        """
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                while (connection := await self._wait_turn()).is_closed:
                    pass  # between being given and being taken; the timeout bounds how often
        except TimeoutError as exc:
            raise ConnectTimeout(self._place.public_name) from exc
        return connection

    async def wait_new(self) -> UpstreamConnection:
        """A connection that was made for whoever waits, and has never been idle. Raises as :meth:`wait_connection`."""
        connection = UpstreamConnection(self)
        self._own_dials += 1
        try:
            await dial(connection, self._place, self._settings)
        finally:
            self._own_dials -= 1
        self._busy.add(connection)
        return connection

    async def _wait_turn(self) -> UpstreamConnection:
        waiter: asyncio.Future[UpstreamConnection] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        dialing = self._start_dial()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.freed(waiter.result(), reusable=True)
            self._trim(dialing)
            raise

    def _serve(self, connection: UpstreamConnection) -> bool:
        """Give a connection to who has waited longest; False where nobody waits."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                self._busy.add(connection)
                waiter.set_result(connection)
                return True
        return False

    # Connecting.

    @property
    def connecting(self) -> int:
        """Connections that are being made, for whomever."""
        return len(self._dials) + self._own_dials

    def _start_dial(self) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._dial())
        self._dials[task] = None
        task.add_done_callback(lambda ended: self._dials.pop(ended, None))  # one that is cancelled before it began
        return task

    async def _dial(self) -> None:
        """Make a connection, and give it to whoever waits, or keep it ready."""
        began = self._clock.now()
        connection = UpstreamConnection(self)
        task = asyncio.current_task()
        assert task is not None
        try:
            await dial(connection, self._place, self._settings)
        except ConnectFailed as exc:
            self._dials.pop(task, None)
            self.warming.rest(self._clock.now())
            self._fail(exc)
            return
        self._dials.pop(task, None)
        now = self._clock.now()
        self.warming.note_connect(now - began)
        if not self._serve(connection):
            self._keep_warm(connection, now)
        self._open(self._young, now)

    def _fail(self, problem: ConnectFailed) -> None:
        """Tell who has waited longest, if there are fewer under way now than wait."""
        while len(self._waiting) > len(self._dials):
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_exception(problem)
                return

    def _keep_warm(self, connection: UpstreamConnection, now: float) -> None:
        if not self._keeps_idle or self.warming.is_stopped:
            connection.close()
            return
        if len(self._idle) + len(self._warm) >= self._settings.max_upstream_idle:
            if not self._warm:
                connection.close()
                return
            self._pop_warm().close()  # it is being renewed
        connection.idle_since, connection.was_idle = now, True
        self._warm.append(connection)

    def _pop_warm(self) -> UpstreamConnection:
        self._old = max(0, self._old - 1)
        return self._warm.popleft()

    def _trim(self, first: asyncio.Task[None] | None = None) -> None:
        """Give up connecting for which nobody waits and of which the reserve has no need: that of who has just left, ``first``,
        which may be about to fail; else what has come least far."""
        needed = len(self._waiting) + (max(0, self.warming.wanted - self._young) if self._may_warm() else 0)
        while len(self._dials) > needed:
            task = first if first in self._dials else next(reversed(self._dials))
            del self._dials[task]
            task.cancel()

    # Warming.

    def _may_warm(self) -> bool:
        """Whether connections may be made of which nobody has need yet."""
        return not self.is_retired and not self.warming.is_stopped

    @property
    def _young(self) -> int:
        """How many stand ready and need no renewal, as far as is known since it was looked at."""
        return len(self._idle) + len(self._warm) - self._old

    def _open(self, ready: int, now: float) -> None:
        if self._may_warm():
            for _ in range(self.warming.to_open(ready, len(self._dials) - len(self._waiting), now)):
                self._start_dial()

    def top_up(self) -> None:
        """Make what is missing of the reserve; what will soon be too old is missing, too."""
        now = self._clock.now()
        self._close_old(now)
        if self.warming.is_stopped:
            return
        self.warming.look(now)
        before = now - RENEW_SHARE * self._settings.upstream_keep_alive_s
        self._old = _count_older(self._idle, before) + _count_older(self._warm, before)
        self._open(self._young, now)

    def sample(self) -> None:
        """Every SAMPLE_S: let the reserve grow or shrink by its use."""
        if self._may_warm():
            self.warming.sample(self._clock.now())
            self.top_up()

    async def wait_warm(self) -> None:
        """Until the connections that are being made for the reserve now are there, or have failed."""
        if self._dials:
            await asyncio.wait(list(self._dials))

    def stop_warming(self) -> None:
        """For good. What stands ready is used up, or grows old."""
        self.warming.stop()
        self._trim()

    # Keeping.

    def take_over(self, connection: UpstreamConnection) -> None:
        """Count a connection that was made by a process that has died."""
        self._busy.add(connection)

    def purge_nowait(self) -> None:
        """Close idle connections that the engine may close any moment, and those whose answer's body never ends."""
        for connection in list(self._busy):
            if connection.drains_since_purge > MAX_DRAIN_PURGES:
                connection.close()
            elif connection.drains_since_purge:
                connection.drains_since_purge += 1
        self.top_up()

    def _close_old(self, now: float) -> None:
        oldest = now - self._settings.upstream_keep_alive_s
        old = self._idle[: _count_older(self._idle, oldest)]
        del self._idle[: len(old)]
        old += [self._pop_warm() for _ in range(_count_older(self._warm, oldest))]
        for connection in old:
            connection.close()

    def retire(self) -> None:
        """Nothing new is to begin here. What runs is not touched."""
        self.is_retired, self._keeps_idle = True, False
        self.stop_warming()
        self._close_ready()

    def _close_ready(self) -> None:
        for connection in (*self._idle, *self._warm):
            connection.close()
        self._idle.clear()
        self._warm.clear()
        self._old = 0

    def close(self) -> None:
        """Close every connection."""
        self.stop_warming()
        self._close_ready()
        for connection in list(self._busy):
            connection.close()

    def statistics(self) -> dict[str, int]:
        """Connections by state."""
        return {
            "idle": len(self._idle) + len(self._warm),
            "busy": len(self._busy),
            "connecting": self.connecting,
        }

    def freed(self, connection: UpstreamConnection, reusable: bool) -> None:
        """An exchange has let a connection go."""
        self._busy.discard(connection)
        if self._place.tls is not None:
            self._place.tls.keep_session(connection.tls)
        if not reusable or connection.is_closed or not self._keeps_idle:
            connection.close()
        elif self._waiting and self._serve(connection):
            self._trim()
        elif len(self._idle) + len(self._warm) < self._settings.max_upstream_idle:
            connection.idle_since, connection.was_idle = self._clock.now(), True
            self._idle.append(connection)
        else:
            connection.close()

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection has closed."""
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        elif connection in self._warm:  # by the engine: we take those that we close ourselves out first
            self._warm.remove(connection)
            self.warming.rest(self._clock.now())


def _count_older(line: Iterable[UpstreamConnection], than: float) -> int:
    """How many of these have been idle since before then; the oldest stand first."""
    return sum(1 for _ in takewhile(lambda each: each.idle_since < than, line))
