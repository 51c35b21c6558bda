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
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from .dialects.base import RelayWords
from .dialects.openai_chat import OpenAiWords
from .engines.call import Call, Order
from .engines.exchange import Exchange
from .engines.openai import PLAIN_MARKS
from .engines.pool import Upstream
from .engines.reading import how_to_read
from .engines.transport import UpstreamConnection
from .generation import Generation, GenerationShell
from .rereading import LeftOut, find_body_head, read_run
from .server.listener import Listener
from .server.record import Phase
from .server.takeover import AdoptedConnection, Attempt, Checkpoint, Legacy
from .streams.claim import Rows, Socket, claim_rows
from .streams.counters import Reading, bytes_read, bytes_written, take_reading
from .streams.memory import Memory
from .streams.rebuild import RebuildSink, checkpoint_offset, facts_of_row, log_of_row
from .streams.registry import Registry
from .streams.salvage import salvage
from .streams.stream import EndingWords, Kind, State, Stream
from .streams.tables import ATTEMPTS_WORD, HAS_COMMENTS, RECORDS_WORD, StreamRow, Table
from .streams.terms import Slot
from .waiting import wanted_of
from .words.faultpoint import reach
from .words.reasons import CloseReason
from .words.settings import EngineSettings

__all__ = ["Adopter", "Rows", "Socket", "claim_rows"]

log = logging.getLogger("longwire.adopt")

AT_ONCE = 16
"""Streams that wait for their transports together: one alone takes some turns of the loop, in which nothing else is done."""
MAX_ATTEMPTS = 2
"""A stream whose adoption has killed so many adopters is not read again: it would take one process down after the other."""

LOOK_S = 1.0
"""How often we look whether a request that was under way has found the stream that it has started already. A large body is
read again in another process, which must start first; a pipelined request waits until its client has read the last answer."""


class _Nowhere:
    """The home of a connection that there is not any more."""

    def freed(self, connection: UpstreamConnection, reusable: bool) -> None: ...

    def lost(self, connection: UpstreamConnection) -> None: ...


class Opening(NamedTuple):
    """A stream's engine, up to the point where there must be a transport."""

    call: Call
    connection: UpstreamConnection
    sock: socket.socket
    rest: list[memoryview]
    """What the engine has not been sent of the request."""


