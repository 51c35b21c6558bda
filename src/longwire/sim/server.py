"""The engine stand-in as a server, in a process of its own or inside a test.

What lives here: SimServer with its counters and what tests can wait for.
What must not: reading requests (connection.py), answers (routes.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from longwire.wire.http1 import Headers, RequestHead
from longwire.words.clock import Clock, LoopClock
from longwire.words.settings import SimSettings

from .ask import named_faults, parse_body, read_ask
from .batch import Batch
from .connection import Connection
from .faults import Chosen, FaultError, Turns, change_ask, change_reply, choose
from .reply import InsteadError, Reply, chunked, refusal, until_close
from .routes import ROUTES, Route
from .wheel import Wheel

CREATED = 1_700_000_000
"""When every answer says it was made: its bytes must be known beforehand, to the second."""
MAX_SEEN_REQUESTS = 1000
MAX_SEEN_BYTES = 64 * 1024 * 1024
"""Requests that are remembered for whoever tests; a load test must not fill the memory with them."""
BACKLOG = 4096
"""Connections that wait to be accepted; a load generator opens thousands at once."""
FAULT_HEADER = b"x-sim-fault"
HURRY_S = 30 * 86_400.0
"""No answer that anybody hurries would have taken so long."""


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    target: bytes
    headers: Headers
    body: bytes

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by lower-case name."""
        return next((value for key, value in self.headers if key == name), None)

    def as_json(self) -> dict[str, object]:
        """It in text; bytes that are no UTF-8 are escaped."""
        return {
            "method": self.method,
            "target": self.target.decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "body": self.body.decode("utf-8", "backslashreplace"),
        }


