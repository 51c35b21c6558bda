"""A streams room without sockets: what its tests share.

A :class:`World` has the arena, the table and the registry on a clock that stands still. A :class:`Feeder` fills a stream as an
exchange does, in pieces as the kernel stores them. A :class:`Client` reads one as the server does, over a :class:`Wire`, which
keeps the views that it is given as uvloop does: what goes out is what lies in the arena when the kernel takes it.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from longwire.dialects.openai_chat import OpenAiWords
from longwire.observe.instruments import Instruments
from longwire.streams.arena import Arena, Use
from longwire.streams.doors import Buffers, Door
from longwire.streams.log import Log
from longwire.streams.memory import Memory
from longwire.streams.registry import Registry
from longwire.streams.stream import Facts, Stream
from longwire.streams.subscriber import Subscriber
from longwire.words.clock import VirtualClock
from longwire.words.reasons import CloseReason
from longwire.words.settings import Settings

HIGH_WATER_BYTES = 64 * 1024
MAX_TURNS = 100_000
"""More than any test needs: a loop that is still busy then will never end."""


def framed(block: bytes) -> bytes:
    """The block as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(block), block)


def data_block(text: bytes) -> bytes:
    """An event with one data line."""
    return b"data: %b\n\n" % text


@dataclass(frozen=True)
class Entry:
    """One step of an engine. ``way``: framed, plain or record (as the index has them), hot (framed, and by the short way where
    that is open), hidden (bytes without an entry)."""

    way: str
    block: bytes
    silent: bool = False

    @property
    def is_listed(self) -> bool:
        return self.way != "hidden"


def listed(entries: Iterable[Entry]) -> list[Entry]:
    """Those that the index has."""
    return [entry for entry in entries if entry.is_listed]


def rendered(entries: list[Entry], door: Door, position: int = 0, epoch: int = 1) -> bytes:
    """What a reader must get from an index position on, from nothing but the meaning of a door."""
    out = []
    seq = sum(not entry.silent for entry in entries[:position])
    for entry in entries[position:]:
        block = entry.block
        if not entry.silent:
            if door & Door.BARE_IDS:
                block = b"id: %d-%d\n%b" % (epoch, seq, block)
            seq += 1
        out.append(framed(block) if door & Door.FRAMED else block)
    return b"".join(out)


class Wire:
    """A transport's write buffer. The kernel takes from it only when told to, and then reads the views."""

    def __init__(self) -> None:
        self._kept: deque[memoryview] = deque()
        self._size = 0
        self.sent = bytearray()

    def get_write_buffer_size(self) -> int:
        return self._size

    def write(self, buffer: bytes | memoryview) -> None:
        if len(buffer):
            self._kept.append(memoryview(buffer))
            self._size += len(buffer)

    def take(self, count: int) -> None:
        """The kernel takes so many bytes, or all there are."""
        while count and self._kept:
            first = self._kept.popleft()
            part = first[:count]
            self.sent += part
            self._size -= len(part)
            count -= len(part)
            if len(part) < len(first):
                self._kept.appendleft(first[len(part) :])

    def drop(self) -> None:
        """The connection is gone: what was not sent never will be."""
        self._kept.clear()
        self._size = 0


