"""Operator connections: answers, refusals, silence, and tails that go on with a successor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.house import until

from longwire.admin import operator
from longwire.admin.operator import MAX_ANSWER_BYTES, MAX_TRIES, NoAnswer, Operator, refusal_of
from longwire.words.errors import BadCursor, Gone, LocalError, NotFound, Overloaded, RemoteError, UpstreamError

from .shard import EVENTS, LAST, STAYS, FakeShard, chunk, event, refusal, response

ID = "lw_" + "a" * 34
Script = Sequence[bytes | str | asyncio.Event]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not answer is given up at once."""
    monkeypatch.setattr(operator, "LOOK_S", 0.02)


@asynccontextmanager
async def shard_with(*scripts: Script) -> AsyncIterator[tuple[FakeShard, Operator]]:
    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    shard = FakeShard(*scripts)
    yield shard, Operator(shard, at_once)
    await shard.close()


async def tail_of(asked: Operator, after: str | None = None) -> AsyncGenerator[bytes, None]:
    blocks = await asked.tail(ID, after)
    assert blocks is not None
    return blocks


async def all_of(blocks: AsyncIterator[bytes]) -> bytes:
    return b"".join([block async for block in blocks])


# States.


async def test_a_state_is_the_shards_own() -> None:
    async with shard_with([response(200, {"id": ID})], [response(200, {"close_reason": "cancelled"})]) as (
        shard,
        asked,
    ):
        assert await asked.show(ID) == {"id": ID}
        assert await asked.cancel(ID) == {"close_reason": "cancelled"}
        assert [request for request, _ in shard.requests] == [f"GET /v1/streams/{ID}", f"DELETE /v1/streams/{ID}"]
        assert shard.requests[0][1]["accept"] == "application/json"


async def test_an_answer_may_come_byte_by_byte() -> None:
    whole = response(200, {"id": ID})
    async with shard_with([whole[n : n + 1] for n in range(len(whole))]) as (_, asked):
        assert await asked.show(ID) == {"id": ID}


@pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (410, "stream_evicted")])
async def test_a_stream_that_the_shard_does_not_have_is_none(status: int, code: str) -> None:
    async with shard_with([refusal(status, code)], [refusal(status, code)]) as (_, asked):
        assert await asked.show(ID) is None and await asked.cancel(ID) is None


async def test_a_shard_that_hangs_is_not_waited_for() -> None:
    async with shard_with([response(200, {})], [response(200, {})]) as (shard, asked):
        shard.hang()
        with pytest.raises(NoAnswer):
            await asked.show(ID, within_s=0.01)
        with pytest.raises(Overloaded, match="does not answer"):
            await asked.cancel(ID, within_s=0.01)


async def test_what_lies_in_the_inbox_is_answered_by_the_successor() -> None:
    async with shard_with([response(200, {"id": ID})]) as (shard, asked):
        shard.hang()
        cancelling = asyncio.ensure_future(asked.cancel(ID, within_s=10))
        await asyncio.sleep(0)
        shard.go_on()
        assert await cancelling == {"id": ID}


async def test_a_full_inbox_is_no_answer() -> None:
    async with shard_with() as (shard, asked):
        shard.is_full = True
        with pytest.raises(NoAnswer):
            await asked.show(ID)
        with pytest.raises(Overloaded):
            await asked.tail(ID, None)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1),
    ],
    ids=["nothing", "half a head", "half a body", "no HTTP", "too much"],
)
async def test_half_an_answer_is_none(broken: bytes) -> None:
    async with shard_with([broken]) as (_, asked):
        with pytest.raises(NoAnswer):
            await asked.show(ID)


async def test_a_state_that_is_no_object_is_our_own_fault() -> None:
    async with shard_with([response(200, [1])], [response(200, b"{")]) as (_, asked):
        for _ in range(2):
            with pytest.raises(LocalError):
                await asked.show(ID)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_cursor", BadCursor),
        (410, "stream_evicted", Gone),
        (503, "overloaded", Overloaded),
        (418, "teapot", RemoteError),
        (500, "internal_error", LocalError),
    ],
)
def test_a_refusal_is_the_error_that_was_raised(status: int, code: str, kind: type[Exception]) -> None:
    error = refusal_of(status, b'{"error": {"message": "So.", "code": "%b"}}' % code.encode())
    assert type(error) is kind and error.message == "So."


def test_an_engines_own_words_are_passed_on() -> None:
    error = refusal_of(418, b"I am a teapot\xff")
    assert isinstance(error, UpstreamError) and "teapot" in error.message


# Tails.


