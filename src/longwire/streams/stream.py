"""A stream: one generation as a durable, addressable object.

What lives here: its identity, state, readers, policy and truthful ending; it is the sink that an engine's bytes go
into.
What must not: HTTP, engines, how readers write (subscriber.py), which streams there are (registry.py).

Over 400 lines: a stream is one state, and every change of it stands beside the others so that none forgets one.
"""

from __future__ import annotations

from collections.abc import Callable

from ..words.events import RECORD, SILENT
from ..words.faultpoint import reach
from ..words.ids import format_stream_id
from ..words.reasons import CloseReason
from .arena import PAUSE_BLOCKS, ArenaFull, Use
from .chain import Chain
from .failing import tell_failure
from .gaps import is_sampled, measuring
from .log import Log
from .shell import StreamShell
from .tables import COUNT_BITS, FIRST_TOKEN_WORD, HAS_COMMENTS, RECORDS_WORD, StreamRow
from .terms import TRANSITIONS, BodyHead, EndingWords, Facts, Kind, Link, OnDisconnect, Refusal, State

# isort: split
from .terms import Producer, Reader, Slot, is_part, to_nobody

__all__ = [
    "BodyHead", "EndingWords", "Facts", "Kind", "Link", "OnDisconnect", "Refusal", "State", "Stream", "StreamShell",
]  # fmt: skip


