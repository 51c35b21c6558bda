"""The floor for Python: a relay on uvloop that copies bytes both ways and understands none of them.

What lives here: the least that any gateway on the same event loop must do per event.
What must not: parsing, logging, limits; whatever a gateway costs beyond this is what its own work costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import socket
from typing import cast

import uvloop

BACKLOG = 4096


class Side(asyncio.Protocol):
    """One of the two connections; what comes in here goes out there."""

    __slots__ = ("early", "other", "transport")

    def __init__(self, other: Side | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.other is not None:
            self.other.other = self
            self.transport.write(self.other.early)

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is None or other.transport is None:
            self.early += data
        else:
            other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        other, self.other, self.transport = self.other, None, None
        if other is not None and other.transport is not None:
            other.transport.close()


class Accepted(Side):
    """The client's side, which opens the engine's."""

    __slots__ = ("connecting", "engine")

    def __init__(self, engine: tuple[str, int]) -> None:
        super().__init__()
        self.engine = engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self.connecting = loop.create_task(self.connect(loop))

    async def connect(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await loop.create_connection(lambda: Side(self), *self.engine)
        except OSError:
            if self.transport is not None:
                self.transport.close()


async def serve(port: int, engine: tuple[str, int]) -> None:
    """Relay for ever."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Accepted(engine), "127.0.0.1", port, backlog=BACKLOG
    )
    gc.freeze()
    gc.disable()
    await server.serve_forever()


def main() -> None:
    """Relay one port to another of this host."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="http://HOST:PORT")
    options = parser.parse_args()
    host, _, port = options.upstream.removeprefix("http://").partition(":")
    uvloop.run(serve(options.port, (host, int(port))))


if __name__ == "__main__":
    main()
