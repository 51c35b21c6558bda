"""A client that asks and does not take: it costs its own transport buffer, and nothing more."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.house import CHAT, EVENTS, chat, delta, encode_request, head_of, in_chunks, open_house, until

CHUNKED = head_of(b"transfer-encoding: chunked")


async def test_pipelined_requests_of_a_client_that_takes_nothing_are_not_answered_into_memory() -> None:
    """564 KB of requests for a page of 55 KB once made 630 MB of answers."""
    async with open_house(send_buffer=4096, slow_reader_s=60, write_high_water_bytes=4096, retention_s=3600) as house:
        client = await house.connect(limit=512, receive_buffer=4096)
        client.send(400 * encode_request("GET", "/openapi.json"))
        await until(lambda: house.gateway.listener.deaf, "the client is not read any more")
        (connection,) = house.gateway.listener.connections
        assert connection.transport.get_write_buffer_size() < 200_000, "one answer, not four hundred"
        house.pass_time(70)
        await until(lambda: not house.gateway.listener.connections, "who makes no progress is cut")
        client.reset()


async def test_a_client_that_takes_its_answers_after_all_gets_every_one() -> None:
    async with open_house(send_buffer=4096, write_high_water_bytes=4096) as house:
        client = await house.connect(limit=4096, receive_buffer=4096)
        client.send(30 * encode_request("GET", "/openapi.json") + encode_request("GET", "/healthz"))
        await until(
            lambda: any(c.transport.get_write_buffer_size() > 4096 for c in house.gateway.listener.connections),
            "it is full",
        )
        pages = [await client.answer() for _ in range(30)]
        assert len({page.body for page in pages}) == 1
        assert (await client.answer()).json == {"status": "ok"}


async def test_a_reader_that_comes_to_a_full_connection_waits_like_any_slow_reader_and_is_cut() -> None:
    async with open_house(send_buffer=4096, slow_reader_s=60, write_high_water_bytes=4096, retention_s=3600) as house:
        first = await house.ask(chat(tokens=2000))
        client = await house.connect(limit=512, receive_buffer=4096)
        client.send(3 * encode_request("GET", "/openapi.json"))
        client.send(encode_request("GET", f"/v1/streams/{first.stream_id}", EVENTS))
        await until(lambda: house.gateway.listener.connections, "it is connected")
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.stuck_since, "it is full")
        house.pass_time(70)
        await until(lambda: not house.gateway.listener.connections, "who makes no progress is cut")
        client.reset()


async def test_an_error_head_whose_body_never_comes_is_told_with_its_status() -> None:
    async with open_house() as house:
        stalled = b"HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nsorry"
        house.engine.will_say(stalled, asyncio.Event())  # and then nothing
        client = await house.connect()
        client.post(chat(stream=False, model="script"))
        await until(lambda: any(s.facts.first_byte_at for s in house.streams), "the head is there")
        house.pass_time(6)
        answer = await client.answer()
        assert answer.status == 502
        assert "500" in answer.error["message"] and "sorry" in answer.error["message"]


async def test_one_bad_request_does_not_switch_usage_off_for_others() -> None:
    """An engine's 400 may quote anything: only a retry that succeeds shows that the options were at fault."""
    refusal = json.dumps({"error": {"message": "unknown role: stream_options"}}).encode()
    bad = b"HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(refusal) + refusal
    async with open_house() as house:
        house.engine.will_say(bad)
        house.engine.will_say(bad)
        assert (await house.ask(chat(model="script"))).status == 400
        upstream = next(u for u in house.gateway.directory.upstreams if "script" in u.models)
        assert not upstream.refuses_stream_options


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('{"prompt_tokens":3,"completion_tokens":4}', {"prompt_tokens": 3, "completion_tokens": 4}),
        ('{"completion_tokens":NaN,"x":Infinity,"prompt_tokens":1}', {"prompt_tokens": 1}),
        ('{"prompt_tokens":1,"y":"text","z":[1],"w":true,"n":-1}', {"prompt_tokens": 1}),
        ('{"prompt_tokens":1,"d":{"cached":2,"deep":{"er":1}}}', {"prompt_tokens": 1, "d": {"cached": 2}}),
    ],
)  # fmt: skip
async def test_of_an_engines_usage_only_counts_are_kept(told: str, kept: dict[str, object]) -> None:
    usage = b'data: {"choices":[],"usage":' + told.encode() + b"}\n\n"
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), delta(finish="stop"), usage, b"data: [DONE]\n\n"))
        answer = await house.ask(chat(model="script"), path=CHAT)
        assert (await house.state(answer.stream_id))["usage"] == kept
