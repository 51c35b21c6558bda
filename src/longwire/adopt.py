"""Adoption: taking over live streams and connections from their rows, the arena and their sockets.

What lives here: the order in which rows become objects again. It sees all rooms, as lifecycle does.
What must not: how a row is read (streams), how a response is regenerated (server), how an answer is parsed (engines).

Nobody reconnects, nothing is lost, nothing repeats: the bytes that were read lie in the arena, because the kernel put
them there; those that were written are counted by the kernel; and law 2 regenerates all that lies between.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from .dialects.base import RelayWords
from .dialects.openai_chat import OpenAiWords
from .engines.base import Answer, Failure
from .engines.call import Call, CallShell, Order
from .engines.directory import Directory
from .engines.exchange import Exchange
from .engines.transport import UpstreamConnection
from .gateway import Generation, how_to_read
from .server.listener import Listener
from .server.takeover import AdoptedConnection
from .streams.counters import Reading, bytes_read, bytes_written, take_reading
from .streams.log import Log
from .streams.rebuild import RebuildSink, checkpoint_offset, facts_of_row, log_of_row
from .streams.registry import Registry
from .streams.stream import EndingWords, Facts, Link, State, Stream
from .streams.tables import ConnectionRow, StreamRow, unpack_connection, unpack_stream
from .words.reasons import CloseReason


@dataclass(frozen=True, slots=True)
class Rows:
    """What is left of a process: both tables' rows by index, with their words."""

    streams: dict[int, tuple[StreamRow, tuple[int, int]]]
    connections: dict[int, tuple[ConnectionRow, int]]


@dataclass(slots=True)
class Adopter:
    """The rooms into which streams and connections are taken."""

    registry: Registry
    listener: Listener
    directory: Directory
    calls: CallShell

    async def adopt(self, rows: Rows, sockets: Mapping[int, socket.socket]) -> None:
        """Take over every row whose socket is there. ``sockets`` are by the descriptor that stands in the row.

        Streams come first, because what their readers get is computed from them. All counters are read before any
        socket is read from or written to. Sockets that no row needs (idle upstream connections) are closed."""
        left = dict(sockets)
        readings = {fd: take_reading(sock) for fd, sock in sockets.items()}
        streams: dict[int, Stream] = {}
        for index, (row, words) in rows.streams.items():
            stream = self._take_stream(index, row, words, readings.get(row.fd))
            streams[index] = stream
            if stream.state is not State.ENDED:
                await self._take_upstream(stream, row, words, left.pop(row.fd, None), readings.get(row.fd))
        for index, (connection_row, word) in rows.connections.items():
            if connection_row.fd not in left:
                continue
            found = streams.get(connection_row.stream)
            if found is not None and found.id != connection_row.stream_id:
                found = None
            connection = AdoptedConnection(self.listener, self.listener.handlers, index)
            sock, reading = left.pop(connection_row.fd), readings[connection_row.fd]
            await asyncio.get_running_loop().connect_accepted_socket(partial(_same, connection), sock)
            read = bytes_read(reading, fin_noted=bool(connection_row.eof))
            written = bytes_written(reading, connected=False)
            connection.take_over(connection_row, word, read, written, found)
        for sock in left.values():
            sock.close()
        for stream in streams.values():
            stream.note_if_unread()

    # Streams.

    def _take_stream(self, index: int, row: StreamRow, words: tuple[int, int], reading: Reading | None) -> Stream:
        facts = facts_of_row(row)
        words_for: EndingWords = RelayWords() if facts.route == "relay" else OpenAiWords()
        upstream_bytes = row.log_bytes
        if row.state != State.ENDED and reading is not None:
            upstream_bytes = bytes_read(reading) - row.read_base
        if row.state == State.ENDED:
            words = (0, words[1])
        log = log_of_row(self.registry.arena, row, words, upstream_bytes)
        if row.state == State.ENDED:
            _read_whole(log, facts)
        elif log.known_from:
            stop = checkpoint_offset(words[0])
            log.missing = partial(_fill, log, facts, stop, log.known_from)
        stream = self.registry.take_over(index, row, facts, words_for, log)
        log.upstream.on_full = stream.wait_for_blocks
        return stream

    async def _take_upstream(
        self,
        stream: Stream,
        row: StreamRow,
        words: tuple[int, int],
        sock: socket.socket | None,
        reading: Reading | None,
    ) -> None:
        """Go on with the engine: read what lies in the arena, then what comes over the same socket."""
        call = self._make_call(stream)
        if call is None:
            stream.end(CloseReason.UPSTREAM_UNREACHABLE, "The engine of this stream is not configured any more.")
            return
        stream.producer = call
        if sock is None or reading is None:
            self._go_on_without_socket(stream, call)
            return
        connection = UpstreamConnection(call.upstream.freed, call.upstream.lost)
        exchange = call.take_over(connection, bytes_read(reading), bytes_written(reading, connected=True))
        start = checkpoint_offset(words[0])
        if start:
            exchange.prime()
        sink = RebuildSink(stream.log, start, stream.commit_taken)
        exchange.switch_sink(sink)
        sink.chain.feed(exchange.receive, stream.log.upstream.end)
        sink.publish(-1)
        exchange.switch_sink(stream)
        stream.log.publish()
        missing = row.request_bytes - (connection.written_bytes - row.written_base)
        rest = stream.request.slices(row.request_bytes - missing, missing) if stream.request and missing > 0 else []
        if connection.is_idle():
            sock.close()
            return
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
        if connection.is_idle():
            return  # what was waiting in the socket was the rest of the answer
        call.upstream.take_over(connection)
        connection.go_on(rest)
        stream.link = Link(connection.fd, row.read_base, row.written_base)
        self.registry.store_row(stream)

    def _make_call(self, stream: Stream) -> Call | None:
        facts = stream.facts
        upstream = next((each for each in self.directory.upstreams if each.name == facts.engine), None)
        if upstream is None:
            return None
        expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
        order = Order(b"", [], b"", expect, make_watch)
        return Call(upstream, order, stream, Generation(stream, self.registry), self.calls)

    @staticmethod
    def _go_on_without_socket(stream: Stream, call: Call) -> None:
        """No connection had been made, or it was TLS, whose state died with its process."""
        if stream.link.fd == NOT_CONNECTED and stream.state is State.OPENING and stream.request is not None:
            call.start_stored()
        else:
            stream.end(CloseReason.UPSTREAM_RESET, "The engine's connection was lost with a process of the gateway.")