class SimServer:
    """An OpenAI-compatible engine whose every answer is known beforehand.

    Counters are plain attributes; ``requests`` holds the latest requests. ``wait_for`` and its kin wait for a counter without
    polling. ``fail_next`` gives the next generations faults, one after the other.
    """

    def __init__(self, settings: SimSettings | None = None, *, clock: Clock | None = None) -> None:
        self.settings = settings or SimSettings(port=0)
        self._faults = choose(self.settings.fault)
        self._turns = Turns()
        self._batch = Batch(self.settings.max_running)
        self._paused_until = 0.0
        self._asks = 0
        self.requests: deque[Seen] = deque(maxlen=MAX_SEEN_REQUESTS)
        self.connections_accepted = 0
        self.open_connections: set[Connection] = set()
        self.open_streams = 0
        self.answered = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self.address = ("", 0)
        self._clock = clock
        self._wheel: Wheel | None = None
        self._server: asyncio.Server | None = None
        self._next_faults: deque[list[Chosen]] = deque()
        self._seen_bytes = 0
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<SimServer {self.url}, {self.open_streams} streams, {len(self.open_connections)} connections>"

    @property
    def wheel(self) -> Wheel:
        """The timer of all streams."""
        if self._wheel is None:
            self._clock = self._clock or LoopClock(asyncio.get_running_loop())
            self._wheel = Wheel(self._clock)
        return self._wheel

    @property
    def url(self) -> str:
        """The base URL, without /v1."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> tuple[str, int]:
        """Listen, and say where; after ``refuse`` at the same place again."""
        loop = asyncio.get_running_loop()
        host, port = self.settings.host, self.address[1] or self.settings.port
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG, reuse_address=True
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = (host, port)
        return self.address

    def refuse(self) -> None:
        """Refuse connections until ``start`` is called again; those that there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.open_connections):
            connection.abort()
        await self.wait_for(lambda: not self.open_connections)
        if self._wheel is not None:
            self._wheel.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    # For tests.

    def fail_next(self, *faults: str) -> None:
        """Give the next generation these faults together; called again, the one after it."""
        self._next_faults.append(choose(faults))

    def forget_next(self) -> None:
        """Whatever ``fail_next`` has lined up and nobody has met is not to come."""
        self._next_faults.clear()

    def preempt(self, pause_s: float) -> None:
        """Let all answers under way pause, as an engine does that has run out of memory for them."""
        self._batch.preempt()
        self._paused_until = max(self._paused_until, self.wheel.now() + pause_s)
        self.wheel.shift(pause_s)
        for connection in self.open_connections:
            connection.delay(pause_s)

    def hurry(self) -> None:
        """Let what is left of all answers under way come at once: whoever waited for something meanwhile has seen it."""
        self.wheel.shift(-HURRY_S)
        for connection in self.open_connections:
            connection.delay(-HURRY_S)

    def slots(self) -> list[tuple[int, int, int]]:
        """Of each answer that runs: the prompt's tokens, those generated, those still to come."""
        return [
            (reply.prompt_tokens, done := reply.generated(), reply.answer_tokens - done)
            for reply in self._batch.running
        ]

    def seen_requests(self) -> list[dict[str, object]]:
        """The remembered requests as JSON shows them."""
        return [request.as_json() for request in self.requests]

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition`` of the counters holds."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((condition, future))
        await future

    async def wait_requests(self, n: int) -> None:
        """Until ``n`` requests are remembered."""
        await self.wait_for(lambda: len(self.requests) >= n)

    async def wait_open(self, n: int) -> None:
        """Until exactly ``n`` answers are under way."""
        await self.wait_for(lambda: self.open_streams == n)

    async def wait_cancelled(self, n: int) -> None:
        """Until ``n`` clients have left before their answer's end."""
        await self.wait_for(lambda: self.cancelled >= n)

    def statistics(self) -> dict[str, int]:
        """All counters."""
        batch = self._batch
        running = 0 if self._paused_until and self.wheel.now() < self._paused_until else len(batch.running)
        return {
            "connections_accepted": self.connections_accepted,
            "open_connections": len(self.open_connections),
            "open_streams": self.open_streams,
            "answered": self.answered,
            "cancelled": self.cancelled,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "held_tokens": batch.held_tokens,
            "running": running,
            "waiting": self.open_streams - running,
            "preemptions": batch.preemptions,
            "generated_tokens": batch.generated_tokens,
        }

    # For connections.

    def connected(self, connection: Connection) -> None:
        """One more connection."""
        self.connections_accepted += 1
        self.open_connections.add(connection)
        self._changed()

    def disconnected(self, connection: Connection) -> None:
        """One fewer."""
        self.open_connections.discard(connection)
        self._changed()

    def ended(self, reply: Reply, *, cancelled: bool) -> None:
        """An answer is over."""
        if not reply.generates:
            return
        self.open_streams -= 1
        self._batch.leave(reply)
        if cancelled:
            self.cancelled += 1
        else:
            self.answered += 1
            self.answer_tokens += reply.answer_tokens
        self._changed()

    def park(self, reply: Reply, connection: Connection) -> bool:
        """An answer waits for its place; False: it has one already."""
        return self._batch.park(reply, connection)

    def answer(self, head: RequestHead, body: bytes) -> Reply:
        """The reply to a request, faults and all."""
        self._remember(Seen(head.method, head.target, head.headers, body))
        chosen: list[Chosen] = []
        try:
            route = _find_route(head)
            parsed = parse_body(body) if route.method == "POST" and route.reads_json else {}
            chosen = self._turns.befalling(self._faults_of(route, head, parsed))
            self._asks += 1
            id = f"{route.id_prefix}-{self._asks:08x}"
            ask = change_ask(read_ask(parsed, self.settings, id=id, created=CREATED, begins=route.begins), chosen)
            reply = route.respond(ask, self)
        except InsteadError as instead:
            reply = instead.reply()
        if reply.generates:
            self._batch.enter(reply)
        change_reply(reply, chosen)
        if head.method == "HEAD":
            reply.items = iter(())
        if head.minor == 0 and reply.framing is chunked:
            reply.framing = until_close
        if reply.generates:
            self.open_streams += 1
            self.prompt_tokens += reply.prompt_tokens
        self._changed()
        return reply

    def _faults_of(self, route: Route, head: RequestHead, body: Mapping[str, Any]) -> list[Chosen]:
        """Those that the request names, else those that a test has lined up, else the settings'."""
        named = [text.decode("latin-1") for text in head.get_all(FAULT_HEADER)] + named_faults(body)
        if named:
            return _choose(named)
        if not route.generates:
            return []
        return self._next_faults.popleft() if self._next_faults else self._faults

    def _remember(self, seen: Seen) -> None:
        if len(self.requests) == MAX_SEEN_REQUESTS:
            self._seen_bytes -= len(self.requests[0].body)
        self.requests.append(seen)
        self._seen_bytes += len(seen.body)
        while self._seen_bytes > MAX_SEEN_BYTES:
            self._seen_bytes -= len(self.requests.popleft().body)

    def _changed(self) -> None:
        """Wake those whose condition has come true."""
        if not self._waiting:
            return
        still = []
        for condition, future in self._waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiting = still


def _find_route(head: RequestHead) -> Route:
    path = head.target.partition(b"?")[0].decode("latin-1")
    route = ROUTES.get(path)
    if route is None:
        raise refusal(404, f"There is nothing at {path}.", code="not_found")
    if head.method != route.method and not (head.method == "HEAD" and route.method == "GET"):
        raise refusal(405, f"{path} takes {route.method}.")
    return route


def _choose(texts: Iterable[str]) -> list[Chosen]:
    """Faults that a request names; a wrong one is the request's mistake."""
    try:
        return choose(texts)
    except FaultError as exc:
        raise refusal(400, str(exc), "fault") from exc
