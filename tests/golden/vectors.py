"""What this version writes, as named texts: rows and headers of shared memory, framings, heads, errors and end markers.

What lives here: making each from the code as it is. What must not: what it was before (encoders.json).

Bytes that are text stand as text (latin-1), all others in hexadecimal digits. The values of a row's fields are made of their
places, so that a field that moves, grows or changes its meaning shows.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
from typing import Any

from tests.golden.scripted import Engine, serve
from tests.test_adopt import Rooms

from longwire.admission.matrix import Matrix
from longwire.dialects.base import RelayWords
from longwire.dialects.openai_chat import OpenAiWords
from longwire.server.parcel import Parcel, pack
from longwire.server.respond import error_parts, whole_response
from longwire.streams.arena import Arena
from longwire.streams.doors import Door, encode, end_bytes
from longwire.streams.log import Log
from longwire.streams.memory import Memory
from longwire.streams.tables import ConnectionRow, StreamRow, Table, pack_connection, pack_stream, pack_word
from longwire.words.errors import BadJson, NotFound, Overloaded
from longwire.words.reasons import CloseReason

HEADER_BYTES = 32
FIELD_BYTES = {"id": 17, "stream_id": 17, "prompt_hash": 16, "key_hash": 16, "body_hash": 16}
LAST_FIELDS = {"facts": b'{"tenant":"acme"}', "head": b"HTTP/1.1 200 OK\r\n\r\n"}

Vectors = dict[str, str]


def vectors() -> Vectors:
    """All of them."""
    return {**_memory(), **_framings(), **_words(), **asyncio.run(_heads())}


# Shared memory.


def _sample(kind: type[Any]) -> Any:
    """A row whose fields hold their places."""
    values: dict[str, Any] = {}
    for place, name in enumerate(kind._fields, start=1):
        if name in LAST_FIELDS:
            values[name] = LAST_FIELDS[name]
        elif name in FIELD_BYTES:
            values[name] = bytes([place]) * FIELD_BYTES[name]
        else:
            values[name] = place
    return kind(**values)


def _memory() -> Vectors:
    arena, table, matrix = Arena(2 << 20), Table("golden", 2, 40), Matrix.create(2, 3)
    row = table.take()
    assert row is not None
    for word in range(4):
        table.words[table.word_index(row) + word] = word + 1
    table.write(row, b"older")
    table.write(row, b"newest")
    matrix.count(matrix.index(1, 2), 1, 77, 5)
    cells = matrix.index(1, 2)
    log = _log(arena)
    assert log.records is not None
    return {
        "arena header": os.pread(arena.fd, HEADER_BYTES, 0).hex(),
        "table header": os.pread(table.fd, HEADER_BYTES, 0).hex(),
        "table row, written twice": os.pread(table.fd, table._stride, 4096).hex(),
        "matrix header": os.pread(matrix.fd, HEADER_BYTES, 0).hex(),
        "matrix cells": struct.pack("<8Q", *matrix.words[cells : cells + 8]).hex(),
        "streams row": pack_stream(_sample(StreamRow)).hex(),
        "connections row": pack_connection(_sample(ConnectionRow)).hex(),
        "checkpoint": f"{pack_word(3, 5):#x}",
        "records": log.records.read(0, log.records.end).hex(),
        "parcel": str(pack(Parcel(1, 2, "127.0.0.1:3", 4, 5, b"GET / HTTP/1.1\r\n\xff"))[0]),
    }


# Framings.


def _log(arena: Arena) -> Log:
    """One entry of each kind: framed, plain, silent, records, and an event with an id of the engine's own."""
    log = Log(arena)

    def store(data: bytes) -> tuple[int, int]:
        return log.upstream.append(data), len(data)

    frame = b'data: {"a":1}\n\n'
    log.append_framed(*store(b"%x\r\n%b\r\n" % (len(frame), frame)))
    log.append_framed(*store(b"%x\r\n%b\r\n" % (len(frame), frame)))
    log.append_plain(*store(b"data: two\ndata: lines\n\n"))
    log.append_plain(*store(b": a comment\n\n"), silent=True)
    log.append_record(b": heartbeat\n\n", silent=True)
    log.append_plain(*store(b"id: 7\nevent: named\ndata: x\n\n"))
    log.append_record(b"data: of the gateway\n\n")
    log.append_record(b"data: another form\n\n", from_upstream=True)
    log.append_plain(*store(b"data: " + b"long " * 60 + b"\n\n"))
    log.seal()
    return log


def _framings() -> Vectors:
    arena = Arena(2 << 20)
    log = _log(arena)
    found: Vectors = {}
    for door in Door:
        buffers, position, count = encode(door, log, 0, 1 << 20, 1 << 20)
        body = b"".join(buffers)
        assert (position, count) == (log.deliverable, len(body))
        found[f"door {door.name}"] = body.decode("latin-1")
        found[f"door {door.name}, end"] = end_bytes(door).decode()
    return found


# What the gateway says itself.


def _words() -> Vectors:
    found: Vectors = {}
    facts: dict[str, object] = {"stream_id": "lw_0", "last_seq": 3, "resumable": False}
    for reason in CloseReason:
        for name, words in (("openai", OpenAiWords()), ("relay", RelayWords())):
            found[f"in band, {name}, {reason}"] = b"".join(words.error_blocks(reason, "Why.", facts)).decode()
        found[f"body, {reason}"] = OpenAiWords().error_body(reason, "Why.").decode()
    for error in (BadJson("Why."), NotFound("Why."), Overloaded("Why.", retry_after_s=2)):
        found[f"answer, {error.code}"] = whole_response(*error_parts(error)).decode()
    return found


REQUESTS = {
    "streamed": ("POST /v1/chat/completions HTTP/1.1\r\n", True),
    "streamed, HTTP/1.0": ("POST /v1/chat/completions HTTP/1.0\r\n", True),
    "whole": ("POST /v1/chat/completions HTTP/1.1\r\n", False),
}


async def _heads() -> Vectors:
    engine = await Engine.start()
    rooms = Rooms(Memory.make(2 << 20, 8, 8), engine.settings())
    port = await serve(rooms)
    found: Vectors = {}
    for name, (line, streams) in REQUESTS.items():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(Engine.ask(line, streams))
        found[f"head, {name}"] = await _head(reader)
        writer.close()
    stream = next(iter(rooms.registry.list(None)))
    for name, accept in (("read again", "text/event-stream"), ("shown", "application/json")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(Engine.get(f"/v1/streams/{stream.public_id}", accept))
        found[f"head, {name}"] = await _head(reader)
        writer.close()
    await engine.close(rooms)
    return found


async def _head(reader: asyncio.StreamReader) -> str:
    """What differs from time to time is made the same."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    head = re.sub(r"lw_[0-9a-f]{34}", "lw_" + "0" * 34, head)
    return re.sub(r"content-length: \d+", "content-length: N", head)
