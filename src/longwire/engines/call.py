"""One generation at one upstream: connect, send, read, and the few retries that nobody can notice.

What lives here: the life of a request from "this upstream" to "over", as the producer of a stream.
What must not: choosing the upstream (directory.py), admission, what readers get.

Over 400 lines: whoever asks, reads, looks at the clock or stops may come in any state, and each must leave the others theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..observe.instruments import Instruments
from ..wire.http1 import Headers, encode_request_head
from ..words.clock import Clock, Timer
from ..words.faultpoint import reach
from ..words.reasons import CloseReason
from ..words.settings import Settings
from .base import Answer, Failure, Sink, Watch
from .breaker import BreakerState, weigh
from .clocks import Clocks, Pace
from .dialing import ConnectFailed, ConnectTimeout
from .exchange import Exchange, Expect
from .load import is_generating
from .occupancy import Wanted
from .phases import Phase
from .pool import Upstream
from .transport import UpstreamConnection
from .watchman import Watchman

log = logging.getLogger("longwire.engines")

REFUSAL_BODY_S = 5.0
"""How long the body of an error may take once its head is there: the client has waited long enough to hear the status."""
_RETRY_WITHOUT_OPTIONS_STATUS = (400, 422)


class Order(NamedTuple):
    """What is to be asked of an engine. ``plain_body`` is the body without what the gateway added, where it added something.

    Bodies are dropped as soon as they are not needed any more: the one that was sent lies in the sink, which counts it.
    """

    target: bytes
    headers: Headers
    body: bytes
    expect: Expect
    make_watch: Callable[[], Watch]
    clocks: Clocks
    plain_body: bytes | None = None
    model: str = ""
    started_at: float | None = None
    """When the generation began, where an earlier attempt did; the total is counted from there."""
    wanted: Wanted = Wanted()

    def encode(self, upstream: Upstream, *, is_plain: bool = False) -> bytes:
        """The whole request as this upstream gets it."""
        body = self.plain_body if is_plain and self.plain_body is not None else self.body
        headers = [*self.headers, (b"content-length", b"%d" % len(body))]
        return encode_request_head(b"POST", upstream.base_path.encode() + self.target, headers) + body


class CallSink(Sink, Protocol):
    """The sink of a call: besides the answer's bytes it keeps the request's."""

    def progress(self) -> int:
        """A number that is another one whenever events have come, by whatever way."""

    def count_events(self) -> int:
        """Events with a seq so far."""

    def store_request(self, data: bytes) -> None: ...

    def request_views(self) -> list[memoryview]: ...

    def restart(self) -> None:
        """Forget the bytes that a failed attempt stored; none of them was published."""


class CallOwner(Protocol):
    """Who wants the answer."""

    def sent(self, connection: UpstreamConnection) -> None:
        """The request is on its way over this connection."""

    def answered(self, answer: Answer) -> None: ...

    def completed(self, call: Call, reason: CloseReason, message: str) -> None: ...

    def failed(self, call: Call, failure: Failure) -> None: ...

    def stopped(self, call: Call) -> None:
        """The answer was not wanted any more; what came of it is there."""


def _ignored() -> None:
    """Nobody waits."""


@dataclass(slots=True, weakref_slot=False)
class CallShell:
    """What every call needs from around it."""

    settings: Settings
    clock: Clock
    instruments: Instruments
    watchman: Watchman
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    on_finished: Callable[[], object] = _ignored
    """A call is over: there may be room for another."""

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something that takes time; it ends with the loop at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


class Call:
    """The producer of one stream. :meth:`stop` may come at any time, from any state."""

    __slots__ = (
        "_connect", "_connection", "_deadline", "_is_over", "_progress", "_shell", "_token_at", "_used_plain_body",
        "_was_refused", "exchange", "is_lost", "order", "owner", "pace", "sink", "upstream", "watch",
    )  # fmt: skip

    def __init__(self, upstream: Upstream, order: Order, sink: CallSink, owner: CallOwner, shell: CallShell) -> None:
        self.upstream = upstream
        self.order = order
        self.sink = sink
        self.owner = owner
        self.watch = order.make_watch()
        self.exchange: Exchange | None = None
        self._shell = shell
        self._connection: UpstreamConnection | None = None
        self._connect: asyncio.Task[None] | None = None
        self._deadline: Timer | None = None
        self._is_over = False
        self.is_lost = False
        """It was ended by a loss of ours, for which its engine must not pay."""
        self._was_refused = False
        self._progress = sink.progress()
        self._token_at: float | None = None
        self.pace = Pace(order.clocks, shell.clock.now(), order.started_at)
        self._used_plain_body = upstream.refuses_stream_options and order.plain_body is not None
        upstream.in_flight += 1
        upstream.occupancy.enter(self, order.wanted)
        upstream.breaker.begin_trial(shell.clock.now())
        shell.watchman.add(self)

    def __repr__(self) -> str:
        return f"<Call {self.upstream.name} {'over' if self._is_over else self.exchange or 'connecting'}>"

    def start(self) -> None:
        """Send the request: at once over an idle connection, else as soon as there is a new one.

        Raises:
            ArenaFull: the request could not be stored; nothing was sent.
        """
        self._store_request()
        reach("stored_before_sent")
        self._start()

    def _start(self) -> None:
        connection = self.upstream.take_idle()
        if connection is not None:
            self._send(connection)
        else:
            self._shell.instruments.reserve_misses_total += 1
            self._start_connecting(self.upstream.wait_connection)

    def start_stored(self) -> None:
        """Send the request that is stored already."""
        self._start()

    def take_over(self, connection: UpstreamConnection, read_bytes: int, written_bytes: int) -> Exchange:
        """Be in the middle of an exchange over this connection."""
        self._connection = connection
        self.exchange = self._make_exchange(connection)
        connection.take_over(self.exchange, read_bytes, written_bytes)
        return self.exchange

    def stop(self) -> None:
        """Give the engine back: its connection is closed at once, which is how engines learn of a cancel."""
        if self._is_over:
            return
        exchange = self.exchange
        self._finish()
        self.upstream.breaker.note_neutral(self._shell.clock.now())
        if self._connect is not None:
            self._connect.cancel()
        if exchange is not None:
            exchange.abandon()
        self.owner.stopped(self)

    def lose(self, message: str) -> None:
        """Its connection was lost with a process of the gateway's."""
        self.is_lost = True
        if self.exchange is not None:
            self.exchange.fail(CloseReason.UPSTREAM_RESET, message)

    def resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def unsplice(self) -> None:
        if self._connection is not None:
            self._connection.unsplice()

    # Called by the watchman.

    @property
    def name(self) -> str:
        return self.upstream.name

    @property
    def model(self) -> str:
        return self.order.model

    @property
    def last_token_at(self) -> float | None:
        """When a look has first seen the last of what has come: between two looks nobody notes the time of a token. Of an
        answer in one piece each byte behind its head is one."""
        if self.exchange is not None and self.exchange.phase is Phase.BODY:
            return self._last_byte_at()
        progress = self.sink.progress()
        if progress != self._progress:
            self._progress = progress
            now = self._shell.clock.now()
            if not self.watch.saw_token():
                self.pace.note_progress(now)
                return None
            if self._token_at is None and self.upstream.breaker.state is BreakerState.HALF_OPEN:
                self.upstream.breaker.note_success(now)  # a trial has shown what it was for
            self._token_at = now
        return self._token_at

    def has_moved(self, now: float) -> bool:
        """Events have come since the last look, as in every answer that runs well, and nothing else is to be found out."""
        progress = self.sink.progress()
        if progress == self._progress or self._token_at is None or not self._reads_events() or not self.pace.moved(now):
            return False
        self._progress, self._token_at = progress, now
        return True

    def _reads_events(self) -> bool:
        return self.exchange is not None and self.exchange.phase is Phase.EVENTS

    def _last_byte_at(self) -> float | None:
        end = self.sink.chain.end
        if end != self._progress or self._token_at is None:
            self._progress, self._token_at = end, self._shell.clock.now()
        return self._token_at

    @property
    def tokens(self) -> int:
        return self.sink.count_events() - self.watch.tokenless

    def is_generating(self) -> bool:
        """By what others have had: the count that this answer's own last token has moved says nothing of what came after."""
        shell, moved_at = self._shell, self.upstream.moved_at
        if moved_at is None or moved_at <= (self._token_at or 0) + 2 * shell.settings.load_probe_s:
            return False
        return is_generating(moved_at, shell.clock.now(), shell.settings.load_stale_s)

    def is_paused(self) -> bool:
        return self.sink.chain.is_full

    def give_up(self, reason: CloseReason, message: str) -> None:
        """A clock has run out. An engine that has said that it is through, and only keeps its connection open, has ended."""
        self.sink.unsplice()
        exchange = self.exchange
        if exchange is None:
            self.failed(Failure(reason, message))
        elif reason is CloseReason.TOKEN_SILENCE and self.watch.outcome(True)[0].is_success:
            exchange.end_here()
        else:
            exchange.fail(reason, message)

    # Called by the exchange.

    def began(self) -> None:
        self._cancel_deadline()
        if self._was_refused:
            # Only now: a request that is refused either way says nothing of the options, whatever its refusal quotes.
            self.upstream.refuses_stream_options = True
        self.order = self.order._replace(headers=[], plain_body=None)

    def refusing(self) -> None:
        self._cancel_deadline()
        self._deadline = self._shell.clock.call_later(REFUSAL_BODY_S, self._too_late)

    def answered(self, answer: Answer) -> None:
        self.owner.answered(answer)

    def completed(self, reason: CloseReason, message: str) -> None:
        if not self._is_over:
            self._finish()
            self._report(reason, 0, message.encode())
            self.owner.completed(self, reason, message)

    def failed(self, failure: Failure) -> None:
        if self._is_over:
            return
        if failure.is_retryable_unsent and self._connection is not None and self._connection.is_kept:
            self._retry()
            return
        if self._is_refusal_of_options(failure):
            self._used_plain_body = self._was_refused = True
            self._store_request()  # it has room: it is shorter than the one whose place it takes
            self._retry()
            return
        self._finish()
        self._report(failure.reason, failure.status, failure.body or failure.message.encode())
        self.owner.failed(self, failure)

    # Inside.

    def _store_request(self) -> None:
        self.sink.store_request(self.order.encode(self.upstream, is_plain=self._used_plain_body))
        self.order = self.order._replace(body=b"")

    def _retry(self) -> None:
        """Once more, over a connection that is certainly fresh. Nothing has reached the client, and no token was generated."""
        self._shell.instruments.retries_total += 1
        self.sink.restart()
        self.watch = self.order.make_watch()
        self._connection = None
        self._start_connecting(self.upstream.wait_new)

    def _start_connecting(self, wait: Callable[[], Awaitable[UpstreamConnection]]) -> None:
        self._connect = self._shell.start(self._wait_connect(wait))

    async def _wait_connect(self, wait: Callable[[], Awaitable[UpstreamConnection]]) -> None:
        try:
            connection = await wait()
        except ConnectTimeout as exc:
            self._connect = None
            self._shell.instruments.clock_connect_total += 1
            self.failed(Failure(CloseReason.CONNECT_TIMEOUT, f"The {exc}."))
            return
        except ConnectFailed as exc:
            self._connect = None
            self.failed(Failure(CloseReason.UPSTREAM_UNREACHABLE, f"The {exc}."))
            return
        self._connect = None
        if self._is_over:
            connection.release(reusable=True)
            return
        try:
            self._send(connection)
        except Exception:
            log.exception("call_fault")
            self.failed(Failure(CloseReason.INTERNAL_ERROR, CloseReason.INTERNAL_ERROR.help))

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self.exchange = self._make_exchange(connection)
        self._cancel_deadline()
        if self.order.clocks.first_byte_s:
            self._deadline = self._shell.clock.call_later(self.order.clocks.first_byte_s, self._too_late)
        self.owner.sent(connection)
        reach("named_before_sent")
        # A copy, not views: a stream can end, and its blocks be another's, while the kernel has not taken all of its request.
        connection.send(self.exchange, b"".join(self.sink.request_views()))

    def _make_exchange(self, connection: UpstreamConnection) -> Exchange:
        limits = (self._shell.settings.max_event_bytes, self._shell.settings.max_stream_bytes)
        return Exchange(self.sink, self.watch, self, self.order.expect, limits, connection)

    def _too_late(self) -> None:
        self._deadline = None
        exchange = self.exchange
        if exchange is None or self._is_over:
            return
        if exchange.head is not None:
            exchange.finish_refusal()  # its status is known, and so much of its words as came
            return
        self._shell.instruments.clock_first_byte_total += 1
        self.failed(Failure(CloseReason.UPSTREAM_TIMEOUT, "The engine did not begin to answer in time."))
        exchange.abandon()

    def _is_refusal_of_options(self, failure: Failure) -> bool:
        """Whether it refused what we had added (usage in the stream); then it is asked again without, and remembered."""
        return (
            self.order.plain_body is not None
            and not self._used_plain_body
            and failure.status in _RETRY_WITHOUT_OPTIONS_STATUS
            and b"stream_options" in failure.body
        )

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _report(self, reason: CloseReason, status: int, words: bytes) -> None:
        """Tell the upstream's breaker how it went: only what is the upstream's own fault counts."""
        breaker, now = self.upstream.breaker, self._shell.clock.now()
        if self.is_lost:
            breaker.note_neutral(now)
            return
        if reason.is_success:
            breaker.note_success(now)
            return
        weight = 0.0 if self.order.clocks.is_clients_own(reason) else weigh(reason, status, words)
        if breaker.note_fault(now, weight, str(reason)):
            self._shell.instruments.breakers_opened_total += 1
            log.warning("breaker_opened", extra={"fields": {"engine": self.upstream.name, "why": breaker.why}})

    def _finish(self) -> None:
        self._is_over = True
        self.upstream.in_flight -= 1
        self.upstream.occupancy.leave(self)
        self._shell.watchman.discard(self)
        self.exchange = None
        self._cancel_deadline()
        self._shell.on_finished()
