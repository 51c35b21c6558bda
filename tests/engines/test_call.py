"""The life of a request to an engine: the few retries that nobody can notice, and what is never tried again."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.house import (
    CHUNKED,
    FIN,
    HOLD,
    RST,
    WHOLE,
    Step,
    TestHouse,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.engines.breaker import BreakerState
from longwire.engines.call import Call
from longwire.engines.pool import Upstream
from longwire.streams.terms import MAX_REREAD_BYTES
from longwire.words.reasons import CloseReason as Reason

ANSWER = CHUNKED + in_chunks(*WHOLE)


async def warm(house: TestHouse) -> None:
    """One whole answer, so that an idle connection is there."""
    house.engine.will_say(ANSWER)
    assert (await house.ask(chat(model="script"))).text == "ab"
    upstream = house.gateway.directory.upstreams[1]
    await until(lambda: upstream.statistics()["idle"] == 1, "the connection is kept")


async def test_an_upstreams_own_faults_open_its_breaker_and_a_clients_do_not() -> None:
    async with open_house() as house:
        upstream = house.gateway.directory.upstreams[1]
        for status in (b"400 Bad Request", b"413 Too Large", b"429 Too Many") * 2:
            house.engine.will_say(head_of(b"content-length: 2", status=status, kind=b"application/json") + b"{}")
            await house.ask(chat(model="script"))
        for _ in range(5):
            assert upstream.breaker.state is BreakerState.CLOSED
            house.engine.will_say(head_of(b"content-length: 2", status=b"500 Broken", kind=b"text/html") + b"no")
            assert (await house.ask(chat(model="script"))).status == 502
        assert upstream.breaker.state is BreakerState.OPEN and "upstream_failed" in upstream.breaker.why
        assert house.gateway.instruments.breakers_opened_total == 1
        assert upstream.in_flight == 0, "whatever came of a call, it is over"


async def test_requests_share_a_connection_one_after_the_other() -> None:
    async with open_house() as house:
        for _ in range(3):
            await warm(house)
        assert house.engine.connections == 1 and len(house.engine.requests) == 3


@pytest.mark.parametrize("death", [FIN, RST], ids=["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_kept_connection_that_dies_without_a_byte_is_replaced_once(death: Step, stream: bool) -> None:
    async with open_house() as house:
        await warm(house)
        house.engine.will_say(death)
        body = b'{"choices":[{"message":{"content":"again, and this time to the end of it all"}}]}'
        house.engine.will_say(
            ANSWER if stream else head_of(b"content-length: %d" % len(body), kind=b"application/json") + body
        )
        answer = await house.ask(chat(stream, model="script"))
        assert answer.status == 200 and answer.is_whole
        assert (house.engine.connections, house.gateway.instruments.retries_total) == (2, 1)
        first, second = house.engine.requests[1:]
        assert first == second, "the very same request"
        await house.check_ending(answer.stream_id, Reason.COMPLETED)


@pytest.mark.parametrize("death", [FIN, RST], ids=["fin", "rst"])
async def test_a_warmed_connection_that_dies_without_a_byte_is_replaced_once(death: Step) -> None:
    """It was not made for this request: its engine may have closed it while it stood ready."""
    async with open_house(warm_floor=1, warm_ceiling=1) as house:
        upstream = house.gateway.directory.upstreams[1]
        upstream.top_up()
        await until(lambda: upstream.statistics()["idle"] == 1, "it is warm")
        house.engine.will_say(death)
        house.engine.will_say(ANSWER)
        answer = await house.ask(chat(model="script"))
        assert answer.status == 200 and answer.is_marked_done
        assert (len(house.engine.requests), house.gateway.instruments.retries_total) == (2, 1)
        first, second = house.engine.requests
        assert first == second
        house.engine.will_say(death)
        house.engine.will_say(death)
        assert (await house.ask(chat(model="script"))).status == 502, "once, and then over a new one"
        assert house.gateway.instruments.retries_total == 2


async def test_the_stand_in_s_dying_connections_are_never_noticed() -> None:
    async with open_house() as house:
        for _ in range(5):
            assert (await house.ask(chat(fault="die_idle"))).is_marked_done
        assert house.gateway.instruments.retries_total == 4


async def test_a_fresh_connection_that_dies_is_no_reason_to_try_again() -> None:
    async with open_house() as house:
        await warm(house)
        house.engine.will_say(RST)
        house.engine.will_say(RST)
        answer = await house.ask(chat(model="script"))
        assert answer.status == 502 and answer.error["code"] == "upstream_reset"
        assert len(house.engine.requests) == 3 and house.gateway.instruments.retries_total == 1


@pytest.mark.parametrize(
    "said", [b"H", b"HTTP/1.1 103 Early\r\n\r\n", CHUNKED, CHUNKED + in_chunks(delta("a"), last=False)]
)
async def test_after_a_byte_nothing_is_tried_again(said: bytes) -> None:
    async with open_house() as house:
        await warm(house)
        house.engine.will_say(said, RST)
        answer = await house.ask(chat(model="script"))
        assert (answer.status == 502) or answer.in_band_error is not None
        assert len(house.engine.requests) == 2 and house.gateway.instruments.retries_total == 0


async def test_a_retry_after_the_commit_keeps_what_readers_have() -> None:
    """A heartbeat has gone out when the kept connection turns out to be dead: the log goes on, no block is lost."""
    async with open_house(commit_after_ms=1000, heartbeat_s=60) as house:
        await warm(house)
        die = asyncio.Event()
        house.engine.will_say(die, RST)
        house.engine.will_say(ANSWER)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 2)
        house.pass_time(2)
        assert (await client.head()).status == 200
        die.set()
        answer = await client.rest()
        assert answer.pieces[0].startswith(b":") and answer.pieces[1:] == list(WHOLE)
        replay = await house.replay(answer.stream_id)
        assert replay.data == answer.data


async def test_a_reader_who_leaves_during_a_retry_leaves_nothing_behind() -> None:
    async with open_house() as house:
        await warm(house)
        house.engine.will_say(RST)
        house.engine.will_say(HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 3)
        client.reset()
        await house.engine.wait_for(lambda: house.engine.open_connections == 0)


async def test_a_connection_that_is_being_made_is_given_up_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_house() as house:
        given_up = asyncio.Event()

        async def never(_: Upstream) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

        monkeypatch.setattr(Upstream, "wait_connection", never)
        client = await house.connect()
        client.post(chat(model="script"))
        await until(lambda: house.gateway.gateway.generations.calls.tasks, "the connection is being made")
        client.reset()
        await given_up.wait()
        (line,) = await house.lines.wait(1)
        assert line["close_reason"] == "client_left"


# What the gateway adds, and an engine that does not know it.


async def test_usage_is_asked_for_and_an_engine_that_refuses_is_remembered() -> None:
    async with open_house() as house:
        engine = house.gateway.directory.upstreams[0]
        first = await house.ask(chat(fault="refuse_stream_options"))
        assert first.is_marked_done and engine.refuses_stream_options
        log = house.stream(first.stream_id).log
        assert log.upstream.read(0, 12) == b"HTTP/1.1 200", "the refusal is forgotten: a log begins with its answer"
        asked, again = [json.loads(request.body) for request in house.sim.requests]
        assert asked.pop("stream_options") == {"include_usage": True} and asked == again
        assert (await house.state(first.stream_id))["usage_estimated"] is True
        assert (await house.ask(chat(fault="refuse_stream_options"))).is_marked_done
        assert len(house.sim.requests) == 3 and "stream_options" not in json.loads(house.sim.requests[-1].body)
        assert house.gateway.instruments.retries_total == 1


async def test_what_the_client_itself_asked_for_is_its_own_affair() -> None:
    async with open_house() as house:
        body = chat(fault="refuse_stream_options", stream_options={"include_usage": True})
        answer = await house.ask(body)
        assert answer.status == 400 and "stream_options" in answer.error["message"]
        assert len(house.sim.requests) == 1 and not house.gateway.directory.upstreams[0].refuses_stream_options


async def test_another_refusal_is_not_taken_for_one_of_ours() -> None:
    async with open_house() as house:
        answer = await house.ask(chat(fault="status=400"))
        assert answer.status == 400 and len(house.sim.requests) == 1


async def test_options_of_the_client_s_own_are_kept_beside_what_is_added() -> None:
    async with open_house() as house:
        await house.ask(chat(stream_options={"continuous_usage_stats": False}))
        sent = json.loads(house.sim.requests[-1].body)["stream_options"]
        assert sent == {"continuous_usage_stats": False, "include_usage": True}
        await house.ask(chat(False))
        assert "stream_options" not in json.loads(house.sim.requests[-1].body)


# Time and memory.


async def test_the_first_byte_s_deadline_ends_with_the_head() -> None:
    async with open_house(first_byte_timeout_s=10, heartbeat_s=3600) as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED, go_on, in_chunks(*WHOLE))
        client = await house.connect()
        client.post(chat(model="script"))
        await until(lambda: house.streams and house.streams[0].facts.first_byte_at is not None, "the head is there")
        house.pass_time(1000)
        go_on.set()
        assert (await client.answer()).text == "ab"


async def test_a_body_is_kept_no_longer_than_it_is_needed() -> None:
    """What was sent lies in the arena, where it is counted; a copy beside it would double every prompt."""
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        client.post(chat(model="script", pad="x" * MAX_REREAD_BYTES))  # nobody could go on with this answer
        await client.head()
        call = house.streams[0].producer
        assert isinstance(call, Call)
        assert call.order.body == b"" and call.order.plain_body is None
        assert house.streams[0].request is not None and house.gateway.arena.statistics()["request"] >= 6
        assert "Call" in repr(call) and "events" in repr(call)
        go_on.set()
        await house.lines.wait(1)
        house.gateway.registry.evict(house.streams[0])  # until then the rest of the answer can be asked for
        assert house.gateway.arena.statistics()["request"] == 0


async def test_stopping_twice_is_stopping_once() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        stream = house.streams[0]
        call = stream.producer
        assert isinstance(call, Call)
        call.stop()
        call.stop()
        stream.stop(Reason.CANCELLED, "")
        stream.stop(Reason.SHUTDOWN, "")
        assert (await client.rest()).in_band_error is not None
        assert stream.reason is Reason.CANCELLED and len(house.lines.lines) == 1


async def test_credentials_are_the_engine_s_own() -> None:
    async with open_house() as house:
        await house.ask(chat(), {"authorization": "Bearer sk-client", "x-api-key": "sk-client"})
        seen = house.sim.requests[-1]
        assert seen.get(b"authorization") == b"Bearer sk-engine" and seen.get(b"x-api-key") is None
        house.engine.will_say(ANSWER)
        await house.ask(chat(model="script"), {"authorization": "Bearer sk-client"})
        assert house.engine.requests[-1][0].get(b"authorization") is None


async def test_tracing_goes_on_to_the_engine_and_hop_fields_do_not() -> None:
    async with open_house() as house:
        passed = {
            "traceparent": "00-a-b-01",
            "tracestate": "x=1",
            "baggage": "k=v",
            "x-custom": "1",
            "x-request-id": "req-7",
        }
        kept = {"connection": "keep-alive", "keep-alive": "9", "te": "trailers", "cookie": "a=b"}
        answer = await house.ask(chat(), {**passed, **kept, "longwire-on-disconnect": "cancel", "idempotency-key": "k"})
        seen = house.sim.requests[-1]
        assert {name: seen.get(name.encode()) for name in passed} == {k: v.encode() for k, v in passed.items()}
        for name in (*kept, "longwire-on-disconnect", "idempotency-key"):
            assert seen.get(name.encode()) is None, name
        assert answer.header("x-request-id") == "req-7"
        made = await house.ask(chat())
        assert house.sim.requests[-1].get(b"x-request-id") == made.header("x-request-id").encode()
