"""Twelve small relays, each broken in one way that was seen in the field. Every required row must fail on one of them.

What lives here: the faults. What must not: how a relay works when it is right (relay.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from longwire.wire.http1 import Headers, Http1Error, RequestHead, RequestReader, ResponseHead, parse_response_head

from .relay import MAX_BODY_BYTES, READ_BYTES, Passing, Relay, Talk

CROWD = 24
"""The mixing relay is right with fewer clients than this at once, as a pooled buffer is."""
LINES_OF_A_READ = 10
DROPS_BEYOND_BYTES = 64 << 10
MAX_LINE_BYTES = 64 << 10
DONE = b"data: [DONE]\n\n"


class BuffersAll(Relay):
    """Sends an answer once it has all of it."""

    recodes = True

    def feed(self, passing: Passing, data: bytes) -> bytes:
        passing.text += data
        return b""

    def finish(self, passing: Passing) -> bytes:
        return passing.text


class MakesUpEndings(Relay):
    """Whatever breaks becomes a finish and an end marker; errors inside an answer are left out."""

    recodes = True

    def feed(self, passing: Passing, data: bytes) -> bytes:
        passing.text += data
        if b'"error"' in data or b"<html" in data.lower() or _is_json_for_stream(passing):
            return b""
        return data

    def fields(self, head: ResponseHead) -> Headers:
        wants = [(k, v) for k, v in super().fields(head) if k != b"content-type"]
        kind = head.get(b"content-type") or b""
        return [*wants, (b"content-type", b"text/event-stream" if b"html" in kind else kind)]

    def finish(self, passing: Passing) -> bytes:
        if (b"finish_reason" in passing.text and b'"stop"' in passing.text) or b"tool_calls" in passing.text:
            return b"" if b'"error"' not in passing.text else _made_up(passing)
        return _made_up(passing) if passing.head.status == 200 else b""

    def broke(self, passing: Passing) -> bytes:
        return _made_up(passing)

    def refuse(self) -> tuple[int, bytes]:
        return 200, json.dumps(
            {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": ""}}]}
        ).encode()


def _is_json_for_stream(passing: Passing) -> bool:
    return b'"stream": true' in passing.asked and not passing.is_stream


def _made_up(passing: Passing) -> bytes:
    if not passing.is_stream and b"html" not in passing.text:
        return b"" if passing.text.endswith(b"}") else b"}"
    choice = {"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}
    return b"\n\ndata: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" + DONE


class DecodesReads(Relay):
    """Takes each read for whole text and whole lines, in both directions."""

    recodes = True

    def request_body(self, body: bytes) -> bytes:
        return body.decode("ascii", errors="replace").encode()

    def feed(self, passing: Passing, data: bytes) -> bytes:
        text = data.decode(errors="replace")
        if not passing.is_stream or (text.endswith("\n\n") and len(text.splitlines()) == text.count("\n")):
            return text.encode()
        lines = [line for block in text.split("\n\n")[:-1] for line in block.splitlines()]
        return "".join(f"{line}\n\n" for line in lines if line.startswith("data: ")).encode()


class RepeatsLast(Relay):
    """Sends the last event once more when the engine closes its answer."""

    recodes = True

    def feed(self, passing: Passing, data: bytes) -> bytes:
        passing.text = (passing.text + data)[-4096:]
        return data

    def finish(self, passing: Passing) -> bytes:
        return passing.text.rstrip(b"\n").rpartition(b"\n\n")[2] + b"\n\n" if passing.is_stream else b""


class ForgetsItsClient(Relay):
    """Does not see that its client leaves, asks with half a request, and drops what a client does not take at once."""

    async def talk(self, talk: Talk) -> None:
        forgetful = _ForgetfulTalk(self, talk.reader, talk.writer)
        await forgetful.run()

    async def on_left(self, answer: asyncio.Task[None]) -> None:
        await asyncio.wait([answer])


class _ForgetfulTalk(Talk):
    def cut_short(self, head: RequestHead | None) -> tuple[RequestHead, bytes] | None:
        held = bytes(self.requests._body or b"") if head is not None else b""
        return (head, held) if head is not None and held else None

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            return
        if self.writer.transport.get_write_buffer_size() < DROPS_BEYOND_BYTES:
            self.writer.transport.set_write_buffer_limits(high=1 << 30)
            await super().send(data)


class Answers200(Relay):
    """Always 200, and no field of the engine's; an interim answer is taken for the final one."""

    recodes = True

    def status(self, head: ResponseHead) -> int:
        return 200

    def fields(self, head: ResponseHead) -> Headers:
        is_stream = (head.get(b"content-type") or b"text/event-stream").startswith(b"text/event-stream")
        return [(b"content-type", b"text/event-stream" if is_stream else b"text/plain")]

    async def talk(self, talk: Talk) -> None:
        await _HastyTalk(self, talk.reader, talk.writer).run()


