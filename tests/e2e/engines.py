"""Engines that are really there, as processes of their own, and what can be put between one of them and a gateway.

What lives here: starting llama.cpp's server with the embedded model, a relay that cuts answers, a gateway's table of engines.
What must not: gateways and their readers (gateways.py), expectations.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from longwire.engines import local
from longwire.wire.chunked import ChunkedDecoder
from longwire.words.settings import Settings

RST_ON_CLOSE = struct.pack("ii", 1, 0)
READ_BYTES = 64 * 1024
MODEL = local.MODEL_ALIAS


class Embedded:
    """llama.cpp's server with the embedded model, without anybody who starts it again."""

    def __init__(self, settings: Settings) -> None:
        self.process = subprocess.Popen(
            local.child_command(settings, "127.0.0.1", 0),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.url = str(json.loads(self.process.stdout.readline())["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def embedded(count: int, settings: Settings) -> Iterator[list[Embedded]]:
    """So many of them."""
    engines: list[Embedded] = []
    try:
        while len(engines) < count:
            engines.append(Embedded(settings))
        yield engines
    finally:
        for engine in engines:
            engine.end()


def table_of(kind: str, *urls: tuple[str, int]) -> str:
    """``[[engines]]`` of one kind, each with its weight; their names are those of the alphabet."""
    return "".join(
        f'[[engines]]\nname = "{name}"\nurl = "{url}"\nkind = "{kind}"\nweight = {weight}\n'
        for name, (url, weight) in zip("abcdefgh", urls, strict=False)
    )


@dataclass
class Cut:
    """After how many events an answer is cut, how many bytes of the next one are let through, and whether by RST."""

    events: int
    more_bytes: int = 0
    by_reset: bool = False


@dataclass
class Exchange:
    """A generation as it went through a relay: the request's body, and what was let through of the answer."""

    asked: bytes = b""
    told: bytearray = field(default_factory=bytearray)

    @property
    def request(self) -> dict[str, object]:
        fields: dict[str, object] = json.loads(self.asked.partition(b"\r\n\r\n")[2])
        return fields

    @property
    def events(self) -> bytes:
        """The whole events of the answer, without framing."""
        head, _, body = bytes(self.told).partition(b"\r\n\r\n")
        assert b"chunked" in head.lower(), head
        events = b"".join(body[start:end] for start, end in ChunkedDecoder().feed(body))
        return events[: events.rfind(b"\n\n") + 2] if b"\n\n" in events else b""


class Relay:
    """Passes bytes between a gateway and an engine, and remembers generations. ``cut`` befalls the next one."""

    def __init__(self, port: int) -> None:
        self.cut: Cut | None = None
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._port)
        current: list[Exchange] = []
        asking = asyncio.create_task(self._ask(reader, engine_writer, current))
        try:
            await self._tell(engine_reader, writer, current)
        except OSError:
            pass  # the gateway has left, as it does behind an answer that it does not want any more
        finally:
            asking.cancel()
            engine_writer.transport.abort()
            writer.close()
            self._tasks.discard(task)

    async def _ask(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter, current: list[Exchange]) -> None:
        while data := await reader.read(READ_BYTES):
            if data.startswith((b"POST ", b"GET ")):
                current[:] = [Exchange()] if data.startswith(b"POST ") else []
                self.exchanges += current
            for exchange in current:
                exchange.asked += data
            engine.write(data)
        engine.transport.abort()  # it has learned of the cancel

    async def _tell(
        self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, current: Sequence[Exchange]
    ) -> None:
        while data := await engine.read(READ_BYTES):
            if not current:
                writer.write(data)
                continue
            told = current[0].told
            told += data
            if self.cut is None or (end := _end_of(told, self.cut)) < 0:
                writer.write(data)
                await writer.drain()
                continue
            writer.write(data[: len(data) - (len(told) - end)])
            del told[end:]
            if self.cut.by_reset:
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
                writer.transport.abort()
            self.cut = None
            return


def _end_of(told: bytes | bytearray, cut: Cut) -> int:
    """Up to where it is let through; -1: all of it, so far."""
    at = told.find(b"\r\n\r\n")
    for _ in range(cut.events):
        at = told.find(b"\n\n", at + 2) if at >= 0 else -1
    if at < 0 or len(told) < at + 2 + cut.more_bytes + 1:
        return -1
    return at + 2 + cut.more_bytes
