"""The doors: what a client gets is a pure function of the log, whatever the door, the cursor and the size of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.arena import BLOCK_BYTES, Arena
from longwire.streams.doors import LAST_CHUNK, MAX_KEPT_BYTES, Door, encode, end_bytes
from longwire.streams.log import Log
from longwire.wire.chunked import ChunkedDecoder

from .entries import LOGS
from .test_log import ARENA_BYTES, made
from .world import Entry, World, data_block, listed, rendered

DOORS = st.sampled_from(list(Door))
NO_LIMIT = 1 << 30


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(ARENA_BYTES)
    yield arena
    assert arena.free_blocks == arena.blocks
    arena.close()


def read(log: Log, door: Door, position: int, limit_bytes: int, limit_events: int) -> tuple[bytes, list[int]]:
    """Read to the end in steps; the positions between them."""
    out = bytearray()
    stops = [position]
    while position < log.deliverable:
        buffers, following, count = encode(door, log, position, limit_bytes, limit_events)
        assert position < following <= position + limit_events, (
            "a step takes an entry at least, and no more than it may"
        )
        step = b"".join(buffers)
        assert len(step) == count
        out += step
        position = following
        stops.append(position)
    return bytes(out), stops


@given(LOGS, DOORS, st.integers(1, 3 * BLOCK_BYTES), st.integers(1, 30))
def test_every_cursor_gets_the_suffix_of_what_a_reader_from_the_start_gets(
    entries: list[Entry], door: Door, limit_bytes: int, limit_events: int
) -> None:
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    expected = listed(entries)
    whole, _ = read(log, door, 0, NO_LIMIT, NO_LIMIT)
    assert whole == rendered(expected, door)
    for seq in range(-1, log.last_seq + 1):
        position = log.position_after(seq)
        suffix, stops = read(log, door, position, limit_bytes, limit_events)
        assert suffix == rendered(expected, door, position)
        assert whole.endswith(suffix)
        for start, stop in pairwise(stops):
            step = [rendered(expected[: at + 1], door, at) for at in range(start, stop)]
            assert sum(map(len, step[:-1])) < limit_bytes, "only the last event of a step may go over the limit"
    log.drop()
    arena.close()


@given(LOGS, st.sampled_from([Door.FRAMED, Door.FRAMED_IDS]))
def test_every_event_is_an_http_chunk_of_its_own(entries: list[Entry], door: Door) -> None:
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    whole, _ = read(log, door, 0, NO_LIMIT, NO_LIMIT)
    whole += end_bytes(door)
    decoder = ChunkedDecoder()
    found = [whole[start:end] for start, end in decoder.feed(whole)]
    assert decoder.done
    assert decoder.consumed == len(whole)
    bare = Door(door & ~Door.FRAMED)
    assert found == [rendered(listed(entries)[: at + 1], bare, at) for at in range(log.deliverable)]
    log.drop()
    arena.close()


@given(LOGS)
def test_a_client_that_reads_ids_could_come_back_after_any_event(entries: list[Entry]) -> None:
    """Each event with data has exactly one id, its own, in front; ids count up by one; what has no seq has no id."""
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    whole, _ = read(log, Door.BARE_IDS, 0, NO_LIMIT, NO_LIMIT)
    ids = re.findall(rb"^id: 1-(\d+)$", whole, re.MULTILINE)
    assert ids == [b"%d" % seq for seq in range(log.event_count)]
    for block in whole.split(b"\n\n")[:-1]:
        assert block.startswith(b"id: ") == (b"\ndata: " in block)
    log.drop()
    arena.close()


def test_views_point_into_the_arena_where_nothing_must_be_added(arena: Arena) -> None:
    """The hot door copies nothing: a run of frames is one view, however many events it holds."""
    log = made(arena, [Entry("framed", data_block(b"%d" % seq)) for seq in range(50)])
    buffers, position, _ = encode(Door.FRAMED, log, 0, NO_LIMIT, NO_LIMIT)
    assert position == 50
    assert len(buffers) == 1
    assert isinstance(buffers[0], memoryview)
    assert buffers[0].obj is arena.map
    del buffers
    log.drop()


def test_bytes_that_nobody_may_see_split_a_run(arena: Arena) -> None:
    one, two = data_block(b"one"), data_block(b"two")
    log = made(arena, [Entry("framed", one), Entry("hidden", b"the usage that nobody asked for"), Entry("framed", two)])
    buffers, _, _ = encode(Door.FRAMED, log, 0, NO_LIMIT, NO_LIMIT)
    assert len(buffers) == 2
    assert b"".join(buffers) == rendered([Entry("framed", one), Entry("framed", two)], Door.FRAMED)
    del buffers
    log.drop()


# An engine's own ids. Ours is what a reader can come back with, so it must be the only one.


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"id: 7\ndata: x\n\n", b"id: 1-0\ndata: x\n\n"),
        (b"data: x\nid: 7\n\n", b"id: 1-0\ndata: x\n\n"),
        (b"data: x\nid\ndata: y\n\n", b"id: 1-0\ndata: x\ndata: y\n\n"),
        (b"id:7\nid:8\nevent: e\ndata: x\n\n", b"id: 1-0\nevent: e\ndata: x\n\n"),
        (b"data: id: 7\n\n", b"id: 1-0\ndata: id: 7\n\n"),
        (b"ident: 7\ndata: x\n\n", b"id: 1-0\nident: 7\ndata: x\n\n"),
        (b": id: 7\ndata: x\n\n", b"id: 1-0\n: id: 7\ndata: x\n\n"),
    ],
)
@pytest.mark.parametrize("way", ["plain", "record"])
def test_ids_of_the_engine_give_way_to_ours(arena: Arena, block: bytes, expected: bytes, way: str) -> None:
    log = made(arena, [Entry(way, block)])
    assert read(log, Door.BARE_IDS, 0, NO_LIMIT, NO_LIMIT)[0] == expected
    assert read(log, Door.BARE, 0, NO_LIMIT, NO_LIMIT)[0] == block, "other doors give the engine's event as it is"
    log.drop()


@pytest.mark.parametrize("block", [b"id: 7\n\n", b": x\nid: 7\n\n", b"id\n\n", b"retry: 5\nid: 7\nid: 8\n\n"])
def test_an_id_without_data_does_not_move_a_readers_cursor(arena: Arena, block: bytes) -> None:
    """By the standard an id counts even where nothing is dispatched: the client would come back with the engine's number."""
    log = made(arena, [Entry("plain", block, silent=True), Entry("plain", data_block(b"x"))])
    whole = read(log, Door.FRAMED_IDS, 0, NO_LIMIT, NO_LIMIT)[0]
    assert re.findall(rb"^id.*$", whole, re.MULTILINE) == [b"id: 1-0"]
    assert b"0\r\n\r\n" not in whole, "an empty HTTP chunk would end the body"
    log.drop()