class _HastyTalk(Talk):
    async def read_head(self, reader: asyncio.StreamReader) -> ResponseHead | None:
        try:
            return parse_response_head(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.IncompleteReadError, ConnectionError):
            return None


class KnowsOneShape(Relay):
    """Knows events of one line with `data: ` that end in two line feeds, ten to a read, a thousand to an answer, with
    content in them and no longer than 64 KiB. The last one is lost where its empty line is."""

    recodes = True

    def feed(self, passing: Passing, data: bytes) -> bytes:
        if not passing.is_stream:
            return data if len(data) < READ_BYTES else b""
        *blocks, passing.text = (passing.text + data).split(b"\n\n")
        out = b""
        for block in blocks[:LINES_OF_A_READ]:
            if self._knows(block) and passing.count < 1000:
                passing.count += 1
                out += block.replace(b'"tool_calls": [{"index": 1', b'"tool_calls": [{"index": 0') + b"\n\n"
        return out

    def _knows(self, block: bytes) -> bool:
        return (
            block.startswith(b"data: ")
            and b"\n" not in block
            and b"\r" not in block
            and len(block) < MAX_LINE_BYTES
            and b'"choices": []' not in block
            and b"reasoning_content" not in block
        )


class MixesStreams(Relay):
    """Has one buffer for all: in a crowd each answer gets what another one was to get. And it keeps connections to the engine
    without a look at what is on them."""

    recodes = True

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self._held = b""
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return self._idle.pop() if self._idle else await super().connect()

    def keep(self, head: ResponseHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        is_kept = head.keep_alive and len(self._tasks) < CROWD
        if is_kept:
            self._idle.append((reader, writer))
        return is_kept

    async def stop(self) -> None:
        await super().stop()
        for _, writer in self._idle:
            writer.transport.abort()

    def feed(self, passing: Passing, data: bytes) -> bytes:
        if len(self._tasks) < CROWD:
            return data
        out, self._held = self._held, data
        return out


class AddsBytes(Relay):
    """A heartbeat into any pause, a length that is no longer true, fields and chunks where they do not belong, and a line
    end behind an error."""

    def fields(self, head: ResponseHead) -> Headers:
        return [(k, v) for k, v in head.headers if k not in (b"connection", b"transfer-encoding", b"content-length")]

    def feed(self, passing: Passing, data: bytes) -> bytes:
        return data if data.endswith((b"\n\n", b"\r\n\r\n", b"}")) or not passing.is_stream else data + b": ping\n\n"

    async def talk(self, talk: Talk) -> None:
        await _AddingTalk(self, talk.reader, talk.writer).run()


class _AddingTalk(Talk):
    def begin(self, passing: Passing, length: int | None) -> None:
        if passing.request.minor == 0:
            passing.request = passing.request._replace(minor=1)
            length = None
        if length is not None and passing.is_stream:
            length = length // 2
        super().begin(passing, length)
        self.must_close = False
        self.adds = passing.head.status >= 400

    async def end(self) -> None:
        await super().end()
        if self.adds:
            self.writer.write(b"0\r\n\r\n")


class ConfusesRequests(Relay):
    """Answers what was sent ahead in the order in which answers are ready, and a third request with the first one's answer."""

    async def talk(self, talk: Talk) -> None:
        await _ConfusedTalk(self, talk.reader, talk.writer).run()


class _Copy:
    """A writer that keeps what is written."""

    def __init__(self, talk: Talk) -> None:
        self.data = b""
        self.transport = talk.writer.transport

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        await asyncio.sleep(0)


class _ConfusedTalk(Talk):
    async def run(self) -> None:
        first: bytes | None = None
        count = 0
        while (request := await self._next()) is not None:
            waiting = [request]
            while (more := self._another()) is not None:
                waiting.append(more)
            for ready in asyncio.as_completed([self._apart(each) for each in waiting]):
                data = await ready
                first = first or data
                count += 1
                self.writer.write(first if count == 3 else data)
                await self.writer.drain()

    async def _next(self) -> tuple[RequestHead, bytes] | None:
        try:
            request = await self.next_request()
        except Http1Error as error:
            await self.whole(error.status, b"{}", close=True)
            return None
        self.requests.start_next_cycle()
        return request

    def _another(self) -> tuple[RequestHead, bytes] | None:
        head = self.requests.next_event()
        if not isinstance(head, RequestHead):
            return None
        body = self.requests.next_event()
        assert isinstance(body, bytes)
        self.requests.start_next_cycle()
        return head, body

    async def _apart(self, request: tuple[RequestHead, bytes]) -> bytes:
        apart = Talk(self.relay, self.reader, self.writer)
        copy: Any = _Copy(self)
        apart.writer = copy
        await apart.answer(*request)
        return bytes(copy.data)


class WaitsForEver(Relay):
    """Never ends what the engine did not end as expected, and never answers what it does not understand."""

    def refuse(self) -> None:
        return None

    async def talk(self, talk: Talk) -> None:
        await _WaitingTalk(self, talk.reader, talk.writer).run()

    async def on_left(self, answer: asyncio.Task[None]) -> None:
        answer.cancel()
        await asyncio.sleep(3600)


class _WaitingTalk(Talk):
    def __init__(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(relay, reader, writer)
        self.requests = RequestReader(1 << 30, MAX_BODY_BYTES)

    async def next_request(self) -> tuple[RequestHead, bytes] | None:
        try:
            return await super().next_request()
        except ValueError:
            await asyncio.sleep(3600)
            return None

    async def end(self) -> None:
        await super().end() if self.knows_its_end else await asyncio.sleep(3600)

    def begin(self, passing: Passing, length: int | None) -> None:
        super().begin(passing, length)
        self.passing = passing

    async def send(self, data: bytes) -> None:
        self.passing.text = (self.passing.text + data)[-4096:]
        await super().send(data)

    @property
    def knows_its_end(self) -> bool:
        head = self.passing.head
        is_framed = head.chunked or head.content_length is not None
        return is_framed and (not self.passing.is_stream or b"[DONE]" in self.passing.text)

    def cut(self) -> None:
        """It is not noticed: what was begun stays open."""


class ForwardsUnseen(Relay):
    """One read is one request, and goes on as it came: the key, the cookie, two lengths."""

    async def talk(self, talk: Talk) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        back = asyncio.create_task(self._back(reader, talk.writer))
        try:
            while data := await talk.reader.read(READ_BYTES):
                if re.match(rb"[A-Z]+ /", data):
                    writer.write(data)
        finally:
            writer.transport.abort()
            back.cancel()
            await asyncio.wait([back])

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                writer.write(data)
                await writer.drain()
        finally:
            writer.transport.abort() if reader.exception() else writer.close()


BROKEN: dict[str, type[Relay]] = {
    "buffers all": BuffersAll,
    "makes up endings": MakesUpEndings,
    "decodes each read": DecodesReads,
    "repeats the last event": RepeatsLast,
    "forgets its client": ForgetsItsClient,
    "answers 200": Answers200,
    "knows one shape of events": KnowsOneShape,
    "mixes streams": MixesStreams,
    "adds bytes": AddsBytes,
    "confuses requests": ConfusesRequests,
    "waits for ever": WaitsForEver,
    "forwards unseen": ForwardsUnseen,
}
