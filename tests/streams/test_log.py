"""The log: what was appended is read, in order, and every seq has its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.arena import BLOCK_BYTES, Arena, ArenaFull, Use
from longwire.streams.log import RECORD_HEADER, SPAN_BYTES, Log
from longwire.words.events import FRAMED, KIND_BITS, KIND_MASK, LENGTH_MASK, RECORD, SILENT, START_SHIFT

from .entries import LOGS
from .world import Entry, Hoard, data_block, framed, listed

ARENA_BYTES = 4 << 20
ONE, TWO = data_block(b"one"), data_block(b"two")
BEAT = b": longwire\n\n"


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(ARENA_BYTES)
    yield arena
    assert arena.free_blocks == arena.blocks
    arena.close()


@pytest.fixture
def log(arena: Arena) -> Iterator[Log]:
    log = Log(arena)
    yield log
    log.drop()


def append(log: Log, entry: Entry) -> None:
    """What an exchange does with one event; those that took the short way are only counted."""
    if entry.way == "record":
        log.append_record(entry.block, entry.silent)
    elif entry.way == "plain":
        log.append_plain(log.upstream.append(entry.block), len(entry.block), entry.silent)
    elif entry.way == "hidden":
        log.upstream.append(entry.block)
    elif entry.way == "framed":
        frame = framed(entry.block)
        log.append_framed(log.upstream.append(frame), len(frame))
    else:
        start = log.upstream.append(framed(entry.block))
        assert log.append_span(start, log.upstream.end) == (1, log.upstream.end)


def made(arena: Arena, entries: list[Entry]) -> Log:
    log = Log(arena)
    for entry in entries:
        append(log, entry)
    log.publish()
    return log


@given(LOGS)
def test_every_entry_is_read_as_it_was_appended(entries: list[Entry]) -> None:
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    expected = listed(entries)
    assert [log.block(position) for position in range(log.deliverable)] == [entry.block for entry in expected]
    assert log.body() == b"".join(entry.block for entry in expected)
    for position, entry in enumerate(expected):
        stored = b"".join(log.frame_views(position))
        assert stored == (entry.block if entry.way == "plain" else framed(entry.block))
    assert log.event_count == sum(not entry.silent for entry in expected)
    assert log.last_seq == log.event_count - 1
    log.drop()
    assert arena.free_blocks == arena.blocks
    arena.close()


@given(LOGS)
def test_each_seq_is_given_once_in_order_and_leads_to_its_place(entries: list[Entry]) -> None:
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    expected = listed(entries)
    spoken = [position for position, entry in enumerate(expected) if not entry.silent]
    assert [log.seq_at(position) for position in spoken] == list(range(len(spoken)))
    assert log.position_after(-1) == 0
    for seq, position in enumerate(spoken):
        assert log.position_after(seq) == position + 1, "silent entries behind it are still to be read"
        assert log.seq_at(log.position_after(seq)) == seq + 1
    for position, entry in enumerate(expected):
        if entry.silent:
            assert log.seq_at(position) == sum(not other.silent for other in expected[:position])
    log.drop()
    arena.close()


@given(LOGS, st.integers(1, 3 * BLOCK_BYTES), st.data())
def test_a_run_of_frames_is_bytes_as_they_lie(entries: list[Entry], limit_bytes: int, data: st.DataObject) -> None:
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    log.fill()
    if log.deliverable:
        position = data.draw(st.integers(0, log.deliverable - 1))
        stop = data.draw(st.integers(position + 1, log.deliverable))
        following, start, length = log.run_of_frames(position, stop, limit_bytes)
        first = listed(entries)[position]
        if first.way in ("hot", "framed"):
            assert position < following <= stop
            assert log.upstream.read(start, length) == b"".join(
                framed(entry.block) for entry in listed(entries)[position:following]
            )
            last = len(framed(listed(entries)[following - 1].block))
            assert length - last < limit_bytes, "only the last entry of a run may go over the limit"
        else:
            assert following == position
    log.drop()
    arena.close()


@given(LOGS)
def test_records_can_be_merged_into_their_places_again(entries: list[Entry]) -> None:
    """An adopter has the two chains and no index."""
    arena = Arena(ARENA_BYTES)
    log = made(arena, entries)
    found = []
    at = 0
    while log.records is not None and at < log.records.end:
        place, facts = RECORD_HEADER.unpack(log.records.read(at, RECORD_HEADER.size))
        start = at + RECORD_HEADER.size
        length = facts >> KIND_BITS & LENGTH_MASK
        found.append((place, start, length, facts & KIND_MASK))
        at = start + length
    assert found == [
        (position, word >> START_SHIFT, word >> KIND_BITS & LENGTH_MASK, word & KIND_MASK)
        for position, word in enumerate(log.entries)
        if word & RECORD
    ]
    log.drop()
    arena.close()


@given(LOGS, st.data())
def test_what_is_only_counted_has_its_seqs_and_is_found_when_it_is_asked_for(
    entries: list[Entry], data: st.DataObject
) -> None:
    arena = Arena(ARENA_BYTES)
    lazy, eager = made(arena, entries), made(arena, entries)
    eager.fill()
    assert (lazy.event_count, lazy.last_seq) == (eager.event_count, eager.last_seq)
    for seq in range(-1, lazy.last_seq + 1):
        assert lazy.position_after(seq) == eager.position_after(seq)
    counted = bool(lazy.spans)
    assert bool(lazy.known_from) == counted == any(entry.way == "hot" for entry in entries)
    if lazy.deliverable:
        position = data.draw(st.integers(0, lazy.deliverable - 1))
        assert lazy.block(position) == eager.block(position)
    lazy.fill()
    assert (lazy.entries, lazy.silent, lazy.known_from, lazy.spans) == (eager.entries, eager.silent, 0, [])
    append(lazy, Entry("hot", ONE))
    lazy.publish()
    assert lazy.block(lazy.deliverable - 1) == ONE
    lazy.drop()
    eager.drop()
    arena.close()


def test_a_span_is_counted_at_once_however_many_events_it_has(log: Log) -> None:
    frames = [framed(data_block(b"%d" % number)) for number in range(300)]
    start = log.upstream.append(b"".join(frames))
    assert log.append_span(start, start + len(frames[0])) == (1, start + len(frames[0]))
    assert log.append_span(start + len(frames[0]), log.upstream.end) == (299, log.upstream.end)
    assert len(log.spans) == 1, "what lies together is kept together"
    log.publish()
    assert log.last_seq == 299
    assert [log.block(position) for position in (0, 150, 299)] == [data_block(b"%d" % n) for n in (0, 150, 299)]


def test_whoever_asks_for_one_event_of_many_has_only_those_around_it_found(log: Log) -> None:
    """A reader of a stream that nobody has read may ask for the first of hundreds of thousands, while others wait."""
    block = data_block(b"x" * 200)
    frame = framed(block)
    count = 3 * SPAN_BYTES // len(frame)
    for _ in range(count):
        start = log.upstream.append(frame)
        log.append_span(start, start + len(frame))
    log.publish()
    assert len(log.spans) == 3
    middle = count // 2
    for _ in range(3):
        assert log.block(middle) == block
        assert len(log.spans) == 2, "what is there is not looked for again, and nothing else in its place"
    unfound = sum(not entry for entry in log.entries)
    assert count // 2 < unfound < count
    for position in (count - 1, middle, 0):
        assert log.block(position) == block
    assert (log.spans, log.known_from, sum(not entry for entry in log.entries)) == ([], 0, 0)


@given(LOGS, st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=6))
def test_parts_are_found_in_any_order(entries: list[Entry], wishes: list[tuple[int, int]]) -> None:
    arena = Arena(ARENA_BYTES)
    lazy, eager = made(arena, entries), made(arena, entries)
    eager.fill()
    for position, count in wishes:
        if position < lazy.deliverable:
            stop = min(position + count, lazy.deliverable)
            apart = [span for span in lazy.spans if span.stop <= position or span.place >= stop]
            lazy.fill(position, stop)
            assert lazy.spans == apart, "nothing else is found"
            assert list(lazy.entries)[position:stop] == list(eager.entries)[position:stop]
            assert all(lazy.entries[at] == eager.entries[at] for at in range(lazy.known_from, lazy.deliverable))
    assert [lazy.block(at) for at in range(lazy.deliverable)] == [entry.block for entry in listed(entries)]
    lazy.drop()
    eager.drop()
    arena.close()


def test_what_is_not_published_is_not_counted(log: Log) -> None:
    append(log, Entry("plain", ONE))
    assert (log.deliverable, log.event_count, log.last_seq, log.body()) == (0, 0, -1, b"")
    append(log, Entry("record", BEAT, silent=True))
    log.publish()
    assert (log.deliverable, log.event_count, log.last_seq, log.body()) == (2, 1, 0, ONE + BEAT)


def test_sealing_publishes_the_rest(log: Log) -> None:
    append(log, Entry("hot", ONE))
    assert repr(log) == "<Log open, 0 events, 16 bytes>"
    log.seal()
    assert log.is_sealed
    assert log.deliverable == 1
    assert repr(log) == "<Log sealed, 1 events, 16 bytes>"


def test_kinds_say_where_and_how(log: Log) -> None:
    for entry in (Entry("hot", ONE), Entry("plain", ONE), Entry("plain", BEAT, True), Entry("record", BEAT, True)):
        append(log, entry)
    log.fill()
    assert [word & KIND_MASK for word in log.entries] == [FRAMED, 0, SILENT, FRAMED | RECORD | SILENT]


def test_a_record_that_finds_no_room_changes_nothing(arena: Arena) -> None:
    log = made(arena, [Entry("hot", ONE), Entry("record", TWO)])
    before = (list(log.entries), log.silent[:], log.bytes_held)
    hoard = Hoard(arena, 0)
    with pytest.raises(ArenaFull):
        log.append_record(b"x" * BLOCK_BYTES, silent=True)
    assert (list(log.entries), list(log.silent), log.bytes_held) == (before[0], list(before[1]), before[2])
    hoard.give()
    log.append_record(ONE)
    log.publish()
    assert log.body() == ONE + TWO + ONE
    log.drop()


def test_blocks_stay_until_the_last_holder_lets_go(arena: Arena) -> None:
    log = made(arena, [Entry("hot", ONE), Entry("record", TWO)])
    log.fill()
    view = log.frame_views(0)[0]
    log.hold()
    log.hold()
    log.drop()
    log.drop()
    assert (arena.used[Use.LOG], arena.used[Use.RECORDS]) == (1, 1)
    assert view == framed(ONE)
    log.drop()
    assert (arena.used[Use.LOG], arena.used[Use.RECORDS]) == (0, 0)
    with pytest.raises(AssertionError):
        log.drop()
    with pytest.raises(AssertionError):
        log.hold()
    del view


def test_a_flood_of_comments_costs_little_more_than_its_bytes(arena: Arena) -> None:
    """A hostile engine can send millions of three bytes each; what the gateway keeps of one must be small."""
    log = Log(arena)
    before = sys.getsizeof(log.silent) + sys.getsizeof(log.entries)
    for _ in range(10_000):
        log.append_plain(0, 3, silent=True)
    kept = sys.getsizeof(log.silent) + sys.getsizeof(log.entries) - before
    assert kept < 20 * 10_000
    assert type(log.silent) is type(log.entries), "an int object for each would be four times as much again"
    log.drop()
