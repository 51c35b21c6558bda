"""Reading an engine's bytes a second time, for an adopter: the index of a log is found again in what lies in shared memory.

What lives here: from where on is read, and how little of it. What must not: the order of an adoption (adopt.py), how an answer
is parsed (engines), where entries go (streams.rebuild).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from .engines.base import Answer, Failure
from .engines.exchange import Exchange
from .engines.reading import how_to_read
from .streams.late import LateEntries
from .streams.log import Log
from .streams.rebuild import PIECE_BYTES, RebuildSink, TailSink, find_tail
from .streams.stream import BodyHead, Facts
from .wire.framer import one_frame, plain_run
from .words.events import FRAMED, pack
from .words.reasons import CloseReason


class _Nobody:
    """The owner of a reading that only wants entries."""

    def began(self) -> None: ...

    def refusing(self) -> None: ...

    def answered(self, answer: Answer) -> None: ...

    def completed(self, reason: CloseReason, message: str) -> None: ...

    def failed(self, failure: Failure) -> None: ...

    def splice(self, write: Callable[[bytes], None], mark: bytes) -> None: ...

    def release(self, reusable: bool) -> None: ...

    def drain(self) -> None: ...


def read_run(exchange: Exchange, sink: RebuildSink | TailSink, stop: int) -> None:
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
    sink.append_run(plain_run(data[first:], mark))
    sink.publish(-1)


class _Listener(_Nobody):
    """Who only wants to know with what head a body came."""

    def __init__(self) -> None:
        self.heard: Answer | None = None

    def answered(self, answer: Answer) -> None:
        self.heard = answer


def find_body_head(log: Log, facts: Facts) -> BodyHead | None:
    """The head of an ended answer that is no event stream, for a reader that had not been sent its response's yet."""
    expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
    sink, owner = RebuildSink(log.sharing_chains(), 0, lambda: None), _Listener()
    exchange = Exchange(sink, make_watch(), owner, expect, (1 << 25, 1 << 40), owner)
    sink.chain.feed(exchange.receive, log.upstream.end)
    heard = owner.heard
    return BodyHead(heard.status, heard.headers, heard.content_length) if heard is not None else None


class LeftOut:
    """The entries up to a log's checkpoint, which an adoption does not look for: what it costs must not depend on how many
    there are. Readers need those that were given to them last and may not have reached the kernel."""

    def __init__(self, log: Log, facts: Facts, stop: int, is_ended: bool) -> None:
        self._log = log
        self._facts = facts
        self._stop = stop
        self._count = log.missing_below
        self._is_ended = is_ended
        self.mark: bytes | None = None
        """What is in each of the stream's ordinary deltas, once somebody knows it."""

    def find_from(self, position: int) -> bool:
        """Read from a frame on that lies so far before the checkpoint. The count of all tells which entries these are."""
        log, stop = self._log, self._stop
        # A finish is no place to begin behind; before a checkpoint of a live stream there is none.
        start = None if self._is_ended else find_tail(log, stop, self._count - position)
        if start is None:
            return False
        entries = self._count_frames(start) or self._read_frames(start)
        if entries is None:
            return False
        first = self._count - len(entries)
        if first > position or any(record.place >= first for record in log.recorded()):
            return False
        assert isinstance(log.entries, LateEntries), "something is missing"
        log.entries.learn(first, entries)
        log.missing_below = first
        return True

    def _count_frames(self, start: int) -> array[int] | None:
        """Where there is nothing but ordinary deltas, and it is known what those have in them, they need only be counted."""
        if self.mark is None:
            return None
        entries, at = array("Q"), start
        for length in plain_run(self._log.upstream.read(start, self._stop - start), self.mark):
            entries.append(pack(at, length, FRAMED))
            at += length
        return entries if at == self._stop else None

    def _read_frames(self, start: int) -> array[int] | None:
        """As the exchange did that had them first."""
        sink = TailSink(self._log, start)
        exchange = self._exchange(sink)
        exchange.prime()
        read_run(exchange, sink, self._stop)
        sink.chain.feed(exchange.receive, self._stop)
        return sink.entries if sink.is_plain and sink.end == self._stop else None

    def find_all(self) -> None:
        """Read from the first byte on, into a log of its own over the same chains."""
        log, count = self._log, self._count
        scratch = log.sharing_chains()
        sink = RebuildSink(scratch, 0, lambda: None)
        exchange = self._exchange(sink)
        sink.chain.feed(exchange.receive, self._stop)
        sink.insert_ours()
        if (
            len(scratch.entries) < count
        ):  # its last event was taken though nothing ended it: the engine had closed behind it
            exchange.ended(None)
            sink.insert_ours()
        assert isinstance(scratch.entries, array) and isinstance(log.entries, LateEntries)
        log.entries = log.entries.completed(scratch.entries[:count])
        found = [position for position in scratch.silent if position < count]
        log.silent = array("Q", [*found, *(position for position in log.silent if position >= count)])

    def _exchange(self, sink: RebuildSink | TailSink) -> Exchange:
        facts = self._facts
        expect, make_watch = how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage)
        nobody = _Nobody()
        return Exchange(sink, make_watch(), nobody, expect, (1 << 25, 1 << 40), nobody)
