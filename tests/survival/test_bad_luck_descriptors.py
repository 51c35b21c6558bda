"""Few descriptors: clients are told so before accept fails, nothing spins, and a kill is survived by as many as can be held."""

from __future__ import annotations

import asyncio

import pytest
from tests.house import Client

from .luck import Gateway, check_all, cpu_ticks, kill, running

pytestmark = pytest.mark.e2e

LIMIT = 160
"""Of a shard some 60 are its own: shared memory, inboxes, the loop's."""
FEW = ("sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh")
MAX_TICKS = 60
"""Hundredths of a second in a second: a loop that spins takes all hundred."""


async def crowd(gateway: Gateway, count: int) -> list[Client]:
    """So many clients that say nothing; those beyond the limit may be cut at once."""
    return [await gateway.connect() for _ in range(count)]


async def is_refused(client: Client) -> bool:
    """Whether a client that has said nothing is told that there is no room; one that there is room for is told nothing."""
    try:
        return b" 503 " in await client.reader.readuntil(b"\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def any_is_refused(clients: list[Client]) -> bool:
    """Whether one of them is, as soon as that is known."""
    asked = [asyncio.create_task(is_refused(client)) for client in clients]
    try:
        for answer in asyncio.as_completed(asked):
            if await answer:
                return True
        return False
    finally:
        for task in asked:
            task.cancel()


async def test_near_the_limit_clients_are_refused_in_words_and_no_shard_spins() -> None:
    async with running(2, prefix=FEW) as gateway:
        streams = await gateway.streams_on_all(2, 3, 1500)
        idle = await crowd(gateway, 2 * LIMIT)
        assert await any_is_refused(idle), "some are told"
        pids = [await gateway.pid_of(0), await gateway.pid_of(1)]
        before = [cpu_ticks(pid) for pid in pids]
        await asyncio.sleep(1)
        assert all(cpu_ticks(pid) - then < MAX_TICKS for pid, then in zip(pids, before, strict=True))
        await gateway.until(lambda: counts(gateway), "it is counted")
        for client in idle:
            client.writer.transport.abort()

        async def serves() -> bool:
            client = await gateway.connect()
            client.get("/healthz")
            try:
                return (await client.answer()).status == 200
            except (asyncio.IncompleteReadError, ConnectionError):
                return False

        await gateway.until(serves, "there is room again")
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])


async def counts(gateway: Gateway) -> bool:
    return await gateway.metric("longwire_accepts_refused_total") > 0


async def test_a_kill_near_the_limit_is_survived() -> None:
    async with running(2, prefix=FEW) as gateway:
        streams = await gateway.streams_on_all(2, 3, 1500)
        await crowd(gateway, LIMIT)
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