NOT_CONNECTED = -1


def _same(connection: AdoptedConnection) -> AdoptedConnection:
    """A protocol factory for the protocol that there is."""
    return connection


class _Nobody:
    """The owner of a reading that only wants entries."""

    def began(self) -> None: ...

    def refusing(self) -> None: ...

    def answered(self, answer: Answer) -> None: ...

    def completed(self, reason: CloseReason, message: str) -> None: ...

    def failed(self, failure: Failure) -> None: ...

    def splice(self, write: Callable[[memoryview], None], mark: bytes) -> None: ...

    def release(self, reusable: bool) -> None: ...

    def drain(self) -> None: ...


def _read_again(log: Log, facts: Facts, stop: int) -> None:
    """Find the entries of the upstream's bytes up to ``stop``, from the first on."""
    expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
    sink = RebuildSink(log, 0, lambda: None)
    nobody = _Nobody()
    exchange = Exchange(sink, make_watch(), nobody, expect, (1 << 25, 1 << 40), nobody)
    sink.chain.feed(exchange.receive, stop)
    sink.insert_ours()


def _read_whole(log: Log, facts: Facts) -> None:
    """Every entry of an ended stream."""
    _read_again(log, facts, log.upstream.end)
    log.publish()


def _fill(log: Log, facts: Facts, stop: int, count: int) -> None:
    """The first ``count`` entries, which lie below offset ``stop``, read into a log of their own over the same chains."""
    scratch = log.sharing_chains()
    _read_again(scratch, facts, stop)
    log.entries[:count] = scratch.entries[:count]
    log.silent[:0] = array("Q", (position for position in scratch.silent if position < count))


def rows_of(registry: Registry, listener: Listener) -> Rows:
    """Every row that is in use, as another process would read it from the tables."""
    return Rows(_stream_rows(registry), _connection_rows(listener))


def _stream_rows(registry: Registry) -> dict[int, tuple[StreamRow, tuple[int, int]]]:
    table = registry.table
    rows: dict[int, tuple[StreamRow, tuple[int, int]]] = {}
    for index in range(table.rows):
        payload = table.read(index)
        if payload:
            word = table.word_index(index)
            rows[index] = (unpack_stream(payload), (table.words[word], table.words[word + 1]))
    return rows


def _connection_rows(listener: Listener) -> dict[int, tuple[ConnectionRow, int]]:
    table = listener.table
    rows: dict[int, tuple[ConnectionRow, int]] = {}
    for index in range(table.rows):
        payload = table.read(index)
        if payload:
            rows[index] = (unpack_connection(payload), table.words[table.word_index(index)])
    return rows
