"""One response: what goes out together, and in what order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.streams.world import Entry, Feeder, World, data_block, framed

from longwire.server.writer import Writer
from longwire.streams.doors import Door
from longwire.streams.subscriber import Subscriber
from longwire.streams.tables import COUNT_BITS
from longwire.words.reasons import CloseReason

ONE, TWO = (Entry("framed", data_block(word)) for word in (b"one", b"two"))


class Pipe:
    """A transport whose every call is one system call and one segment."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, buffers: list[bytes]) -> None:
        self.writes.append(b"".join(buffers))

    def get_write_buffer_size(self) -> int:
        return 0


class Connection:
    """As much of a client's connection as a writer needs."""

    speaks_1_1 = keep_alive = True

    def __init__(self) -> None:
        self.transport = Pipe()
        self.words = [0]
        self.record = SimpleNamespace(words=self.words, word=0, note_head=lambda head, door: None)
        self.listener = SimpleNamespace(instruments=SimpleNamespace(count_request=lambda route, status: None))
        self.rows_before_writes: list[int] = []
        self.ended: list[CloseReason] = []

    def store_row(self) -> None:
        self.rows_before_writes.append(len(self.transport.writes))

    def reader_ended(self, reason: CloseReason) -> None:
        self.ended.append(reason)

    def response_done(self) -> None: ...


def attached(feeder: Feeder, position: int = 0) -> tuple[Connection, Writer]:
    connection = Connection()
    writer = Writer(cast(Any, connection), "chat_completions", [])
    writer.subscriber = Subscriber(feeder.stream, writer, Door.FRAMED, position)
    feeder.stream.attach(writer.subscriber)
    return connection, writer


def test_the_head_goes_out_with_the_first_event() -> None:
    with World() as world:
        feeder = world.start()
        connection, writer = attached(feeder)
        assert connection.transport.writes == []
        feeder.feed(ONE)
        (first,) = connection.transport.writes
        assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"data: one\n\n\r\n")
        assert connection.rows_before_writes == [0], "the row has the head before the client has"
        assert writer.sent_bytes == len(first)
        feeder.feed(TWO)
        assert connection.words == [len(first) << COUNT_BITS | 1], "where the reader stood before the second went out"
        assert len(connection.transport.writes) == 2
        assert writer.subscriber is not None
        writer.subscriber.detach()
        writer.subscriber.flushed()


def test_an_ended_stream_goes_out_whole_in_one_write() -> None:
    with World() as world:
        feeder = world.start(ONE, TWO)
        feeder.end()
        connection, writer = attached(feeder)
        (whole,) = connection.transport.writes
        assert whole.endswith(framed(ONE.block) + framed(TWO.block) + b"0\r\n\r\n")
        assert connection.ended == [CloseReason.COMPLETED] and writer.sent_bytes == len(whole)
        assert writer.subscriber is not None
        writer.subscriber.flushed()


@pytest.mark.parametrize("ends", [False, True])
def test_a_head_that_nothing_follows_is_not_kept_back(ends: bool) -> None:
    """A reader who has everything already, and waits for more or for the end."""
    with World() as world:
        feeder = world.start(ONE)
        if ends:
            feeder.end()
        connection, writer = attached(feeder, 1)
        sent = b"".join(connection.transport.writes)
        assert sent.startswith(b"HTTP/1.1 200 OK\r\n") and sent.endswith(b"\r\n\r\n0\r\n\r\n" if ends else b"\r\n\r\n")
        assert len(connection.transport.writes) == 1 and connection.words == [0], "no checkpoint within the head"
        assert writer.subscriber is not None
        writer.subscriber.detach()
        writer.subscriber.flushed()
