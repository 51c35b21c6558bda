"""Adoption: taking over live streams and connections from their rows, the arena and their sockets.

What lives here: the order in which rows become objects again. It sees all rooms, as lifecycle does.
What must not: how a row is read (streams), how a response is regenerated (server), how an answer is parsed (engines).

Nobody reconnects, nothing is lost, nothing repeats: the bytes that were read lie in the arena, because the kernel put
them there; those that were written are counted by the kernel; and law 2 regenerates all that lies between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from .server.record import Phase
from .server.takeover import AdoptedConnection, Legacy
from .streams.counters import Reading, bytes_read, bytes_written, take_reading
from .streams.log import Log
from .streams.memory import Memory
from .streams.rebuild import RebuildSink, checkpoint_offset, facts_of_row, log_of_row
from .streams.registry import Registry
from .streams.stream import EndingWords, Facts, Link, State, Stream
from .streams.tables import ATTEMPTS_WORD, ConnectionRow, StreamRow, Table, unpack_connection, unpack_stream
from .streams.terms import Slot
from .words.faultpoint import reach
from .words.reasons import CloseReason

log = logging.getLogger("longwire.adopt")

MAX_ATTEMPTS = 2
"""A stream whose adoption has killed so many adopters is not read again: it would take one process down after the other."""

ASKERS_S = 5.0
"""How long a request that was under way may take to be read again (a large body is read in another process) and to find
the stream that it has started already."""

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
    _taken: list[AdoptedConnection] = field(default_factory=list)

    async def adopt(self, rows: Rows, sockets: Mapping[Socket, socket.socket]) -> None:
        """Take over every row whose socket is there.

        A stream goes first and its readers follow, because what they get is computed from it; one after the other, so that
        the first goes on while the last still waits. Ended streams that nobody reads sleep until there is time. Each counter is
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
        awake = {index: row for index, row in rows.streams.items() if row.state != State.ENDED or index in readers}
        dormant = [(index, row) for index, row in rows.streams.items() if index not in awake]
        for index, row in sorted(dormant, key=lambda each: each[1].ended_us):
            self.registry.let_sleep(row.id, (row.asker, row.asked_at), partial(self._take_stream, index, row, None))
        for index, row in awake.items():
            await self._adopt_stream(index, row, readers.get(index, []))
        for connection_index in readers.get(-1, []):
            await self._adopt_connection(connection_index, None)
        self.registry.is_incomplete = False
        for sock in self._sockets.values():
            sock.close()
        self._look_for_unread()
        for taken in self._taken:
            taken.go_on()
        self._taken.clear()

    def _look_for_unread(self) -> None:
        """Where nobody reads, the policy for that applies; somewhat later where whoever asked may only not have come so far."""
        here = {connection.serial: connection for connection in self.listener.connections}

        def may_ask(asker: tuple[int, int]) -> bool:
            connection = here.get(asker[0])
            if connection is None:
                return False
            return (asker[1], connection.writer is None) > (connection.written_bytes, False)

        awaited = self.registry.keep_askers(may_ask)
        for stream in self.registry.list_live():
            if stream not in awaited:
                stream.note_if_unread()
        if awaited:
            asyncio.get_running_loop().call_later(ASKERS_S, self._forget_askers)

    def _forget_askers(self) -> None:
        for stream in self.registry.forget_askers():
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
        with self._attempt(table, index):
            reach("adopting_stream")
            if attempts < MAX_ATTEMPTS:
                stream = self._take_stream(index, row, self._readings.get((row.owner, row.fd)))
                if stream.state is not State.ENDED:
                    await self._take_upstream(stream, row)
            elif attempts == MAX_ATTEMPTS:
                log.error("stream_poisoned", extra={"fields": {"model": facts_of_row(row).model, "attempts": attempts}})
                self.registry.count_poisoned()
                stream = self._take_stream(index, row, None)
                stream.log.missing = None  # whatever is wrong with it stands in what would be read again
                stream.end(CloseReason.INTERNAL_ERROR, "Taking this stream over failed again and again.")
            else:
                table.give(index)
        self.streams_adopted += stream is not None
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
        with self._attempt(table, index):
            reach("adopting_connection")
            if row.phase == Phase.PASSING and self.listener.neighbours is not None:
                self.listener.neighbours.pass_again(index, row, sock)
                return
            legacy = Legacy(row, table.words[table.word_index(index)], self._readings[key], stream)
            connection = AdoptedConnection(self.listener, index, legacy)
            await asyncio.get_running_loop().connect_accepted_socket(partial(_same, connection), sock)
            if connection.problem is not None:
                raise connection.problem
            if self.listener.neighbours is not None:
                self.listener.neighbours.note_here(row.serial, row.read_base)
            self.connections_adopted += 1
            self._taken.append(connection)

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
        checkpoint, records_bytes = table.words[table.word_index(index)], table.words[table.word_index(index) + 1]
        if row.state == State.ENDED:
            checkpoint, records_bytes = row.end, row.records_bytes
        facts = facts_of_row(row)
        words_for: EndingWords = RelayWords() if facts.route == "relay" else OpenAiWords()
        is_ended = row.state == State.ENDED
        start = checkpoint_offset(checkpoint)
        upstream_bytes = start
        if reading is not None and not is_ended:
            upstream_bytes = bytes_read(reading) - row.read_base
        log_of = log_of_row(self.registry.arena, row, (checkpoint, records_bytes), upstream_bytes)
        if log_of.known_from:
            log_of.missing = partial(_fill, log_of, facts, start, log_of.known_from)
        stream = self.registry.take_over(index, row, facts, words_for, log_of)
        if not is_ended:
            stream.slot = self.readmit(stream)
            log_of.upstream.on_full = stream.wait_for_blocks
        return stream

    async def _take_upstream(self, stream: Stream, row: StreamRow) -> None:
        """Go on with the engine: read what lies in the arena, then what comes over the same socket."""
        key = (row.owner, row.fd)
        sock, reading = self._sockets.pop(key, None), self._readings.get(key)
        call = self._make_call(stream)
        if call is None:
            if sock is not None:
                sock.close()
            stream.end(CloseReason.UPSTREAM_UNREACHABLE, "The engine of this stream is not configured any more.")
            return
        stream.producer = call
        if sock is None or reading is None:
            self._go_on_without_socket(stream, call)
            return
        connection = UpstreamConnection(call.upstream.freed, call.upstream.lost)
        exchange = call.take_over(connection, bytes_read(reading), bytes_written(reading, connected=True))
        self._read_on(stream, exchange)
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

    def _read_on(self, stream: Stream, exchange: Exchange) -> None:
        """Read the bytes behind the checkpoint again."""
        table = self.memory.streams
        start = checkpoint_offset(table.words[table.word_index(stream.row)])
        if start:
            exchange.prime()
        sink = RebuildSink(stream.log, start, stream.commit_taken)
        exchange.switch_sink(sink)
        sink.chain.feed(exchange.receive, stream.log.upstream.end)
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
            RebuildSink(stream.log, 0, stream.commit_taken).publish(-1)  # readers may have had heartbeats
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


def _fill(log: Log, facts: Facts, stop: int, count: int) -> None:
    """The first ``count`` entries, which lie below offset ``stop``, read into a log of their own over the same chains."""
    scratch = log.sharing_chains()
    _read_again(scratch, facts, stop)
    log.entries[:count] = scratch.entries[:count]
    log.silent[:0] = array("Q", (position for position in scratch.silent if position < count))
