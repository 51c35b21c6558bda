"""A small relay that is right: what the broken ones (relays.py) are broken from.

What lives here: one class with the places at which it can be broken. What must not: any fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from longwire.wire.chunked import LAST_CHUNK, ChunkedDecoder, ChunkedError, encode_chunk
from longwire.wire.http1 import (
    CONTINUE,
    Headers,
    Http1Error,
    RequestHead,
    RequestReader,
    ResponseHead,
    encode_request_head,
    encode_response_head,
    parse_response_head,
)

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 16 << 20
READ_BYTES = 64 << 10
HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"upgrade", b"trailer"}
NOT_ON = HOP | {b"host", b"authorization", b"cookie", b"expect", b"accept-encoding"}
ERROR = b'{"error": {"message": "The engine broke.", "type": "bad_gateway"}}'


class Broken(Exception):
    """The engine's answer ended before its end."""


class Passing:
    """One answer on its way: the request, the engine's head, and what a relay remembers of it."""

    def __init__(self, request: RequestHead, head: ResponseHead, asked: bytes) -> None:
        self.request = request
        self.asked = asked
        self.head = head
        self.text = b""
        self.count = 0

    @property
    def is_stream(self) -> bool:
        return (self.head.get(b"content-type") or b"").startswith(b"text/event-stream")


class Relay:
    """Passes requests on to one engine, a connection each, and answers back as they come."""

    recodes = False
    """Lengths are not kept, because the bytes are changed."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=32 << 20, backlog=512)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.talk(Talk(self, reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    # What can be broken.

    async def talk(self, talk: Talk) -> None:
        """One client's connection."""
        await talk.run()

    def request_body(self, body: bytes) -> bytes:
        return body

    def status(self, head: ResponseHead) -> int:
        return head.status

    def fields(self, head: ResponseHead) -> Headers:
        named = {word.strip().lower() for k, v in head.headers if k == b"connection" for word in v.split(b",")}
        return [(k, v) for k, v in head.headers if k not in HOP | named]

    def feed(self, passing: Passing, data: bytes) -> bytes:
        """What goes on of what came."""
        return data

    def finish(self, passing: Passing) -> bytes:
        """What comes behind all."""
        return b""

    def broke(self, passing: Passing) -> bytes | None:
        """What the end is when the engine breaks; None cuts the client as well."""
        return None

    def refuse(self) -> tuple[int, bytes] | None:
        """What is answered where the engine gave no head."""
        return 502, ERROR

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the engine."""
        return await asyncio.open_connection("127.0.0.1", self.upstream_port, limit=1 << 20)

    def keep(self, head: ResponseHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether a connection is kept whose answer is over."""
        return False

    async def on_left(self, answer: asyncio.Task[None]) -> None:
        answer.cancel()


