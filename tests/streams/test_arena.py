"""The arena's account, its chains, and who may take the last blocks."""

from __future__ import annotations

import fcntl
import os
from array import array
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.arena import (
    BLOCK_BYTES,
    PAUSE_BLOCKS,
    RESERVE_BLOCKS,
    TRIM_BLOCKS,
    WAKE_BLOCKS,
    WARM_FLOOR_BLOCKS,
    Arena,
    ArenaFull,
    Use,
)
from longwire.streams.chain import Chain
from longwire.streams.shared import F_SEAL_SHRINK

from .world import Hoard

F_GET_SEALS = 1034


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(RESERVE_BLOCKS * 2 * BLOCK_BYTES)
    yield arena
    arena.close()


# The memory.


def test_the_memory_cannot_be_shrunk_under_a_process_that_maps_it(arena: Arena) -> None:
    assert fcntl.fcntl(arena.fd, F_GET_SEALS) & F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 4096)


def test_blocks_do_not_overlap_each_other_nor_the_links(arena: Arena) -> None:
    blocks = [arena.take(Use.LOG) for _ in range(arena.free_blocks)]
    assert len(set(blocks)) == arena.blocks
    assert 0 not in blocks
    for block in blocks:
        start = arena.position(block)
        arena.view[start : start + BLOCK_BYTES] = bytes([block % 251]) * BLOCK_BYTES
    for block in blocks:
        start = arena.position(block)
        assert arena.view[start : start + BLOCK_BYTES] == bytes([block % 251]) * BLOCK_BYTES
        assert arena.links[block] == 0
    arena.give(array("I", blocks), Use.LOG)
    assert arena.free_blocks == arena.blocks


def test_the_least_arena_still_serves_a_stream() -> None:
    arena = Arena(1)
    assert arena.has_room
    chain = Chain(arena, Use.LOG)
    chain.append(b"x" * (10 * BLOCK_BYTES))
    assert chain.end == 10 * BLOCK_BYTES
    chain.give()
    assert arena.free_blocks == arena.blocks
    arena.close()


def test_a_recycled_block_leads_nowhere(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG)
    chain.append(b"x" * (3 * BLOCK_BYTES))
    blocks = list(chain.blocks)
    chain.give()
    again = Chain(arena, Use.LOG)
    assert again.first in blocks
    assert list(arena.walk(again.first)) == [again.first]
    again.give()


def test_a_walk_along_damaged_links_ends(arena: Arena) -> None:
    first = arena.take(Use.LOG)
    arena.links[first] = first
    assert len(arena.walk(first)) <= arena.blocks + 1
    arena.give(array("I", [first]), Use.LOG)


# Who may take the last blocks.


def test_what_clients_send_leaves_the_reserve_to_streams_under_way(arena: Arena) -> None:
    chain = Chain(arena, Use.INPUT)
    hoard = Hoard(arena, RESERVE_BLOCKS)
    with pytest.raises(ArenaFull):
        chain.append(b"x" * BLOCK_BYTES)
    assert chain.end == 0, "nothing was stored"
    assert arena.free_blocks == RESERVE_BLOCKS
    chain.give()
    hoard.give()


def test_a_small_request_is_still_heard_when_new_work_is_not(arena: Arena) -> None:
    """A reader that comes back, and a cancel that would make room, must not be refused for want of one block."""
    hoard = Hoard(arena, RESERVE_BLOCKS)
    chain = Chain(arena, Use.INPUT)
    assert not arena.has_room
    chain.give()
    hoard.give()