@dataclass(slots=True)
class Adopter:
    """The rooms into which streams and connections are taken. ``readmit`` gives a taken stream its tenant's slot again."""

    memory: Memory
    registry: Registry
    listener: Listener
    generations: GenerationShell
    readmit: Callable[[Stream], Slot | None] = lambda _: None
    streams_adopted: int = 0
    connections_adopted: int = 0
    faults: int = 0
    _rows: Rows = field(default_factory=lambda: Rows({}, {}))
    _sockets: dict[Socket, socket.socket] = field(default_factory=dict)
    _readings: dict[Socket, Reading] = field(default_factory=dict)
    _known_until: dict[bytes, int] = field(default_factory=dict)
    """Streams that were ended here, and how many entries they had before that was said in them."""
    _taken: list[AdoptedConnection] = field(default_factory=list)
    _unsent: list[Stream] = field(default_factory=list)
    """Streams whose request was not sent: whether there is room for it shows when all that was sent is here again."""
    _unclaimed: set[bytes] = field(default_factory=set)
    """Streams of which it is not known yet whether anybody will come to read them."""

    async def adopt(self, rows: Rows, sockets: Mapping[Socket, socket.socket]) -> None:
        """Take over every row whose socket is there.

        A stream goes first and its readers follow, because what they get is computed from it; a few at a time, so that the
        first goes on while the last still waits, and those that have something to say before the others. Ended streams that
        nobody reads sleep until there is time. Each counter is read before its socket is read from or written to. What fails
        fails alone.
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
            self.registry.let_sleep(row.id, (row.asker, row.asked_at), partial(self._wake, index, row))
        for some in _by_few(self._in_order_of_need(awake)):
            await asyncio.gather(*(self._adopt_stream(index, awake[index], readers.get(index, [])) for index in some))
        for some in _by_few(readers.get(-1, [])):
            await asyncio.gather(*(self._adopt_connection(index, None) for index in some))
        self._send_unsent()
        self.registry.is_incomplete = False
        for sock in self._sockets.values():
            sock.close()
        self._unclaimed = {stream.id for stream in self.registry.list_live()}
        self._look_for_unread()
        for taken in self._taken:
            taken.go_on()
        for what in (self._taken, self._readings, self._known_until, self._sockets, self._unsent):
            what.clear()
        self._rows = Rows({}, {})

    def _in_order_of_need(self, rows: Mapping[int, StreamRow]) -> Iterator[int]:
        """Streams whose engine has said something come first, so that the longest pause is short: in any other order one that
        waits from the beginning may come last."""
        left = dict(rows)
        live = [(index, row) for index, row in rows.items() if row.state != State.ENDED]
        socks = {index: self._sockets[row.owner, row.fd] for index, row in live if (row.owner, row.fd) in self._sockets}
        with selectors.DefaultSelector() as selector:
            for index, sock in socks.items():
                selector.register(sock, selectors.EVENT_READ, index)
            waiting: deque[int] = deque()
            while left:
                waiting = waiting or deque(key.data for key, _ in selector.select(0)) or deque(islice(left, AT_ONCE))
                del left[index := waiting.popleft()]
                if index in socks:
                    selector.unregister(socks[index])
                yield index

    def _look_for_unread(self) -> None:
        """Where nobody reads, the policy for that applies; somewhat later where whoever asked may only not have come so far."""
        here = {connection.serial: connection for connection in self.listener.connections}

        def may_ask(asker: tuple[int, int]) -> bool:
            connection = here.get(asker[0])
            if connection is None:
                return False
            return (asker[1], connection.writer is None) > (connection.written_bytes, False)

        awaited = self.registry.keep_askers(may_ask)
        left = self._unclaimed - awaited
        for stream in self.registry.list_live():
            if stream.id in left:
                stream.note_if_unread()
        self._unclaimed = awaited
        if awaited:
            self.listener.clock.call_later(LOOK_S, self._look_for_unread)

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
        stream: Stream | None = None
        opening: Opening | None = None
        with self._attempt(self.memory.streams, index) as attempt:
            if attempt.count <= MAX_ATTEMPTS:
                stream = self._take_stream(index, row)
                if stream.state is not State.ENDED:
                    opening = self._take_upstream(stream, row)
                elif stream.kind is Kind.BODY and stream.refusal is None:
                    stream.body_head = find_body_head(stream.log, stream.facts)
            elif attempt.count == MAX_ATTEMPTS + 1:
                stream = self._take_poisoned(index, row)
        if stream is None or attempt.has_failed:
            stream = self._give_up_stream(index, row)
        self.streams_adopted += stream is not None
        if stream is not None and opening is not None:
            await self._go_on(stream, opening)
        for connection in readers:
            await self._adopt_connection(connection, stream)

    def _take_poisoned(self, index: int, row: StreamRow) -> Stream:
        """Whatever is wrong with it stands in what would be read again: so that is not read by the same means."""
        log.error("stream_poisoned", extra={"fields": {"model": facts_of_row(row).model}})
        self.registry.count_poisoned()
        stream = self._take_stream(index, row, is_poisoned=True)
        self._end(stream, CloseReason.INTERNAL_ERROR, "Taking this stream over failed again and again.")
        return stream

    def _give_up_stream(self, index: int, row: StreamRow) -> Stream | None:
        """What could not be taken over, or not wholly: it must not go on as if it were."""
        stream = self.registry.find_taken(row.id, index)
        if stream is None:
            log.error("row_given_up", extra={"fields": {"table": "streams", "row": index}})
            self.memory.streams.give(index)
        elif stream.state is not State.ENDED:
            self._end(stream, CloseReason.INTERNAL_ERROR, "Taking this stream over failed.")
        return stream

    def _end(self, stream: Stream, reason: CloseReason, message: str) -> None:
        """End a stream that cannot go on. What its readers have of it may be more than what is known of it here."""
        stream.unsplice()
        self._known_until[stream.id] = len(stream.log.entries)
        stream.stop(reason, message)

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
            with self._attempt(table, index) as attempt:
                reach("adopting_connection")
                self.listener.neighbours.pass_again(index, row, sock)
            if attempt.has_failed:  # nothing was sent
                table.give(index)
                sock.close()
            return
        known_until = self._known_until.get(stream.id) if stream is not None else None
        checkpoint = Checkpoint(table.words[table.word_index(index)], known_until)
        legacy = Legacy(row, checkpoint, self._readings[key], stream)
        connection = AdoptedConnection(self.listener, index, legacy, lambda: self._attempt(table, index))
        try:
            await asyncio.get_running_loop().connect_accepted_socket(partial(_same, connection), sock)
        except OSError:
            log.exception("adoption_fault")
        if not connection.is_made:
            table.give(index)
            sock.close()
            return
        if self.listener.neighbours is not None:
            self.listener.neighbours.note_here(row.serial, row.read_base)
        self.connections_adopted += 1
        self._taken.append(connection)

    @contextmanager
    def _attempt(self, table: Table, index: int) -> Iterator[Attempt]:
        """Count in the row that its adoption was begun, for whoever comes after an adopter that dies of it. What is merely
        wrong is logged, and the others are gone on with."""
        word = table.word_index(index) + ATTEMPTS_WORD
        attempt = Attempt(table.words[word] + 1)
        table.words[word] = attempt.count
        try:
            yield attempt
        except Exception:
            self.faults += 1
            attempt.has_failed = True
            log.exception("adoption_fault")
        table.words[word] = 0

    # Streams.

    def _wake(self, index: int, row: StreamRow) -> Stream | None:
        """An ended stream, when somebody wants it or there is time."""
        stream: Stream | None = None
        with self._attempt(self.memory.streams, index) as attempt:
            if attempt.count <= MAX_ATTEMPTS:
                stream = self._take_stream(index, row)
        return self._give_up_stream(index, row) if stream is None else stream

    def _take_stream(self, index: int, row: StreamRow, *, is_poisoned: bool = False) -> Stream:
        table = self.memory.streams
        word = table.word_index(index)
        checkpoint, records = table.words[word], table.words[word + RECORDS_WORD]
        if row.state == State.ENDED:
            checkpoint, records = row.end, row.records_bytes | records & HAS_COMMENTS
        facts = facts_of_row(row)
        is_ended = row.state == State.ENDED
        # One that a fault of ours has ended is not read by the same means either, now or when somebody asks for it.
        is_unreadable = is_poisoned or (is_ended and is_of(row, CloseReason.INTERNAL_ERROR))
        if not is_unreadable:
            reach("adopting_stream", facts.model)
        words_for: EndingWords = RelayWords() if facts.route == "relay" else OpenAiWords()
        start = checkpoint_offset(checkpoint)
        reading = self._readings.get((row.owner, row.fd))
        upstream_bytes = start
        if reading is not None and not is_ended:
            upstream_bytes = bytes_read(reading) - row.read_base
        log_of = log_of_row(self.registry.arena, row, (checkpoint, records), upstream_bytes)
        if reading is None and not is_ended:
            log_of.upstream.go_to(log_of.upstream.find_end(start))
        if is_unreadable:
            salvage(log_of, start, PLAIN_MARKS)
        elif log_of.known_from:
            log_of.missing = LeftOut(log_of, facts, start, is_ended)
        stream = self.registry.take_over(index, row, facts, words_for, log_of)
        if not is_ended:
            if is_poisoned:
                stream.commit_taken()
            stream.slot = self.readmit(stream)
            log_of.upstream.on_full = stream.wait_for_blocks
        return stream

    def _take_upstream(self, stream: Stream, row: StreamRow) -> Opening | None:
        """Read what of the engine's lies in the arena; returns what is needed to go on over the same socket, if there is
        more."""
        key = (row.owner, row.fd)
        sock, reading = self._sockets.pop(key, None), self._readings.get(key)
        if sock is None or reading is None:
            self._go_on_without_socket(stream, row)
            return None
        stream.producer = call = self._make_call(stream)
        connection = UpstreamConnection(call.upstream)
        exchange = call.take_over(connection, bytes_read(reading), bytes_written(reading, connected=True))
        self._read_on(stream, exchange)
        missing = row.request_bytes - (connection.written_bytes - row.written_base)
        rest = stream.request.slices(row.request_bytes - missing, missing) if stream.request and missing > 0 else []
        if connection.is_idle():
            sock.close()
            return None
        return Opening(call, connection, sock, rest)

    async def _go_on(self, stream: Stream, opening: Opening) -> None:
        """Read from the engine's socket from now on: once there is a block to read into. Waiting for the transport is no part
        of an attempt: another stream's fault may end the process meanwhile."""
        if stream.log.upstream.is_full:
            stream.wait_for_blocks()
        if not stream.log.upstream.is_full:
            await self._open(stream, opening)
            return
        opening.connection.open_later(opening.sock, lambda: self.generations.calls.start(self._open(stream, opening)))
        opening.call.upstream.take_over(opening.connection)
        stream.link = stream.link._replace(fd=opening.sock.fileno())
        self.registry.store_row(stream)

    async def _open(self, stream: Stream, opening: Opening) -> None:
        """Give the engine's connection its socket, and go on."""
        connection = opening.connection
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=opening.sock)
        except OSError:
            log.exception("adoption_fault")
            self._known_until[stream.id] = len(stream.log.entries)
            opening.call.lose(LOST)
            return
        if connection.is_idle():
            return  # what was waiting in the socket was the rest of the answer
        if not isinstance(call := stream.producer, Call):
            connection.close()
            return
        with self._attempt(self.memory.streams, stream.row):
            call.upstream.take_over(connection)
            connection.go_on(opening.rest)
            stream.link = stream.link._replace(fd=connection.fd)
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
            read_run(exchange, sink, stream.log.upstream.end)
        sink.chain.feed(exchange.receive, stream.log.upstream.end)
        if sink.has_comments:
            table.words[table.word_index(stream.row) + RECORDS_WORD] |= HAS_COMMENTS
        sink.publish(-1)
        exchange.switch_sink(stream)
        if isinstance(stream.log.missing, LeftOut):
            stream.log.missing.mark = exchange.watch.plain_mark
        stream.log.publish()

    def _make_call(self, stream: Stream) -> Call:
        facts = stream.facts
        upstreams = self.generations.directory.upstreams
        upstream = next((each for each in upstreams if each.name == facts.engine), None)
        if upstream is None:
            upstream = self._retired(facts.engine)
        expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
        clocks, wanted = self.generations.clocks_of(facts), wanted_of(facts)
        order = Order(b"", [], b"", expect, make_watch, clocks, None, facts.model, stream.created_at, wanted)
        return Call(upstream, order, stream, Generation(stream, self.generations), self.generations.calls)

    def _retired(self, name: str) -> Upstream:
        """An engine that a reload has taken out of the configuration: what it answers already is read to its end. Its
        connection is not kept after that, and no new one can be made."""
        settings = replace(self.listener.settings, upstream_keep_alive_s=0.0)
        return Upstream(EngineSettings(name=name, url=RETIRED_URL), settings, self.listener.clock)

    def _go_on_without_socket(self, stream: Stream, row: StreamRow) -> None:
        """No connection had been made; or it was TLS, whose state died with its process, or is lost for another reason: then
        what had been received is told, and that it is not all."""
        is_asked_for = stream.request is not None and not stream.facts.continues
        if stream.link.fd == NOT_CONNECTED and stream.state is State.OPENING and is_asked_for:
            RebuildSink(stream.log, 0, stream.commit_taken).publish(-1)  # readers may have had heartbeats
            self._unsent.append(stream)
            return
        stream.producer = call = self._make_call(stream)
        nobody = UpstreamConnection(_Nowhere())
        received = row.read_base + stream.log.upstream.end
        self._read_on(stream, call.take_over(nobody, received, row.written_base + row.request_bytes))
        if stream.state is not State.ENDED:
            self._known_until[stream.id] = len(stream.log.entries)
            call.lose(LOST)

    def _send_unsent(self) -> None:
        """Nobody can tell a request that waited for room from one that waited for its connection, and nobody need: it is sent
        where there is room, and waits where there is none. Readers that have had heartbeats were promised an answer."""
        for stream in sorted(self._unsent, key=lambda stream: stream.created_at):
            if stream.state is State.ENDED:
                continue
            with self._attempt(self.memory.streams, stream.row) as attempt:
                is_promised = stream.state is State.LIVE
                if is_promised or not Generation(stream, self.generations).wait_again():
                    stream.producer = call = self._make_call(stream)
                    call.start_stored()
            if attempt.has_failed:
                self._end(stream, CloseReason.INTERNAL_ERROR, "Taking this stream over failed.")


NOT_CONNECTED = -1
LOST = "The engine's connection was lost with a process of the gateway."
RETIRED_URL = "http://retired.invalid"
"""A name that never resolves (RFC 6761)."""

_REASONS = list(CloseReason)


def is_of(row: StreamRow, reason: CloseReason) -> bool:
    """Whether the row's stream has ended so."""
    return 0 < row.reason <= len(_REASONS) and _REASONS[row.reason - 1] is reason


def _by_few(indexes: Iterable[int]) -> Iterator[list[int]]:
    """So many of them as may wait for their transports together."""
    rest = iter(indexes)
    while some := list(islice(rest, AT_ONCE)):
        yield some


def _same(connection: AdoptedConnection) -> AdoptedConnection:
    """A protocol factory for the protocol that there is."""
    return connection
