"""Rows that any process may read while one writes: values, and a writer that dies or hurries at any point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.shared import LayoutMismatch
from longwire.streams.tables import (
    CONNECTION_ROW_BYTES,
    COUNT_BITS,
    COUNT_MASK,
    MAX_FACTS_BYTES,
    MAX_STORED_HEAD_BYTES,
    STREAM_ROW_BYTES,
    WORDS,
    ConnectionRow,
    StreamRow,
    Table,
    pack_connection,
    pack_stream,
    pack_word,
    unpack_connection,
    unpack_stream,
)

ROW_BYTES = 48
OLD, NEW, NEWER = b"old" * 9, b"the new one" * 4, b"newer" * 3


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table("test", 4, ROW_BYTES)
    yield table
    table.close()


class Memory:
    """Stands between a table and its memory: sees every store (byte by byte, as a copy can be cut off) and every load."""

    def __init__(self, table: Table) -> None:
        self.on_store: Callable[[], None] = lambda: None
        self.on_load: Callable[[], None] = lambda: None
        table._view = cast(memoryview, _Seen(table._view, self))
        table.words = cast(memoryview, _Seen(table.words, self))

    def stored(self) -> None:
        self.on_store()

    def loads(self) -> None:
        self.on_load()


class _Seen:
    def __init__(self, view: memoryview, memory: Memory) -> None:
        self._view = view
        self._memory = memory

    def __getitem__(self, key: Any) -> Any:
        self._memory.loads()
        return self._view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            for index, byte in enumerate(bytes(value)):
                self._view[key.start + index] = byte
                self._memory.stored()
        else:
            self._view[key] = value  # one aligned word: the processor stores it whole
            self._memory.stored()

    def release(self) -> None:
        self._view.release()

    def __buffer__(self, flags: int) -> memoryview:
        return self._view


def plain_bytes(table: Table) -> bytes:
    return bytes(cast(_Seen, table._view)._view)


def after_a_kill(memory: bytes) -> Table:
    """Another process's table over what a dead one left."""
    other = Table("test", 4, ROW_BYTES)
    other._view[:] = memory
    return other


def states_during(write: Callable[[Table], None], prepare: Callable[[Table], None]) -> list[bytes]:
    """The memory after each single store of ``write``: every state that a kill can leave."""
    table = Table("test", 4, ROW_BYTES)
    prepare(table)
    memory = Memory(table)
    states = [plain_bytes(table)]
    memory.on_store = lambda: states.append(plain_bytes(table))
    write(table)
    table.close()
    return states


# Values.


def test_a_row_reads_as_it_was_written(table: Table) -> None:
    row = table.take()
    assert row is not None
    assert table.read(row) is None
    for payload in (b"x", b"y" * ROW_BYTES, b"z" * 7):
        table.write(row, payload)
        assert table.read(row) == payload


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=ROW_BYTES)), max_size=30))
def test_rows_do_not_touch_each_other(writes: list[tuple[int, bytes]]) -> None:
    table = Table("test", 4, ROW_BYTES)
    for _ in range(4):
        table.take()
    model: dict[int, bytes] = {}
    for row, payload in writes:
        table.write(row, payload)
        table.words[table.word_index(row)] = pack_word(row, row)
        model[row] = payload
        assert {row: table.read(row) for row in range(4) if table.read(row) is not None} == model
    table.close()


def test_what_is_too_long_is_refused_and_leaves_the_row_alone(table: Table) -> None:
    table.write(0, OLD)
    with pytest.raises(ValueError, match="do not fit into a row of test"):
        table.write(0, b"x" * (ROW_BYTES + 16))
    assert table.read(0) == OLD


def test_rows_are_taken_until_there_are_none_and_come_back_empty(table: Table) -> None:
    rows = [table.take() for _ in range(4)]
    assert table.take() is None
    row = rows[2]
    assert row is not None
    table.write(row, OLD)
    index = table.word_index(row)
    table.words[index : index + WORDS] = memoryview(b"\xff" * 8 * WORDS).cast("Q")
    table.give(row)
    assert table.read(row) is None
    assert table.statistics() == {"rows": 4, "used": 3}
    assert table.take() == row
    assert list(table.words[index : index + WORDS]) == [0] * WORDS
    assert table.read(row) is None


