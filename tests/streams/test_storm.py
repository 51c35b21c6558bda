"""Storms: opens, ends, cancels, evictions, slow readers and lost ones in any order, in an arena that is too small for it all.

After every step each reader has only what is its own stream's, and every block is accounted for. At the end none is held.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longwire.streams.arena import BLOCK_BYTES, PAUSE_BLOCKS, RESERVE_BLOCKS, ArenaFull
from longwire.streams.doors import Door, end_bytes
from longwire.streams.stream import BodyHead, OnDisconnect, State, Stream
from longwire.words.errors import Overloaded
from longwire.words.reasons import CloseReason

from .world import Client, Entry, Feeder, Hoard, World, data_block, rendered

SIZES = st.one_of(st.integers(0, 60), st.sampled_from([BLOCK_BYTES - 60, BLOCK_BYTES, 5 * BLOCK_BYTES]))
WAYS = st.sampled_from(["hot", "hot", "framed", "plain", "record", "hidden", "comment"])
PICK = st.integers(0, 1000)


@dataclass
class Known:
    """What must be true of one stream."""

    feeder: Feeder
    canary: bytes
    fed: list[Entry] = field(default_factory=list)
    published: list[Entry] = field(default_factory=list)
    """Copies of what its log has told readers so far, made before any block could be reused."""

    @property
    def stream(self) -> Stream:
        return self.feeder.stream

    def note(self) -> None:
        """Copy what was published since."""
        log = self.feeder.log
        if log.upstream.blocks:
            for position in range(len(self.published), log.deliverable):
                silent = log.seq_at(position + 1) == log.seq_at(position)
                self.published.append(Entry("record", log.block(position), silent))


@dataclass
class Reading:
    """One client and what it must get."""

    known: Known
    client: Client
    door: Door
    position: int

    def check(self) -> None:
        whole = rendered(self.known.published, self.door, self.position)
        if self.known.feeder.log.is_sealed and not self.known.stream.is_cut:
            # It goes out with the last events, so a reader may leave between it and the end.
            whole += end_bytes(self.door)
        body = self.client.body
        assert whole.startswith(body), "a reader got something that its stream never said"


class Storm(RuleBasedStateMachine):
    """One house, many tenants."""

    @initialize(seed=st.integers(0, 2**32), rows=st.integers(3, 12), retained=st.integers(1, 60))
    def build(self, seed: int, rows: int, retained: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(
            (RESERVE_BLOCKS + 40) * BLOCK_BYTES, rows, retention_s=60.0, retention_bytes=retained * BLOCK_BYTES
        )
        self.world.registry._report_end = lambda stream: self.by_id[stream.id].note()
        self.by_id: dict[bytes, Known] = {}
        self.all: list[Known] = []
        self.readings: list[Reading] = []
        self.hoard: Hoard | None = None

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.relax()
            self.check()
            self.world.close()

    # Streams.

    def pick(self, number: int, *states: State) -> Known | None:
        kept = {stream.id for stream in self.world.registry.list(None)}
        fitting = [known for known in self.all if known.stream.id in kept and known.stream.state in states]
        return fitting[number % len(fitting)] if fitting else None

    @rule(policy=st.sampled_from(OnDisconnect), request_bytes=st.integers(0, 3 * BLOCK_BYTES))
    def open(self, policy: OnDisconnect, request_bytes: int) -> None:
        canary = b"<%d>" % len(self.all)
        try:
            stream = self.world.open(f"tenant {len(self.all)}")
        except Overloaded:
            return
        stream.on_disconnect, stream.grace_s = policy, 20.0
        known = Known(Feeder(self.world, stream), canary)
        self.all.append(known)
        self.by_id[stream.id] = known
        try:
            stream.store_request(canary * (request_bytes // len(canary)))
        except ArenaFull:
            stream.end(CloseReason.ARENA_FULL)

    @rule(number=PICK, ways=st.lists(st.tuples(WAYS, SIZES), max_size=6))
    def feed(self, number: int, ways: list[tuple[str, int]]) -> None:
        known = self.pick(number, State.OPENING, State.LIVE)
        if known is None:
            return
        for way, size in ways:
            text = known.canary * (1 + size // len(known.canary)) + b"%d" % len(known.fed)
            comment = way == "comment"
            block = b": %b\n\n" % text if comment else text if way == "hidden" else data_block(text)
            entry = Entry("plain" if comment else way, block, silent=comment)
            known.fed.append(entry)
            known.feeder.feed(entry)

    @rule(number=PICK)
    def begin_again(self, number: int) -> None:
        known = self.pick(number, State.OPENING)
        if known is not None and not known.feeder.is_waiting:
            known.stream.restart()
            known.fed.clear()

    @rule(number=PICK, reason=st.sampled_from(CloseReason))
    def end(self, number: int, reason: CloseReason) -> None:
        known = self.pick(number, State.OPENING, State.LIVE)
        if known is not None:
            if known.stream.state is State.OPENING and reason.is_success:
                known.stream.begin_body(BodyHead(200, [], 0))
            known.stream.stop(reason, "")

    @rule(number=PICK)
    def evict(self, number: int) -> None:
        known = self.pick(number, State.ENDED)
        if known is not None:
            self.world.registry.evict(known.stream)

    # Memory.

    @rule(left=st.integers(PAUSE_BLOCKS - 2, RESERVE_BLOCKS + 5))
    def squeeze(self, left: int) -> None:
        """Somebody else takes what there is."""
        if self.hoard is None and self.world.arena.free_blocks > left:
            self.hoard = Hoard(self.world.arena, left)

    @rule()
    def relax(self) -> None:
        hoard, self.hoard = self.hoard, None
        if hoard is not None:
            hoard.give()

    # Readers.

    @rule(
        number=PICK,
        door=st.sampled_from(Door),
        share=st.floats(0, 1),
        high_bytes=st.sampled_from([50, 5000, BLOCK_BYTES, 1 << 20]),
    )
    def attach(self, number: int, door: Door, share: float, high_bytes: int) -> None:
        known = self.pick(number, State.OPENING, State.LIVE, State.ENDED)
        if known is None:
            return
        log = known.feeder.log
        position = log.position_after(int(share * (log.last_seq + 1)) - 1)
        client = self.world.client(high_bytes)
        self.readings.append(Reading(known, client, door, position))
        client.attach(known.stream, door, position)

    @rule(most=st.sampled_from([1, 100, BLOCK_BYTES, 1 << 20]))
    def move(self, most: int) -> None:
        self.world.dawdle(self.rng, most)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @precondition(lambda self: self.world.clients)
    @rule(number=PICK, gently=st.booleans())
    def lose(self, number: int, gently: bool) -> None:
        client = self.world.clients[number % len(self.world.clients)]
        if gently:
            client.hang_up()
        else:
            client.leave()

    # Time.

    @rule(seconds=st.sampled_from([1, 16, 40]))
    def wait(self, seconds: int) -> None:
        self.world.tick(seconds)

    # What must hold.

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "world"):
            return
        for known in self.all:
            known.note()
            spoken = b"".join(entry.block for entry in known.fed if entry.is_listed)
            told = b"".join(entry.block for entry in known.published if known.canary in entry.block)
            assert spoken.startswith(told), "a stream says what its engine said, in order"
        for reading in self.readings:
            reading.check()
        self.check_account()

    def check_account(self) -> None:
        logs = [known.stream.log for known in self.all]
        used = self.world.arena.statistics()
        self.world.blocks_used()
        hoarded = len(self.hoard) if self.hoard is not None else 0
        assert used["log"] == hoarded + sum(len(log.upstream.blocks) for log in logs)
        assert used["records"] == sum(len(log.records.blocks) for log in logs if log.records is not None)
        requests = [known.stream.request for known in self.all if known.stream.request is not None]
        assert used["request"] == sum(len(request.blocks) for request in requests)
        registry = self.world.registry
        kept = list(registry.list(None))
        assert self.world.table.rows_used == len(kept)
        ended = [stream for stream in kept if stream.state is State.ENDED]
        assert registry.statistics()["retained_blocks"] == sum(stream.log.block_count for stream in ended)


Storm.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStorm = Storm.TestCase


def long_storm(seed: int) -> Storm:
    rng = random.Random(seed)
    storm = Storm()
    storm.build(seed, rows=12, retained=30)
    ways = ["hot", "hot", "framed", "plain", "record", "hidden", "comment"]
    doings: list[tuple[int, Callable[[int], None]]] = [
        (4, lambda n: storm.open(rng.choice(list(OnDisconnect)), rng.randint(0, 20_000))),
        (12, lambda n: storm.feed(n, [(rng.choice(ways), rng.choice([5, 60, 3000, BLOCK_BYTES])) for _ in range(4)])),
        (1, storm.begin_again),
        (4, lambda n: storm.end(n, rng.choice(list(CloseReason)))),
        (1, storm.evict),
        (3, lambda n: storm.squeeze(rng.randint(PAUSE_BLOCKS - 2, PAUSE_BLOCKS + 8))),
        (3, lambda n: storm.relax()),
        (6, lambda n: storm.attach(n, rng.choice(list(Door)), rng.random(), rng.choice([50, 5000, 1 << 20]))),
        (8, lambda n: storm.move(rng.choice([1, 100, 5000, 1 << 20]))),
        (1, lambda n: storm.settle()),
        (1, lambda n: storm.lose(n, rng.random() < 0.5) if storm.world.clients else None),
        (1, lambda n: storm.wait(rng.choice([1, 1, 16]))),
    ]
    chances, calls = [chance for chance, _ in doings], [call for _, call in doings]
    for step, call in enumerate(rng.choices(calls, chances, k=700)):
        call(rng.randint(0, 1000))
        for known in storm.all:
            known.note()
        if step % 10 == 0:
            storm.check()
    storm.teardown()
    return storm


def test_long_storms() -> None:
    """Hypothesis finds short ones. Some things need a house that has been lived in."""
    storms = [long_storm(seed) for seed in range(5)]
    everything = [known for storm in storms for known in storm.all]
    assert len(everything) > 100
    assert sum(known.feeder.resumed for known in everything), "some stood still, and went on"
    assert sum(reading.client.finished is not None for storm in storms for reading in storm.readings) > 50


def test_no_recycled_block_is_ever_sent() -> None:
    """A reader is blocked with views in its transport when its stream is evicted, and other tenants take all there is."""
    with World((RESERVE_BLOCKS + 40) * BLOCK_BYTES) as world:
        entries = [Entry("hot", data_block(b"<mine> " * (BLOCK_BYTES // 8))) for _ in range(10)]
        mine = world.start(*entries)
        blocked = [world.client(high_bytes).attach(mine.stream, door) for high_bytes in (100, 1 << 20) for door in Door]
        world.turn()
        assert any(client.wire.get_write_buffer_size() > 2 * BLOCK_BYTES for client in blocked)
        mine.end()
        world.registry.evict(mine.stream)
        held = world.blocks_used()
        while True:
            try:
                other = world.start(*[Entry("hot", data_block(b"<theirs>" * (BLOCK_BYTES // 8))) for _ in range(3)])
            except Overloaded:
                break
            other.end()
            world.registry.evict(other.stream)
            other = world.start(Entry("hot", data_block(b"<theirs>" * 5)), tenant="other")
        assert world.blocks_used() >= held
        world.settle()
        for client, door in zip(blocked, [*Door, *Door], strict=True):
            assert client.body == rendered(entries, door) + end_bytes(door)


def test_a_block_is_reused_only_after_the_last_byte_has_left() -> None:
    """The same, byte by byte: whenever the blocked transport moves on, some other tenant takes and fills whatever is free."""
    with World((RESERVE_BLOCKS + 10) * BLOCK_BYTES) as world:
        entries = [Entry("hot", data_block(b"<mine> " * 300)) for _ in range(20)]
        mine = world.start(*entries)
        client = world.client(1 << 20).attach(mine.stream)
        world.turn()
        mine.end()
        world.registry.evict(mine.stream)
        mine_blocks = set(mine.stream.chain.blocks)
        while client in world.clients:
            client.take(997)
            other = world.start(Entry("hot", data_block(b"<theirs>" * 2000)), tenant="other")
            if client in world.clients:
                assert not mine_blocks & set(other.stream.chain.blocks)
            other.end()
            world.registry.evict(other.stream)
        assert client.body == rendered(entries, Door.FRAMED) + end_bytes(Door.FRAMED)
        assert mine_blocks & set(world.start(Entry("hot", data_block(b"x" * (3 * BLOCK_BYTES)))).stream.chain.blocks)
