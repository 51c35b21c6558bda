"""The check of the hot path is written out by hand: it must be the very rule of the framer, and leave no byte behind."""

from __future__ import annotations

from typing import Any, cast

import pytest

from longwire.engines.transport import UpstreamConnection
from longwire.wire.chunked import encode_chunk
from longwire.wire.framer import LONGEST_WHOLE, is_whole_frame
from longwire.words.reasons import CloseReason

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
    b"a\n\n\r\n" + FRAME,
    b"ab\n\n\r\n" + FRAME,
    b"",
]


class Blocks:
    """A sink's memory in two blocks, with an exchange that notes what it is given; the stream of both is itself."""

    is_full = False
    max_stream_bytes = 1 << 20

    def __init__(self, first_bytes: int, ready: bool = True) -> None:
        self._left = [memoryview(bytearray(8192))] if ready else []
        self.rest = memoryview(bytearray(first_bytes))
        self.end = 0
        self.written: list[bytes] = []
        self.read_bytes = 0
        self.long_way = b""
        self.settled_at: list[int] = []
        self.connection = UpstreamConnection(cast(Any, self))
        self.connection.exchange = cast(Any, self)
        self.connection._chain = cast(Any, self)
        self.connection.transport = cast(Any, self)
        self.pauses = 0
        self.failed: list[CloseReason] = []
        self.faults: list[Exception] = []
        self.is_lost = False
        self.connection.splice(lambda frame: self.written.append(bytes(frame)), MARK)

    def lost(self, connection: UpstreamConnection) -> None:
        self.is_lost = True

    @property
    def sink(self) -> Any:
        return self

    def filled(self, count: int) -> None:
        self.end += count
        self.rest = self.rest[count:]
        if not self.rest and self._left:
            self.rest = self._left.pop()
        self.is_full = not self.rest

    def settle_soon(self) -> None:
        self.settled_at.append(self.end)

    def unsplice(self) -> None:
        self.connection.unsplice()

    def lose_reader(self, fault: Exception) -> None:
        self.faults.append(fault)
        self.unsplice()

    def hold(self, begun: bytes) -> None:
        self.long_way += begun

    def receive(self, view: memoryview, count: int) -> None:
        self.long_way += bytes(view[:count])
        self.filled(count)

    def ended(self, error: Exception | None) -> None:
        self.long_way += b"|end"

    def fail(self, reason: CloseReason, message: str) -> None:
        self.failed.append(reason)

    def pause_reading(self) -> None:
        self.pauses += 1

    def arrive(self, data: bytes) -> None:
        """As the kernel does it: as much at once as the block has room for."""
        while True:
            part = data[: len(self.connection.get_buffer(0))]
            self.connection.get_buffer(0)[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data = data[len(part) :]
            if not data:
                return


def goes_short(read: bytes) -> bool:
    return is_whole_frame(read) and MARK in read and len(read) < LONGEST_WHOLE


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("spare", [1, 100])
def test_a_read_goes_the_short_way_exactly_where_the_framer_would_call_it_one_frame(read: bytes, spare: int) -> None:
    blocks = Blocks(len(read) + spare)
    blocks.arrive(read)
    assert (blocks.written, blocks.long_way) == (([read], b"") if goes_short(read) else ([], read))
    left = spare if goes_short(read) else len(read) + spare - len(read)
    assert len(blocks.rest) == left


@pytest.mark.parametrize("read", READS)
def test_a_frame_over_two_blocks_goes_the_short_way_too_and_anything_else_is_read_whole(read: bytes) -> None:
    for at in range(1, len(read)):
        blocks = Blocks(at)
        blocks.arrive(read + (FRAME if goes_short(read) else b""))
        arrived = b"".join(blocks.written) + blocks.long_way
        assert arrived == read + (FRAME if goes_short(read) else b""), "no byte is left behind, whichever way it goes"
        if goes_short(read) and at < len(read) - 3:
            assert blocks.settled_at == [0], "the index is to follow"


@pytest.mark.parametrize("at", range(1, len(FRAME) - 4))
def test_the_short_way_stays_open_behind_a_frame_over_two_blocks(at: int) -> None:
    blocks = Blocks(at)
    blocks.arrive(FRAME)
    blocks.arrive(FRAME)
    assert (b"".join(blocks.written), blocks.long_way) == (FRAME + FRAME, b"")
    assert blocks.written == [FRAME, FRAME] and blocks.end == at, "the second block is filled without a word to anyone"


@pytest.mark.parametrize("at", [1, 3, 10, 40, len(FRAME) - 5])
def test_half_a_frame_is_the_exchanges_when_the_short_way_is_closed_or_the_engine_leaves(at: int) -> None:
    closed = Blocks(at)
    closed.arrive(FRAME[:at])
    closed.connection.unsplice()
    closed.connection.unsplice()
    assert (closed.written, closed.long_way) == ([], FRAME[:at])
    closed.arrive(FRAME[at:])
    assert (closed.written, closed.long_way) == ([], FRAME)
    left = Blocks(at)
    left.arrive(FRAME[:at])
    left.connection.connection_lost(None)
    assert (left.written, left.long_way) == ([], FRAME[:at] + b"|end")


def test_half_a_frame_waits_while_no_block_is_free() -> None:
    blocks = Blocks(10, ready=False)
    blocks.arrive(FRAME[:10])
    assert blocks.pauses == 1 and (blocks.written, blocks.long_way) == ([], FRAME[:10])


def test_a_stream_near_its_longest_is_read_the_long_way_where_that_is_noticed() -> None:
    blocks = Blocks(10)
    blocks.max_stream_bytes = LONGEST_WHOLE - 1
    blocks.arrive(FRAME)
    assert (blocks.written, blocks.long_way) == ([], FRAME)


@pytest.mark.parametrize("at", [1, 2, 3, 6, 100])
def test_a_frame_that_is_too_long_for_the_short_way_is_so_over_two_blocks_as_well(at: int) -> None:
    """What a reader gets does not depend on where a block happened to end."""
    frame = encode_chunk(b"data: " + MARK + b"x" * 5000 + b"\n\n")
    assert is_whole_frame(frame)
    blocks = Blocks(at)
    blocks.arrive(frame)
    assert (blocks.written, blocks.long_way) == ([], frame)


def raises(*_: object) -> None:
    raise LookupError("a fault of ours")


@pytest.mark.parametrize("broken", ["settle_soon", "filled", "unsplice", "pause_reading"])
def test_a_fault_where_a_frame_begins_ends_that_answer_and_is_not_left_to_the_loop(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop would break the connection, and the engine would be blamed for a reset."""
    blocks = Blocks(10, ready=False)
    monkeypatch.setattr(blocks, broken, raises)
    blocks.arrive(FRAME[:10])
    assert blocks.failed == [CloseReason.INTERNAL_ERROR] and caplog.messages == ["exchange_fault"]


@pytest.mark.parametrize("at", [None, 10])
def test_a_reader_that_cannot_be_written_to_is_lost_and_the_answer_goes_on(at: int | None) -> None:
    blocks = Blocks(at or 3 * len(FRAME))
    blocks.connection.splice(raises, MARK)
    blocks.arrive(FRAME)
    assert len(blocks.faults) == 1 and not blocks.failed and not blocks.long_way, "the log has the frame"
    blocks.arrive(FRAME)
    assert blocks.long_way == FRAME and len(blocks.faults) == 1 and not blocks.failed


def test_a_fault_when_the_short_way_closes_at_the_end_loses_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(100)
    monkeypatch.setattr(blocks, "unsplice", raises)
    blocks.connection.connection_lost(None)
    assert blocks.failed == [CloseReason.INTERNAL_ERROR] and blocks.is_lost
