"""All streams of this process: opening, finding, retaining, evicting, and what happens to those nobody reads.

What lives here: the map by id, the map by Idempotency-Key, retention, and the sweep that looks after time.
What must not: HTTP, engines, the inside of a log.

One sweep serves every stream: a timer for each would cost memory, and none of these times needs to be exact.
Ended streams stand in order of their end, so eviction looks only at those that are due.

Over 400 lines: each stream is in several maps and orders, and what changes one of them must stand where all are seen.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..observe.instruments import Instruments
from ..words.clock import Clock
from ..words.errors import Gone, KeyReused, NotFound, Overloaded
from ..words.faultpoint import reach
from ..words.ids import make_stream_id, parse_stream_id
from ..words.reasons import CloseReason
from ..words.settings import Settings
from ..words.sweep import MIN_STEP_S, Sweep
from .arena import BLOCK_BYTES, PAUSE_BLOCKS, RESERVE_BLOCKS
from .log import Log
from .memory import Memory
from .rows import row_of
from .settling import Settling
from .stream import EndingWords, Facts, Kind, OnDisconnect, State, Stream, StreamShell
from .tables import StreamRow, pack_stream
from .terms import Tally

MAX_TOMBSTONES = 10_000
"""Evicted ids that still answer 410 instead of 404, so that a client learns that it came too late."""

GRACE_LOOK_S = 0.5
"""How often streams are looked at that nobody reads and that wait for a reader to come back."""
MAX_EVICTIONS_PER_STEP = 256
"""At a few microseconds each, about a millisecond."""
ARENA_WAIT_S = 15.0
"""How long streams that wait for memory may stand still before one of them is ended for the others. Whatever can free
blocks by itself has had its time by then, and the clients' own patience (30 s and more) has not run out."""

