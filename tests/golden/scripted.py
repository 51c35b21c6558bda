"""An engine that says the same bytes every time, and the rooms of one process before it.

What lives here: the bytes, and stopping in the middle of them. What must not: what becomes of them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

from tests.test_adopt import Rooms

from longwire.words.settings import EngineSettings, Settings

NAME = "golden"


def delta(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def chunked(block: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(block), block)


FINISH = delta("").replace(b'{"content":""},"finish_reason":null', b'{},"finish_reason":"stop"')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BLOCKS = [delta(word) for word in ("One", " log,", " many", " doors.")]
COMMENTED = chunked(b": thinking\n\n") + chunked(BLOCKS[2][:30]) + chunked(BLOCKS[2][30:])
"""A comment, and an event that lies in two HTTP chunks."""
STREAM = (
    HEAD + chunked(BLOCKS[0]) + chunked(BLOCKS[1]) + COMMENTED + chunked(BLOCKS[3]) + chunked(FINISH)
    + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)  # fmt: skip
WHOLE = b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"One"},"finish_reason":"stop"}]}'


class Engine:
    """It answers on loopback; ``stop_after`` holds it up after so many bytes until :meth:`go_on`."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after
        self.requests: list[bytes] = []
        self._may_go_on = asyncio.Event()
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    async def start(cls, stop_after: int = 1 << 30) -> Engine:
        engine = cls(stop_after)
        engine._server = await asyncio.start_server(engine._answer, "127.0.0.1", 0)
        return engine

    def settings(self) -> Settings:
        port = self._server.sockets[0].getsockname()[1]
        return Settings(engines=[EngineSettings(name=NAME, url=f"http://127.0.0.1:{port}")])

    def go_on(self) -> None:
        self._may_go_on.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                body = await reader.readexactly(length)
                self.requests.append(head + body)
                if not json.loads(body).get("stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE))
                    continue
                writer.write(STREAM[: self.stop_after])
                if self.stop_after < len(STREAM):
                    await self._may_go_on.wait()
                    writer.write(STREAM[self.stop_after :])

    @staticmethod
    def ask(line: str, streams: bool) -> bytes:
        body = json.dumps({"model": "m", "stream": streams, "messages": []}).encode()
        fields = "Host: localhost\r\nContent-Type: application/json\r\nX-Request-Id: golden\r\n"
        return f"{line}{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body

    @staticmethod
    def get(path: str, accept: str) -> bytes:
        fields = f"Host: localhost\r\nAccept: {accept}\r\nX-Request-Id: golden\r\n\r\n"
        return f"GET {path} HTTP/1.1\r\n{fields}".encode()

    async def close(self, rooms: Rooms) -> None:
        """End it, and the rooms."""
        for connection in list(rooms.listener.connections):
            connection.abort()
        for writer in self._writers:
            writer.close()
        self._server.close()
        rooms.listener.close()
        for upstream in rooms.directory.upstreams:
            upstream.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def serve(rooms: Rooms) -> int:
    """Let the rooms accept; the port."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    await rooms.listener.start(sock)
    return int(sock.getsockname()[1])
