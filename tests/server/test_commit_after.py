"""The silence before and between events: when the status is committed, what a heartbeat is, and who survives it."""

from __future__ import annotations

import asyncio

import pytest
from openai._streaming import SSEDecoder
from tests.house import (
    CHUNKED,
    EVENTS,
    HOLD,
    WHOLE,
    Client,
    TestHouse,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.words.reasons import CloseReason as Reason

BEAT = b": longwire\n\n"
FAILURE = (
    head_of(b"content-length: 36", status=b"500 Oh", kind=b"application/json") + b'{"error":{"message":"CUDA is gone"}}'
)


async def asked(house: TestHouse, **fields: object) -> Client:
    client = await house.connect()
    before = len(house.engine.requests)
    client.post(chat(model="script", **fields))  # type: ignore[arg-type]
    await house.engine.wait_for(lambda: len(house.engine.requests) > before)
    return client


async def test_a_failure_before_the_commit_is_a_status_and_after_it_an_event() -> None:
    async with open_house(commit_after_ms=1000, heartbeat_s=60) as house:
        for passed, status in ((0.5, 502), (1.5, 200)):
            go_on = asyncio.Event()
            house.engine.will_say(go_on, FAILURE)
            client = await asked(house)
            house.pass_time(passed)
            go_on.set()
            answer = await client.answer()
            assert answer.status == status and answer.is_whole
            if status == 200:
                error = answer.in_band_error
                assert answer.pieces[0] == BEAT and answer.is_marked_done
                assert error is not None and "500" in error["message"] and "CUDA is gone" in error["message"]
                assert error["stream_id"] == answer.stream_id and error["last_seq"] == -1
            else:
                assert "CUDA is gone" in answer.error["message"]
        reasons = [line["close_reason"] for line in await house.lines.wait(2)]
        assert reasons == [str(Reason.UPSTREAM_FAILED)] * 2


async def test_zero_is_never() -> None:
    async with open_house(commit_after_ms=0, heartbeat_s=1) as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, CHUNKED + in_chunks(*WHOLE))
        client = await asked(house)
        house.pass_time(500)
        assert house.gateway.instruments.heartbeats_total == 0
        go_on.set()
        answer = await client.answer()
        assert answer.status == 200 and answer.pieces == list(WHOLE)


async def test_what_was_not_asked_for_as_a_stream_is_never_committed() -> None:
    async with open_house(commit_after_ms=1000, heartbeat_s=1) as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, FAILURE)
        client = await house.connect()
        client.post(chat(False, model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        house.pass_time(60)
        go_on.set()
        assert (await client.answer()).status == 502


async def test_a_committed_stream_goes_on_as_if_nothing_had_been() -> None:
    async with open_house(commit_after_ms=1000, heartbeat_s=5) as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, CHUNKED + in_chunks(*WHOLE))
        client = await asked(house)
        house.pass_time(2)
        head = await client.head()
        assert await client.piece() == BEAT
        second = await house.connect()
        second.get(f"/v1/streams/{head.stream_id}", EVENTS)
        await second.head()
        go_on.set()
        answer = await client.rest()
        assert answer.pieces == [BEAT, *WHOLE]
        replay = await second.rest()
        assert replay.data == answer.data
        ids = [block.split(b"\n")[0] for block in replay.blocks if block.startswith(b"id")]
        assert ids == [b"id: 1-%d" % seq for seq in range(4)], "a heartbeat has no number"


async def test_a_heartbeat_comes_after_each_silence_and_only_then() -> None:
    async with open_house(heartbeat_s=10) as house:
        steps = [asyncio.Event(), asyncio.Event()]
        house.engine.will_say(
            CHUNKED + in_chunks(delta("a"), last=False), steps[0], in_chunks(delta("b"), last=False), steps[1],
            in_chunks(*WHOLE[2:]),
        )  # fmt: skip
        client = await asked(house)
        await client.head()
        assert await client.piece() == delta("a")
        house.pass_time(9)
        assert house.gateway.instruments.heartbeats_total == 0
        steps[0].set()
        assert await client.piece() == delta("b")
        house.pass_time(9)
        assert house.gateway.instruments.heartbeats_total == 0, "an event starts the silence anew"
        house.pass_time(5)
        assert await client.piece() == BEAT
        house.pass_time(5)
        assert house.gateway.instruments.heartbeats_total == 1, "so does a heartbeat"
        house.pass_time(10)
        assert await client.piece() == BEAT
        steps[1].set()
        assert (await client.rest()).pieces == [delta("a"), delta("b"), BEAT, BEAT, *WHOLE[2:]]


async def test_nobody_there_to_hear_it_is_no_reason_for_one() -> None:
    async with open_house(heartbeat_s=5, commit_after_ms=1000) as house:
        house.engine.will_say(HOLD)
        client = await house.connect()
        client.post(chat(model="script"), {"longwire-on-disconnect": "run"})
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        client.close()
        await until(lambda: not house.streams[0].subscribers, "the reader has left")
        house.pass_time(60)
        assert house.gateway.instruments.heartbeats_total == 0


@pytest.mark.parametrize("silences", [0, 1, 3])
async def test_openai_s_own_reader_does_not_notice_them(silences: int) -> None:
    async with open_house(heartbeat_s=5, commit_after_ms=1000) as house:
        first, second = asyncio.Event(), asyncio.Event()
        house.engine.will_say(first, CHUNKED + in_chunks(*WHOLE[:1], last=False), second, in_chunks(*WHOLE[1:]))
        client = await asked(house)
        for _ in range(silences):
            house.pass_time(6)
        first.set()
        await client.head()
        await client.event()
        for _ in range(silences):
            house.pass_time(6)
        second.set()
        body = (await client.rest()).body
        assert body.count(BEAT) >= 2 * silences
        events = list(SSEDecoder().iter_bytes(iter([body])))
        assert [event.data.encode() + b"\n\n" for event in events] == [block[6:] for block in WHOLE]
        assert all(event.event is None and not event.id for event in events)
