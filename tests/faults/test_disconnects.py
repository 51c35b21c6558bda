"""A disconnect is not a stop (law 6): what a client's leaving does, at every moment, in every way, under every policy.

The engine learns of it by its connection closing, at once and also while it is silent; what is held comes back; what was said
stays readable. That nothing is held at the end is checked by the house itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.house import (
    CHUNKED,
    EVENTS,
    HOLD,
    WHOLE,
    Client,
    Step,
    TestHouse,
    chat,
    delta,
    hashed,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.words.reasons import CloseReason as Reason
from longwire.words.settings import TenantSettings

Leave = Callable[[Client], None]
WAYS = [Client.close, Client.fin, Client.reset]
ways = pytest.mark.parametrize("leave", WAYS, ids=["close", "fin", "reset"])

AB = in_chunks(delta("a"), delta("b"), last=False)
JSON_START = (
    head_of(b"content-length: 1000", kind=b"application/json") + b'{"choices":[{"message":{"content":"' + b"x" * 80
)

MOMENTS: dict[str, tuple[tuple[Step, ...], int]] = {
    "before_the_head": ((HOLD,), 0),
    "in_the_head": ((CHUNKED[:20], HOLD), 0),
    "after_the_head": ((CHUNKED, HOLD), 0),
    "inside_the_first_event": ((CHUNKED + in_chunks(delta("a"))[:20], HOLD), 0),
    "between_events": ((CHUNKED + AB, HOLD), 2),
    "inside_an_event": ((CHUNKED + AB + in_chunks(delta("c"))[:20], HOLD), 2),
}
"""What the engine has said by then, and how many events of it the client has read."""


async def start(
    house: TestHouse, script: tuple[Step, ...], body: object, headers: dict[str, str] | None = None
) -> Client:
    """A client whose request has reached the engine."""
    house.engine.will_say(*script)
    asked = len(house.engine.requests)
    client = await house.connect()
    client.post(body, headers)
    await house.engine.wait_for(lambda: len(house.engine.requests) == asked + 1)
    return client


async def wait_engine_left(house: TestHouse) -> None:
    await house.engine.wait_for(lambda: house.engine.open_connections == 0)


@ways
@pytest.mark.parametrize("moment", MOMENTS)
async def test_48_litellm_31499_a_silent_engine_sees_the_client_leave_at_once(moment: str, leave: Leave) -> None:
    """Rows 47 and 48: not at the next token, for in prefill there is none; without the clock having moved at all."""
    script, events = MOMENTS[moment]
    async with open_house() as house:
        client = await start(house, script, chat(model="script"))
        if events:
            await client.head()
        for _ in range(events):
            await client.event()
        leave(client)
        await wait_engine_left(house)
        (line,) = await house.lines.wait(1)
        assert line["close_reason"] == "client_left" and line["events"] == (events + 2 if events else 0)
        assert house.gateway.gateway.limiter.live_streams == 0
        assert house.metric('longwire_streams_ended_total{close_reason="client_left"}') == 1


@ways
@pytest.mark.parametrize(
    "script", [(HOLD,), (JSON_START[:20], HOLD), (JSON_START, HOLD)], ids=["silent", "head", "body"]
)
async def test_49_litellm_37140_a_request_without_stream_is_cancelled_as_well(
    script: tuple[Step, ...], leave: Leave
) -> None:
    async with open_house() as house:
        client = await start(house, script, chat(False, model="script"))
        leave(client)
        await wait_engine_left(house)
        (line,) = await house.lines.wait(1)
        assert line["close_reason"] == "client_left"


@ways
async def test_a_client_that_leaves_while_it_reads_slowly_frees_the_engine(leave: Leave) -> None:
    """Its bytes wait in the transport: views of the log, which must outlive the stream and then go."""
    async with open_house(sim={"tokens": 2000}, send_buffer=4096, write_high_water_bytes=4096) as house:
        client = await house.connect(limit=512, receive_buffer=4096)
        client.post(chat())
        await house.sim.wait_open(1)
        await until(lambda: house.streams and house.streams[0].subscribers, "the stream has a reader")
        await until(lambda: house.streams[0].subscribers[0].is_paused, "the reader is held up")  # type: ignore[attr-defined]
        leave(client)
        await house.sim.wait_cancelled(1)
        (line,) = await house.lines.wait(1)
        assert line["close_reason"] == "client_left"


async def test_the_partial_answer_stays_readable_and_tells_its_end() -> None:
    async with open_house(retention_s=100) as house:
        client = await start(house, (CHUNKED + AB, HOLD), chat(model="script"))
        stream_id = (await client.head()).stream_id
        await client.event()
        client.close()
        await wait_engine_left(house)
        replay = await house.replay(stream_id)
        assert replay.status == 200 and replay.text == "ab" and replay.is_marked_done
        assert replay.in_band_error is not None
        assert replay.in_band_error["code"] == "client_left" and replay.in_band_error["last_seq"] == 1
        assert (await house.replay(stream_id, "1-0")).data == replay.data[1:]
        await house.check_ending(stream_id, Reason.CLIENT_LEFT)
        house.pass_time(150)
        assert (await house.replay(stream_id)).status == 410, "for the retention time, and not longer"


# Policies.


@ways
async def test_cancel_asked_for_stops_even_what_could_be_resumed(leave: Leave) -> None:
    async with open_house() as house:
        headers = {"idempotency-key": "k", "longwire-on-disconnect": "cancel"}
        client = await start(house, (CHUNKED + AB, HOLD), chat(model="script"), headers)
        leave(client)
        await wait_engine_left(house)


GRACES: list[tuple[dict[str, str], float]] = [
    ({"longwire-on-disconnect": "grace=7"}, 7),
    ({"idempotency-key": "k"}, 30),
]


@ways
@pytest.mark.parametrize(("headers", "grace_s"), GRACES, ids=["asked_for", "with_a_key"])
async def test_a_grace_ends_the_stream_when_nobody_has_come_back(
    headers: dict[str, str], grace_s: float, leave: Leave
) -> None:
    async with open_house() as house:
        client = await start(house, (CHUNKED + AB, HOLD), chat(model="script"), headers)
        stream_id = (await client.head()).stream_id
        leave(client)
        await until(lambda: not house.stream(stream_id).subscribers, "the reader's leaving is seen")
        house.pass_time(grace_s - 2)
        state = await house.state(stream_id)
        assert (state["status"], state["readers"]) == ("live", 0)
        assert house.engine.open_connections == 1 and house.gateway.gateway.limiter.live_streams == 1
        house.pass_time(4)
        await wait_engine_left(house)
        await house.check_ending(stream_id, Reason.CLIENT_LEFT)


async def test_a_reader_who_comes_back_in_the_grace_goes_on_where_it_was_cut() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        script = (CHUNKED + AB, go_on, in_chunks(delta("c"), *WHOLE[2:]))
        client = await start(house, script, chat(model="script"), {"longwire-on-disconnect": "grace=10"})
        stream_id = (await client.head()).stream_id
        first = await client.event()
        client.reset()
        await until(lambda: not house.stream(stream_id).subscribers, "the reader's leaving is seen")
        house.pass_time(9)
        again = await house.connect()
        again.get(f"/v1/streams/{stream_id}", {**EVENTS, "last-event-id": "1-0"})
        await again.head()
        await until(lambda: house.stream(stream_id).subscribers, "the reader is back")
        house.pass_time(9)
        go_on.set()
        rest = await again.rest()
        whole = await house.replay(stream_id)
        assert [first, *rest.data] == whole.data and whole.text == "abc"
        await house.check_ending(stream_id, Reason.COMPLETED, resumes=1, readers=2)


@ways
async def test_run_goes_on_to_the_end_with_nobody_there(leave: Leave) -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        script = (CHUNKED + AB, go_on, in_chunks(delta("c"), *WHOLE[2:]))
        client = await start(house, script, chat(model="script"), {"longwire-on-disconnect": "run"})
        stream_id = (await client.head()).stream_id
        leave(client)
        await until(lambda: not house.stream(stream_id).subscribers, "the reader's leaving is seen")
        house.pass_time(500)
        go_on.set()
        await house.lines.wait(1)
        assert (await house.replay(stream_id)).text == "abc"
        await house.check_ending(stream_id, Reason.COMPLETED)


async def test_a_whole_answer_in_its_grace_is_there_for_the_same_key() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        answer = b'{"object":"chat.completion","choices":[{"message":{"content":"all of it, although the client had left"}}]}'
        script = (go_on, head_of(b"content-length: %d" % len(answer), kind=b"application/json") + answer)
        body = chat(False, model="script")
        client = await start(house, script, body, {"idempotency-key": "k"})
        client.reset()
        await until(lambda: not house.streams[0].subscribers, "the reader's leaving is seen")
        go_on.set()
        await house.lines.wait(1)
        again = await house.ask(body, {"idempotency-key": "k"})
        assert again.is_whole and again.body == answer
        assert len(house.engine.requests) == 1, "it was generated once"


async def test_detached_streams_keep_their_slots() -> None:
    key = "sk-test"
    tenant = TenantSettings(name="a", key_hashes=[hashed(key)], max_streams=2)
    auth = {"authorization": f"Bearer {key}", "longwire-on-disconnect": "run"}
    async with open_house(tenants=[tenant]) as house:
        for _ in range(2):
            client = await start(house, (CHUNKED + AB, HOLD), chat(model="script"), auth)
            await client.head()
            client.close()
        await until(lambda: not any(s.subscribers for s in house.streams), "both readers' leaving is seen")
        refused = await house.ask(chat(model="script"), auth)
        assert refused.status == 429 and refused.error["code"] == "too_many_streams"
        assert int(refused.header("retry-after")) >= 1
        stopped = await house.call("DELETE", f"/v1/streams/{house.streams[0].public_id}", None, auth)
        assert stopped.status == 200
        assert (await house.ask(chat(), auth)).is_marked_done


# Stopping on purpose, and several readers.


async def test_delete_stops_the_generation_at_the_engine_and_tells_its_readers() -> None:
    async with open_house() as house:
        client = await start(house, (CHUNKED + AB, HOLD), chat(model="script"))
        stream_id = (await client.head()).stream_id
        stopped = await house.call("DELETE", f"/v1/streams/{stream_id}", None)
        assert stopped.status == 200 and stopped.json["close_reason"] == "cancelled"
        await wait_engine_left(house)
        answer = await client.rest()
        assert answer.is_whole and answer.is_marked_done and answer.text == "ab"
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "cancelled"
        await house.check_ending(stream_id, Reason.CANCELLED)
        again = await house.call("DELETE", f"/v1/streams/{stream_id}", None)
        assert again.status == 200 and again.json["close_reason"] == "cancelled", "it stays ended as it ended"


@pytest.mark.parametrize("script", [(HOLD,), (CHUNKED, HOLD)], ids=["before_the_head", "after_the_head"])
async def test_delete_before_the_first_event_is_an_ordinary_error(script: tuple[Step, ...]) -> None:
    async with open_house() as house:
        client = await start(house, script, chat(model="script"))
        stream_id = house.streams[0].public_id
        assert (await house.call("DELETE", f"/v1/streams/{stream_id}", None)).status == 200
        await wait_engine_left(house)
        answer = await client.answer()
        assert answer.status == 409 and answer.error["code"] == "cancelled"


async def test_delete_while_the_connection_is_being_made_is_heard() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.post(chat())
        await until(lambda: house.streams, "the stream is opened")
        assert house.gateway.directory.upstreams[0].connecting or house.sim.open_streams == 0
        house.streams[0].stop(Reason.CANCELLED, "")
        assert (await client.answer()).status == 409
        await until(lambda: not house.gateway.gateway.generations.calls.tasks, "nobody connects any more")
        assert house.sim.open_streams == 0, "the engine was not asked"


@ways
async def test_when_one_of_two_readers_leaves_the_stream_goes_on(leave: Leave) -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        script = (CHUNKED + AB, go_on, in_chunks(delta("c"), *WHOLE[2:]))
        first = await start(house, script, chat(model="script"))
        stream_id = (await first.head()).stream_id
        second = await house.connect()
        second.get(f"/v1/streams/{stream_id}", EVENTS)
        await second.head()
        await second.event()
        leave(first)
        await until(lambda: len(house.stream(stream_id).subscribers) == 1, "the first reader's leaving is seen")
        go_on.set()
        assert (await second.rest()).text == "abc"
        await house.check_ending(stream_id, Reason.COMPLETED, readers=2)


# Storms.


async def test_54_production_stack_1001_two_hundred_resets_before_the_first_byte_leave_nothing_behind() -> None:
    async with open_house(arena_bytes=16 << 20) as house:
        clients = [await house.connect() for _ in range(200)]
        for client in clients:
            client.post(chat(fault="hang"))
        await house.sim.wait_open(200)
        assert house.gateway.gateway.limiter.live_streams == 200
        for client in clients:
            client.reset()
        await house.sim.wait_cancelled(200)
        await house.sim.wait_open(0)
        await house.lines.wait(200)
        assert house.gateway.gateway.limiter.live_streams == 0
        assert house.metric('longwire_streams_ended_total{close_reason="client_left"}') == 200
        assert house.gateway.directory.upstreams[0].statistics()["busy"] == 0


async def test_52_litellm_27955_a_thousand_random_cancels_leave_every_gauge_at_zero() -> None:
    """Whatever a client does and whenever, slots and counters come back, and at once: no logger is waited for."""
    chance = random.Random(11)
    # Of streams that nobody stops 190 are left, with two blocks each, beside the fifty that are under way.
    async with open_house(arena_bytes=16 << 20, max_streams=512) as house:
        for _ in range(20):
            await asyncio.gather(*[_leave_somehow(house, chance) for _ in range(50)])
        await until(lambda: not house.gateway.listener.connections, "every leaving is seen")
        inside = house.gateway
        for stream in house.streams:
            if stream.on_disconnect != 0:
                stream.stop(Reason.CANCELLED, "")
        assert inside.gateway.limiter.live_streams == 0
        await house.sim.wait_open(0)
        await until(lambda: not inside.gateway.generations.calls.tasks, "nobody connects any more")
        assert inside.directory.upstreams[0].statistics()["busy"] == 0
        statistics = inside.registry.statistics()
        assert (statistics["opening"], statistics["live"], statistics["subscribers"]) == (0, 0, 0)
        ended = sum(inside.instruments.streams_ended.values())
        assert ended == inside.instruments.streams_started_total == len(house.lines.lines)
        assert 500 < ended <= 1000, "who resets the connection before the turn comes has asked for nothing"


FAULTS = [
    "",
    "hang",
    "headers_then_stall",
    "stall_after=2",
    "reset_after=2",
    "close_after=3",
    "status=500",
    "error_event=2",
]


async def _leave_somehow(house: TestHouse, chance: random.Random) -> None:
    fault, stream = chance.choice(FAULTS), chance.random() < 0.8
    policy = chance.choice(["cancel", "grace=1", "run", ""])
    client = await house.connect()
    client.post(chat(stream, fault=fault, tokens=chance.randrange(1, 30)), {"longwire-on-disconnect": policy})
    turns = chance.randrange(0, 12)
    if chance.random() < 0.5:
        for _ in range(turns):
            await asyncio.sleep(0)
    elif fault in ("", "stall_after=2", "reset_after=2", "error_event=2") and stream:
        answer = await client.head()
        for _ in range(min(turns, 2) if answer.status == 200 else 0):
            await client.piece()
    await until(lambda: client.writer.transport.get_write_buffer_size() == 0, "the request is sent")
    before = house.gateway.instruments.streams_started_total
    await until(lambda: house.gateway.instruments.streams_started_total or before, "the gateway is at work")
    chance.choice(WAYS)(client)


async def test_a_storm_of_two_readers_each_leaves_whole_streams_whole() -> None:
    """Cancels of some must not touch a byte of others."""
    async with open_house() as house:
        expected = (await house.ask(chat(tokens=40))).text
        for _ in range(5):
            readers = [await house.connect() for _ in range(20)]
            for index, client in enumerate(readers):
                client.post(chat(tokens=40, fault="" if index % 2 else "stall_after=9"))
            for index, client in enumerate(readers):
                await client.head()
                if index % 2 == 0:
                    await client.event()
                    chosen = WAYS[index % 3]
                    chosen(client)
            answers = [await client.rest() for client in readers[1::2]]
            assert {answer.text for answer in answers} == {expected}


async def test_a_cancelled_request_does_not_spoil_the_next_on_the_engine_s_connection() -> None:
    async with open_house() as house:
        for _ in range(10):
            client = await house.connect()
            client.post(chat(fault="stall_after=3"))
            await client.head()
            client.close()
            await until(lambda: not house.gateway.listener.connections, "the leaving is seen")
            assert (await house.ask(chat())).is_marked_done
        assert house.sim.answered == 10
