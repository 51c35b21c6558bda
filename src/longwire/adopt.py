"""Adoption: taking over live streams and connections from their rows, the arena and their sockets.

What lives here: the order in which rows become objects again. It sees all rooms, as lifecycle does.
What must not: how a row is read (streams), how a response is regenerated (server), how an answer is parsed (engines).

Nobody reconnects, nothing is lost, nothing repeats: the bytes that were read lie in the arena, because the kernel put
them there; those that were written are counted by the kernel; and law 2 regenerates all that lies between.

Over 400 lines: each step relies on what the one before has left undone, and that must be seen in one place.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from .dialects.base import RelayWords
from .dialects.openai_chat import OpenAiWords
from .engines.base import Answer, Failure
from .engines.call import Call, CallShell, Order
from .engines.directory import Directory
from .engines.exchange import Exchange
from .engines.transport import UpstreamConnection
from .gateway import Generation, how_to_read
from .server.listener import Listener
from .server.record import Phase
from .server.takeover import AdoptedConnection
from .streams.counters import Reading, bytes_read, bytes_written, take_reading
from .streams.log import Log
from .streams.memory import Memory
from .streams.rebuild import PIECE_BYTES, RebuildSink, TailSink, checkpoint_offset, facts_of_row, find_tail, log_of_row
from .streams.registry import Registry
from .streams.stream import EndingWords, Facts, Link, State, Stream
from .streams.tables import (
    ATTEMPTS_WORD,
    HAS_COMMENTS,
    RECORDS_WORD,
    ConnectionRow,
    StreamRow,
    Table,
    unpack_connection,
    unpack_stream,
)
from .streams.terms import Slot
from .wire.framer import one_frame, plain_run
from .words.faultpoint import reach
from .words.reasons import CloseReason

log = logging.getLogger("longwire.adopt")

AT_ONCE = 16
"""Streams that wait for their transports together: one alone takes some turns of the loop, in which nothing else is done."""
MAX_ATTEMPTS = 2
"""A stream whose adoption has killed so many adopters is not read again: it would take one process down after the other."""

Socket = tuple[int, int]
"""Whose descriptor table, and the number in it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is left of a process: both tables' rows by index."""

    streams: dict[int, StreamRow]
    connections: dict[int, ConnectionRow]

    @property
    def sockets(self) -> set[Socket]:
        """Every socket that a row names and that is needed to go on."""
        streams = {(row.owner, row.fd) for row in self.streams.values() if row.fd >= 0 and row.state != State.ENDED}
        return streams | {(row.owner, row.fd) for row in self.connections.values() if row.fd >= 0}


class Upstream(NamedTuple):
    """A stream's engine, up to the point where there must be a transport."""

    call: Call
    connection: UpstreamConnection
    sock: socket.socket
    rest: list[memoryview]
    """What the engine has not been sent of the request."""


def claim_rows(memory: Memory) -> Rows:
    """Become the writer of a dead process's memory: read its rows, and find out which blocks they hold."""
    streams = {index: unpack_stream(payload) for index, payload in memory.streams.claim().items()}
    connections = {index: unpack_connection(payload) for index, payload in memory.connections.claim().items()}
    firsts = [block for row in streams.values() for block in (row.log_block, row.records_block, row.request_block)]
    memory.arena.claim([*firsts, *(row.input_block for row in connections.values())])
    return Rows(streams, connections)


