"""A shard as the operator's connections see it, without one: an inbox, and what is written into the sockets that come."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence

STAYS = "stays"
"""Instead of an answer's end: the connection stays open."""


def response(status: int, body: object = b"", kind: str = "application/json") -> bytes:
    """A whole response."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind.encode(), len(raw), raw)


def refusal(status: int, code: str, message: str = "No.") -> bytes:
    return response(status, {"error": {"message": message, "type": "x", "param": None, "code": code}})


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(seq: int) -> bytes:
    return b"id: 1-%d\ndata: {}\n\n" % seq


class FakeShard:
    """Takes each connection from its inbox and plays the next script on it: bytes are sent, an event is waited for, STAYS holds
    the line, the end closes it. ``requests`` are what came, head by head."""

    def __init__(self, *scripts: Sequence[bytes | str | asyncio.Event]) -> None:
        self.scripts = deque(scripts)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.lines: list[asyncio.StreamWriter] = []
        self.is_full = False
        self.left = 0
        self._inbox: deque[socket.socket] = deque()
        self._is_serving = True
        self._tasks: set[asyncio.Task[None]] = set()

    def hang(self) -> None:
        """Take nothing from the inbox any more."""
        self._is_serving = False

    def go_on(self) -> None:
        """Be the successor: take what lies in the inbox."""
        self._is_serving = True
        while self._inbox:
            self._take(self._inbox.popleft())

    def send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """The inbox' write end."""
        if self.is_full:
            raise BlockingIOError("the inbox is full")
        assert message == {"kind": "operator"}
        (fd,) = fds
        sock = socket.socket(fileno=os.dup(fd))
        if self._is_serving:
            self._take(sock)
        else:
            self._inbox.append(sock)

    def _take(self, sock: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self.lines.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            self.requests.append((head[0].removesuffix(" HTTP/1.1"), headers))
            for step in self.scripts.popleft():
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif step is STAYS:
                    await reader.read()
                elif isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                    await asyncio.sleep(0)  # a read for each write, mostly
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left += 1
            writer.close()

    async def close(self) -> None:
        for sock in self._inbox:
            sock.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
