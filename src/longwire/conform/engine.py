"""The engine that a gateway is tried with: a server of raw sockets that plays a script for each request.

What lives here: reading requests leniently, playing steps, and noting what was seen. What must not: scripts (rows), checks.

Which script is played is found by a mark in the prompt (``conform:3f2a…``): headers, model names and others may be changed
on their way, a prompt is not. So one gateway process serves all rows at once. A request without a known mark, as gateways send
to see whether an engine is well, is answered well.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from ..wire.chunked import ChunkedDecoder, ChunkedError
from .bell import Bell
from .recording import Asked, Play
from .saying import MODEL, Ask, Gate, Last, Pause, Script, dump, sized, well

MARK = re.compile(rb"conform:([0-9a-f]{12})")
STREAMED = re.compile(rb'"stream"\s*:\s*true')
MAX_HEAD_BYTES = 8 << 20
"""Larger than any row's: a gateway without a bound of its own is to meet none here either."""
GATE_S = 1.0
"""How long the engine waits for an event to arrive at the client: a hundred times what passing it on takes."""
HOLD_S = 8.0
"""The longest that it says nothing; a row is over before."""
RESET_NOW = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds: closing sends a RST."""


@dataclass(slots=True)
class Rehearsed:
    """A script that waits for its request. ``has``: whether its client has a word already."""

    script: Script
    bell: Bell
    has: Callable[[str], bool]
    asked: list[Asked] = field(default_factory=list)
    play: Play = Play(())
    pace_s: float = 1.0
    """What the bounds on waits are multiplied with."""


class Engine:
    """Listens, and plays."""

    def __init__(self) -> None:
        self.rehearsed: dict[str, Rehearsed] = {}
        self.port = 0
        self.strangers: list[Asked] = []
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    def __repr__(self) -> str:
        return f"Engine(port={self.port}, rehearsed={len(self.rehearsed)}, connections={len(self._connections)})"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)

    def join(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def part(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One connection from the gateway."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._bell = Bell()
        self._can_write = True
        self._is_left = False
        self._task: asyncio.Task[None] | None = None
        self._now: Asked | None = None
        self.peer = ("", 0)

    def __repr__(self) -> str:
        return f"_Connection(peer={self.peer}, buffered={len(self._buffer)}, left={self._is_left})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = transport.get_extra_info("peername")[:2]
        self._engine.join(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._bell.ring()

    def eof_received(self) -> bool:
        self._leave()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self._can_write = True
        self._bell.ring()
        self._engine.part(self)

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._bell.ring()

    def drop(self) -> None:
        """End it, whatever it does."""
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    def _leave(self) -> None:
        self._is_left = True
        if self._now is not None and self._now.left_s is None:
            self._now.left_s = asyncio.get_running_loop().time()
        self._bell.ring()

    # Requests.

    async def _serve(self) -> None:
        try:
            while (asked := await self._read()) is not None:
                if not await self._answer(asked):
                    break
        finally:
            self._transport.close()

    async def _read(self) -> Asked | None:
        """The next request; None where none comes."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if self._is_left or len(self._buffer) > MAX_HEAD_BYTES:
                return None
            await self._wait_more()
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        fields = [
            (name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])
        ]
        asked = Asked("", lines[0], fields, b"", asyncio.get_running_loop().time(), peer=self.peer)
        body = await self._read_body(asked)
        if body is None:
            return None
        asked.body = body
        mark = MARK.search(body) or MARK.search(lines[0].encode())
        asked.nonce = mark[1].decode() if mark else ""
        return asked

    async def _read_body(self, asked: Asked) -> bytes | None:
        if asked.get("expect").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if asked.get("transfer-encoding").lower() == "chunked":
            return await self._read_coded()
        lengths = [value for name, value in asked.fields if name == "content-length" and value.isdecimal()]
        wanted = int(lengths[-1]) if lengths else 0
        while len(self._buffer) < wanted:
            if self._is_left:
                return None
            await self._wait_more()
        body = bytes(self._buffer[:wanted])
        del self._buffer[:wanted]
        return body

    async def _read_coded(self) -> bytes | None:
        decoder, body = ChunkedDecoder(), bytearray()
        while not decoder.done:
            if not self._buffer:
                if self._is_left:
                    return None
                await self._wait_more()
            data = bytes(self._buffer)
            try:
                for start, end in decoder.feed(data):
                    body += data[start:end]
            except ChunkedError:
                return None
            del self._buffer[: decoder.consumed]
        return bytes(body)

    async def _wait_more(self) -> None:
        have = len(self._buffer)
        await self._bell.wait_until(lambda: len(self._buffer) > have or self._is_left, 3600.0)

    # Answers.

    async def _answer(self, asked: Asked) -> bool:
        """Play what is rehearsed for it. Whether another request may follow."""
        rehearsed = self._engine.rehearsed.get(asked.nonce)
        if rehearsed is None:
            self._engine.strangers.append(asked)
            del self._engine.strangers[:-100]  # only to be looked at when a gateway never becomes ready
            self._transport.write(_answer_stranger(asked))
            return True
        rehearsed.play = rehearsed.script(_understand(asked))
        rehearsed.asked.append(asked)
        self._now = asked
        rehearsed.bell.ring()
        try:
            return await self._play(rehearsed, asked)
        finally:
            asked.is_open = False
            self._now = None
            rehearsed.bell.ring()

    async def _play(self, rehearsed: Rehearsed, asked: Asked) -> bool:
        for step in rehearsed.play.steps:
            if step is Last.FIN or self._transport.is_closing():
                return False
            if step is Last.RESET:
                self._reset()
                return False
            if step is Last.HOLD:
                await self._bell.wait_until(lambda: self._is_left, HOLD_S)
                rehearsed.bell.ring()
                return False
            await self._step(rehearsed, asked, step)
        return not self._is_left

    async def _step(self, rehearsed: Rehearsed, asked: Asked, step: object) -> None:
        if isinstance(step, bytes):
            self._transport.write(step)
            await asyncio.sleep(0)
            await self._bell.wait_until(lambda: self._can_write, HOLD_S)
        elif isinstance(step, Pause):
            await asyncio.sleep(step.s)
        elif isinstance(step, Gate) and not asked.missed:  # one is enough to know, and the client waits
            has, word = rehearsed.has, step.word
            came = await rehearsed.bell.wait_until(lambda: has(word) or self._is_left, GATE_S * rehearsed.pace_s)
            if not came:
                asked.missed.append(int(word.rpartition(".")[2]))

    def _reset(self) -> None:
        raw: socket.socket = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
        self._transport.abort()


def _understand(asked: Asked) -> Ask:
    path = asked.target.split(" ")[1] if asked.target.count(" ") else ""
    return Ask(asked.nonce, "chat" if "chat" in path else "text", STREAMED.search(asked.body) is not None)


def _answer_stranger(asked: Asked) -> bytes:
    """What gateways ask to find out whether an engine is there, and what it has."""
    method, _, rest = asked.target.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path.endswith("/models"):
        return sized(dump({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}))
    if method == "POST" and path.endswith("/completions"):
        steps = well(_understand(asked)).steps
        return b"".join(step for step in steps if isinstance(step, bytes))
    if path in ("/health", "/healthz", "/ping", "/"):
        return sized(b"{}")
    if path in ("/get_model_info", "/model_info", "/get_server_info", "/server_info"):
        return sized(dump({"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}))
    return sized(dump({"error": {"message": "There is no such path."}}), status="404 Not Found")
