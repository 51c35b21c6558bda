"""What a gateway does without that it cannot have: guardians, the kernel's counters."""

from __future__ import annotations

import asyncio

import pytest

from .luck import check_all, come_back, kill, resume_request, running

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("what", ["clone", "counters"])
async def test_without_adoption_a_kill_ends_live_streams_in_band_and_sealed_ones_stay(what: str) -> None:
    async with running(2, env={"LONGWIRE_WITHOUT": what}) as gateway:
        streams = await gateway.streams_on_all(2, 3, 1500)
        sealed = [await gateway.stream(700 + n, 10, 1) for n in range(12)]
        await check_all(sealed)
        for stream in streams[0]:
            for _ in range(7):
                await stream.client.event()
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        for stream in streams[0]:
            rest = await come_back(gateway, stream)
            assert rest.in_band_error is not None and rest.in_band_error["code"] == "upstream_reset"
            assert rest.is_whole
        for stream in sealed:
            client = await gateway.connect()
            path, headers = resume_request(stream.id)
            client.get(path, headers)
            again = await client.answer()
            assert again.text == stream.answer.text and again.is_marked_done
        listed = (await gateway.http.get(f"{gateway.admin}/v1/streams")).json()
        states = listed["data"] if isinstance(listed, dict) else listed
        reasons = {state["id"]: state["close_reason"] for state in states}
        assert {reasons[stream.id] for stream in streams[0]} == {"upstream_reset"}
        gateway.sim.hurry()
        await check_all(streams[1])
        after = await asyncio.gather(*(gateway.stream(800 + n, 10, 1) for n in range(4)))
        await check_all(after)
        if what == "counters":
            assert any("adoption = off" in line for line in gateway.lines)
            assert not gateway.events("no_guardian")
        else:
            await gateway.until(lambda: len(gateway.events("no_guardian")) >= 4, "all four say it")
            assert len(gateway.events("no_guardian")) <= 5, "each process says it once"