@dataclass(slots=True)
class Adopter:
    """The rooms into which streams and connections are taken. ``readmit`` gives a taken stream its tenant's slot again."""

    memory: Memory
    registry: Registry
    listener: Listener
    directory: Directory
    calls: CallShell
    readmit: Callable[[Stream], Slot | None] = lambda _: None
    streams_adopted: int = 0
    connections_adopted: int = 0
    faults: int = 0
    _rows: Rows = field(default_factory=lambda: Rows({}, {}))
    _sockets: dict[Socket, socket.socket] = field(default_factory=dict)
    _readings: dict[Socket, Reading] = field(default_factory=dict)

    async def adopt(self, rows: Rows, sockets: Mapping[Socket, socket.socket]) -> None:
        """Take over every row whose socket is there.

        A stream goes first and its readers follow, because what they get is computed from it; a few at a time, so that the
        first goes on while the last still waits. Ended streams that nobody reads sleep until there is time. Each counter is
        read before its socket is read from or written to. What fails fails alone.
        """
        self._rows, self._sockets = rows, dict(sockets)
        self._take_readings()
        self.registry.is_incomplete = True
        readers: dict[int, list[int]] = {}
        for index, connection in rows.connections.items():
            stream_row = rows.streams.get(connection.stream)
            is_reading = stream_row is not None and stream_row.id == connection.stream_id
            readers.setdefault(connection.stream if is_reading else -1, []).append(index)
        dormant: list[tuple[int, StreamRow]] = []
        works: list[Callable[[], Coroutine[None, None, None]]] = []
        for index, row in rows.streams.items():
            if row.state == State.ENDED and index not in readers:
                dormant.append((index, row))
            else:
                works.append(partial(self._adopt_stream, index, row, readers.get(index, [])))
        works += [partial(self._adopt_connection, index, None) for index in readers.get(-1, [])]
        for at in range(0, len(works), AT_ONCE):
            await asyncio.gather(*(work() for work in works[at : at + AT_ONCE]))
        for index, row in sorted(dormant, key=lambda each: each[1].ended_us):
            self.registry.let_sleep(row.id, partial(self._take_stream, index, row, None))
        self.registry.forget_askers()
        self.registry.is_incomplete = False
        for sock in self._sockets.values():
            sock.close()
        for stream in self.registry.list_live():
            stream.note_if_unread()

    def wake_some(self, count: int) -> bool:
        """Take over so many of the streams that sleep; whether any are left. Then what no row held is free."""
        if self.registry.wake_some(count):
            return True
        self.memory.arena.free_unclaimed()
        return False

    def _take_readings(self) -> None:
        for key, sock in list(self._sockets.items()):
            try:
                self._readings[key] = take_reading(sock)
            except OSError:  # no TCP connection, or one that is broken already
                self._sockets.pop(key).close()

    async def _adopt_stream(self, index: int, row: StreamRow, readers: list[int]) -> None:
        table = self.memory.streams
        attempts = table.words[table.word_index(index) + ATTEMPTS_WORD]
        stream: Stream | None = None
        upstream: Upstream | None = None
        with self._attempt(table, index):
            reach("adopting_stream")
            if attempts < MAX_ATTEMPTS:
                stream = self._take_stream(index, row, self._readings.get((row.owner, row.fd)))
                if stream.state is not State.ENDED:
                    upstream = self._take_upstream(stream, row)
            elif attempts == MAX_ATTEMPTS:
                log.error("stream_poisoned", extra={"fields": {"model": facts_of_row(row).model, "attempts": attempts}})
                self.registry.count_poisoned()
                stream = self._take_stream(index, row, None)
                # Whatever is wrong with it stands in what would be read again.
                stream.log.missing, stream.log.missing_below = None, 0
                stream.end(CloseReason.INTERNAL_ERROR, "Taking this stream over failed again and again.")
            else:
                table.give(index)
        self.streams_adopted += stream is not None
        if stream is not None and upstream is not None:
            await self._go_on(stream, row, upstream)
        for connection in readers:
            await self._adopt_connection(connection, stream)

    async def _adopt_connection(self, index: int, stream: Stream | None) -> None:
        table = self.memory.connections
        row = self._rows.connections[index]
        key = (row.owner, row.fd)
        sock = self._sockets.pop(key, None)
        if sock is None or table.words[table.word_index(index) + ATTEMPTS_WORD] >= MAX_ATTEMPTS:
            table.give(index)
            if sock is not None:
                sock.close()
            return
        if row.phase == Phase.PASSING and self.listener.neighbours is not None:
            with self._attempt(table, index):
                reach("adopting_connection")
                self.listener.neighbours.pass_again(index, row, sock)
            return
        connection = AdoptedConnection(self.listener, self.listener.handlers, index)
        connection.takes = partial(self._take_connection, connection, index, self._readings[key], stream)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(partial(_same, connection), sock)
        except OSError:
            log.exception("adoption_fault")
            table.give(index)
            sock.close()

    def _take_connection(
        self, connection: AdoptedConnection, index: int, reading: Reading, stream: Stream | None
    ) -> None:
        table = self.memory.connections
        with self._attempt(table, index):
            reach("adopting_connection")
            connection.take_over(self._rows.connections[index], table.words[table.word_index(index)], reading, stream)
            self.connections_adopted += 1

    @contextmanager
    def _attempt(self, table: Table, index: int) -> Iterator[None]:
        """Count in the row that its adoption was begun, for whoever comes after an adopter that dies of it. What is merely
        wrong is logged, and the others are gone on with."""
        word = table.word_index(index) + ATTEMPTS_WORD
        table.words[word] += 1
        try:
            yield
        except Exception:
            self.faults += 1
            log.exception("adoption_fault")
        table.words[word] = 0

    # Streams.

    def _take_stream(self, index: int, row: StreamRow, reading: Reading | None) -> Stream:
        table = self.memory.streams
        word = table.word_index(index)
        checkpoint, records = table.words[word], table.words[word + RECORDS_WORD]
        facts = facts_of_row(row)
        words_for: EndingWords = RelayWords() if facts.route == "relay" else OpenAiWords()
        is_ended = row.state == State.ENDED
        start = checkpoint_offset(checkpoint)
        upstream_bytes = row.log_bytes if is_ended else start
        if reading is not None and not is_ended:
            upstream_bytes = bytes_read(reading) - row.read_base
        log_of = log_of_row(self.registry.arena, row, (checkpoint, records), upstream_bytes)
        if log_of.known_from:
            log_of.missing = LeftOut(log_of, facts, start, is_ended)
        stream = self.registry.take_over(index, row, facts, words_for, log_of)
        if not is_ended:
            stream.slot = self.readmit(stream)
            log_of.upstream.on_full = stream.wait_for_blocks
        return stream

    def _take_upstream(self, stream: Stream, row: StreamRow) -> Upstream | None:
        """Read what of the engine's lies in the arena; returns what is needed to go on over the same socket, if there is
        more."""
        key = (row.owner, row.fd)
        sock, reading = self._sockets.pop(key, None), self._readings.get(key)
        call = self._make_call(stream)
        if call is None:
            if sock is not None:
                sock.close()
            stream.end(CloseReason.UPSTREAM_UNREACHABLE, "The engine of this stream is not configured any more.")
            return None
        stream.producer = call
        if sock is None or reading is None:
            self._go_on_without_socket(stream, call)
            return None
        connection = UpstreamConnection(call.upstream.freed, call.upstream.lost)
        exchange = call.take_over(connection, bytes_read(reading), bytes_written(reading, connected=True))
        self._read_on(stream, exchange)
        missing = row.request_bytes - (connection.written_bytes - row.written_base)
        rest = stream.request.slices(row.request_bytes - missing, missing) if stream.request and missing > 0 else []
        if connection.is_idle():
            sock.close()
            return None
        return Upstream(call, connection, sock, rest)

    async def _go_on(self, stream: Stream, row: StreamRow, upstream: Upstream) -> None:
        """Read from the engine's socket from now on. Waiting for the transport is no part of an attempt: another stream's fault
        may end the process meanwhile."""
        connection = upstream.connection
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=upstream.sock)
        except OSError:
            log.exception("adoption_fault")
            stream.end(CloseReason.UPSTREAM_RESET, "The engine's connection was lost with a process of the gateway.")
            return
        if connection.is_idle():
            return  # what was waiting in the socket was the rest of the answer
        with self._attempt(self.memory.streams, stream.row):
            upstream.call.upstream.take_over(connection)
            connection.go_on(upstream.rest)
            stream.link = Link(connection.fd, row.read_base, row.written_base)
            self.registry.store_row(stream)

    def _read_on(self, stream: Stream, exchange: Exchange) -> None:
        """Read the bytes behind the checkpoint again."""
        table = self.memory.streams
        start = checkpoint_offset(table.words[table.word_index(stream.row)])
        if start:
            exchange.prime()
        sink = RebuildSink(stream.log, start, stream.commit_taken)
        exchange.switch_sink(sink)
        if start:
            _read_run(exchange, sink, stream.log.upstream.end)
        sink.chain.feed(exchange.receive, stream.log.upstream.end)
        if sink.has_comments:
            table.words[table.word_index(stream.row) + RECORDS_WORD] |= HAS_COMMENTS
        sink.publish(-1)
        exchange.switch_sink(stream)
        stream.log.publish()

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