async def test_a_tail_is_the_blocks_to_the_end() -> None:
    async with shard_with([EVENTS, chunk(event(0)), chunk(event(1)), LAST]) as (shard, asked):
        assert await all_of(await tail_of(asked, "1-9")) == event(0) + event(1)
        assert shard.requests[0][1]["last-event-id"] == "1-9"
        assert shard.requests[0][1]["accept"] == "text/event-stream"


async def test_blocks_are_whole_however_they_arrive() -> None:
    body = b"".join(chunk(event(n)) for n in range(3)) + LAST
    async with shard_with([EVENTS, *[body[n : n + 1] for n in range(len(body))]]) as (_, asked):
        blocks = [block async for block in await tail_of(asked)]
        assert b"".join(blocks) == event(0) + event(1) + event(2)
        assert all(block.endswith(b"\n\n") for block in blocks)


async def test_live_events_come_at_once() -> None:
    go_on = asyncio.Event()
    async with shard_with([EVENTS, chunk(event(0)), go_on, chunk(event(1)), LAST]) as (_, asked):
        blocks = await tail_of(asked)
        assert await anext(blocks) == event(0)
        go_on.set()
        assert await all_of(blocks) == event(1)


async def test_a_tail_goes_on_with_the_successor_where_it_was() -> None:
    scripts: list[Script] = [
        [EVENTS, chunk(event(0)), chunk(event(1)), chunk(event(2))[:9]],
        [EVENTS, chunk(event(2))],
        [EVENTS, chunk(event(3)), LAST],
    ]
    async with shard_with(*scripts) as (shard, asked):
        assert await all_of(await tail_of(asked)) == b"".join(map(event, range(4)))
        assert [headers.get("last-event-id") for _, headers in shard.requests] == [None, "1-1", "1-2"]


async def test_a_stream_that_has_ended_meanwhile_is_over() -> None:
    async with shard_with([EVENTS, chunk(event(0))], [response(204)]) as (_, asked):
        assert await all_of(await tail_of(asked)) == event(0)


async def test_nothing_left_is_told_before_anything_is_read() -> None:
    async with shard_with([response(204)]) as (_, asked):
        assert await asked.tail(ID, "1-5") is None


async def test_refusals_are_told_before_anything_is_read() -> None:
    scripts: list[Script] = [
        [refusal(400, "bad_cursor")],
        [refusal(404, "not_found")],
        [response(418, b"no", "text/plain")],
    ]
    async with shard_with(*scripts) as (_, asked):
        for kind in (BadCursor, NotFound, UpstreamError):
            with pytest.raises(kind):
                await asked.tail(ID, None)


async def test_a_stream_that_is_gone_when_its_tail_goes_on_is_told() -> None:
    async with shard_with([EVENTS, chunk(event(0))], [refusal(410, "stream_evicted")]) as (_, asked):
        blocks = await tail_of(asked)
        assert await anext(blocks) == event(0)
        with pytest.raises(Gone):
            await anext(blocks)


async def test_a_tail_that_brings_nothing_is_given_up() -> None:
    async with shard_with(*[[EVENTS] for _ in range(MAX_TRIES + 1)]) as (shard, asked):
        with pytest.raises(Overloaded):
            await all_of(await tail_of(asked))
        assert len(shard.requests) == MAX_TRIES


async def test_each_event_starts_the_count_anew() -> None:
    scripts: list[Script] = [[EVENTS, chunk(event(n))] for n in range(2 * MAX_TRIES)]
    async with shard_with(*scripts, [response(204)]) as (_, asked):
        assert await all_of(await tail_of(asked)) == b"".join(map(event, range(2 * MAX_TRIES)))


async def test_a_stream_that_is_opening_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "HEAD_S", 0.02)
    begins = asyncio.Event()
    opening = response(200, {"status": "opening"})
    async with shard_with([begins, EVENTS, chunk(event(0)), LAST], *[[opening]] * 50) as (shard, asked):
        blocks = await tail_of(asked)
        first = asyncio.ensure_future(anext(blocks))
        await until(lambda: len(shard.requests) >= 4, "it was asked again and again")
        begins.set()
        assert await first == event(0)
        assert await all_of(blocks) == b""


async def test_a_shard_that_hangs_while_a_tail_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "ANSWER_S", 0.001)
    monkeypatch.setattr(operator, "HEAD_S", 0.001)
    monkeypatch.setattr(operator, "MAX_TRIES", 2)
    async with shard_with() as (shard, asked):
        shard.hang()
        with pytest.raises(Overloaded):
            await asked.tail(ID, None)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_tail_that_nobody_reads_leaves_its_shard(begun: bool) -> None:
    async with shard_with([EVENTS, chunk(event(0)), STAYS]) as (shard, asked):
        blocks = await tail_of(asked)
        if begun:
            await anext(blocks)
        await blocks.aclose()
        del blocks
        await until(lambda: shard.left, "its connection is closed")
