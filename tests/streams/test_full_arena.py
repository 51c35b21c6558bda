"""A full arena: new work waits outside, what runs stands still, what has ended gives way, and nothing is ever dropped."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.arena import BLOCK_BYTES, PAUSE_BLOCKS, RESERVE_BLOCKS
from longwire.streams.doors import Door, end_bytes
from longwire.streams.registry import ARENA_WAIT_S
from longwire.streams.stream import State
from longwire.words.errors import Gone, Overloaded
from longwire.words.reasons import CloseReason

from .world import Client, Entry, Feeder, Hoard, World, data_block, rendered

ONE = Entry("hot", data_block(b"one"))
BLOCKS = RESERVE_BLOCKS + 40
ARENA_BYTES = BLOCKS * BLOCK_BYTES


def blockfuls(count: int, mark: bytes = b"x") -> list[Entry]:
    """Events that take about a block each."""
    return [Entry("hot", data_block(b"%d " % number + mark * (BLOCK_BYTES - 40))) for number in range(count)]


def small_world(**settings: Any) -> World:
    return World(ARENA_BYTES, retention_bytes=ARENA_BYTES, **settings)


def stand_still(world: World) -> list[Feeder]:
    """Live streams that have taken all there is and wait for each other."""
    feeders = [world.start(ONE) for _ in range(4)]
    for number, feeder in enumerate(feeders):
        feeder.feed(*blockfuls(30 + 3 * number))
    while not all(feeder.is_waiting for feeder in feeders):
        for feeder in feeders:
            if not feeder.is_waiting:
                feeder.feed(ONE)
    return feeders


def test_new_streams_are_refused_before_live_ones_suffer() -> None:
    with small_world() as world:
        hoard = Hoard(world.arena, RESERVE_BLOCKS + 1)
        live = world.start(ONE)
        with pytest.raises(Overloaded) as caught:
            world.open()
        assert (caught.value.status, caught.value.retryable) == (503, True)
        assert caught.value.retry_after_s
        live.feed(*blockfuls(RESERVE_BLOCKS - PAUSE_BLOCKS - 1))
        assert not live.is_waiting, "the reserve is for what is under way"
        live.end()
        hoard.give()
        assert world.open().state is State.OPENING


def test_a_refused_stream_leaves_nothing_behind() -> None:
    with small_world() as world:
        hoard = Hoard(world.arena, RESERVE_BLOCKS)
        for _ in range(5):
            with pytest.raises(Overloaded):
                world.open()
        assert world.table.rows_used == 0
        assert world.registry.statistics()["opening"] == 0
        assert world.instruments.streams_started_total == 0
        hoard.give()


def test_what_has_ended_gives_way_to_what_is_new() -> None:
    with small_world() as world:
        old = world.start(ONE)
        old.end()
        hoard = Hoard(world.arena, RESERVE_BLOCKS)
        fresh = world.open()
        assert list(world.registry.list(None)) == [fresh]
        with pytest.raises(Gone):
            world.registry.find(old.stream.public_id, "acme")
        hoard.give()


def test_what_has_ended_gives_way_to_what_runs() -> None:
    with small_world() as world:
        for _ in range(3):
            world.start(*blockfuls(5)).end()
        feeder = world.start(ONE)
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 2)
        entries = [ONE, *blockfuls(12)]
        feeder.feed(*entries[1:])
        world.settle()
        assert not feeder.is_waiting
        assert world.registry.statistics()["ended"] == 0
        feeder.end()
        assert feeder.log.body() == rendered(entries, Door.BARE)
        hoard.give()


def test_forgetting_what_is_still_read_would_free_nothing() -> None:
    """Its reader could only lose by it: cut now, it could not come back."""
    with small_world() as world:
        read = world.start(*blockfuls(3))
        reader = world.client(high_bytes=100).attach(read.stream)
        read.end()
        unread = world.start(ONE)
        unread.end()
        hoard = Hoard(world.arena, RESERVE_BLOCKS)
        world.open()
        assert read.stream in list(world.registry.list(None))
        assert unread.stream not in list(world.registry.list(None))
        world.settle()
        assert reader.body == rendered(blockfuls(3), Door.FRAMED) + end_bytes(Door.FRAMED)
        hoard.give()


def test_a_paused_stream_goes_on_byte_exact_when_there_is_room() -> None:
    with small_world() as world:
        entries = [ONE, *blockfuls(12), ONE]
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 3)
        feeder.feed(*entries[1:])
        world.settle()
        assert feeder.is_waiting
        assert feeder.stream.state is State.LIVE
        assert world.arena.free_blocks >= PAUSE_BLOCKS - 1, "what is left is for records"
        seen = client.body
        assert rendered(entries, Door.FRAMED).startswith(seen)
        hoard.give()
        world.settle()
        assert not feeder.is_waiting
        feeder.end()
        world.settle()
        assert client.body == rendered(entries, Door.FRAMED) + end_bytes(Door.FRAMED)


def test_one_streams_end_lets_another_go_on() -> None:
    """Nobody else asks for room then: not a new stream, nor one that becomes full."""
    with small_world() as world:
        waiting = world.start(ONE)
        other = world.start(*blockfuls(20))
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 1)
        waiting.feed(*blockfuls(6))
        assert waiting.is_waiting
        other.end()
        world.turn()
        assert not waiting.is_waiting
        hoard.give()


def test_a_slow_readers_end_lets_another_go_on() -> None:
    with small_world() as world:
        waiting = world.start(ONE)
        other = world.start(*blockfuls(20))
        slow = world.client(high_bytes=100).attach(other.stream)
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 1)
        waiting.feed(*blockfuls(6))
        other.end()
        world.turn()
        assert waiting.is_waiting, "the slow reader holds the blocks"
        slow.leave()
        world.tick(1)
        world.turn()
        assert not waiting.is_waiting
        hoard.give()


def test_a_stream_that_ends_while_it_waits_does_not_come_back() -> None:
    with small_world() as world:
        hoard = Hoard(world.arena, RESERVE_BLOCKS + 1)
        feeder = world.start(*blockfuls(RESERVE_BLOCKS))
        assert feeder.is_waiting
        feeder.stream.stop(CloseReason.CANCELLED, "")
        resumed = feeder.resumed
        hoard.give()
        assert feeder.resumed == resumed
        assert feeder.stream.waiting_since is None


def test_how_it_ended_can_still_be_said() -> None:
    with small_world() as world:
        feeders = stand_still(world)
        clients = [world.client(high_bytes=1 << 30).attach(feeder.stream) for feeder in feeders]
        world.settle()
        for feeder in feeders:
            feeder.stream.stop(CloseReason.UPSTREAM_RESET, "")
            assert not feeder.stream.is_cut
        world.settle()
        assert [client.finished for client in clients] == [CloseReason.UPSTREAM_RESET] * len(clients)


# When all wait for each other.


def test_when_all_wait_for_each_other_the_largest_is_ended_and_the_rest_go_on() -> None:
    with small_world() as world:
        feeders = stand_still(world)
        clients = [world.client().attach(feeder.stream) for feeder in feeders]
        world.settle()
        largest = max(feeders, key=lambda feeder: feeder.log.block_count)
        world.tick(ARENA_WAIT_S - 2)
        assert all(feeder.is_waiting for feeder in feeders), "it may still resolve itself"
        world.tick(3)
        assert largest.stream.reason is CloseReason.ARENA_FULL
        assert largest.is_stopped
        world.settle()
        world.tick(1)
        world.settle()
        others = [feeder for feeder in feeders if feeder is not largest]
        assert any(not feeder.is_waiting for feeder in others)
        assert all(feeder.stream.state is State.LIVE for feeder in others)
        reader = clients[feeders.index(largest)]
        assert reader.finished is CloseReason.ARENA_FULL
        assert b'"code":"arena_full"' in reader.body


def test_no_more_are_ended_than_it_takes() -> None:
    """They are ended one at a time, each with its time: a blocked reader of the first may hold its blocks for a while."""
    with small_world() as world:
        feeders = stand_still(world)
        for feeder in feeders:
            world.client(high_bytes=100).attach(feeder.stream)
        world.tick(ARENA_WAIT_S + 2)
        assert [feeder.stream.state for feeder in feeders].count(State.ENDED) == 1
        world.tick(ARENA_WAIT_S - 4)
        assert [feeder.stream.state for feeder in feeders].count(State.ENDED) == 1
        world.tick(6)
        assert [feeder.stream.state for feeder in feeders].count(State.ENDED) == 2
        for client in list(world.clients):
            client.leave()


def test_nobody_is_ended_where_waiting_helps() -> None:
    with small_world() as world:
        waiting = world.start(ONE)
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 1)
        for _ in range(20):
            waiting.feed(*blockfuls(3))
            world.tick(ARENA_WAIT_S / 2)
            hoard.give(4)
            world.tick(2)
            world.turn()
            assert not waiting.is_waiting
        hoard.give()


def test_a_small_arena_does_not_lock_up() -> None:
    """One stream can fill the least arena that there is. It is told so; the next one finds room."""
    with World(1) as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        feeder.feed(*blockfuls(80))
        world.settle()
        assert feeder.is_waiting
        world.tick(ARENA_WAIT_S + 2)
        world.settle()
        assert client.finished is CloseReason.ARENA_FULL
        world.tick(1)
        assert world.open().state is State.OPENING


# Whatever happens, every byte arrives.


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=30), st.randoms(use_true_random=False))
def test_every_reader_gets_every_byte_through_any_number_of_stops(
    steps: list[tuple[int, int]], rng: random.Random
) -> None:
    with small_world() as world:
        feeders: list[Feeder] = []
        clients: list[Client] = []
        fed: list[list[Entry]] = []
        hoard = Hoard(world.arena, RESERVE_BLOCKS + 10)
        for which, count in steps:
            if which >= len(feeders):
                try:
                    feeders.append(world.start(ONE))
                except Overloaded:
                    continue
                fed.append([ONE])
                clients.append(world.client(high_bytes=rng.choice([100, 1 << 20])).attach(feeders[-1].stream))
                continue
            entries = blockfuls(count, b"%d" % which)
            fed[which] += entries
            feeders[which].feed(*entries)
            world.dawdle(rng, 8 * BLOCK_BYTES)
            if rng.random() < 0.2:
                hoard.give(3)
        hoard.give()
        world.settle()
        for feeder, client, entries in zip(feeders, clients, fed, strict=True):
            whole = rendered(entries, Door.FRAMED)
            if feeder.is_waiting:
                assert whole.startswith(client.body)
                feeder.stream.stop(CloseReason.CANCELLED, "")
            else:
                assert client.body == whole
