"""The memory of a process that stops in the middle of an answer, and taking it over from a file.

What lives here: making such an image, and rendering from one what its client has still to get.
What must not: which images there are (test_golden.py).

The image holds three pieces of shared memory as they lay there, and what the kernel had counted for both connections. To take
it over, connections are made anew that the kernel counts the same for.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import zlib
from typing import Any, NamedTuple

from tests.golden.scripted import BLOCKS, COMMENTED, HEAD, NAME, STREAM, Engine, chunked, serve
from tests.house import until
from tests.test_adopt import Rooms

from longwire.adopt import Adopter, claim_rows
from longwire.streams import arena, tables
from longwire.streams.counters import bytes_read, bytes_written, take_reading
from longwire.streams.memory import Memory
from longwire.streams.tables import COUNT_BITS, unpack_connection, unpack_stream
from longwire.words.ids import Place
from longwire.words.settings import EngineSettings, Settings

PAGE = 4096
STOP = len(HEAD + chunked(BLOCKS[0]) + chunked(BLOCKS[1]) + COMMENTED) + 40
"""In the middle of the fourth event."""
LIMIT_S = 10.0

Json = dict[str, Any]


def layouts() -> str:
    """The versions that this code reads."""
    return f"arena{arena.LAYOUT_VERSION}-tables{tables.LAYOUT_VERSION}"


class Counts(NamedTuple):
    """What the kernel had counted for a connection."""

    read: int
    written: int


# Making one.


async def make_image() -> Json:
    """Stop in mid-answer, look, and go on: what came after is what every later version must send."""
    engine = await Engine.start(STOP)
    rooms = Rooms(Memory.make(2 << 20, 4, 4), engine.settings())
    reader, writer = await asyncio.open_connection("127.0.0.1", await serve(rooms))
    writer.write(Engine.ask("POST /v1/chat/completions HTTP/1.1\r\n", True))
    response = await reader.readuntil(chunked(BLOCKS[2]))
    (connection,) = rooms.listener.connections
    (upstream,) = rooms.directory.upstreams
    (busy,) = upstream._busy
    await until(lambda: busy.read_bytes >= STOP, "all that the engine says is there")
    image: Json = {
        "memory": {
            name: _store(fd) for name, fd in zip(("arena", "streams", "connections"), rooms.memory.fds, strict=True)
        },
        "client": _counts(connection.transport, False),
        "upstream": _counts(busy.transport, True),
    }
    engine.go_on()
    response += await reader.readuntil(b"\r\n0\r\n\r\n")
    image["response"] = response.decode("latin-1")
    writer.close()
    await engine.close(rooms)
    return image


def _counts(transport: Any, connected: bool) -> Counts:
    reading = take_reading(transport.get_extra_info("socket"))
    return Counts(bytes_read(reading), bytes_written(reading, connected=connected))


def _store(fd: int) -> Json:
    """The pages that are not empty."""
    size = os.fstat(fd).st_size
    pages = {offset: os.pread(fd, PAGE, offset) for offset in range(0, size, PAGE)}
    return {
        "bytes": size,
        "pages": {
            str(offset): base64.b85encode(zlib.compress(page, 9)).decode()
            for offset, page in pages.items()
            if any(page)
        },
    }


# Taking one over.


def _restore(stored: Json) -> int:
    fd = os.memfd_create("golden")
    os.ftruncate(fd, stored["bytes"])
    for offset, page in stored["pages"].items():
        os.pwrite(fd, zlib.decompress(base64.b85decode(page)), int(offset))
    return fd


def attach(image: Json) -> Memory:
    """Its memory, for the next incarnation. Raises LayoutMismatch where this version declines."""
    memory = image["memory"]
    return Memory.attach([_restore(memory[name]) for name in ("arena", "streams", "connections")], Place(incarnation=9))


def _pair(counts: Counts, *, connects: bool) -> tuple[socket.socket, socket.socket]:
    """Our end of a connection for which the kernel has counted so much, and the other end. One that ``connects`` counts its
    SYN, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    ours, other = (connected, accepted) if connects else (accepted, connected)
    for sender, receiver, count in ((other, ours, counts.read), (ours, other, counts.written)):
        sender.sendall(bytes(count))
        left = count
        while left:
            left -= len(receiver.recv(left))
    for sock in (ours, other):
        sock.setblocking(False)
    return ours, other


def spans(image: Json) -> tuple[int, int]:
    """From where to where the client's count may lie: from the reader's checkpoint to what was really written."""
    memory = attach(image)
    index = memory.connections.word_index(0)
    start = memory.connections.words[index] >> COUNT_BITS
    for fd in memory.fds:
        os.close(fd)
    return start, image["client"][1]


async def render(image: Json, unsent: int) -> str:
    """What the client gets from a process that takes over, where the kernel has ``unsent`` bytes less than there were."""
    memory = attach(image)
    stream, connection = [
        unpack(payload)
        for table, unpack in ((memory.streams, unpack_stream), (memory.connections, unpack_connection))
        if (payload := table.read(0)) is not None
    ]
    read, written = image["client"]
    ours, client = _pair(Counts(read, written - unsent), connects=False)
    upstream, engine = _pair(Counts(*image["upstream"]), connects=True)
    rooms = Rooms(memory, Settings(engines=[EngineSettings(name=NAME, url="http://127.0.0.1:9")]))
    rooms.listener.look_after()
    rows = claim_rows(memory)
    adopter = Adopter(memory, rooms.registry, rooms.listener, rooms.generations)
    await adopter.adopt(rows, {(connection.owner, connection.fd): ours, (stream.owner, stream.fd): upstream})
    assert (adopter.streams_adopted, adopter.connections_adopted, adopter.faults) == (1, 1, 0)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(engine, STREAM[image["upstream"][0] :])
    received = b""
    async with asyncio.timeout(LIMIT_S):
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = await loop.sock_recv(client, 65536)
            assert piece, received
            received += piece
    for sock in (client, engine):
        sock.close()
    for each in list(rooms.listener.connections):
        each.abort()
    rooms.listener.close()
    for pool in rooms.directory.upstreams:
        pool.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for fd in memory.fds:
        os.close(fd)
    return received.decode("latin-1")
