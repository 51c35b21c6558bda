"""Asking a shard as the operator: HTTP/1.1 over a socket that is put into the shard's inbox.

What lives here: the client's side of an operator connection, its time limits, and a tail that outlives its shard.
What must not: which shard keeps a stream (processes), tables, what is shown when nobody answers.

To the shard it is a client's connection like any other, but whose client is the operator. What lies in an inbox outlives the
shard, so a socket that a dead one has not taken is answered by its successor. One that it had taken ends, and is made anew.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import httptools

from ..words import errors
from ..words.errors import (
    Gone,
    LocalError,
    LongwireError,
    NotFound,
    Overloaded,
    RefusedError,
    RemoteError,
    UpstreamError,
)

ANSWER_S: Final = 1.0
"""A shard that does not answer within this time hangs, or is being replaced: what its rows say is shown instead."""

CANCEL_S: Final = 5.0
"""For what the rows cannot do: long enough for a replacement to take over."""

HEAD_S: Final = 1.0
LOOK_S: Final = 15.0
"""The head of a tail comes with the stream's first event. After the first of these times, and then so often as
the second says, it is asked whether the shard is still there."""

PAUSE_S: Final = 0.25
MAX_TRIES: Final = 12
"""Connections in a row that brought no event before a tail gives up: with pauses of 0.25 s some seconds, time for a shard to
be replaced twice."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""A state has less than 2 KiB."""

MAX_WORDS: Final = 2000
"""Of what an engine has said when it refused."""

READ_BYTES: Final = 64 * 1024
MAX_BLOCK_BYTES: Final = 64 << 20
"""One event of a stream: no more than a whole stream may have."""

_BLOCK_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_ID_LINE: Final = re.compile(rb"^id: ?([0-9]{1,9}-[0-9]{1,15})\r?$", re.MULTILINE)


class Inbox(Protocol):
    """The write end of a slot's inbox."""

    def send(self, message: Mapping[str, object], fds: Sequence[int] = (), /) -> None:
        """Put one message in, with descriptors that stay ours too.

        Raises:
            OSError: it is full, or nobody will ever read it.
        """


class NoAnswer(Exception):
    """The shard has not answered in time, or has ended in the middle of it."""


class _Answer:
    """A response as httptools tells it."""

    def __init__(self) -> None:
        self.is_begun = False
        self.is_whole = False
        self.parts: deque[bytes] = deque()

    def on_headers_complete(self) -> None:
        self.is_begun = True

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True

    def take(self) -> bytes:
        """What has come of the body since the last time."""
        taken = b"".join(self.parts)
        self.parts.clear()
        return taken


