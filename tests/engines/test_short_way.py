"""The check of the hot path is written out by hand: it must be the very rule of the framer, and leave no byte behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from longwire.engines.transport import UpstreamConnection
from longwire.wire.chunked import encode_chunk
from longwire.wire.framer import is_whole_frame

MARK = b'"finish_reason":null'
EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
FRAME = encode_chunk(EVENT)

READS = [
    FRAME,
    encode_chunk(b"data: " + MARK + b"x" * 3900 + b"\n\n"),
    encode_chunk(b"data: " + MARK + b"x" * 5000 + b"\n\n"),
    FRAME + FRAME,
    FRAME[:-1],
    FRAME[1:],
    FRAME + b"0\r\n\r\n",
    FRAME.upper(),
    b"0" + FRAME,
    encode_chunk(EVENT + EVENT),
    encode_chunk(EVENT.replace(b"\n", b"\r\n")),
    encode_chunk(EVENT.replace(b"hi", b"h\ri")),
    encode_chunk(b": ping " + MARK + b"\n\n"),
    encode_chunk(b"data: [DONE]\n\n"),
    encode_chunk(EVENT.replace(b"null", b'"stop"')),
    b"",
]


class Connection(UpstreamConnection):
    """Notes what did not go the short way."""

    long_way: int

    def _receive(self, nbytes: int) -> None:
        self.long_way = nbytes


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("spare", [0, 1, 100])
def test_a_read_goes_the_short_way_exactly_where_the_framer_would_call_it_one_frame(read: bytes, spare: int) -> None:
    memory = memoryview(bytearray(read) + bytearray(spare))
    chain = SimpleNamespace(rest=memory, end=0)
    written: list[bytes] = []
    connection = Connection(lambda connection, reusable: None, lambda connection: None)
    connection._chain = cast(Any, chain)
    connection.splice(lambda frame: written.append(bytes(frame)), MARK)
    connection.buffer_updated(len(read))
    if is_whole_frame(read) and MARK in read and spare and len(read) < 4096:
        assert written == [read]
        assert len(chain.rest) == spare
    else:
        assert written == []
        assert connection.long_way == len(read)
        assert len(chain.rest) == len(memory), "whoever reads it the long way says how much was stored"