class Client:
    """One reader's connection: an outlet with water marks, and the hold that lasts until the kernel has everything."""

    def __init__(self, world: World, high_bytes: int = HIGH_WATER_BYTES) -> None:
        self.world = world
        self.wire = Wire()
        self.high_bytes = high_bytes
        self.begun = 0
        self.refusal: bytes | None = None
        self.finished: CloseReason | None = None
        self.was_cut: CloseReason | None = None
        self.checkpoints: list[tuple[int, int]] = []
        """``(bytes written, position)`` whenever the wire was empty."""
        self.written = 0
        self.spliced_bytes = 0
        self.largest_turn = 0
        self._subscriber: Subscriber | None = None
        self._is_paused = False
        self._is_done = False

    @property
    def subscriber(self) -> Subscriber:
        assert self._subscriber is not None
        return self._subscriber

    @property
    def body(self) -> bytes:
        return bytes(self.wire.sent)

    def attach(self, stream: Stream, door: Door = Door.FRAMED, position: int = 0) -> Client:
        self._subscriber = Subscriber(stream, self, door, position)
        self.world.clients.append(self)
        stream.attach(self._subscriber)
        return self

    # What a subscriber calls.

    def begin(self, stream: Stream) -> bool:
        self.begun += 1
        if stream.refusal is not None:
            self.refusal = stream.refusal.body
            self._done()
            return False
        return True

    def splice(self) -> Callable[[bytes], None] | None:
        return self._write_frame

    def spliced(self, size: int, position: int) -> None:
        self.spliced_bytes += size
        self.written += size
        self.checkpoint(position)

    def send(self, buffers: Buffers, count: int) -> None:
        assert sum(len(buffer) for buffer in buffers) == count
        self._write(buffers, count)

    def flush(self) -> None: ...

    def checkpoint(self, position: int) -> None:
        if not self.wire.get_write_buffer_size():
            self.checkpoints.append((self.written, position))

    def finish(self, reason: CloseReason) -> None:
        assert not self._is_done, "a reader ends once"
        self.finished = reason
        self._done()

    def cut(self, reason: CloseReason) -> None:
        assert not self._is_done, "a reader ends once"
        self.was_cut = reason
        self.leave()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.world.soon.append(call)

    def _write(self, buffers: Buffers, count: int) -> None:
        assert not self._is_done, "nothing is written behind the end"
        self.written += count
        self.largest_turn = max(self.largest_turn, count)
        for buffer in buffers:
            self.wire.write(buffer)
        self._pause_if_full()

    def _write_frame(self, frame: bytes) -> None:
        assert not self._is_done, "nothing is written behind the end"
        assert not self._is_paused, "a full transport is given nothing more"
        self.wire.write(frame)
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if not self._is_paused and self.wire.get_write_buffer_size() > self.high_bytes:
            self._is_paused = True
            self.subscriber.pause()

    # What its network does.

    def take(self, count: int) -> None:
        """The kernel takes bytes; below the low water mark the reader goes on."""
        self.wire.take(count)
        if self._is_paused and self.wire.get_write_buffer_size() <= self.high_bytes // 4:
            self._is_paused = False
            if not self._is_done:
                self.subscriber.resume()
        self._let_go()

    def leave(self) -> None:
        """The connection is lost, whatever it had to send."""
        self._is_done = True
        self.wire.drop()
        self.subscriber.detach()
        self._let_go()

    def hang_up(self) -> None:
        """The client has shut its side: nothing more is written, but what was goes out."""
        self._is_done = True
        self.subscriber.detach()
        self._let_go()

    def _done(self) -> None:
        self._is_done = True
        self.subscriber.detach()
        self._let_go()

    def _let_go(self) -> None:
        if self._is_done and not self.wire.get_write_buffer_size():
            self.subscriber.flushed()
            if self in self.world.clients:
                self.world.clients.remove(self)


class Feeder:
    """Fills a stream as an engine's connection and its exchange do: bytes first, then what they are; whole frames go to the
    reader directly while the stream has the short way open."""

    def __init__(self, world: World, stream: Stream) -> None:
        self.world = world
        self.stream = stream
        self.is_stopped = False
        self.resumed = 0
        self._todo: deque[Entry] = deque()
        self._left = b""
        self._start = 0
        self._write_on: Callable[[bytes], None] | None = None
        self.spliced = 0
        """Frames that went the short way."""
        stream.producer = self

    def stop(self) -> None:
        self.is_stopped = True

    def unsplice(self) -> None:
        self._write_on = None

    def resume_reading(self) -> None:
        self.resumed += 1
        self.world.soon.append(self.go_on)

    @property
    def log(self) -> Log:
        """The stream's log, brought up to date."""
        self.stream.settle()
        return self.stream.log

    @property
    def is_waiting(self) -> bool:
        """The engine has more to say, and nowhere to put it."""
        return bool(self._todo) and not self.is_stopped

    def feed(self, *entries: Entry) -> Feeder:
        """Store and publish, as far as there is room; the rest when there is."""
        self._todo.extend(entries)
        self.go_on()
        return self

    def go_on(self) -> None:
        while self._todo and not self.is_stopped and self._store(self._todo[0]):
            self._todo.popleft()

    def end(self, reason: CloseReason = CloseReason.COMPLETED, message: str = "") -> None:
        assert not self._todo, "an engine that waits has not ended"
        self.stream.end(reason, message)

    def _store(self, entry: Entry) -> bool:
        stream = self.stream
        if entry.way == "record":
            stream.unsplice()
            stream.append_record(entry.block, entry.silent)
            stream.publish(-1)
            return True
        if not self._left:
            if entry.way == "hot" and self._store_short(framed(entry.block)):
                return True
            stream.unsplice()
            self._left = entry.block if entry.way in ("plain", "hidden") else framed(entry.block)
            self._start = stream.chain.end
        if not self._fill():
            return False
        self._say(entry, stream.chain.end - self._start)
        return True

    def _store_short(self, frame: bytes) -> bool:
        """The short way: a frame that leaves something of its block goes on as it lies there."""
        chain, write = self.stream.chain, self._write_on
        if write is None or len(frame) >= len(chain.rest):
            return False
        view = chain.rest[: len(frame)]
        view[:] = frame
        chain.rest = chain.rest[len(frame) :]
        write(bytes(view))
        self.spliced += 1
        return True

    def _fill(self) -> bool:
        """Store what is left of an entry's bytes; False where there is no room for all of it."""
        chain = self.stream.chain
        while self._left:
            if chain.is_full:
                return False
            count = min(len(chain.rest), len(self._left))
            chain.rest[:count] = self._left[:count]
            self._left = self._left[count:]
            chain.filled(count)
        return True

    def _say(self, entry: Entry, length: int) -> None:
        stream = self.stream
        if entry.way in ("hot", "framed"):
            stream.append_framed(self._start, length)
        elif entry.way == "plain":
            stream.append_plain(self._start, length, entry.silent)
        stream.publish(stream.chain.end)
        if entry.way == "hot":
            self._write_on = stream.splice()