class _Line:
    """One operator connection, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = _Answer()
        self._rest = b""
        self._parser = httptools.HttpResponseParser(self._answer)

    @classmethod
    async def open(cls, inbox: Inbox) -> _Line:
        """Put a socket into the inbox.

        Raises:
            NoAnswer: the inbox takes none.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                inbox.send({"kind": "operator"}, [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise NoAnswer(str(error)) from error
        ours.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=ours, limit=READ_BYTES))

    def send(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Make the request."""
        lines = [
            f"{method} {path} HTTP/1.1",
            "host: localhost",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def status(self) -> int:
        """Wait for the response's head. It may be given up and waited for again.

        Raises:
            NoAnswer: the connection ended before that.
        """
        while not self._answer.is_begun:
            await self._receive()
        return int(self._parser.get_status_code())

    async def read(self) -> bytes:
        """More of the body; nothing once it is whole.

        Raises:
            NoAnswer: the connection ended in the middle.
        """
        while not self._answer.parts and not self._answer.is_whole:
            await self._receive()
        return self._answer.take()

    async def read_blocks(self) -> bytes:
        """More of an event stream, up to where a block ends; nothing once it is whole.

        Raises:
            NoAnswer: the connection ended in the middle.
        """
        while part := await self.read():
            self._rest += part
            end = max(self._rest.rfind(mark) + len(mark) if mark in self._rest else 0 for mark in _BLOCK_ENDS)
            if end:
                blocks, self._rest = self._rest[:end], self._rest[end:]
                return blocks
            if len(self._rest) > MAX_BLOCK_BYTES:
                raise NoAnswer("an event has no end")
        rest, self._rest = self._rest, b""
        return rest

    async def read_all(self) -> bytes:
        """The body, if it is a short one.

        Raises:
            NoAnswer: it is not, or the connection ended in the middle.
        """
        body = bytearray()
        while part := await self.read():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise NoAnswer("the answer has no end")
        return bytes(body)

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise NoAnswer("the shard closed the connection")
            self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        """Leave, whatever is still to come."""
        with suppress(RuntimeError):  # the loop is closed, and with it all of its sockets
            self._writer.transport.abort()


class Operator:
    """Asks the shard behind one inbox."""

    def __init__(self, inbox: Inbox, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._inbox = inbox
        self._pause = pause

    def __repr__(self) -> str:
        return f"<Operator {self._inbox!r}>"

    async def show(self, id: str, within_s: float = ANSWER_S) -> dict[str, Any] | None:
        """A stream's state; None where the shard knows of none.

        Raises:
            NoAnswer: it says nothing in time.
            LongwireError: it refuses.
        """
        return await self._fetch("GET", id, within_s)

    async def cancel(self, id: str, within_s: float = CANCEL_S) -> dict[str, Any] | None:
        """Stop the stream's generation; its state after that, or None where there is no such stream.

        Raises:
            Overloaded: the shard says nothing in time.
            LongwireError: it refuses.
        """
        try:
            return await self._fetch("DELETE", id, within_s)
        except NoAnswer:
            raise _silence() from None

    async def tail(self, id: str, after: str | None) -> AsyncGenerator[bytes, None] | None:
        """The stream's blocks after a cursor, live ones too; None where nothing will ever follow the cursor.

        Raises:
            LongwireError: no such stream, a bad cursor, or a shard that says nothing.
        """
        tail = _Tail(self, id, after)
        if await tail.begin():
            return tail.blocks()
        return None

    async def connect(self) -> _Line:
        """A fresh connection.

        Raises:
            NoAnswer: the inbox takes none.
        """
        return await _Line.open(self._inbox)

    async def wait_a_little(self) -> None:
        """Before the next try."""
        await self._pause(PAUSE_S)

    async def _fetch(self, method: str, id: str, within_s: float) -> dict[str, Any] | None:
        line = await self.connect()
        try:
            async with asyncio.timeout(within_s):
                line.send(method, f"/v1/streams/{id}", {"accept": "application/json"})
                status, body = await line.status(), await line.read_all()
        except TimeoutError:
            raise NoAnswer("no answer in time") from None
        finally:
            line.close()
        if status == 200:
            return _object_of(body)
        refusal = refusal_of(status, body)
        if isinstance(refusal, NotFound | Gone):
            return None
        raise refusal


class _Tail:
    """One reader of one stream, over as many connections as it takes. Only whole blocks are passed on, because half a block
    comes again as a whole when the connection is made anew."""

    def __init__(self, operator: Operator, id: str, after: str | None) -> None:
        self._operator = operator
        self._id = id
        self._after = after
        self._line: _Line | None = None
        self._failures = 0

    async def begin(self) -> bool:
        """Connect, as often as it takes; False where nothing follows the cursor.

        Raises:
            LongwireError: the shard refuses, or MAX_TRIES connections in a row have brought nothing.
        """
        headers = {"accept": "text/event-stream"} | ({"last-event-id": self._after} if self._after else {})
        while True:
            try:
                self._line = line = await self._operator.connect()
                line.send("GET", f"/v1/streams/{self._id}", headers)
                return await self._is_open(line, HEAD_S) is not False
            except NoAnswer:
                await self._fail()

    async def _is_open(self, line: _Line, within_s: float) -> bool | None:
        """Whether blocks will come; None while the stream is opening, for then even the head is still to come."""
        try:
            async with asyncio.timeout(within_s):
                status = await line.status()
                if status == 200:
                    return True
                body = await line.read_all()
        except TimeoutError:
            state = await self._operator.show(self._id, ANSWER_S)
            if state is not None and state.get("status") == "opening":
                return None
            raise NoAnswer("no answer in time") from None
        if status == 204:
            return False
        raise refusal_of(status, body)

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """The blocks as they come, to the end of the stream."""
        try:
            while block := await self._next():
                yield block
        finally:
            self.close()

    async def _next(self) -> bytes:
        """The next blocks, over whichever connection; nothing at the end."""
        is_more = True
        while is_more and self._line is not None:
            try:
                while (is_open := await self._is_open(self._line, LOOK_S)) is None:
                    pass
                return self._noted(await self._line.read_blocks()) if is_open else b""
            except NoAnswer:
                await self._fail()
                is_more = await self.begin()
        return b""

    def close(self) -> None:
        """Give the connection up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def __del__(self) -> None:
        # A generator that is never begun is never finished either: a reader that went before its response began would be read
        # for until the stream ends.
        self.close()

    def _noted(self, blocks: bytes) -> bytes:
        seen = _ID_LINE.findall(blocks)
        if seen:
            self._after, self._failures = seen[-1].decode(), 0
        return blocks

    async def _fail(self) -> None:
        self.close()
        self._failures += 1
        if self._failures >= MAX_TRIES:
            raise _silence()
        await self._operator.wait_a_little()


def _silence() -> LongwireError:
    return Overloaded("The shard that keeps this stream does not answer; try again shortly.", retry_after_s=2)


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LocalError("A shard answered the operator with what is no JSON object.")
    return found


def refusal_of(status: int, body: bytes) -> LongwireError:
    """The error that a shard has answered with, as it was raised there."""
    try:
        told = json.loads(body)["error"]
        message, code = str(told["message"]), str(told["code"])
    except (ValueError, TypeError, KeyError):  # an engine's own words, which a refused stream keeps
        return UpstreamError(body.decode("utf-8", "replace")[:MAX_WORDS] or f"The answer was status {status}.")
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = RemoteError if status < 500 else LocalError
    return kind(message)


_BY_CODE: Final[dict[str, type[LongwireError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RemoteError | RefusedError | UpstreamError)
    # Errors that are made of more than a sentence are not told over this line.
    if kind.__init__ is LongwireError.__init__
}
