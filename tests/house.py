"""A real gateway, a real engine stand-in and raw clients in one loop, on loopback, by a clock that moves only when told to.

``async with open_house() as house`` builds the gateway as production does (longwire.lifecycle.House wires it). When it is left,
everything that the gateway counts must be back at nothing: blocks, rows, slots, connections, tasks.

Nothing here sleeps. A test waits for bytes, for the stand-in's counters, for a stream's log line, or lets the clock pass.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from longwire import lifecycle
from longwire.observe.metrics import Metrics
from longwire.sim import SimServer
from longwire.streams.stream import Stream
from longwire.wire.chunked import LAST_CHUNK, encode_chunk
from longwire.wire.http1 import NEED_DATA, RequestHead, RequestReader, ResponseHead, parse_response_head
from longwire.wire.sse import SseSplitter, parse_event
from longwire.words.clock import Timer, VirtualClock
from longwire.words.reasons import CloseReason
from longwire.words.settings import EngineSettings, Settings, SimSettings

CHAT = "/v1/chat/completions"
EVENTS = {"accept": "text/event-stream"}
RST_ON_CLOSE = struct.pack("ii", 1, 0)
WAIT_LIMIT_S = 10.0


async def until(condition: Callable[[], object], what: str) -> None:
    """Turn the loop until ``condition`` holds: for states behind a socket that nobody announces."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_LIMIT_S
    while not condition():
        assert loop.time() < deadline, f"this never came true: {what}"
        await asyncio.sleep(0)


# The client's side.