def test_words_are_aligned_and_their_own(table: Table) -> None:
    for row in range(4):
        for word in range(WORDS):
            table.words[table.word_index(row) + word] = row * 10 + word
        table.write(row, OLD)
    for row in range(4):
        assert [table.words[table.word_index(row) + word] for word in range(WORDS)] == [
            row * 10 + word for word in range(WORDS)
        ]


def test_a_word_holds_the_longest_stream_of_the_shortest_events() -> None:
    """4 GiB is the largest log that can be set; three bytes are the least that an entry can be (an empty comment)."""
    offset, count = 4 << 30, (64 << 20) // 3
    word = pack_word(offset, count)
    assert word < 1 << 64
    assert (word >> COUNT_BITS, word & COUNT_MASK) == (offset, count)


# A writer that dies.


def test_a_kill_at_any_store_leaves_the_old_row_or_the_new_one() -> None:
    states = states_during(lambda table: table.write(1, NEW), lambda table: table.write(1, OLD))
    seen = []
    for state in states:
        other = after_a_kill(state)
        seen.append(other.read(1))
        assert other.read(0) is None
        assert other.read(2) is None
        other.close()
    assert set(seen) == {OLD, NEW}
    assert seen.index(NEW) == len(seen) - 1, "the new row is there with the last store, and not before"


def test_a_kill_in_the_first_write_leaves_an_empty_row() -> None:
    states = states_during(lambda table: table.write(1, NEW), lambda table: None)
    seen = []
    for state in states:
        other = after_a_kill(state)
        seen.append(other.read(1))
        other.close()
    assert seen == [None] * (len(seen) - 1) + [NEW]


def test_a_kill_while_a_row_is_given_back_leaves_it_taken_or_empty() -> None:
    def prepare(table: Table) -> None:
        table.take()
        table.write(0, OLD)

    states = states_during(lambda table: table.give(0), prepare)
    seen = []
    for state in states:
        other = after_a_kill(state)
        seen.append(other.read(0))
        other.close()
    assert set(seen) == {OLD, None}


def test_who_comes_after_a_kill_writes_on_whatever_it_left() -> None:
    """Also when it is killed in turn: at no store does a reader see anything but a row that somebody wrote."""
    for state in states_during(lambda table: table.write(1, NEW), lambda table: table.write(1, OLD)):
        survivor = after_a_kill(state)
        before = survivor.read(1)
        survivor.close()
        table = after_a_kill(state)
        memory = Memory(table)
        seen: list[bytes | None] = []

        def look(table: Table = table, seen: list[bytes | None] = seen) -> None:
            reader = after_a_kill(plain_bytes(table))
            seen.append(reader.read(1))
            reader.close()

        memory.on_store = look
        table.write(1, NEWER)
        assert set(seen[:-1]) == {before}
        assert seen[-1] == NEWER
        table.close()


def test_damage_to_a_slot_uncovers_the_other() -> None:
    table = Table("test", 4, ROW_BYTES)
    table.write(1, OLD)
    table.write(1, NEW)
    memory = bytes(table._view)
    at = memory.index(NEW)
    for index in range(len(NEW)):
        damaged = bytearray(memory)
        damaged[at + index] ^= 0x10
        other = after_a_kill(bytes(damaged))
        assert other.read(1) == OLD
        other.close()
    table.close()


