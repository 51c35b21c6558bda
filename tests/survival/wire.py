"""One client connection in the test's own hands: made once, and never again.

What lives here: bytes out, heads, HTTP chunks and bodies in. What must not: what is asked (readers.py).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Self

from longwire.wire.chunked import LAST_CHUNK

SLOW_READ_BYTES = 16 * 1024
SLOW_PAUSE_S = 0.01


class Wire:
    """A connection. Whatever breaks it raises."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_slow: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._is_slow = is_slow
        self.interim = 0
        """Responses of 100 that came."""

    @classmethod
    async def connect(cls, port: int, *, window: int = 0) -> Self:
        """``window``: a slow reader's receive buffer."""
        sock = socket.socket()
        try:
            if window:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            streams = await asyncio.open_connection(sock=sock, limit=SLOW_READ_BYTES if window else 1 << 20)
        except BaseException:
            sock.close()
            raise
        return cls(*streams, is_slow=bool(window))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> dict[str, str]:
        """The next response's head; ``:status`` beside its fields."""
        while True:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = lines[0].split()[1]
            if status != "100":
                return {":status": status} | dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            self.interim += 1

    async def wait_continue(self) -> None:
        """The 100 that lets the body come."""
        line = await self._reader.readuntil(b"\r\n\r\n")
        assert line.startswith(b"HTTP/1.1 100 "), line
        self.interim += 1

    async def blocks(self, found: list[bytes] | None = None) -> list[bytes]:
        """The HTTP chunks of a body, to its end: an event each. They can be seen in ``found`` as they come."""
        found = [] if found is None else found
        taken = 0
        while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
            frame = await self._reader.readexactly(size + 2)
            assert frame.endswith(b"\n\n\r\n"), frame
            found.append(frame[:-2])
            taken += size
            if self._is_slow and taken > SLOW_READ_BYTES:
                taken = 0
                await asyncio.sleep(SLOW_PAUSE_S)  # its pace; nothing is waited for
        assert await self._reader.readexactly(2) == LAST_CHUNK[-2:]
        return found

    async def first_block(self) -> bytes:
        """One HTTP chunk."""
        size = int((await self._reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def body(self, head: dict[str, str]) -> bytes:
        """A body of known length."""
        return await self._reader.readexactly(int(head["content-length"]))

    async def end(self) -> None:
        """The other side must close now, without another byte."""
        rest = await self._reader.read(-1)
        assert rest == b"", rest

    def close(self) -> None:
        self._writer.close()