@pytest.mark.parametrize(("use", "left"), [(Use.REQUEST, PAUSE_BLOCKS), (Use.INPUT, PAUSE_BLOCKS // 2)])
def test_the_last_blocks_are_for_what_streams_must_still_say(arena: Arena, use: Use, left: int) -> None:
    hoard = Hoard(arena, left)
    with pytest.raises(ArenaFull):
        Chain(arena, use)
    records = Chain(arena, Use.RECORDS)
    records.give()
    hoard.give()


# Waiting for blocks.


def test_who_waits_is_called_once_when_blocks_have_become_free(arena: Arena) -> None:
    calls: list[int] = []
    hoard = Hoard(arena, PAUSE_BLOCKS - 1)
    arena.when_free(lambda: calls.append(1))
    hoard.give(1)
    assert not calls, "one block would be gone before the next wakes"
    hoard.give(WAKE_BLOCKS)
    assert calls == [1]
    hoard.give()
    assert calls == [1]


def test_a_stream_that_waits_may_have_the_reserve(arena: Arena) -> None:
    """The reserve is for what is under way. A waiter that sleeps until new work may begin would let new work in before it."""
    calls: list[int] = []
    hoard = Hoard(arena, PAUSE_BLOCKS - 1)
    arena.when_free(lambda: calls.append(arena.free_blocks))
    hoard.give(WAKE_BLOCKS)
    assert calls
    assert calls[0] < RESERVE_BLOCKS
    hoard.give()


def test_waiters_are_called_in_order_and_only_while_there_are_blocks(arena: Arena) -> None:
    """Each takes what it needs; those for whom nothing is left keep their place."""
    hoard = Hoard(arena, 0)
    order: list[int] = []
    takers: list[Hoard] = []

    def take(name: int) -> None:
        order.append(name)
        takers.append(Hoard(arena, WAKE_BLOCKS // 2))

    for name in range(6):
        arena.when_free(partial(take, name))
    hoard.give(WAKE_BLOCKS // 2)
    for wakened in range(1, 7):
        hoard.give(WAKE_BLOCKS // 2)
        assert order == list(range(wakened)), "the first took what there was"
    hoard.give()
    for taker in takers:
        taker.give()


def test_thousands_may_wait_and_give_back_when_called(arena: Arena) -> None:
    """A waiter that gives blocks back (by evicting, say) must not call the next one from inside its own call."""
    hoard = Hoard(arena, 0)
    depth = deepest = calls = 0

    def wake() -> None:
        nonlocal depth, deepest, calls
        depth += 1
        calls += 1
        deepest = max(deepest, depth)
        Hoard(arena, arena.free_blocks - 1).give()
        depth -= 1

    for _ in range(5000):
        arena.when_free(wake)
    hoard.give()
    assert calls == 5000
    assert deepest == 1


# Chains.


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=12), st.data())
def test_what_was_appended_is_read_at_its_offset(sizes: list[int], data: st.DataObject) -> None:
    arena = Arena(RESERVE_BLOCKS * 2 * BLOCK_BYTES)
    chain = Chain(arena, Use.LOG)
    model = b""
    for number, size in enumerate(sizes):
        piece = bytes([65 + number]) * size
        assert chain.append(piece) == len(model)
        model += piece
    assert chain.end == len(model)
    assert chain.read(0, len(model)) == model
    if model:
        start = data.draw(st.integers(0, len(model) - 1))
        length = data.draw(st.integers(1, len(model) - start))
        assert chain.read(start, length) == model[start : start + length]
        assert all(len(view) for view in chain.slices(start, length))
    assert len(chain.blocks) == len(model) // BLOCK_BYTES + 1, "a full block has its successor at once, and no more"
    assert list(arena.walk(chain.first)) == list(chain.blocks)
    assert arena.used[Use.LOG] == len(chain.blocks)
    chain.give()
    assert arena.free_blocks == arena.blocks
    arena.close()


@given(st.lists(st.integers(1, BLOCK_BYTES), max_size=20))
def test_bytes_that_the_kernel_stores_lie_one_behind_the_other(counts: list[int]) -> None:
    arena = Arena(RESERVE_BLOCKS * 2 * BLOCK_BYTES)
    chain = Chain(arena, Use.LOG)
    model = b""
    for number, count in enumerate(counts):
        tail = chain.rest
        assert len(tail), "there is always somewhere to read to"
        count = min(count, len(tail))
        tail[:count] = bytes([65 + number]) * count
        chain.filled(count)
        model += bytes([65 + number]) * count
        del tail
    assert chain.read(0, len(model)) == model
    chain.give()
    arena.close()


def test_nothing_is_stored_where_not_all_of_it_fits(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG)
    chain.append(b"before")
    hoard = Hoard(arena, 1)
    with pytest.raises(ArenaFull):
        chain.append(b"x" * (2 * BLOCK_BYTES))
    assert chain.read(0, chain.end) == b"before"
    assert arena.free_blocks == 1
    assert chain.append(b"y" * BLOCK_BYTES) == 6
    chain.give()
    hoard.give()


def test_a_chain_that_finds_no_block_stands_still_and_goes_on_when_extended(arena: Arena) -> None:
    full: list[int] = []
    chain = Chain(arena, Use.LOG, lambda: full.append(1))
    hoard = Hoard(arena, PAUSE_BLOCKS - 1)
    tail = chain.rest
    tail[:] = b"a" * len(tail)
    chain.filled(len(tail))
    assert chain.is_full
    assert full == [1]
    assert not len(chain.rest)
    assert arena.free_blocks == PAUSE_BLOCKS - 1, "what is left is for records"
    hoard.give()
    chain.extend()
    assert not chain.is_full
    chain.rest[:3] = b"end"
    chain.filled(3)
    assert chain.read(BLOCK_BYTES - 1, 4) == b"aend"
    del tail
    chain.give()


def test_appending_to_a_chain_that_waits_does_not_hang(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG, lambda: None)
    hoard = Hoard(arena, PAUSE_BLOCKS - 1)
    chain.append(b"x" * (2 * BLOCK_BYTES + 5))
    assert chain.read(0, chain.end) == b"x" * (2 * BLOCK_BYTES + 5)
    chain.give()
    hoard.give()


def test_a_chain_begins_anew_in_its_first_block(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG)
    first = chain.first
    chain.append(b"x" * (3 * BLOCK_BYTES))
    chain.rewind()
    assert (chain.first, chain.end, list(chain.blocks)) == (first, 0, [first])
    assert list(arena.walk(first)) == [first]
    assert arena.used[Use.LOG] == 1
    chain.append(b"again")
    assert chain.read(0, 5) == b"again"
    chain.give()


@given(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES))
def test_a_chain_stores_something_else_in_its_place(before: int, after: int) -> None:
    arena = Arena(RESERVE_BLOCKS * 2 * BLOCK_BYTES)
    chain = Chain(arena, Use.REQUEST)
    first = chain.first
    chain.append(b"b" * before)
    held = len(chain.blocks)
    hoard = Hoard(arena, 0 if after <= before else 40)
    chain.replace(b"a" * after)
    assert (chain.first, chain.end) == (first, after)
    assert chain.read(0, after) == b"a" * after
    assert len(chain.blocks) == after // BLOCK_BYTES + 1
    assert list(arena.walk(first)) == list(chain.blocks)
    if after <= before:
        assert arena.free_blocks == held - len(chain.blocks), "no block was taken"
    hoard.give()
    chain.append(b"x")
    assert chain.read(after, 1) == b"x"
    chain.give()
    assert arena.free_blocks == arena.blocks
    arena.close()


def test_a_chain_that_stood_still_begins_anew(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG, lambda: None)
    hoard = Hoard(arena, PAUSE_BLOCKS - 1)
    chain.filled(len(chain.rest))
    assert chain.is_full
    chain.rewind()
    assert not chain.is_full
    assert len(chain.rest) == BLOCK_BYTES
    chain.give()
    hoard.give()


def test_blocks_are_given_back_once(arena: Arena) -> None:
    chain = Chain(arena, Use.LOG)
    chain.give()
    with pytest.raises(AssertionError):
        chain.give()
    assert arena.free_blocks == arena.blocks


@pytest.mark.parametrize("use", [Use.RECORDS, Use.REQUEST])
def test_what_a_dead_process_left_behind_a_chain_s_end_is_in_no_later_one(arena: Arena, use: Use) -> None:
    told = BLOCK_BYTES + 100
    dead = Chain.holding(arena, use, b"x" * (3 * BLOCK_BYTES))
    heir = Arena.attach(os.dup(arena.fd))
    heir.claim([dead.first])
    chain = Chain(heir, use, stored=(dead.first, told))
    assert chain.read(0, told) == b"x" * told
    chain.give()
    while heir.available(use, more=True):
        start = heir.position(heir.take(use, after=1))
        assert not any(heir.view[start : start + BLOCK_BYTES])
    heir.close()


def test_the_account_names_each_use(arena: Arena) -> None:
    chains = [Chain(arena, use) for use in Use]
    assert arena.statistics() == {
        "blocks": arena.blocks,
        "free": arena.blocks - len(Use),
        "log": 1,
        "records": 1,
        "request": 1,
        "input": 1,
    }
    for chain in chains:
        chain.give()
    assert f"0 of {arena.blocks} blocks used" in repr(arena)


# Memory that nobody needs.


def resident_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def test_blocks_that_stay_idle_go_back_to_the_system_and_can_be_taken_again() -> None:
    arena = Arena((WARM_FLOOR_BLOCKS + 400) * BLOCK_BYTES)
    blocks = array("I", [arena.take(Use.LOG) for _ in range(WARM_FLOOR_BLOCKS + 300)])
    for block in blocks:
        arena.view[arena.position(block)] = 1
    arena.give(blocks, Use.LOG)
    assert arena.trim() == 0, "they were in use since the last look"
    before = resident_bytes(arena)
    assert [arena.trim() for _ in range(4)] == [TRIM_BLOCKS, TRIM_BLOCKS, 300 - 2 * TRIM_BLOCKS, 0]
    assert before - resident_bytes(arena) == 300 * os.sysconf("SC_PAGESIZE"), "the one page of each that was touched"
    assert arena.free_blocks == arena.blocks
    again = [arena.take(Use.LOG) for _ in range(arena.blocks)]
    assert len(set(again)) == arena.blocks
    arena.close()


def test_what_is_needed_now_and_then_stays() -> None:
    arena = Arena((WARM_FLOOR_BLOCKS + 400) * BLOCK_BYTES)
    for _ in range(3):
        arena.give(array("I", [arena.take(Use.LOG) for _ in range(WARM_FLOOR_BLOCKS + 300)]), Use.LOG)
        assert arena.trim() == 0
    arena.close()
