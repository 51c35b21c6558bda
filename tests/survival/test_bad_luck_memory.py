"""Shared memory that is full, torn or made up when a shard is killed: what is true goes on, nothing else is shown to anyone."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from longwire.adopt import claim_rows
from longwire.sim.answer import answer_text
from longwire.streams.arena import BLOCK_BYTES, Arena, BrokenChain, Use
from longwire.streams.chain import Chain
from longwire.streams.memory import Memory
from longwire.streams.tables import CONNECTION_ROW_BYTES, STREAM_ROW_BYTES, Table, pack_stream, unpack_stream
from longwire.words.ids import Place

from .luck import Stream, ask, check_all, kill, running

SECRET = b"another tenant's words " * 3000


def heir_of(arena: Arena) -> Arena:
    return Arena.attach(os.dup(arena.fd))


def chains(arena: Arena, count: int, size: int = 3 * BLOCK_BYTES) -> list[Chain]:
    made = [Chain(arena, Use.LOG) for _ in range(count)]
    for number, chain in enumerate(made):
        chain.append(bytes([65 + number]) * size)
    return made


def test_chains_that_share_a_block_are_both_given_up_and_others_go_on() -> None:
    arena = Arena(4 << 20)
    one, two, three = chains(arena, 3)
    arena.links[one.blocks[1]] = two.blocks[2]
    heir = heir_of(arena)
    heir.claim([one.first, two.first, three.first])
    for chain in (one, two):
        with pytest.raises(BrokenChain):
            Chain(heir, Use.LOG, stored=(chain.first, chain.end))
    again = Chain(heir, Use.LOG, stored=(three.first, three.end))
    assert again.read(0, again.end) == three.read(0, three.end)
    again.give()
    heir.free_unclaimed()
    assert heir.free_blocks == heir.blocks
    assert len(set(heir._warm)) == len(heir._warm), "no block is given to two"


@pytest.mark.parametrize("target", ["itself", "an earlier one", "beyond the arena"])
def test_a_chain_that_runs_in_circles_or_away_ends_and_is_given_up(target: str) -> None:
    arena = Arena(4 << 20)
    one, two = chains(arena, 2)
    links = {"itself": one.blocks[2], "an earlier one": one.first, "beyond the arena": 4_000_000_000}
    arena.links[one.blocks[2]] = links[target]
    heir = heir_of(arena)
    heir.claim([one.first, two.first, 4_000_000_000, 0])
    with pytest.raises(BrokenChain):
        Chain(heir, Use.LOG, stored=(one.first, one.end))
    assert Chain(heir, Use.LOG, stored=(two.first, two.end)).end == two.end


@pytest.mark.parametrize("told", [100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
@pytest.mark.parametrize("size", [50, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_what_was_about_to_be_appended_when_its_process_died_is_forgotten(told: int, size: int) -> None:
    """The blocks were linked and perhaps filled, and nobody had been told."""
    arena = Arena(4 << 20)
    records = Chain(arena, Use.RECORDS)
    records.append(b"a" * told)
    records.append(b"never told" * (size // 10))
    heir = heir_of(arena)
    heir.claim([records.first])
    again = Chain(heir, Use.RECORDS, stored=(records.first, told))
    assert again.end == told
    assert again.append(b"b" * 3 * BLOCK_BYTES) == told
    assert again.read(0, again.end) == b"a" * told + b"b" * 3 * BLOCK_BYTES
    assert [*again.blocks] == [*heir.walk(again.first)]
    assert heir.free_blocks == heir.blocks - len(again.blocks)
    again.give()
    blocks = [heir.take(Use.LOG) for _ in range(8)]
    assert not any(any(heir.view[at : at + BLOCK_BYTES]) for at in map(heir.position, blocks)), (
        "nobody gets another's bytes"
    )


def test_a_chain_that_says_to_be_longer_than_it_is_is_given_up_and_its_blocks_are_not_lost() -> None:
    arena = Arena(4 << 20)
    (one,) = chains(arena, 1)
    heir = heir_of(arena)
    heir.claim([one.first])
    with pytest.raises(BrokenChain):
        Chain(heir, Use.LOG, stored=(one.first, len(one.blocks) * BLOCK_BYTES + 1))
    heir.free_unclaimed()
    assert heir.free_blocks == heir.blocks


def test_the_end_of_what_was_received_is_found_in_recycled_blocks() -> None:
    """Whoever had the blocks before has left nothing in them, also where it was killed before it could wipe them."""
    arena = Arena(2 << 20)
    dead = Chain(arena, Use.LOG)
    dead.append(SECRET)
    orphan = Chain(arena, Use.RECORDS)
    orphan.append(SECRET)
    dead.give()
    heir = heir_of(arena)
    heir.claim([])  # no row names the orphan
    for size in (5, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 7):
        chain = Chain(heir, Use.LOG)
        chain.append(b"x" * size)
        assert chain.find_end(0) == size
        assert chain.rest.tobytes().strip(b"\0") == b""
        chain.give()
    while heir.free_blocks:
        block = heir.take(Use.LOG)
        start = heir.position(block)
        assert not any(heir.view[start : start + BLOCK_BYTES])


def test_rows_that_cannot_be_true_are_given_up() -> None:
    memory = Memory.make(4 << 20, 64, 64)
    rng = random.Random(5)
    for _ in range(20):
        row = memory.streams.take()
        assert row is not None
        memory.streams.write(row, rng.randbytes(rng.choice([1, 40, STREAM_ROW_BYTES])))
        row = memory.connections.take()
        assert row is not None
        memory.connections.write(row, rng.randbytes(rng.choice([1, 30, CONNECTION_ROW_BYTES])))
    heir = Memory.attach([os.dup(fd) for fd in memory.fds], Place(incarnation=2))
    rows = claim_rows(heir)
    assert heir.streams.rows_used == len(rows.streams) and heir.connections.rows_used == len(rows.connections)
    assert all(row.id[-1] == 0 for row in rows.streams.values())


# Real processes.


@pytest.mark.e2e
@pytest.mark.patient(90)  # streams that wait for memory are given 15 s before one of them is ended
async def test_a_kill_with_a_full_arena_breaks_nothing_that_it_does_not_end_truthfully() -> None:
    # A slot of 4 MiB has 256 blocks; five streams of some 55 blocks do not fit, but four do.
    async with running(1, arena_bytes="4MiB", retention_s=0) as gateway:
        streams: list[Stream] = []
        for seed in range(1, 6):
            client = await gateway.connect()
            client.post(ask(seed, 4500, 1))
            streams.append(Stream(client, await client.head(), seed, 4500))
        probe = await gateway.connect()
        status = 200
        while status == 200:  # until one more is refused: then only what is under way may take blocks
            probe.post(ask(99, 1, 1))
            status = (await probe.answer()).status
        assert status == 503
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        for stream in streams:
            answer = await stream.client.rest()
            assert answer_text(stream.seed, stream.tokens).startswith(answer.text)
            if not (answer.is_whole and answer.is_marked_done and answer.in_band_error is None):
                assert answer.in_band_error is None or answer.in_band_error["code"] == "arena_full"
        await check_all([await gateway.stream(900 + n, 10, 1) for n in range(4)])


@pytest.mark.e2e
async def test_a_kill_with_full_tables_loses_no_stream() -> None:
    async with running(2, max_streams=16, max_connections=24) as gateway:
        streams = await gateway.streams_on_all(2, 5, 1500)
        more = [await gateway.connect() for _ in range(20)]
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
        for client in more:
            client.get("/healthz")
            assert (await client.answer()).status == 200


def poke(fd: int, seed: int) -> None:
    """Garbage into the payloads of some free rows of a streams table, as a writer out of its mind would leave it."""
    table = Table.attach("streams", os.dup(fd), STREAM_ROW_BYTES)
    rng = random.Random(seed)
    for row in range(table.rows_touched, min(table.rows, table.rows_touched + 8)):
        table.write(row, rng.randbytes(STREAM_ROW_BYTES))
    table._head[7] = min(table.rows, table.rows_touched + 8)


def open_first_table(pid: int) -> int:
    """Slot 0's streams table, as one of the gateway's processes has it."""
    links = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda link: int(link.name))
    return os.open(next(link for link in links if "longwire-streams" in str(link.readlink())), os.O_RDWR)


@pytest.mark.e2e
async def test_garbage_in_rows_ends_nothing_but_itself() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 4, 1500)
        victim = await gateway.pid_of(0)
        fd = open_first_table(victim)
        poke(fd, 3)
        table = Table.attach("streams", fd, STREAM_ROW_BYTES)
        # One that looks true: a living stream's row once more, under another id.
        theirs = {bytes.fromhex(stream.id[3:]): stream for stream in streams[0]}
        rows = {r: unpack_stream(p) for r in range(table.rows_touched) if (p := table.read(r)) and len(p) > 200}
        row = next(row for row in rows.values() if row.id in theirs)
        false = row._replace(id=bytes(17), log_block=3_999_999, records_block=0, request_block=0, fd=-1, end=1 << 60)
        table.write(table.rows_touched - 1, pack_stream(false))
        kill(victim)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
        await gateway.until(lambda: gateway.events("row_given_up"), "it is said")