class Stream:
    """One generation. Made by the registry, filled by a producer, read by subscribers, ended exactly once."""

    keeps_bytes = True
    __slots__ = (
        "_arena", "_clock", "_counted_bytes", "_instruments", "_is_spliced", "_knows_gap", "_now", "_on_change",
        "_on_end", "_on_full", "_on_idle", "_seen_end", "_settling", "_spliced_from", "_tally", "_word", "_words", "beat_at",
        "body_head", "created_at", "created_wall", "ended_at", "ending", "facts", "grace_s", "id", "is_cut",
        "is_measured", "is_unread_since", "kind", "last_at", "link", "log", "on_disconnect", "producer", "reason",
        "refusal", "request", "row", "slot", "state", "subscribers", "waiting_since",
    )  # fmt: skip

    def __init__(
        self,
        id: bytes,
        facts: Facts,
        ending: EndingWords,
        shell: StreamShell,
        row: int,
        log: Log | None = None,
    ) -> None:
        arena = shell.arena
        table = shell.table
        self.id = id
        self.facts = facts
        self.ending = ending
        self.row = row
        self.log = log or Log(arena, self.wait_for_blocks)
        self.request: Chain | None = None
        self.state = State.OPENING
        self.kind = Kind.EVENTS
        self.reason: CloseReason | None = None
        self.refusal: Refusal | None = None
        self.body_head: BodyHead | None = None
        self.is_cut = False
        self.is_measured = is_sampled(id)
        self.producer: Producer | None = None
        self.slot: Slot | None = None
        self.link = Link()
        self.subscribers: tuple[Reader, ...] = ()
        self.on_disconnect = OnDisconnect.CANCEL
        self.grace_s = 0.0
        self.is_unread_since: float | None = None
        self.waiting_since: float | None = None
        self.beat_at = 0.0
        self._arena = arena
        self._clock = shell.clock
        self._now = shell.clock.now
        self._instruments = shell.instruments
        self._is_spliced, self._spliced_from = False, 0
        self._seen_end = 0
        self._counted_bytes = 0
        self._tally = shell.tally
        self._settling = shell.settling
        self._knows_gap = False
        self._on_end = shell.on_end
        self._on_idle = shell.on_idle
        self._on_full = shell.on_full
        self._on_change = shell.on_change
        self._words = table.words
        self._word = table.word_index(row)
        self.created_at = self.last_at = self._now()
        self.created_wall = shell.clock.wall()
        self.ended_at: float | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.state.name.lower()} {self.log!r} readers={len(self.subscribers)}>"

    @property
    def public_id(self) -> str:
        """The id as clients know it."""
        return format_stream_id(self.id)

    # The sink.

    @property
    def chain(self) -> Chain:
        """Where the kernel stores what the engine sends."""
        return self.log.upstream

    def splice(self) -> Callable[[bytes], None] | None:
        """Open the short way, where one live reader stands at the tail, or none reads at all.

        From now on the engine's connection may give whole frames to the function returned, and nothing else needs to be
        done for each. None: the long way it is. :meth:`settle` brings the log up to date afterwards, once per block or
        when somebody looks; whatever is to happen to the stream or its readers closes the short way first.
        """
        if self._is_spliced:
            return None
        readers = self.subscribers
        if len(readers) > 1 or self.state is not State.LIVE:
            return None
        write = readers[0].splice() if readers else to_nobody
        if write is None:
            return None
        self._is_spliced = True
        self._spliced_from = self._seen_end = self.log.upstream.end
        return measuring(self, write) if self.is_measured else write

    def unsplice(self) -> None:
        """Close the short way."""
        if self._is_spliced:
            if self.producer is not None:
                self.producer.unsplice()
            self.settle()
            self._is_spliced = False

    def lose_reader(self, fault: Exception) -> None:
        """The one reader of the short way cannot be written to: it ends, and the stream goes on by its policy."""
        for reader in self.subscribers:
            reader.fail(fault)

    def look(self, now: float) -> None:
        """Note when the engine was last heard of, for a stream whose events go the short way: cheaper than settling."""
        end = self.log.upstream.end
        if self._is_spliced and end != self._seen_end:
            self._seen_end = end
            if not self.is_measured:
                self.last_at = now

    def progress(self) -> int:
        """Another number whenever events have come, by whatever way; heartbeats are none."""
        log = self.log
        spliced = log.upstream.end - self._spliced_from if self._is_spliced else 0
        return len(log.entries) - len(log.silent) + spliced

    def count_events(self) -> int:
        """Events with a seq so far, those that went the short way included."""
        self.settle()
        return len(self.log.entries) - len(self.log.silent)

    def settle_soon(self) -> None:
        self._settling.add(self)

    def settle(self) -> None:
        """Take note of what has gone the short way."""
        log, start = self.log, self._spliced_from
        if not self._is_spliced or start == log.upstream.end:
            return
        count, end = log.append_span(start, log.upstream.end)
        if not count:
            return
        self._spliced_from = end
        log.deliverable = len(log.entries)
        self._instruments.events_total += count
        self._count_bytes(end)
        self.look(self._now())
        self._knows_gap = self.is_measured
        self._words[self._word] = end << COUNT_BITS | log.deliverable
        for reader in self.subscribers:
            reader.spliced(count, end - start)

    def append_framed(self, start: int, length: int) -> None:
        if self.state is not State.ENDED:
            self.log.append_framed(start, length)

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        if self.state is not State.ENDED:
            if silent:  # noted before it counts
                self._words[self._word + RECORDS_WORD] |= HAS_COMMENTS
            self.log.append_plain(start, length, silent)

    def append_record(self, block: bytes, silent: bool = False) -> None:
        if self.state is State.ENDED:
            return
        try:
            self._record(block, silent, from_upstream=True)
        except ArenaFull:
            self.stop(CloseReason.ARENA_FULL, "")

    def append_said(self, block: bytes, silent: bool = False, *, is_seam: bool = False) -> None:
        """An event of another engine, which goes on with the answer of the first; ``is_seam``: its first."""
        if self.state is State.ENDED:
            return
        try:
            self._record(block, silent, is_seam=is_seam)
        except ArenaFull:
            self.stop(CloseReason.ARENA_FULL, "")
            return
        if is_seam:
            self._on_change(self)

    def break_off(self) -> None:
        """What the engine has sent stands, and nothing follows: a second reading ends here, so it may begin here, too."""
        self.unsplice()
        self.publish(self.log.upstream.end)
        self.waiting_since = None
        self.link = Link()
        self._on_change(self)

    @property
    def is_blank(self) -> bool:
        """Nothing of an engine's is in it: heartbeats at most."""
        return not self.log.missing_below and all(entry & RECORD and entry & SILENT for entry in self.log.entries)

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        """Let readers have what was appended. ``checkpoint``: upstream offset where parsing can begin anew, or -1. ``is_last``:
        they get it with the end, in one write; whoever says so calls :meth:`end` in this turn."""
        if self.state is State.ENDED:
            return
        count = len(self.log.entries)
        if checkpoint >= 0:
            self._words[self._word] = checkpoint << COUNT_BITS | count
            self._instruments.upstream_bytes_total += checkpoint - self._counted_bytes
            self._counted_bytes = checkpoint
        if count == self.log.deliverable:
            return  # only the place where parsing can begin anew has moved
        if self.state is State.OPENING:
            self._move_to(State.LIVE)
        self.note_gap()
        self._knows_gap = True
        if not is_last:
            self._deliver(count)

    def note_gap(self) -> None:
        """An event has come just now."""
        now = self._now()
        if self._knows_gap:
            self._instruments.event_gap.observe_us(int((now - self.last_at) * 1e6))
        self.last_at = now

    def begin_body(self, head: BodyHead) -> None:
        """The answer is not an event stream: readers get this head and then the bytes as they are."""
        self.kind, self.body_head = Kind.BODY, head
        self._move_to(State.LIVE)
        self.last_at = self._now()

    def note_first_byte(self) -> None:
        """The engine's response head has begun to arrive."""
        if self.facts.first_byte_at is None:
            self.facts.first_byte_at = self._now()
            self._instruments.ttfb.observe_s(self.facts.first_byte_at - self.created_at)

    def note_first_token(self) -> None:
        """The first content (or reasoning, or tool) delta has arrived."""
        if self.facts.first_token_at is None:
            self.facts.first_token_at = now = self._now()
            self._words[self._word + FIRST_TOKEN_WORD] = int(now * 1e6)
            self._instruments.ttft.observe_s(self.facts.first_token_at - self.created_at)

    # Ending.

    def end(self, reason: CloseReason, message: str = "", refusal: Refusal | None = None) -> None:
        """End the stream, exactly once; later calls change nothing.

        Before the first content it becomes an ordinary error response; after it, an in-band error and the end marker.
        """
        if self.state is State.ENDED:
            return
        self.unsplice()
        self.reason = reason
        if not reason.is_success:
            tell_failure(self, reason, message, refusal)
        self._count_events(len(self.log.entries))
        self.log.seal()
        self._count_bytes(self.log.upstream.end)
        self._move_to(State.ENDED)
        self.ended_at = self._now()
        self.producer = None
        self.waiting_since = None
        request = None if is_part(self.facts, self.kind, reason, self.request) else self.request
        self.request = None if request is not None else self.request
        if self.slot is not None:
            self.slot.release()
        try:
            self._on_end(self)
        finally:
            if request is not None:
                request.give()  # after the row was written: it must not name what may be another's by the time we are killed

    def stop(self, reason: CloseReason, message: str) -> None:
        """Stop the generation now, at the engine too."""
        self.unsplice()
        if self.producer is not None:
            self.producer.stop()
        self.end(reason, message)

    def heartbeat(self, block: bytes) -> None:
        """A gateway record without seq after a silence; it commits a stream that is still opening.

        An arena that is full gets no heartbeat: readers then see silence, which is the truth. Its last blocks are for endings.
        """
        records = self.log.records
        if self._arena.free_blocks < PAUSE_BLOCKS and (records is None or len(records.rest) < 2 * len(block) + 32):
            return
        self.unsplice()
        try:
            self._record(block, silent=True)
        except ArenaFull:
            return
        self._instruments.heartbeats_total += 1
        self.beat_at = self._now()
        if self.state is State.OPENING:
            self._move_to(State.LIVE)
        self._deliver(len(self.log.entries))

    # Readers.

    def wake(self) -> None:
        """There is more to read, or the end."""
        for subscriber in self.subscribers:
            subscriber.wake()

    def attach(self, subscriber: Reader) -> None:
        """One more reader; it is pumped at once if there is anything to write."""
        self.unsplice()
        self.subscribers = (*self.subscribers, subscriber)
        self._tally.readers += 1
        self.is_unread_since = None
        self.facts.readers_total += 1
        subscriber.pump()

    def detach(self, subscriber: Reader) -> None:
        """One reader less. The last one's leaving starts the policy for unread streams."""
        self.unsplice()
        left = tuple(other for other in self.subscribers if other is not subscriber)
        self._tally.readers -= len(self.subscribers) - len(left)
        self.subscribers = left
        self.note_if_unread()

    def note_if_unread(self) -> None:
        """Where nobody reads a stream that goes on, its policy for that begins to count."""
        if not self.subscribers and self.state is not State.ENDED:
            self.is_unread_since = self._now()
            self._on_idle(self)

    # The request's bytes.

    def store_request(self, data: bytes) -> None:
        """Keep the encoded upstream request; a second attempt's replaces the first one's. Raises ArenaFull where there is no
        room and nothing was stored, but never for a second one that is not longer than the first."""
        before = self.request
        try:
            self.request = Chain.holding(self._arena, Use.REQUEST, data)
        except ArenaFull:
            if before is None:
                raise
            before.replace(data)
        if before is not None:
            self._on_change(self)  # the row tells of the new one before the other's blocks are somebody else's
            if self.request is not before:
                before.give()

    def request_views(self) -> list[memoryview]:
        """The stored request, as it lies in the arena."""
        assert self.request is not None
        return self.request.slices(0, self.request.end)

    def restart(self) -> None:
        """A failed attempt is to be forgotten: nothing of it was published, and the next one starts at offset 0.

        The log stays, for readers hold it already. It may have heartbeats: they lie among the records.
        """
        assert all(entry & RECORD for entry in self.log.entries), "what was appended cannot be taken back"
        self.log.upstream.rewind()
        self._counted_bytes = 0
        self.waiting_since = None
        self.link = Link()  # the first attempt's descriptor may be another's by now: no row may name it any more
        self._on_change(self)

    # Taking over.

    def take_over(self, row: StreamRow) -> None:
        """Be what the row says, for a stream whose process has died. The log was given to the constructor."""
        self.state = State(row.state)
        self.kind = Kind(row.kind)
        self.on_disconnect, self.grace_s = OnDisconnect(row.on_disconnect), row.grace_ms / 1000
        self.link = Link(row.fd, row.read_base, row.written_base)
        self.created_at = self.last_at = row.created_us / 1e6
        self.created_wall = self._clock.wall() - (self._now() - self.created_at)
        if first_token_us := self._words[self._word + FIRST_TOKEN_WORD]:
            self.facts.first_token_at = first_token_us / 1e6
        self._counted_bytes = (row.end or self._words[self._word]) >> COUNT_BITS  # whoever wrote it has counted so far
        self.log.publish()
        if row.request_block:
            self.request = Chain(self._arena, Use.REQUEST, stored=(row.request_block, row.request_bytes))
        if self.state is State.ENDED:
            self.reason = list(CloseReason)[row.reason - 1]
            self.ended_at = row.ended_us / 1e6
            self.log.seal()
            self._take_over_failure(self.reason)

    def _take_over_failure(self, reason: CloseReason) -> None:
        """Be as broken as before: nothing that failed may come back as a success."""
        if reason.is_success:
            return
        if self.kind is Kind.BODY:
            self.is_cut = True
        elif not self.log.entries:
            self.refusal = Refusal(reason.status or 500, self.ending.error_body(reason, reason.help))

    def commit_taken(self) -> None:
        """Entries were found again: readers had been promised a stream, whatever the row still says."""
        if self.state is State.OPENING and self.log.entries:
            self._move_to(State.LIVE)
        if (records := self.log.records) is not None:  # some may have been written once more
            self._words[self._word + RECORDS_WORD] = self._words[self._word + RECORDS_WORD] & HAS_COMMENTS | records.end
        self._count_events(len(self.log.entries))
        self.log.publish()

    def wait_for_blocks(self) -> None:
        """The log found no block: make room if that is possible, else wait for it."""
        self._find_block()

    # Inside.

    def _record(
        self, block: bytes, silent: bool = False, *, from_upstream: bool = False, is_seam: bool = False
    ) -> None:
        """Append a record, and tell the row: the chain's first block when there is one, its length always."""
        is_first = self.log.records is None
        self.log.append_record(block, silent, from_upstream=from_upstream, is_seam=is_seam)
        records = self.log.records
        assert records is not None
        reach("in_record")
        self._words[self._word + RECORDS_WORD] = self._words[self._word + RECORDS_WORD] & HAS_COMMENTS | records.end
        if is_first:
            self._on_change(self)

    def _deliver(self, count: int) -> None:
        """Let readers have the first ``count`` entries."""
        self._count_events(count)
        self.log.deliverable = count
        self.wake()

    def _count_events(self, count: int) -> None:
        """Of the first ``count`` entries some are about to become deliverable."""
        before = self.log.deliverable
        self._instruments.events_total += count - before - self.log.silent_from(before)

    def _count_bytes(self, end: int) -> None:
        """All up to ``end`` has come from the engine."""
        self._instruments.upstream_bytes_total += end - self._counted_bytes
        self._counted_bytes = end

    def _move_to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} cannot become {state.name}"
        self._tally.streams[self.state] -= 1
        self._tally.streams[state] += 1
        self.state = state

    def _blocks_are_free(self) -> None:
        if self.state is State.ENDED or not self.log.upstream.is_full:
            return
        if self._find_block() and self.producer is not None:
            self.producer.resume_reading()

    def _find_block(self) -> bool:
        """Extend the log, or wait until that is possible."""
        arena = self._arena
        if arena.free_blocks < PAUSE_BLOCKS:
            self._on_full()
        if arena.available(Use.LOG, more=True) >= PAUSE_BLOCKS:
            self.log.upstream.extend()
            self.waiting_since = None
            return True
        if self.waiting_since is None:
            self.waiting_since = self._now()
        arena.when_free(self._blocks_are_free)
        return False