# A writer that hurries.


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_reader_that_is_overtaken_at_any_load_sees_a_whole_row(writes: int) -> None:
    for overtaken_at in range(30):
        table = Table("test", 4, ROW_BYTES)
        table.write(1, OLD)
        table.write(1, NEW)
        memory = Memory(table)
        loads = 0

        def overtake(table: Table = table, memory: Memory = memory, at: int = overtaken_at) -> None:
            nonlocal loads
            loads += 1
            if loads == at + 1:
                memory.on_load = lambda: None
                for number in range(writes):
                    table.write(1, b"%d" % number * (5 + number))

        memory.on_load = overtake
        assert table.read(1) in (OLD, NEW, *(b"%d" % number * (5 + number) for number in range(writes)))
        table.close()


def test_a_reader_that_is_overtaken_again_and_again_does_not_call_the_row_empty() -> None:
    """Empty would mean that the stream is gone: nobody would take it over."""
    table = Table("test", 4, ROW_BYTES)
    table.write(1, OLD)
    memory = Memory(table)
    writes = 0

    def overtake() -> None:
        nonlocal writes
        if writes < 8:
            hook, memory.on_load = memory.on_load, lambda: None
            table.write(1, b"a%d" % writes)
            table.write(1, b"b%d" % writes)
            writes += 2
            memory.on_load = hook

    memory.on_load = overtake
    assert table.read(1) is not None
    table.close()


# Another process.


def test_another_process_reads_what_one_wrote_and_goes_on_as_its_writer(table: Table) -> None:
    for payload in (b"one", b"two", b"three"):
        row = table.take()
        assert row is not None
        table.write(row, payload)
    table.give(1)
    other = Table.attach("test", os.dup(table.fd), ROW_BYTES)
    assert [other.read(row) for row in range(other.rows_touched)] == [b"one", None, b"three"]
    other.claim()
    assert other.rows_used == 2
    assert sorted(other.take() or 0 for _ in range(2)) == [1, 3]
    assert other.take() is None
    other.close()


def test_memory_of_another_layout_is_declined(table: Table) -> None:
    with pytest.raises(LayoutMismatch, match="rows of 48 bytes"):
        Table.attach("test", table.fd, ROW_BYTES + 1)
    os.pwrite(table.fd, b"?", 0)
    with pytest.raises(LayoutMismatch, match="no table of test"):
        Table.attach("test", table.fd, ROW_BYTES)


# The fields.

WORD32, WORD64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
BYTE, HASH, STREAM_ID = st.integers(0, 255), st.binary(min_size=16, max_size=16), st.binary(min_size=17, max_size=17)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": STREAM_ID,
    "stream_id": STREAM_ID,
    **dict.fromkeys(("prompt_hash", "key_hash", "body_hash"), HASH),
    "facts": st.binary(max_size=MAX_FACTS_BYTES),
    "head": st.binary(max_size=MAX_STORED_HEAD_BYTES),
    "fd": st.integers(-2, 2**31 - 1),
    "stream": st.integers(-1, 2**31 - 1),
    **dict.fromkeys(("state", "kind", "reason", "on_disconnect", "phase", "door", "keep_alive", "eof"), BYTE),
    **dict.fromkeys(
        ("read_base", "written_base", "end", "records_bytes", "request_bytes", "created_us", "serial"), WORD64
    ),
    **dict.fromkeys(("asker", "asked_at", "ended_us"), WORD64),
    **dict.fromkeys(("start_position", "answer_bytes"), WORD32),
}
STREAM_ROWS = st.builds(StreamRow, **{name: FIELDS.get(name, WORD32) for name in StreamRow._fields})
CONNECTION_ROWS = st.builds(ConnectionRow, **{name: FIELDS.get(name, WORD32) for name in ConnectionRow._fields})


@given(STREAM_ROWS)
def test_a_stream_row_comes_back_field_by_field(row: StreamRow) -> None:
    payload = pack_stream(row)
    assert len(payload) <= STREAM_ROW_BYTES
    assert unpack_stream(payload) == row


@given(CONNECTION_ROWS)
def test_a_connection_row_comes_back_field_by_field(row: ConnectionRow) -> None:
    payload = pack_connection(row)
    assert len(payload) <= CONNECTION_ROW_BYTES
    assert unpack_connection(payload) == row
