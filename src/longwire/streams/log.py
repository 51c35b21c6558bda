"""The log of one stream: the upstream's bytes as they came, the gateway's records, and the index of events over both.

What lives here: appending, sealing, the place of a seq, and the bytes of a run of entries.
What must not: who reads (subscriber.py), how a door frames (doors.py), HTTP heads, engines.

The upstream's bytes lie in one chain just as the kernel stored them, HTTP framing included. What the gateway itself
adds (an in-band error, a heartbeat, an event in canonical form) lies in a second chain, the records, each already
framed as one HTTP chunk. An entry of the index is one integer that says which chain, where, and how long
(words/events.py).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple, Protocol

from ..words.events import (
    FRAME_END,
    FRAMED,
    KIND_BITS,
    KIND_MASK,
    LENGTH_MASK,
    RECORD,
    SILENT,
    START_SHIFT,
    pack,
    size_line_bytes,
)
from .arena import Arena, Use
from .chain import Chain
from .late import LateEntries

RECORD_HEADER = struct.Struct("<II")
"""Before each record: its place in the index, and its length with the kind and :data:`FROM_UPSTREAM`: all that is
needed to merge the two chains again."""
SPAN_BYTES = 64 * 1024
"""A span takes in what comes next while it is shorter. Whoever asks for one event has the others of its span found, too: a few
hundred are about a turn's step of a replay, and a note of each span is half a percent of its bytes."""
SEAM = 1 << 30
"""The record is the first event of another engine that goes on with a broken answer: a new epoch begins with it."""
FROM_UPSTREAM = 1 << 31
"""The record holds an event of the engine in another form. Reading the upstream's bytes again finds that event again."""


class LostEvents(Exception):
    """Events were counted, and nobody can tell any more where they lie."""


class Recorded(NamedTuple):
    """One record as it lies in the records' chain; ``place`` is its position in the index."""

    place: int
    start: int
    length: int
    kind: int
    from_upstream: bool
    is_seam: bool = False


class Span(NamedTuple):
    """Framed events one behind the other that were counted and not looked at yet: which positions, and which bytes."""

    place: int
    stop: int
    start: int
    end: int


_PLACE, _STOP = attrgetter("place"), attrgetter("stop")


class Missing(Protocol):
    """After an adoption: finds the entries below :attr:`Log.missing_below`, which nobody has asked for yet."""

    def find_from(self, position: int) -> bool:
        """Find those from ``position`` on, at least, without looking at what lies before; False where that cannot be done."""

    def find_all(self) -> None:
        """Find every one, however many there are."""