_NO_STREAM = "No stream has this id."


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What an Idempotency-Key started."""

    body_hash: bytes
    stream: Stream
    expires_at: float


class Registry:
    """Owns every stream from :meth:`open` to eviction."""

    def __init__(
        self,
        memory: Memory,
        settings: Settings,
        clock: Clock,
        instruments: Instruments,
        on_end: Callable[[Stream], None],
    ) -> None:
        self.place = memory.place
        self.arena = arena = memory.arena
        self.table = table = memory.streams
        self._settings = settings
        self._clock = clock
        self._instruments = instruments
        self._report_end = on_end
        self._tally = tally = Tally()
        hooks = self._ended, self._unread, self._make_room, self.store_row
        self._shell = StreamShell(arena, table, clock, instruments, *hooks, tally, Settling(clock))
        self._streams: dict[bytes, Stream] = {}
        self._ended_in_order: OrderedDict[bytes, Stream] = OrderedDict()
        self._keys: OrderedDict[bytes, KeyEntry] = OrderedDict()
        self._tombstones: OrderedDict[bytes, str] = OrderedDict()
        self._retained_blocks = 0
        self._sweep: Sweep[Stream] = Sweep(clock, self.tick_s, self._streams.values, self._look_at, self._begin_round)
        self._dormant: dict[bytes, Callable[[], Stream | None]] = {}
        self.is_incomplete = False
        """Streams are still being taken over: one that is not here may come."""
        self._asked: dict[tuple[int, int], bytes] = {}
        self._graced: set[Stream] = set()
        self._grace_sweep: Sweep[Stream] = Sweep(clock, GRACE_LOOK_S, lambda: self._graced, self._look_at_graced)
        self._secret = secrets.token_bytes(32)
        self.live_count = 0
        """Streams that have not ended."""
        self._sacrificed_at = clock.now()
        self.heartbeat_block = b": longwire\n\n"
        total = arena.blocks * BLOCK_BYTES
        self._retention_blocks = (settings.retention_bytes or total // 2) // BLOCK_BYTES

    def __repr__(self) -> str:
        return f"<Registry {len(self._streams)} streams, {len(self._ended_in_order)} of them ended>"

    def use_secret(self, secret: bytes) -> None:
        """Hash under this key from now on, which outlives the process, instead of one of our own."""
        self._secret = secret

    # Opening and finding.

    def open(self, facts: Facts, ending: EndingWords) -> Stream:
        """A new stream in state opening.

        Raises:
            Overloaded: the arena or the table has no room for one more, even after evicting what may be evicted.
        """
        self._make_room()
        if self.table.rows_used >= self.table.rows:
            self._evict_oldest()
        row = self.table.take() if self.arena.has_room else None
        if row is None:
            raise Overloaded("There is no room for another stream; try again shortly.", retry_after_s=2)
        stream = Stream(make_stream_id(self.place.slot), facts, ending, self._shell, row)
        self._streams[stream.id] = stream
        self.live_count += 1
        self._tally.streams[State.OPENING] += 1
        self._instruments.streams_started_total += 1
        return stream

    def take_over(self, row_index: int, row: StreamRow, facts: Facts, ending: EndingWords, log: Log) -> Stream:
        """A stream whose process has died, from its row; it is this registry's from now on."""
        stream = Stream(row.id, facts, ending, self._shell, row_index, log)
        stream.take_over(row)
        self._streams[stream.id] = stream
        self._tally.streams[stream.state] += 1
        if stream.state is State.ENDED:
            self._keep(stream)
        else:
            self.live_count += 1
        if self.is_incomplete:
            self._asked[facts.asker] = stream.id
        if facts.key_hash and (stream.state is not State.ENDED or _has_content(stream)):
            self.pin_key(facts.key_hash, facts.body_hash, stream)
        return stream

    def find_taken(self, id: bytes, row_index: int) -> Stream | None:
        """The stream that was taken over from this row, if it was."""
        stream = self._streams.get(id)
        return stream if stream is not None and stream.row == row_index else None

    def let_sleep(self, id: bytes, asker: tuple[int, int], take: Callable[[], Stream | None]) -> None:
        """An ended stream of a process that has died: ``take`` makes it once it is asked for, or when there is time. None: it
        cannot be made."""
        self._dormant[id] = take
        self._asked[asker] = id  # it may have ended between two deaths, before its reader was noted

    def wake_some(self, count: int) -> bool:
        """Take over so many of those that sleep, the latest first; whether any are left."""
        for _ in range(min(count, len(self._dormant))):
            _, take = self._dormant.popitem()
            if (stream := take()) is not None:
                self._ended_in_order.move_to_end(stream.id, last=False)
        return bool(self._dormant)

    def find_asked(self, asker: tuple[int, int]) -> Stream | None:
        """The stream that this very request has started already, in a process that died before its reader was noted."""
        id = self._asked.pop(asker, b"") if self._asked else b""
        return self._dormant.pop(id)() if id in self._dormant else self._streams.get(id)

    def count_poisoned(self) -> None:
        """A stream was sealed because taking it over killed one process after the other."""
        self._instruments.poisoned_total += 1

    def keep_askers(self, may_ask: Callable[[tuple[int, int]], bool]) -> set[bytes]:
        """All is taken over: the ids of streams that may still be asked for by the very request that has started them. The
        others are forgotten; these are not evicted until it has come, or is known not to by another call."""
        self._asked = {asker: id for asker, id in self._asked.items() if may_ask(asker)}
        return set(self._asked.values())

    def knows(self, public_id: str) -> bool:
        """Whether the stream is here already."""
        raw = parse_stream_id(public_id)
        return raw in self._streams or raw in self._dormant or raw in self._tombstones

    def find(self, public_id: str, tenant: str | None) -> Stream:
        """The stream with this id, if it is the tenant's own; ``tenant`` None means the operator, who sees all.

        Raises:
            NotFound: unknown, or another tenant's: the two look alike.
            Gone: it was the tenant's own and has been evicted.
        """
        raw = parse_stream_id(public_id)
        if raw is None:
            raise NotFound(_NO_STREAM)
        stream = self._streams.get(raw)
        if stream is None and raw in self._dormant:
            stream = self._dormant.pop(raw)()
        if stream is None:
            owner = self._tombstones.get(raw)
            if owner is not None and tenant in (None, owner):
                raise Gone("This stream was kept for the retention time and is gone.")
            if self.is_incomplete:
                raise Overloaded("This stream may be on its way here from another process; try again.", retry_after_s=1)
            raise NotFound(_NO_STREAM)
        if tenant is not None and stream.facts.tenant != tenant:
            raise NotFound(_NO_STREAM)
        stream.settle()
        return stream

    def list(self, tenant: str | None) -> Iterator[Stream]:
        """The tenant's streams (all for the operator), oldest first."""
        self.wake_some(len(self._dormant))
        for stream in list(self._streams.values()):
            if tenant in (None, stream.facts.tenant):
                stream.settle()
                yield stream

    def list_live(self) -> Iterator[Stream]:
        """The streams that have not ended."""
        return (stream for stream in list(self._streams.values()) if stream.state is not State.ENDED)

    # Idempotency.

    def hash(self, *parts: bytes) -> bytes:
        """A keyed hash (16 bytes) that says nothing to whoever lacks this process's secret."""
        digest = hashlib.blake2b(digest_size=16, key=self._secret)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def find_by_key(self, key_hash: bytes, body_hash: bytes) -> Stream | None:
        """The stream that this Idempotency-Key started, or None.

        Raises:
            KeyReused: the key came with another body.
        """
        if self._dormant and key_hash not in self._keys:
            self.wake_some(len(self._dormant))
        entry = self._keys.get(key_hash)
        if entry is None or entry.expires_at <= self._clock.now():
            return None
        if entry.body_hash != body_hash:
            raise KeyReused("This Idempotency-Key was used with another body.", param="Idempotency-Key")
        return entry.stream

    def pin_key(self, key_hash: bytes, body_hash: bytes, stream: Stream) -> None:
        """From now on the key finds this stream."""
        stream.facts.key_hash, stream.facts.body_hash = key_hash, body_hash
        expires_at = self._clock.now() + self._settings.idempotency_ttl_s
        self._keys[key_hash] = KeyEntry(body_hash, stream, expires_at)
        self._keys.move_to_end(key_hash)

    def _forget_key(self, stream: Stream) -> None:
        entry = self._keys.get(stream.facts.key_hash)
        if entry is not None and entry.stream is stream:
            del self._keys[stream.facts.key_hash]

    def store_row(self, stream: Stream) -> None:
        """Write what a process would need to take this stream over: a few times in its life, never per event."""
        self.table.write(stream.row, pack_stream(row_of(stream, self.place)))

    # Endings.

    def _ended(self, stream: Stream) -> None:
        """Called by a stream, once, when it has been sealed. Readers have the end as soon as the row has it: they do not wait
        for what is counted and logged of it, or evicted because of it, and a fault there is none of theirs."""
        self.live_count -= 1
        self._instruments.streams_ended[stream.reason or CloseReason.INTERNAL_ERROR] += 1
        self._keep(stream)
        if not _has_content(stream):
            self._forget_key(stream)
        reach("end_before_row")
        self.store_row(stream)
        reach("end_after_row")
        stream.wake()
        self._report_end(stream)
        while self._retained_blocks > self._retention_blocks and self._evict_oldest():
            pass
        if self.arena.is_awaited:
            self._make_room()

    def _keep(self, stream: Stream) -> None:
        """Retain an ended stream."""
        self._ended_in_order[stream.id] = stream
        self._retained_blocks += _blocks_of(stream)

    def _unread(self, stream: Stream) -> None:
        """Called by a stream when its last reader has left and it has not ended."""
        if stream.on_disconnect is OnDisconnect.CANCEL:
            stream.stop(CloseReason.CLIENT_LEFT, "")
        elif stream.on_disconnect is OnDisconnect.GRACE:
            self._graced.add(stream)

    def _look_at_graced(self, stream: Stream, now: float) -> None:
        if stream.state is State.ENDED or stream.is_unread_since is None:
            self._graced.discard(stream)
        elif now - stream.is_unread_since >= stream.grace_s:
            stream.stop(CloseReason.CLIENT_LEFT, "")

    def _make_room(self) -> None:
        """What has ended gives way to what is live or wants to be. A log that somebody still reads is kept: forgetting it would
        free nothing, and its reader could not come back."""
        if self.arena.has_room:
            return
        for stream in [stream for stream in self._ended_in_order.values() if not self._is_wanted(stream)]:
            self.evict(stream)
            if self.arena.free_blocks > RESERVE_BLOCKS:
                break

    def make_room_to_speak(self) -> bool:
        """Whether a stream may say more that does not go through a chain which waits for blocks; what has ended gives way."""
        if self.arena.free_blocks < PAUSE_BLOCKS:
            self._make_room()
        return self.arena.free_blocks >= PAUSE_BLOCKS

    def evict(self, stream: Stream) -> None:
        """Forget an ended stream. Readers that are still on it keep its blocks until they are through."""
        assert stream.state is State.ENDED, "only ended streams are evicted"
        del self._streams[stream.id]
        self._tally.streams[State.ENDED] -= 1
        del self._ended_in_order[stream.id]
        self._retained_blocks -= _blocks_of(stream)
        self._forget_key(stream)
        self._tombstones[stream.id] = stream.facts.tenant
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        reach("evicting")
        self.table.give(stream.row)
        if stream.request is not None:
            stream.request.give()
        stream.log.drop()

    def _is_wanted(self, stream: Stream) -> bool:
        """Whether it is being read, or will be by the request that has started it."""
        return stream.log.is_read or stream.facts.asker in self._asked

    def _evict_oldest(self) -> bool:
        oldest = next((each for each in self._ended_in_order.values() if each.facts.asker not in self._asked), None)
        if oldest is not None:
            self.evict(oldest)
        return oldest is not None

    # Time.

    def tick(self) -> None:
        """Look at every stream at once: what :meth:`start` has done step by step."""
        now = self._clock.now()
        self._begin_round(now)
        for stream in list(self._streams.values()):
            self._look_at(stream, now)
        for stream in list(self._graced):
            self._look_at_graced(stream, now)

    def start(self) -> None:
        """From now on look after everything that depends on time."""
        self._sweep.start()
        self._grace_sweep.start()

    def _begin_round(self, now: float) -> None:
        self._evict_expired(now)
        if self.arena.is_awaited:
            self._relieve(now)

    def _look_at(self, stream: Stream, now: float) -> None:
        if stream.state is State.ENDED:
            return
        stream.look(now)
        if stream.subscribers and self._is_silent(stream, now):
            stream.heartbeat(self.heartbeat_block)

    @property
    def tick_s(self) -> float:
        """How often each stream is looked at: a fraction of the shortest of the times that depend on it."""
        times = [self._settings.heartbeat_s, 16.0]
        if self._settings.commit_after_ms:
            times.append(self._settings.commit_after_ms / 1000)
        return max(0.01, min(times) / 4)

    def _is_silent(self, stream: Stream, now: float) -> bool:
        """Whether readers have seen nothing for so long that a proxy may cut them. Only an event stream can say that it is
        alive; before the engine's first byte that is certain only of what was asked for as one."""
        if stream.kind is not Kind.EVENTS:
            return False
        if stream.state is State.LIVE:
            return now - max(stream.last_at, stream.beat_at) >= self._settings.heartbeat_s
        commit_after_s = self._settings.commit_after_ms / 1000
        return stream.facts.wants_stream and 0 < commit_after_s <= now - stream.created_at

    def _relieve(self, now: float) -> None:
        """Streams wait for blocks: what has ended gives way. Where they only wait for each other, the largest is ended."""
        self._make_room()
        self.arena.wake(PAUSE_BLOCKS)
        if self.arena.has_room:
            return
        waiting = [(s.waiting_since, s) for s in self._streams.values() if s.waiting_since is not None]
        if not waiting:
            return
        since = max(self._sacrificed_at, min(at for at, _ in waiting))
        if now - since >= ARENA_WAIT_S:
            self._sacrificed_at = now
            largest = max((s for _, s in waiting), key=lambda s: s.log.block_count)
            largest.stop(CloseReason.ARENA_FULL, "")

    def _evict_expired(self, now: float) -> None:
        horizon = now - self._settings.retention_s
        kept = 0
        for _ in range(MAX_EVICTIONS_PER_STEP):
            oldest = next(iter(self._ended_in_order.values()), None)
            if oldest is None or (oldest.ended_at or now) > horizon or kept == len(self._ended_in_order):
                break
            if self._is_wanted(oldest):
                # Its blocks would stay, or whoever needs it is still to come; and an adopter needs the row: it waits for them.
                self._ended_in_order.move_to_end(oldest.id)
                kept += 1
            else:
                self.evict(oldest)
        else:
            self._clock.call_later(MIN_STEP_S, self._evict_more)
        for _ in range(MAX_EVICTIONS_PER_STEP):
            if not self._keys:
                break
            key, entry = next(iter(self._keys.items()))
            if entry.expires_at > now:
                break
            del self._keys[key]

    def _evict_more(self) -> None:
        """More had expired than one step may take: thousands that ended together must not hold up the loop together."""
        self._evict_expired(self._clock.now())

    def close(self) -> None:
        """Look at nothing more, and end and forget every stream; for the end of the process and for tests that count blocks."""
        self._sweep.stop()
        self._grace_sweep.stop()
        for stream in list(self._streams.values()):
            if stream.state is not State.ENDED:
                stream.stop(CloseReason.SHUTDOWN, "")
        for stream in list(self._streams.values()):
            self.evict(stream)

    def statistics(self) -> dict[str, int]:
        """Streams by state, readers, retained blocks, keys and tombstones; all of it is known without looking at any stream."""
        return {
            **{state.name.lower(): count for state, count in self._tally.streams.items()},
            "subscribers": self._tally.readers,
            "retained_blocks": self._retained_blocks,
            "keys": len(self._keys),
            "tombstones": len(self._tombstones),
        }


def _blocks_of(stream: Stream) -> int:
    """Of its log, and of its request where that is kept."""
    return stream.log.block_count + (len(stream.request.blocks) if stream.request is not None else 0)


def _has_content(stream: Stream) -> bool:
    """Whether an ended stream has something for a client that comes back by its key. Half a body is of no use to anyone."""
    if stream.reason is CloseReason.COMPLETED:
        return True
    return stream.refusal is None and stream.kind is Kind.EVENTS and stream.facts.first_token_at is not None