class FakeSlot:
    """A place among a tenant's streams that counts how often it was given back."""

    def __init__(self) -> None:
        self.released = 0
        self.settled_tokens = -1

    def release(self) -> None:
        self.released += 1

    def settle(self, tokens: int) -> None:
        self.settled_tokens = tokens


class Hoard:
    """Somebody who holds blocks, so that few are left."""

    def __init__(self, arena: Arena, left: int) -> None:
        self._arena = arena
        self._blocks = [arena.take(Use.LOG) for _ in range(arena.free_blocks - left)]

    def __len__(self) -> int:
        return len(self._blocks)

    def give(self, count: int | None = None) -> None:
        """Give so many blocks back at once, or all."""
        count = len(self._blocks) if count is None else count
        given, self._blocks = self._blocks[:count], self._blocks[count:]
        self._arena.give(array("I", given), Use.LOG)


class World:
    """The room, its loop and its clock."""

    def __init__(self, arena_bytes: int = 4 << 20, rows: int = 64, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.instruments = Instruments()
        self.memory = Memory.make(arena_bytes, rows, rows)
        self.arena, self.table = self.memory.arena, self.memory.streams
        self.settings = Settings(**{"warm_floor": 0, "warm_ceiling": 0, **settings})
        self.ended: list[Stream] = []
        self.registry = Registry(self.memory, self.settings, self.clock, self.instruments, self.ended.append)
        self.soon: deque[Callable[[], None]] = deque()
        self.clients: list[Client] = []
        self.words = OpenAiWords()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, tenant: str = "acme") -> Stream:
        """A stream; what is left to chance by its id is settled: it may take the short way."""
        stream = self.registry.open(Facts(tenant=tenant, tenant_index=0, route="chat_completions"), self.words)
        stream.slot = FakeSlot()
        stream.is_measured = False
        return stream

    def start(self, *entries: Entry, tenant: str = "acme") -> Feeder:
        """A stream under way."""
        return Feeder(self, self.open(tenant)).feed(*entries)

    def client(self, high_bytes: int = HIGH_WATER_BYTES) -> Client:
        return Client(self, high_bytes)

    def turn(self) -> None:
        """One turn of the loop: what was called soon before it."""
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def settle(self) -> None:
        """Every network takes all it is given, until nothing moves any more."""
        for _ in range(MAX_TURNS):
            self.turn()
            for client in list(self.clients):
                client.take(1 << 30)
            if not self.soon and not any(client.wire.get_write_buffer_size() for client in self.clients):
                return
        raise AssertionError("the loop never comes to rest")

    def dawdle(self, rng: random.Random, most: int) -> None:
        """One turn in which every network takes a random share."""
        self.turn()
        for client in list(self.clients):
            client.take(rng.randint(0, most))

    def tick(self, seconds: float) -> None:
        """Time passes as the registry sees it, tick by tick."""
        left = seconds
        while left > 0:
            step = min(left, self.registry.tick_s)
            self.clock.advance(step)
            self.registry.tick()
            left -= step

    def blocks_used(self) -> int:
        statistics = self.arena.statistics()
        used = sum(statistics[name] for name in ("log", "records", "request", "input"))
        assert used == statistics["blocks"] - statistics["free"], "every block is free or held for something"
        return used

    def close(self) -> None:
        """Everything ends; then no block and no row may be held, and no view be left."""
        for client in list(self.clients):
            client.leave()
        self.registry.close()
        self.ended.clear()
        assert self.blocks_used() == 0
        assert self.table.rows_used == 0
        self.arena.close()
        self.table.close()