def test_only_framed_doors_end_with_the_last_http_chunk() -> None:
    assert {door: end_bytes(door) for door in Door} == {
        Door.BARE: b"",
        Door.FRAMED: LAST_CHUNK,
        Door.BARE_IDS: b"",
        Door.FRAMED_IDS: LAST_CHUNK,
    }


def test_doors_keep_their_numbers() -> None:
    """They stand in shared memory: another version reads them."""
    assert [(door.name, int(door)) for door in Door] == [
        ("BARE", 0),
        ("FRAMED", 1),
        ("BARE_IDS", 2),
        ("FRAMED_IDS", 3),
    ]


# Many readers.


@pytest.mark.parametrize("door", [Door.BARE, Door.BARE_IDS, Door.FRAMED_IDS])
def test_what_many_readers_get_alike_is_encoded_once(door: Door) -> None:
    with World() as world:
        feeder = world.start(*(Entry("framed", data_block(b"%d" % number)) for number in range(3)))
        readers = [world.client().attach(feeder.stream, door) for _ in range(3)]
        entries = [Entry("framed", data_block(b"%d" % number)) for number in range(3)]
        for number in range(3, 40):
            entries.append(Entry("framed", data_block(b"%d" % number)))
            feeder.feed(entries[-1])
            kept = feeder.log.encoded
            assert kept is not None and kept[0] == (door, number, number + 1)
        late = world.client().attach(feeder.stream, door)
        world.settle()
        for reader in (*readers, late):
            assert reader.body == rendered(entries, door)


def test_what_is_kept_is_bound_by_size_and_by_those_who_share_it() -> None:
    small, large = (Entry("framed", data_block(b"x" * size)) for size in (100, MAX_KEPT_BYTES))
    with World() as world:
        feeder = world.start(small)
        world.client().attach(feeder.stream, Door.FRAMED_IDS)
        feeder.feed(small)
        assert feeder.log.encoded is None, "for one reader"
        other = world.client().attach(feeder.stream, Door.FRAMED_IDS)
        feeder.feed(small)
        assert feeder.log.encoded is not None and feeder.log.encoded[0] == (Door.FRAMED_IDS, 2, 3)
        feeder.feed(large)
        assert feeder.log.encoded[0] == (Door.FRAMED_IDS, 2, 3), "too large"
        other.leave()
        assert feeder.log.encoded is None, "one is left"


def test_what_is_kept_is_given_only_where_it_fits() -> None:
    with World() as world:
        entries = [Entry("framed", data_block(b"%d" % number)) for number in range(5)]
        log = world.start(*entries).log
        log.hold(), log.hold()
        whole, stop, _ = encode(Door.FRAMED_IDS, log, 0, NO_LIMIT, NO_LIMIT)
        assert stop == 5 and log.encoded is not None and whole == [log.encoded[1]]
        assert encode(Door.FRAMED_IDS, log, 0, 1, NO_LIMIT)[1] == 1
        assert encode(Door.FRAMED_IDS, log, 0, NO_LIMIT, 2)[1] == 2
        log.drop(), log.drop()
