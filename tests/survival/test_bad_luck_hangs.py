"""A shard that stands still: it is shown, others serve, and what it had goes on whether it wakes up or is replaced."""

from __future__ import annotations

import asyncio

import pytest

from .luck import Gateway, check_all, go_on, resume_request, running, stop

pytestmark = pytest.mark.e2e

PAUSE_S = 4.0
"""More than a shard may be silent before it counts as hung (three seconds)."""


async def test_a_stopped_shard_is_shown_and_its_streams_go_on_when_it_wakes_up() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 4, 250)
        pid = await gateway.pid_of(0)
        stop(pid)
        try:
            taken = await asyncio.gather(*(gateway.stream(500 + n, 5, 1) for n in range(12)))
            assert {stream.slot for stream in taken} == {1}, "the other shard takes every new client"
            await check_all(taken)
            await check_all(streams[1])

            async def is_hung() -> bool:
                states = [shard["state"] for shard in await gateway.shards()]
                return states == ["hung", "serving"]

            await gateway.until(is_hung, "the shard is shown as hung")
            assert await gateway.metric('longwire_shards{state="hung"}') == 1
        finally:
            go_on(pid)
        await check_all(streams[0])
        assert await gateway.pid_of(0) == pid, "nobody has ended it"
        assert gateway.upstream_requests == len({stream.id for stream in [*streams[0], *streams[1], *taken]})


async def test_a_shard_that_hangs_for_too_long_is_replaced_and_its_streams_go_on() -> None:
    async with running(2, hang_kill_s=2) as gateway:
        streams = await gateway.streams_on_all(2, 4, 1500)
        await gateway.settled()
        pid = await gateway.pid_of(1)
        await asyncio.sleep(1)  # a shard as young as its silence is spared
        stop(pid)
        await gateway.settled(pid)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
        await gateway.until(lambda: gateway.events("shard_hangs"), "it is said")


FLOOD = 700
"""More than an inbox and the queue before it hold together."""


async def test_a_stopped_shard_whose_inbox_is_full_holds_nobody_up_for_long() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 2, 60)
        await check_all([*streams[0], *streams[1]])
        theirs = streams[0][0].id
        pid = await gateway.pid_of(0)
        stop(pid)
        try:
            asked = [asyncio.create_task(_read_state(gateway, theirs)) for _ in range(FLOOD)]
            _, waiting = await asyncio.wait(asked, timeout=0.5)
            more = [await gateway.stream(900 + n, 20, 1) for n in range(3)]
            await check_all(more)  # the shard that waits for room serves all the while
            await asyncio.wait(waiting, timeout=8)
        finally:
            go_on(pid)
        statuses = [await task for task in asked]
        assert set(statuses) == {200, 503}, {status: statuses.count(status) for status in statuses}
        assert await _read_state(gateway, theirs) == 200


async def _read_state(gateway: Gateway, stream_id: str) -> int:
    client = await gateway.connect()
    client.get(resume_request(stream_id)[0])
    return (await client.answer()).status