class Talk:
    """One client's connection."""

    def __init__(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.relay, self.reader, self.writer = relay, reader, writer
        self.requests = RequestReader(MAX_HEAD_BYTES, MAX_BODY_BYTES)
        self.is_left = False
        self.must_close = False

    async def run(self) -> None:
        """Request after request, in order."""
        while not self.is_left and not self.must_close:
            try:
                request = await self.next_request()
            except Http1Error as error:
                await self.whole(error.status, b'{"error": {"message": "no"}}', close=True)
                return
            if request is None:
                return
            answer = asyncio.create_task(self.answer(*request))
            watch = asyncio.create_task(self._watch())
            try:
                await asyncio.wait([answer, watch], return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    await self.relay.on_left(answer)
                await asyncio.wait([answer])
            finally:
                for task in (answer, watch):
                    task.cancel()
                await asyncio.wait([answer, watch])
            self.requests.start_next_cycle()

    async def next_request(self) -> tuple[RequestHead, bytes] | None:
        """The next one, whole; None where the client has gone."""
        head: RequestHead | None = None
        while True:
            event = self.requests.next_event()
            if isinstance(event, RequestHead):
                head = event
                if head.expects_continue:
                    self.writer.write(CONTINUE)
                continue
            if isinstance(event, bytes):
                assert head is not None
                return head, event
            data = await self.reader.read(READ_BYTES)
            if not data:
                return self.cut_short(head)
            self.requests.receive_data(data)

    def cut_short(self, head: RequestHead | None) -> tuple[RequestHead, bytes] | None:
        return None

    async def _watch(self) -> None:
        """Ends when the client leaves; what it sends meanwhile is its next request."""
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(READ_BYTES):
                self.requests.receive_data(data)
        self.is_left = True

    async def answer(self, request: RequestHead, body: bytes) -> None:
        """One request to the engine, and its answer back."""
        upstream: asyncio.StreamWriter | None = None
        try:
            reader, upstream = await self.relay.connect()
            fields = [(k, v) for k, v in request.headers if k not in NOT_ON]
            body = self.relay.request_body(body)
            fields += [(b"host", b"engine"), (b"content-length", b"%d" % len(body))]
            upstream.write(encode_request_head(request.method.encode(), request.target, fields) + body)
            head = await self.read_head(reader)
            if head is None:
                if (refused := self.relay.refuse()) is None:
                    await asyncio.sleep(3600)
                    return
                await self.whole(*refused)
                return
            await self.pass_on(Passing(request, head, body), reader)
            if self.relay.keep(head, reader, upstream):
                upstream = None
        except ConnectionError:
            self.cut()
        finally:
            if upstream is not None:
                upstream.transport.abort()

    async def read_head(self, reader: asyncio.StreamReader) -> ResponseHead | None:
        try:
            while True:
                head = parse_response_head(await reader.readuntil(b"\r\n\r\n"))
                if head.status >= 200:
                    return head
        except (Http1Error, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return None

    async def pass_on(self, passing: Passing, reader: asyncio.StreamReader) -> None:
        head, relay = passing.head, self.relay
        length = None if relay.recodes else head.content_length
        self.begin(passing, length)
        try:
            async for data in body_of(reader, head):
                await self.send(relay.feed(passing, data))
        except (Broken, ConnectionError, ChunkedError):
            if (end := relay.broke(passing)) is None:
                self.cut()
                return
            await self.send(end)
        else:
            await self.send(relay.finish(passing))
        await self.end()

    def begin(self, passing: Passing, length: int | None) -> None:
        fields = self.relay.fields(passing.head)
        self.is_coded = length is None and passing.request.minor == 1
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        elif self.is_coded:
            fields.append((b"transfer-encoding", b"chunked"))
        if not self.is_coded or passing.request.minor == 0:
            self.must_close = True
            fields.append((b"connection", b"close"))
        self.writer.write(encode_response_head(self.relay.status(passing.head), fields))

    async def send(self, data: bytes) -> None:
        if data:
            self.writer.write(encode_chunk(data) if self.is_coded else data)
            await self.writer.drain()

    async def end(self) -> None:
        if self.is_coded:
            self.writer.write(LAST_CHUNK)
        await self.writer.drain()

    async def whole(self, status: int, body: bytes, *, close: bool = False) -> None:
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self.must_close |= close
        self.writer.write(encode_response_head(status, fields + ([(b"connection", b"close")] if close else [])) + body)
        await self.writer.drain()

    def cut(self) -> None:
        self.must_close = True
        self.writer.transport.abort()


async def body_of(reader: asyncio.StreamReader, head: ResponseHead) -> AsyncIterator[bytes]:
    """The body's bytes as they come."""
    decoder = ChunkedDecoder() if head.chunked else None
    left = head.content_length
    while left != 0 and not (decoder and decoder.done):
        data = await reader.read(READ_BYTES if left is None else min(left, READ_BYTES))
        if not data:
            if decoder is None and left is None:
                return
            raise Broken
        if decoder is not None:
            data = b"".join(data[start:end] for start, end in decoder.feed(data))
        elif left is not None:
            left -= len(data)
        if data:
            yield data
