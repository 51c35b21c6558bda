"""What an operator sees of a running gateway: any tenant's stream live or replayed, and a picture of all that is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

import pytest
from tests.house import CHUNKED, HOLD, WHOLE, TestHouse, chat, delta, hashed, head_of, in_chunks, open_house, until

from longwire.lifecycle import package_version
from longwire.operation import Gauges, Operation, count_end
from longwire.words.errors import BadCursor, Gone, NotFound, UpstreamError
from longwire.words.reasons import CloseReason as Reason
from longwire.words.settings import TenantSettings

from .streams.world import FakeSlot, World

TENANT = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
AS_ADA = {"authorization": "Bearer sk-ada"}
NOBODY = "lw_" + "0" * 34


def gauges_of(house: TestHouse) -> Gauges:
    inside = house.gateway
    return Gauges(
        inside.registry,
        inside.instruments,
        inside.directory,
        inside.tenants,
        inside.limiter,
        lambda: len(inside.listener.connections),
        package_version(),
        inside.is_ready,
    )


def operator(house: TestHouse) -> Operation:
    return Operation(house.gateway.registry, gauges_of(house))


async def tail_of(house: TestHouse, id: str, after: str | None = None) -> AsyncGenerator[bytes, None]:
    blocks = await operator(house).tail(id, after)
    assert blocks is not None
    return cast("AsyncGenerator[bytes, None]", blocks)


async def all_of(blocks: AsyncIterator[bytes]) -> bytes:
    return b"".join([block async for block in blocks])


async def test_an_ended_stream_is_replayed_from_any_cursor() -> None:
    async with open_house(tenants=[TENANT]) as house:
        stream_id = (await house.ask(chat(), AS_ADA)).stream_id
        seen_by_tenant = await house.fetch(f"/v1/streams/{stream_id}", {**AS_ADA, "accept": "text/event-stream"})
        assert await all_of(await tail_of(house, stream_id)) == seen_by_tenant.body
        last = len(seen_by_tenant.data) - 1
        for seq in range(last):
            rest = b"".join(seen_by_tenant.blocks[seq + 1 :])
            assert await all_of(await tail_of(house, stream_id, f"1-{seq}")) == rest
        assert await operator(house).tail(stream_id, f"1-{last}") is None, "nothing will follow"


async def test_a_live_stream_is_followed_beside_its_reader() -> None:
    async with open_house() as house:
        steps = [asyncio.Event() for _ in range(3)]
        house.engine.will_say(
            CHUNKED + in_chunks(delta("a"), last=False), steps[0], in_chunks(delta("b"), last=False), steps[1],
            in_chunks(*WHOLE[2:]),
        )  # fmt: skip
        client = await house.connect()
        client.post(chat(model="script"))
        stream_id = (await client.head()).stream_id
        await client.event()
        blocks = await tail_of(house, stream_id)
        assert await anext(blocks) == b"id: 1-0\n" + delta("a")
        steps[0].set()
        assert await anext(blocks) == b"id: 1-1\n" + delta("b")
        assert await client.event() == delta("b")[6:-2]
        steps[1].set()
        rest = await all_of(blocks)
        assert rest.startswith(b"id: 1-2\n") and rest.endswith(b"id: 1-3\ndata: [DONE]\n\n")
        assert (await client.rest()).is_marked_done


async def test_a_stream_that_has_not_begun_is_waited_for() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, CHUNKED + in_chunks(*WHOLE))
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        blocks = await tail_of(house, house.streams[0].public_id)
        first = asyncio.ensure_future(anext(blocks))
        await until(lambda: len(house.streams[0].subscribers) == 2, "it waits")
        go_on.set()
        assert (await first).startswith(b"id: 1-0\n")
        await blocks.aclose()
        assert (await client.answer()).is_marked_done


async def test_a_look_that_is_given_up_or_never_begun_holds_nothing() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        stream_id = (await client.head()).stream_id
        await client.event()
        begun, never = await tail_of(house, stream_id), await tail_of(house, stream_id)
        await anext(begun)
        await begun.aclose()
        await never.aclose()
        assert len(house.stream(stream_id).subscribers) == 1
        client.close()
        await house.engine.wait_for(lambda: not house.engine.open_connections)
        assert house.stream(stream_id).reason is Reason.CLIENT_LEFT, "the operator was not taken for a reader who stays"


async def test_a_look_at_what_is_evicted_meanwhile_ends_in_words() -> None:
    async with open_house(retention_s=5) as house:
        stream_id = (await house.ask(chat())).stream_id
        blocks = await tail_of(house, stream_id)
        house.pass_time(30)
        with pytest.raises(Gone):
            await anext(blocks)
        with pytest.raises(Gone):
            await operator(house).tail(stream_id, None)


async def test_a_long_replay_waits_for_who_takes_it() -> None:
    async with open_house(arena_bytes=16 << 20, sim={"tokens": 3000}) as house:
        answer = await house.ask(chat())
        replay = (await house.replay(answer.stream_id)).body
        blocks = await tail_of(house, answer.stream_id)
        first = await anext(blocks)
        assert len(first) < len(replay) / 4, "step by step"
        assert first + await all_of(blocks) == replay


async def test_a_refused_stream_is_told_as_the_error_that_it_was() -> None:
    async with open_house() as house:
        house.engine.will_say(head_of(b"content-length: 2", status=b"418 No", kind=b"text/plain") + b"no")
        refused = await house.ask(chat(model="script"))
        with pytest.raises(UpstreamError, match="no"):
            await all_of(await tail_of(house, refused.stream_id))


async def test_bad_cursors_and_unknown_streams_are_told_before_anything_is_read() -> None:
    async with open_house() as house:
        stream_id = (await house.ask(chat())).stream_id
        for cursor in ("nonsense", "1-999", "9-0"):
            with pytest.raises(BadCursor):
                await operator(house).tail(stream_id, cursor)
        with pytest.raises(NotFound):
            await operator(house).tail(NOBODY, None)


async def test_every_tenant_s_streams_are_shown_and_can_be_stopped() -> None:
    async with open_house(tenants=[TENANT]) as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"), AS_ADA)
        stream_id = (await client.head()).stream_id
        look = operator(house)
        assert [stream["id"] for stream in look.list_streams()] == [stream_id]
        shown = await look.show_stream(stream_id)
        assert shown is not None and shown["tenant"] == "ada" and shown["status"] == "live"
        stopped = await look.cancel_stream(stream_id)
        assert stopped is not None and stopped["close_reason"] == "cancelled"
        assert (await client.rest()).in_band_error is not None
        await house.engine.wait_for(lambda: not house.engine.open_connections)
        assert await look.show_stream(NOBODY) is None and await look.cancel_stream("x") is None
        assert look.ready() == (True, "")
        house.pass_time(3600)
        assert await look.show_stream(stream_id) is None


async def test_the_gauges_picture_what_there_is() -> None:
    async with open_house(tenants=[TENANT]) as house:
        inside = house.gateway
        connections = inside.listener.connections
        gauges = gauges_of(house)
        rest = gauges.snapshot()
        assert not any(rest.streams.values()) and not rest.subscribers and not rest.connections
        assert rest.arena_blocks == rest.arena_blocks_free and rest.arena_bytes == 4 << 20
        assert rest.tenant_streams == {"ada": 0} and set(rest.pools) == {"sim", "script"}

        ended = await house.ask(chat(), AS_ADA)
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"), AS_ADA)
        await client.head()
        await client.event()
        second = await house.connect()
        assert client.current is not None
        second.get(f"/v1/streams/{client.current.stream_id}", {**AS_ADA, "accept": "text/event-stream"})
        await second.head()
        house.engine.will_say(HOLD)
        third = await house.connect()
        third.post(chat(model="script"), AS_ADA)
        await house.engine.wait_for(lambda: len(house.engine.requests) == 2)
        await until(lambda: len(connections) == 3, "the first client's connection is closed")
        now = gauges.snapshot()
        assert now.streams == {"opening": 1, "live": 1, "ended": 1}
        assert now.subscribers == 3 and now.connections == 3 and now.tenant_streams == {"ada": 2}
        pool = now.pools["script"]
        assert pool.up and (pool.busy, pool.idle) == (2, 0)
        used = sum(now.arena_blocks_used.values())
        assert now.arena_blocks - now.arena_blocks_free == used > 0
        assert inside.instruments.events_total == len(ended.data) + 1
        inside.directory.upstreams[1].is_up = False
        assert not gauges.snapshot().pools["script"].up


@pytest.mark.parametrize(
    ("usage", "estimated", "settled"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7}, 9, 12),
        ({"prompt_tokens": 5}, 9, 14),
        (None, 9, 49),
        (None, 0, 0),
    ],
)
def test_a_tenant_is_charged_what_was_used_as_far_as_anybody_knows(
    usage: dict[str, int] | None, estimated: int, settled: int
) -> None:
    """An engine that reports nothing but has answered has read the prompt, too; one that did not answer used nothing."""
    with World() as world:
        stream = world.open()
        facts = stream.facts
        facts.usage, facts.tokens_estimated, facts.prompt_tokens, facts.context_tokens = usage, estimated, 40, 1000
        stream.end(Reason.COMPLETED)
        count_end(world.instruments, stream)
        assert cast(FakeSlot, stream.slot).settled_tokens == settled
