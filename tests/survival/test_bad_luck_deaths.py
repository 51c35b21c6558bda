"""Deaths of every process but the keeper, alone and together: streams go on over the same connections."""

from __future__ import annotations

import os

import pytest

from .luck import Gateway, ask, check_all, come_back, kill, running

pytestmark = pytest.mark.e2e

TOKENS = 1500
"""Fifteen seconds: more than any of these deaths and what follows it take. What is left then comes at once."""


async def test_the_spare_is_killed_and_the_next_death_of_a_shard_is_survived() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 3, TOKENS)
        (spare,) = await gateway.spares()
        kill(spare)
        await gateway.settled(spare)
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
        assert gateway.upstream_requests == len(streams[0]) + len(streams[1])


async def test_a_guardian_is_killed_and_cloned_again_before_its_shard_is_killed_too() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 3, TOKENS)
        victim = await gateway.pid_of(1)
        guardian = gateway.guardian_of(victim)
        assert guardian is not None
        kill(guardian)
        await gateway.until(lambda: gateway.guardian_of(victim) not in (None, guardian), "there is another guardian")
        await gateway.until(lambda: gateway.events("guardian_lost"), "it is said")
        kill(victim)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])


async def test_the_admin_process_is_killed_and_comes_back_at_the_same_port() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 2, TOKENS)
        (admin,) = gateway.pids_of("admin")
        kill(admin)
        await gateway.until(lambda: gateway.pids_of("admin") not in ([], [admin]), "there is another admin process")
        states = [shard["state"] for shard in await gateway.until(gateway.shards, "it answers")]
        assert states == ["serving", "serving"]
        shown = await gateway.http.get(f"{gateway.admin}/v1/streams/{streams[1][0].id}")
        assert shown.json()["readers"] == 1, "it reaches the shards"
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])


async def test_the_host_of_our_engines_is_killed_and_serves_again_at_the_same_place() -> None:
    async with running(2, engine="sim") as gateway:
        stream = await gateway.stream(1, 2000)
        (host,) = gateway.pids_of("engines")
        sims = list(gateway.children(host))
        kill(host)
        await gateway.until(lambda: gateway.pids_of("engines") not in ([], [host]), "there is another host")
        for sim in sims:
            await gateway.until(lambda sim=sim: not _runs(sim), "its engine has gone with it")
        broken = await stream.client.rest()
        assert broken.in_band_error is not None and broken.in_band_error["code"] == "upstream_reset"
        await _generates_again(gateway)


async def test_our_engine_is_killed_and_is_started_again_at_the_same_place() -> None:
    async with running(2, engine="sim") as gateway:
        stream = await gateway.stream(1, 2000)
        (host,) = gateway.pids_of("engines")
        (sim,) = gateway.children(host)
        kill(sim)
        broken = await stream.client.rest()
        assert broken.in_band_error is not None and broken.in_band_error["code"] == "upstream_reset"
        await _generates_again(gateway)


async def _generates_again(gateway: Gateway) -> None:
    async def does() -> bool:
        client = await gateway.connect()
        client.post(ask(7, 5, 1))
        answer = await client.answer()
        return answer.status == 200 and answer.in_band_error is None

    await gateway.until(does, "there are answers again")


async def test_a_shard_is_killed_in_the_middle_of_its_adoption_and_the_next_goes_on() -> None:
    # Incarnations: 1 and 2 are the shards, 3 is the admin process, 4 the spare that adopts first.
    async with running(2, env={"LONGWIRE_DIE_AT": "adopting_stream@4=3"}) as gateway:
        streams = await gateway.streams_on_all(2, 5, TOKENS)
        victim = await gateway.pid_of(0)
        (heir,) = await gateway.spares()
        kill(victim)
        await gateway.settled(victim, heir)
        assert "longwire: killed at adopting_stream" in gateway.lines
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])
        assert gateway.upstream_requests == len(streams[0]) + len(streams[1])


@pytest.mark.parametrize("shards", [2, 3])
async def test_all_shards_are_killed_at_once(shards: int) -> None:
    async with running(shards) as gateway:
        streams = await gateway.streams_on_all(shards, 3, TOKENS)
        victims = [await gateway.pid_of(slot) for slot in range(shards)]
        kill(*victims)
        await gateway.settled(*victims)
        gateway.sim.hurry()
        await check_all([stream for each in streams.values() for stream in each])


async def test_two_of_three_shards_are_killed_at_once() -> None:
    async with running(3) as gateway:
        streams = await gateway.streams_on_all(3, 3, TOKENS)
        victims = [await gateway.pid_of(slot) for slot in (0, 2)]
        kill(*victims)
        await gateway.settled(*victims)
        gateway.sim.hurry()
        await check_all([stream for each in streams.values() for stream in each])


async def test_a_shard_and_the_spare_are_killed_at_once() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 3, TOKENS)
        victims = [await gateway.pid_of(0), *await gateway.spares()]
        kill(*victims)
        await gateway.settled(*victims)
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])


async def test_a_shard_and_its_guardian_are_killed_at_once_and_readers_come_back_by_cursor() -> None:
    async with running(2) as gateway:
        streams = await gateway.streams_on_all(2, 3, TOKENS)
        victim = await gateway.pid_of(0)
        guardian = gateway.guardian_of(victim)
        assert guardian is not None
        kill(victim, guardian)
        await gateway.settled(victim)
        gateway.sim.hurry()
        await check_all(streams[1])
        for stream in streams[0]:
            rest = await come_back(gateway, stream)
            assert rest.in_band_error is not None and rest.in_band_error["code"] == "upstream_reset"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
