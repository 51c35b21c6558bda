"""A stream whose adoption ends one process after the other: it alone is sealed, and stays so through further deaths."""

from __future__ import annotations

from pathlib import Path

import pytest

from longwire.sim.answer import answer_text

from .luck import Gateway, Stream, check_all, kill, resume_request, running

pytestmark = pytest.mark.e2e

ENV = {"LONGWIRE_DIE_AT": "adopting_stream:poison=1"}
"""Whoever adopts a stream of a model of this name dies of it."""


CONFIG = """
[[engines]]
name = "sim"
url = "ENGINE"
models = ["sim", "poison"]
"""


async def poisoned(gateway: Gateway, slot: int, seed: int, **more: object) -> Stream:
    """A stream of the model that kills, on this slot."""
    elsewhere: list[Stream] = []  # they stay until one is here: a shard with more to do leaves new clients to the other
    try:
        for _ in range(40):
            stream = await gateway.stream(seed, 3000, 10, model="poison", **more)
            if stream.slot == slot:
                return stream
            elsewhere.append(stream)
    finally:
        for stream in elsewhere:
            stream.client.reset()
    raise AssertionError("no connection reaches this shard")


async def test_a_stream_that_kills_its_adopters_is_sealed_and_all_others_go_on(tmp_path: Path) -> None:
    async with running(2, env=ENV, config=CONFIG, path=tmp_path) as gateway:
        streams = await gateway.streams_on_all(2, 3, 2000)
        poison = await poisoned(gateway, 0, 77)
        for _ in range(20):
            await poison.client.event()
        victim = await gateway.pid_of(0)
        kill(victim)
        await gateway.settled(victim)
        assert gateway.lines.count("longwire: killed at adopting_stream:poison") == 2
        answer = await poison.client.rest()
        assert answer.is_whole and answer.in_band_error is not None
        assert answer.in_band_error["code"] == "internal_error"
        assert answer_text(77, 3000).startswith(answer.text) and len(answer.frames) > 20
        shown = (await gateway.http.get(f"{gateway.admin}/v1/streams/{poison.id}")).json()
        assert (shown["status"], shown["close_reason"]) == ("ended", "internal_error")
        await gateway.until(lambda: has_counted(gateway), "it is counted")
        await reads_again(gateway, poison, answer.text)
        # It killed by what is done at its adoption; it is not read again by the next ones either, nor ends them.
        again = await gateway.pid_of(0)
        kill(again)
        await gateway.settled(again)
        assert await gateway.until(lambda: has_counted(gateway), "it is counted")
        gateway.sim.hurry()
        await check_all([*streams[0], *streams[1]])


async def has_counted(gateway: Gateway) -> bool:
    return await gateway.metric("longwire_poisoned_total") == 1


async def reads_again(gateway: Gateway, stream: Stream, text: str) -> None:
    client = await gateway.connect()
    path, headers = resume_request(stream.id)
    client.get(path, headers)
    answer = await client.answer()
    assert answer.text == text
    assert answer.in_band_error is not None and answer.in_band_error["code"] == "internal_error"