def _read_run(exchange: Exchange, sink: RebuildSink | TailSink, stop: int) -> None:
    """The ordinary deltas behind a checkpoint, as far as there is nothing else: all of a stream that goes the short way.

    The first is read by the exchange, which then knows what the others must have in them. These leave no trace in it, so they
    need only be counted.
    """
    chain = sink.chain
    data = chain.chain.read(chain.end, min(stop - chain.end, 2 * PIECE_BYTES))
    first = one_frame(data, 0)
    if not first:
        return
    exchange.receive(memoryview(data)[:first], first)
    mark = exchange.watch.plain_mark
    if mark is None:
        return
    for length in plain_run(data[first:], mark):
        sink.append_framed(chain.end, length)
        chain.filled(length)
    sink.publish(-1)


class LeftOut:
    """The entries up to a log's checkpoint, which an adoption does not look for: what it costs must not depend on how many
    there are. Readers need those that were given to them last and may not have reached the kernel."""

    def __init__(self, log: Log, facts: Facts, stop: int, is_ended: bool) -> None:
        self._log = log
        self._facts = facts
        self._stop = stop
        self._count = log.missing_below
        self._is_ended = is_ended

    def find_from(self, position: int) -> bool:
        """Read from a frame on that lies so far before the checkpoint. The count of all tells which entries these are."""
        log, stop = self._log, self._stop
        # A finish is no place to begin behind; before a checkpoint of a live stream there is none.
        start = None if self._is_ended else find_tail(log, stop, self._count - position)
        if start is None:
            return False
        sink = TailSink(log, start)
        exchange = self._exchange(sink)
        exchange.prime()
        _read_run(exchange, sink, stop)
        sink.chain.feed(exchange.receive, stop)
        first = self._count - len(sink.entries)
        if not sink.is_plain or sink.end != stop or first > position:
            return False
        if any(record.place >= first for record in log.recorded()):
            return False
        log.entries[first : self._count] = sink.entries
        log.missing_below = first
        return True

    def find_all(self) -> None:
        """Read from the first byte on, into a log of its own over the same chains."""
        log, count = self._log, self._count
        scratch = log.sharing_chains()
        sink = RebuildSink(scratch, 0, lambda: None)
        sink.chain.feed(self._exchange(sink).receive, self._stop)
        sink.insert_ours()
        log.entries[:count] = scratch.entries[:count]
        found = [position for position in scratch.silent if position < count]
        log.silent = array("Q", [*found, *(position for position in log.silent if position >= count)])

    def _exchange(self, sink: RebuildSink | TailSink) -> Exchange:
        facts = self._facts
        expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
        nobody = _Nobody()
        return Exchange(sink, make_watch(), nobody, expect, (1 << 25, 1 << 40), nobody)