@dataclass
class Answer:
    """A response as it was received. ``pieces`` are the bodies of its HTTP chunks, or the body in one piece."""

    head: ResponseHead
    pieces: list[bytes] = field(default_factory=list)
    is_whole: bool = False
    """The body came to the end that its framing promised (of a body without framing: to a FIN)."""

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an ordinary error response."""
        error = self.json["error"]
        assert isinstance(error, dict)
        return error

    @property
    def blocks(self) -> list[bytes]:
        """The body cut into SSE blocks, comments included."""
        body = self.body
        ends = SseSplitter().feed(body)
        assert not body or (ends and ends[-1] == len(body)), f"the body ends in mid-event: {body[-80:]!r}"
        return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def data(self) -> list[bytes]:
        """The data of each event."""
        return [data for block in self.blocks if (data := parse_event(block).data) is not None]

    @property
    def frames(self) -> list[dict[str, Any]]:
        """Each event's JSON, the end marker left out."""
        return [json.loads(data) for data in self.data if data != b"[DONE]"]

    @property
    def text(self) -> str:
        """What a chat client reads (first choice)."""
        choices = [frame["choices"][0] for frame in self.frames if frame.get("choices")]
        return "".join(choice.get("delta", choice).get("content") or choice.get("text") or "" for choice in choices)

    @property
    def in_band_error(self) -> dict[str, Any] | None:
        """The error object inside the stream; None where there is none."""
        errors = [frame["error"] for frame in self.frames if frame.get("error")]
        assert len(errors) <= 1, "one ending, one error"
        return errors[0] if errors else None

    @property
    def is_marked_done(self) -> bool:
        """The last event is the end marker, and it stands there once."""
        data = self.data
        return data.count(b"[DONE]") == 1 and data[-1] == b"[DONE]"

    @property
    def stream_id(self) -> str:
        return self.header("x-stream-id")

    def header(self, name: str) -> str:
        value = self.head.get(name.encode())
        assert value is not None, f"there is no {name} in {self.head}"
        return value.decode("latin-1")


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.current: Answer | None = None
        self._method = "GET"
        self._left: int | None = None

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, version: str = "1.1"
    ) -> None:
        """Write a whole request."""
        self._method = method
        self.send(encode_request(method, path, body, headers, version))

    def post(self, body: object, headers: dict[str, str] | None = None, path: str = CHAT) -> None:
        """Write a POST with a JSON body."""
        self.request("POST", path, body, headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> None:
        self.request("GET", path, None, headers)

    async def head(self) -> Answer:
        """Read the next response's head; 1xx heads are skipped."""
        while True:
            head = parse_response_head(await self.reader.readuntil(b"\r\n\r\n"))
            if head.status >= 200:
                break
        self.current = Answer(head)
        self._left = None if head.chunked else head.content_length
        if self._method == "HEAD" or head.status in (204, 304) or self._left == 0:
            self.current.is_whole = True
        return self.current

    async def piece(self) -> bytes | None:
        """The next HTTP chunk's body, or what else there is of a body; None at its end, whole or not."""
        answer = self.current
        assert answer is not None, "read the head first"
        if answer.is_whole:
            return None
        try:
            piece = await self._chunk() if answer.head.chunked else await self._span()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if piece:
            answer.pieces.append(piece)
            return piece
        answer.is_whole = answer.head.chunked or self._left in (None, 0)
        return None

    async def _chunk(self) -> bytes:
        size_line = await self.reader.readuntil(b"\r\n")
        size = int(size_line, 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def _span(self) -> bytes:
        if self._left is None:
            return await self.reader.read(65_536)
        data = await self.reader.read(min(self._left, 65_536))
        self._left -= len(data)
        if data and not self._left and self.current is not None:
            self.current.is_whole = True
        return data

    async def event(self) -> bytes:
        """The data of the next event; comments are passed over."""
        while True:
            piece = await self.piece()
            assert piece is not None, "the body is over"
            data = parse_event(piece).data
            if data is not None:
                return data

    async def rest(self) -> Answer:
        """Read the response to its end."""
        while await self.piece() is not None:
            pass
        assert self.current is not None
        return self.current

    async def answer(self) -> Answer:
        """Head and body."""
        await self.head()
        return await self.rest()

    async def wait_closed_by_peer(self) -> bytes:
        """What still comes until the gateway closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def fin(self) -> None:
        """Close our side only."""
        if not self.writer.is_closing():
            self.writer.write_eof()

    def reset(self) -> None:
        """Leave with a RST."""
        if self.writer.is_closing():
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        self.writer.transport.abort()

    def close(self) -> None:
        """Leave with a FIN."""
        self.writer.close()

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found


def encode_request(
    method: str, path: str, body: object = None, headers: dict[str, str] | None = None, version: str = "1.1"
) -> bytes:
    """A request's bytes; ``body`` as it is, or as JSON."""
    payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields: dict[str, str] = {"host": "localhost"}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(payload))}
    fields |= headers or {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode() + payload


def chat(stream: bool = True, *, fault: str = "", tokens: int | None = None, **fields: object) -> dict[str, object]:
    """A chat request's body; ``fault`` and ``tokens`` are for the stand-in."""
    sim: dict[str, object] = {}
    if fault:
        sim["fault"] = fault
    if tokens is not None:
        sim["tokens"] = tokens
    extra = {"sim": sim} if sim else {}
    return {"model": "sim", "stream": stream, "messages": [{"role": "user", "content": "hi"}], **extra, **fields}


# An engine that says exactly what a test wants.


@dataclass(frozen=True)
class Mark:
    """A step of a script that is no bytes."""

    name: str


FIN = Mark("fin")
RST = Mark("rst")
HOLD = Mark("hold")
"""Say nothing more, and wait until the gateway closes."""
Step = bytes | Mark | asyncio.Event


def head_of(*fields: bytes, status: bytes = b"200 OK", kind: bytes = b"text/event-stream") -> bytes:
    """A response head; ``fields`` as whole lines."""
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


CHUNKED = head_of(b"transfer-encoding: chunked")


def delta(content: str | None = None, finish: str | None = None, **more: object) -> bytes:
    """One chat event as a block."""
    inner = {} if content is None else {"content": content}
    frame = {"choices": [{"index": 0, "delta": inner, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n"


def in_chunks(*blocks: bytes, last: bool = True) -> bytes:
    """Each block in an HTTP chunk of its own."""
    return b"".join(map(encode_chunk, blocks)) + (LAST_CHUNK if last else b"")


DONE = b"data: [DONE]\n\n"
WHOLE = (delta("a"), delta("b"), delta(finish="stop"), DONE)
"""A short and whole answer."""


class ScriptedEngine:
    """Answers the n-th request with the n-th script."""

    def __init__(self) -> None:
        self.scripts: deque[Sequence[Step]] = deque()
        self.requests: list[tuple[RequestHead, bytes]] = []
        self.connections = 0
        self.open_connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    def will_say(self, *steps: Step) -> None:
        """The script of the next request that has none yet."""
        self.scripts.append(steps)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until ``condition`` of the counters holds."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._count(connections=1)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            await self._count(connections=-1)

    async def _count(self, connections: int) -> None:
        self.connections += connections > 0
        self.open_connections += connections
        async with self._changed:
            self._changed.notify_all()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = RequestReader(1 << 16, 1 << 26)
        while (request := await self._read_request(requests, reader)) is not None:
            self.requests.append(request)
            await self._count(connections=0)
            if not await self._play(self.scripts.popleft(), reader, writer):
                return
            requests.start_next_cycle()

    @staticmethod
    async def _read_request(requests: RequestReader, reader: asyncio.StreamReader) -> tuple[RequestHead, bytes] | None:
        head: RequestHead | None = None
        while True:
            event = requests.next_event()
            if isinstance(event, RequestHead):
                head = event
            elif isinstance(event, bytes):
                assert head is not None
                return head, event
            elif event is NEED_DATA:
                data = await reader.read(1 << 16)
                if not data:
                    return None
                requests.receive_data(data)

    @staticmethod
    async def _play(script: Iterable[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Play one script; True if the connection is to be kept."""
        for step in script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                await asyncio.sleep(0)  # so that the gateway reads it by itself
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif step is HOLD:
                await reader.read()
                return False
            else:
                if step is RST:
                    sock: socket.socket = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
                else:
                    writer.write_eof()
                return False
        return True


@asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **options: Any
) -> AsyncIterator[str]:
    """The address of a server that has ``answer`` called for each connection; all are cut at the end, whatever happens."""
    writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            await answer(reader, writer)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, **options)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


class TurningClock:
    """A stand-in's view of a virtual clock: what it puts off to the loop's next turn needs no time to pass."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.now = clock.now
        self.wall = clock.wall

    def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        if delay_s <= 0:
            return asyncio.get_running_loop().call_soon(call, *args)
        return self._clock.call_later(delay_s, call, *args)


# The gateway.


class StreamLines(logging.Handler):
    """The log lines that streams leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() != "stream_end":
            return  # of a reader
        self.lines.append(record.fields)  # type: ignore[attr-defined]
        for count, future in self._waiting:
            if len(self.lines) >= count and not future.done():
                future.set_result(None)

    async def wait(self, count: int) -> list[dict[str, Any]]:
        """The lines, as soon as there are ``count``."""
        if len(self.lines) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future
        return self.lines


class TestHouse:
    """What a test holds in its hands."""

    __test__ = False

    def __init__(
        self, gateway: lifecycle.House, clock: VirtualClock, sim: SimServer, twin: SimServer, engine: ScriptedEngine
    ) -> None:
        self.gateway = gateway
        self.clock = clock
        self.sim = sim
        self.twin = twin
        """Says the same as ``sim``, and is asked only where that fails. Listens only in a house with a twin."""
        self.engine = engine
        self.lines = StreamLines()
        self.port = 0
        self.clients: list[Client] = []

    # Clients.

    async def connect(self, *, limit: int = 1 << 22, receive_buffer: int = 0) -> Client:
        """A raw connection to the public port. With a small ``limit`` and ``receive_buffer`` it is a slow reader."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=limit))
        self.clients.append(client)
        return client

    async def ask(self, body: object, headers: dict[str, str] | None = None, path: str = CHAT) -> Answer:
        """One POST on a connection of its own, read to the end."""
        return await self.call("POST", path, body, headers)

    async def fetch(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        """One GET on a connection of its own, read to the end."""
        return await self.call("GET", path, None, headers)

    async def call(self, method: str, path: str, body: object, headers: dict[str, str] | None = None) -> Answer:
        client = await self.connect()
        client.request(method, path, body, headers)
        answer = await client.answer()
        client.close()
        return answer

    async def replay(self, stream_id: str, after: str = "") -> Answer:
        """The stream's events from a cursor on."""
        query = f"?after={after}" if after else ""
        return await self.fetch(f"/v1/streams/{stream_id}{query}", EVENTS)

    async def state(self, stream_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """The stream's JSON state."""
        answer = await self.fetch(f"/v1/streams/{stream_id}", {"accept": "application/json", **(headers or {})})
        assert answer.status == 200, answer.body
        state: dict[str, Any] = answer.json
        return state

    # The inside.

    @property
    def streams(self) -> list[Stream]:
        return list(self.gateway.registry.list(None))

    def stream(self, stream_id: str) -> Stream:
        return self.gateway.registry.find(stream_id, None)

    def pass_time(self, seconds: float) -> None:
        """Let the gateway's clock run on."""
        self.clock.advance(seconds)

    def metric(self, sample: str) -> float:
        """One sample of the scrape page by its full text, as ``name{label="value"}``; 0 where it is not there."""
        return self.metrics().get(sample, 0.0)

    def metrics(self) -> dict[str, float]:
        """The scrape page: a number for each sample's full text."""
        gauges = self.gateway.gauges()
        page, _ = Metrics(gauges.look).render()
        lines = (line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#"))
        return {sample: float(value) for sample, _, value in lines}

    async def check_ending(self, stream_id: str, reason: CloseReason, **facts: object) -> dict[str, Any]:
        """JSON state, log line and metric tell of one and the same ending (law 4); ``facts`` must stand in the log line."""
        await self.lines.wait(1)
        state = await self.state(stream_id)
        hashed = self.gateway.streamlog.hash_id(self.stream(stream_id).id)
        lines = [line for line in self.lines.lines if line["stream"] == hashed]
        assert len(lines) == 1, "a stream leaves one line behind"
        assert state["status"] == "ended"
        assert state["close_reason"] == lines[0]["close_reason"] == str(reason)
        assert self.metric(f'longwire_streams_ended_total{{close_reason="{reason}"}}') >= 1
        assert state["events"] == lines[0]["events"]
        for name, value in facts.items():
            assert lines[0][name] == value, f"{name} is {lines[0][name]!r} in the log line"
        return state

    # The end.

    async def settle(self) -> None:
        """Every client leaves, every stream ends and is evicted; then nothing may be held any more."""
        for client in self.clients:
            client.close()
        inside = self.gateway
        await until(lambda: not inside.listener.connections, "the gateway has seen every client leave")
        inside.registry.close()
        for upstream in inside.directory.upstreams:
            upstream.close()
        await until(lambda: not self.held(), f"everything is given back, but {self.held()}")
        await until(lambda: not self.sim.open_connections, "the stand-in has seen the gateway leave")

    def held(self) -> dict[str, object]:
        """What is held and should not be, once all is over."""
        inside = self.gateway
        arena = inside.arena.statistics()
        pools = {u.name: u.statistics() for u in inside.directory.upstreams}
        counts: dict[str, object] = {
            "blocks": {use: count for use, count in arena.items() if use not in ("blocks", "free") and count},
            "blocks missing": arena["blocks"] - arena["free"],
            "stream rows": inside.stream_table.rows_used,
            "connection rows": inside.connection_table.rows_used,
            "slots": inside.gateway.limiter.live_streams,
            "tenants' slots": {t.name: use for t in inside.tenants if (use := inside.limiter.use(t)).live_streams},
            "tenants' tokens": {t.name: use for t in inside.tenants if (use := inside.limiter.use(t)).held_tokens},
            "engine connections": {name: pool for name, pool in pools.items() if any(pool.values())},
            "connecting tasks": len(inside.gateway.generations.calls.tasks),
            "watched": inside.gateway.generations.calls.watchman.statistics()["watched"],
            "in flight": sum(upstream.in_flight for upstream in inside.directory.upstreams),
            "reserved at engines": sum(u.occupancy.statistics()["weight"] for u in inside.directory.upstreams),
            "waiting": inside.gateway.generations.waiting.waiting,
            "streams": len(self.streams),
        }
        return {name: count for name, count in counts.items() if count}


@asynccontextmanager
async def open_house(
    *,
    sim: dict[str, Any] | None = None,
    send_buffer: int = 0,
    has_twin: bool = False,
    is_sim_on_clock: bool = False,
    **settings: Any,
) -> AsyncIterator[TestHouse]:
    """A gateway before two engines: the stand-in (model ``sim``) and a scripted one (model ``script``).

    With ``has_twin`` there is a third, which can go on with what the first has begun. ``is_sim_on_clock``: the stand-ins pause
    by the gateway's clock. ``sim`` changes the stand-ins' settings, the rest the gateway's. With a small ``send_buffer`` (the
    kernel's, to clients) a reader that does not read is noticed after kilobytes instead of megabytes.
    """
    told = SimSettings(**{"port": 0, "itl_ms": 0, "ttft_ms": 0, "tokens": 5, "seed": 3, **(sim or {})})
    clock = VirtualClock()
    stand_in, twin = (SimServer(told, clock=TurningClock(clock) if is_sim_on_clock else None) for _ in range(2))
    engine = ScriptedEngine()
    await stand_in.start()
    await engine.start()
    engines = [
        EngineSettings(name="sim", url=stand_in.url, models=["sim"], api_key="sk-engine"),
        EngineSettings(name="script", url=engine.url, models=["script"]),
    ]
    if has_twin:
        await twin.start()
        engines[0] = replace(engines[0], kind="sim")
        engines.append(EngineSettings(name="twin", url=twin.url, models=["sim"], weight=0, kind="sim"))
    small: dict[str, Any] = {
        "arena_bytes": 4 << 20,
        "max_streams": 256,
        "max_connections": 512,
        "port": 0,
        "admin_port": 0,
        # Connections that nobody has asked for would blur what is counted; whoever tests them sets a floor.
        "warm_floor": 0,
        "warm_ceiling": 0,
        # Most tests let time pass for another reason than to see an engine given up.
        "first_token_timeout_s": 0,
        "token_silence_s": 0,
    }
    with patch.object(lifecycle, "LoopClock", lambda _: clock):
        inside = lifecycle.House(Settings(**{"engines": engines, **small, **settings}))
    house = TestHouse(inside, clock, stand_in, twin, engine)
    logger = logging.getLogger("longwire.streams")
    level = logger.level
    logger.addHandler(house.lines)
    logger.setLevel(logging.INFO)
    try:
        await _open(house, send_buffer)
        yield house
        await house.settle()
    finally:
        logger.removeHandler(house.lines)
        logger.setLevel(level)
        for client in house.clients:
            client.writer.transport.abort()
        inside.listener.close()
        for upstream in inside.directory.upstreams:
            upstream.close()
        inside._executor.shutdown(wait=False, cancel_futures=True)
        await engine.close()
        await stand_in.close()
        await twin.close()


async def _open(house: TestHouse, send_buffer: int) -> None:
    inside = house.gateway
    for upstream in inside.directory.upstreams:
        upstream.is_up = True
    sock = socket.socket()
    if send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted sockets inherit it
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    house.port = sock.getsockname()[1]
    await inside.listener.start(sock)
    inside._every(inside.registry.tick_s, inside.registry.tick)


def hashed(key: str) -> str:
    """A key as it stands in the settings."""
    return "sha256:" + sha256(key.encode()).hexdigest()