class Log:
    """Entries in order; readers see those below :attr:`deliverable`.

    ``deliverable`` equals the number of entries today. Replication and an output guard will hold it back.
    """

    __slots__ = (
        "_arena", "_holds", "_records", "deliverable", "encoded", "entries", "is_lost", "is_sealed", "known_from",
        "knows_silent", "missing", "missing_below", "seams", "silent", "spans", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        arena: Arena,
        on_full: Callable[[], None] | None = None,
        *,
        upstream: Chain | None = None,
        records: Chain | None = None,
    ) -> None:
        self._arena = arena
        self.upstream = upstream or Chain(arena, Use.LOG, on_full)
        self._records = records
        self._holds = 1
        self.entries: array[int] | LateEntries = array("Q")
        self.silent = array("Q")
        self.deliverable = 0
        self.seams: list[int] = []
        """Positions at which another engine goes on with what the one before has broken off."""
        self.is_sealed = False
        self.is_lost = False
        """The entries below :attr:`known_from` will never be found."""
        self.known_from = 0
        self.encoded: tuple[tuple[int, int, int], bytes] | None = None
        """What was encoded last for one of many readers: ``(door, position, stop)``, and the bytes (doors.py)."""
        self.spans: list[Span] = []
        """In order."""
        self.missing: Missing | None = None
        self.missing_below = 0
        self.knows_silent = False
        """Though entries are missing, :attr:`silent` is whole: every seq can be told."""

    def __repr__(self) -> str:
        state = "sealed" if self.is_sealed else "open"
        return f"<Log {state}, {self.event_count} events, {self.bytes_held} bytes>"

    @property
    def epoch(self) -> int:
        """Of the last event: how many engines have said something of this answer."""
        return 1 + len(self.seams)

    def epoch_at(self, position: int) -> int:
        """Of the entry at ``position``."""
        return 1 + bisect_right(self.seams, position) if self.seams else 1

    @property
    def event_count(self) -> int:
        """Entries with a seq that readers may see."""
        self._find_silent()
        return self.deliverable - bisect_left(self.silent, self.deliverable)

    @property
    def last_seq(self) -> int:
        """The seq of the last deliverable event; -1 where there is none."""
        return self.event_count - 1

    def silent_from(self, position: int) -> int:
        """How many entries from ``position`` on have no seq. Mostly none, which one look at the last of them tells."""
        silent = self.silent
        return 0 if not silent or silent[-1] < position else len(silent) - bisect_left(silent, position)

    @property
    def bytes_held(self) -> int:
        """Bytes in both chains."""
        return self.upstream.end + (self._records.end if self._records else 0)

    @property
    def block_count(self) -> int:
        """Blocks in both chains."""
        return len(self.upstream.blocks) + (len(self._records.blocks) if self._records else 0)

    @property
    def records(self) -> Chain | None:
        """The gateway's records, if there are any."""
        return self._records

    def sharing_chains(self) -> Log:
        """An empty index over the same bytes, to read them again. It holds nothing."""
        return Log(self._arena, upstream=self.upstream, records=self._records)

    # Appending.

    def append_framed(self, start: int, length: int) -> None:
        """An event whose bytes at ``start`` are one canonical HTTP chunk already."""
        self.entries.append(start << START_SHIFT | length << KIND_BITS | FRAMED)

    def append_run(self, start: int, lengths: Iterable[int]) -> None:
        """Framed events one behind the other: :meth:`append_framed` for each."""
        words = array("Q")
        for length in lengths:
            words.append(start << START_SHIFT | length << KIND_BITS | FRAMED)
            start += length
        self.entries.frombytes(words.tobytes())

    def append_span(self, start: int, end: int) -> tuple[int, int]:
        """Framed events from ``start`` to ``end`` of the upstream's bytes, one behind the other; the last may not be whole yet.

        Returns how many are, and where they end. They are counted now, and found only when somebody asks for one of them
        (:meth:`fill`).
        """
        data = self.upstream.read(start, end - start)
        if not data.endswith(FRAME_END):
            whole = data.rfind(FRAME_END) + len(FRAME_END) if FRAME_END in data else 0
            data, end = data[:whole], start + whole
        # One stands behind the size and one at the end, and none elsewhere: half the time of looking for ends.
        count = data.count(b"\r") // 2
        if not count:
            return 0, end
        span = Span(len(self.entries), len(self.entries) + count, start, end)
        before = self.spans[-1] if self.spans else None
        if before and (before.stop, before.end) == (span.place, start) and start - before.start < SPAN_BYTES:
            self.spans[-1] = Span(before.place, span.stop, before.start, end)
        else:
            self.spans.append(span)
        self.entries.frombytes(bytes(8 * count))
        self.known_from = span.stop
        return count, end

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        """An event (or comment) whose bytes at ``start`` are its own, without framing."""
        if silent:
            self.silent.append(len(self.entries))
        self.entries.append(pack(start, length, SILENT if silent else 0))

    def append_record(
        self, block: bytes, silent: bool = False, *, from_upstream: bool = False, is_seam: bool = False
    ) -> None:
        """A gateway record: ``block`` goes out as one event; with ``is_seam`` a new epoch begins with it.

        Raises:
            ArenaFull: nothing was appended.
        """
        if self._records is None:
            self._records = Chain(self._arena, Use.RECORDS)
        kind = FRAMED | RECORD | (SILENT if silent else 0)
        frame = b"%x\r\n%b\r\n" % (len(block), block)
        facts = len(frame) << KIND_BITS | kind | (FROM_UPSTREAM if from_upstream else 0) | (SEAM if is_seam else 0)
        header = RECORD_HEADER.pack(len(self.entries), facts)
        start = self._records.append(header + frame) + RECORD_HEADER.size
        if silent:
            self.silent.append(len(self.entries))
        if is_seam:
            self.seams.append(len(self.entries))
        self.entries.append(pack(start, len(frame), kind))

    def append_recorded(self, record: Recorded) -> None:
        """A record that is in the chain already, from before this process took the log over."""
        if record.kind & SILENT:
            self.silent.append(len(self.entries))
        self.entries.append(pack(record.start, record.length, record.kind))

    def recorded(self) -> list[Recorded]:
        """Every record in the chain, in order."""
        found: list[Recorded] = []
        at = 0
        while self._records is not None and at < self._records.end:
            place, facts = RECORD_HEADER.unpack(self._records.read(at, RECORD_HEADER.size))
            start = at + RECORD_HEADER.size
            length = (facts & ~(FROM_UPSTREAM | SEAM)) >> KIND_BITS
            flags = bool(facts & FROM_UPSTREAM), bool(facts & SEAM)
            found.append(Recorded(place, start, length, facts & KIND_MASK, *flags))
            at = start + length
        return found

    def publish(self) -> None:
        """Let readers see all that was appended."""
        self.deliverable = len(self.entries)

    def seal(self) -> None:
        """Nothing will be appended any more."""
        self.publish()
        self.is_sealed = True

    # Reading.

    def position_after(self, seq: int) -> int:
        """The index position from which a reader goes on that has everything up to ``seq`` (-1: nothing)."""
        self._find_silent()
        if seq < 0:
            return 0
        silent = self.silent
        # Silent entry i has silent[i] - i events before it; those with at most seq lie before the event that is meant.
        return seq + 1 + bisect_right(range(len(silent)), seq, key=lambda i: silent[i] - i)

    def seq_at(self, position: int) -> int:
        """The seq of the entry at ``position``; for a silent entry, that of the next event."""
        self._find_silent()
        return position - bisect_left(self.silent, position)

    def fill(self, position: int = 0, stop: int | None = None) -> None:
        """Find the entries from ``position`` up to ``stop`` (None: all) that were only counted; :func:`doors.encode` asks when
        it meets one. A log may have hundreds of thousands, and others wait for this turn to end.

        Raises:
            LostEvents: that is not possible any more.
        """
        if self.missing is not None and position < self.missing_below and not self.missing.find_from(position):
            self._find_missing()
        if self.is_lost:
            raise LostEvents("the beginning of this log cannot be told any more")
        spans = self.spans
        first = bisect_right(spans, position, key=_STOP)
        last = len(spans) if stop is None else bisect_left(spans, stop, first, key=_PLACE)
        for span in spans[first:last]:
            self._fill_span(span)
        del spans[first:last]
        self.known_from = spans[-1].stop if spans else self.missing_below

    def _fill_span(self, span: Span) -> None:
        position, start = span.place, span.start
        data = self.upstream.read(start, span.end - start)
        begin = 0
        while begin < len(data):
            stop = data.index(FRAME_END, begin) + len(FRAME_END)
            self.entries[position] = pack(start + begin, stop - begin, FRAMED)
            begin = stop
            position += 1

    def _find_missing(self) -> None:
        """Find all that an adoption left out."""
        missing, self.missing = self.missing, None
        if missing is not None:
            missing.find_all()
            self.missing_below = 0

    def _find_silent(self) -> None:
        """No seq can be told without knowing which entries are silent."""
        if self.missing is not None and not self.knows_silent:
            self._find_missing()

    def frame_views(self, position: int) -> list[memoryview]:
        """The entry's stored bytes: a whole HTTP chunk for framed entries, the bare event for others."""
        word = self.entries[position]
        chain = self._records if word & RECORD else self.upstream
        assert chain is not None
        return chain.slices(word >> START_SHIFT, word >> KIND_BITS & LENGTH_MASK)

    def block(self, position: int) -> bytes:
        """A copy of the entry's event, without framing."""
        if position < self.known_from:
            self.fill(position, position + 1)
        word = self.entries[position]
        start = word >> START_SHIFT
        length = word >> KIND_BITS & LENGTH_MASK
        chain = self._records if word & RECORD else self.upstream
        assert chain is not None
        if word & FRAMED:
            size_line = size_line_bytes(length)
            return chain.read(start + size_line, length - size_line - 2)
        return chain.read(start, length)

    def body(self) -> bytes:
        """A copy of every deliverable entry's bytes, one behind the other."""
        return b"".join(self.block(position) for position in range(self.deliverable))

    def run_of_frames(self, position: int, stop: int, limit_bytes: int) -> tuple[int, int, int]:
        """The longest run of framed upstream entries from ``position`` on whose bytes lie one behind the other.

        Returns ``(next_position, start, length)``; ``next_position == position`` where the first entry is of another kind.
        At least one entry is taken whatever its size; further ones only while the run is within ``limit_bytes``.
        """
        entries = self.entries
        word = entries[position]
        if word & KIND_MASK != FRAMED:
            return position, 0, 0
        start = word >> START_SHIFT
        end = start + (word >> KIND_BITS & LENGTH_MASK)
        position += 1
        while position < stop:
            word = entries[position]
            if word & KIND_MASK != FRAMED or word >> START_SHIFT != end or end - start >= limit_bytes:
                break
            end += word >> KIND_BITS & LENGTH_MASK
            position += 1
        return position, start, end - start

    # Holding.

    @property
    def is_shared(self) -> bool:
        """Whether several readers hold it."""
        return self._holds > 2

    @property
    def is_read(self) -> bool:
        """Whether somebody besides the owner holds the blocks: giving up the owner's hold would not free them."""
        return self._holds > 1

    def hold(self) -> None:
        """A reader's bytes may be on their way to the kernel: keep every block."""
        assert self._holds > 0, "the log's blocks are gone"
        self._holds += 1

    def drop(self) -> None:
        """Undo one :meth:`hold`, or the owner's first one; the last one gives the blocks back."""
        assert self._holds > 0, "dropped more often than held"
        self._holds -= 1
        if not self.is_shared:
            self.encoded = None
        if not self._holds:
            self.upstream.give()
            if self._records is not None:
                self._records.give()
