"""Lies about endings seen in the field, each by its row in docs/faults.md. All endings, one by one: test_endings.py."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.house import (
    CHUNKED,
    EVENTS,
    FIN,
    HOLD,
    RST,
    WHOLE,
    Client,
    Step,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.wire.chunked import LAST_CHUNK
from longwire.words.reasons import CloseReason as Reason

AB = in_chunks(delta("a"), delta("b"), last=False)
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


async def test_23_litellm_33404_a_reset_after_events_is_no_success() -> None:
    """It came to clients as ``finish_reason: stop`` and ``[DONE]``."""
    async with open_house() as house:
        answer = await house.ask(chat(fault="reset_after=3,continuous_usage"))
        finishes = [choice["finish_reason"] for frame in answer.frames for choice in frame.get("choices", [])]
        assert finishes == [None, None, None]
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        state = await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET, completion_tokens=2)
        assert state["usage"]["completion_tokens"] == 2, "what was delivered until then is kept"


@pytest.mark.parametrize("end", [FIN, RST], ids=["fin", "rst"])
async def test_24_litellm_33222_a_stream_that_breaks_without_content_is_an_error_and_no_empty_answer(end: Step) -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED, end)
        answer = await house.ask(chat(model="script"))
        assert answer.status == 502 and answer.error["code"] == "upstream_reset"
        house.engine.will_say(end)
        answer = await house.ask(chat(False, model="script"))
        assert answer.status == 502 and answer.error["code"] == "upstream_reset"


async def test_25_litellm_32086_a_relayed_messages_stream_that_fails_says_so_and_is_counted() -> None:
    """There it became a well-formed empty message, without metrics."""
    async with open_house() as house:
        house.engine.will_say(
            CHUNKED + in_chunks(b'event: message_start\ndata: {"type":"message_start"}\n\n', last=False), RST
        )
        answer = await house.ask({"model": "script", "stream": True}, path="/v1/messages")
        assert answer.blocks[-1].startswith(b"event: error\ndata: ")
        assert json.loads(answer.data[-1])["type"] == "error"
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET, tenant="anonymous", engine="script")


async def test_27_mistral_rs_1874_an_error_event_ends_the_response_although_the_engine_holds_on() -> None:
    """The engine sends its error and leaves the connection open: neither the client nor we wait with it."""
    async with open_house() as house:
        error = b'data: {"error":{"message":"worker died"}}\n\n'
        for before in (AB, b""):
            house.engine.will_say(CHUNKED + before + in_chunks(error, last=False), HOLD)
            answer = await house.ask(chat(model="script"))
            assert answer.is_whole and answer.status == (200 if before else 502)
            await house.engine.wait_for(lambda: house.engine.open_connections == 0)


@pytest.mark.parametrize("end", [FIN, RST], ids=["fin", "rst"])
@pytest.mark.parametrize("framing", [b"content-length: 500", b"transfer-encoding: chunked"], ids=["sized", "chunked"])
async def test_28_portkey_741_a_client_can_tell_that_a_body_is_cut(framing: bytes, end: Step) -> None:
    """A body has no words for it: its framing must not be completed."""
    async with open_house() as house:
        body = b'{"data":[0.1,0.2'
        sent = in_chunks(body, last=False) if b"chunked" in framing else body
        house.engine.will_say(head_of(framing, kind=b"application/json") + sent, end)
        answer = await house.ask({"model": "script"}, path="/v1/embeddings")
        assert answer.status == 200 and answer.body == body and not answer.is_whole
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429])
@pytest.mark.parametrize("stream", [True, False])
async def test_29_helicone_181_an_engine_s_refusal_comes_with_its_status(status: int, stream: bool) -> None:
    """There it looked like a disconnect, for 200 had been promised already."""
    async with open_house() as house:
        answer = await house.ask(chat(stream, fault=f"status={status}"))
        assert answer.status == status and answer.is_whole
        assert answer.error["code"] == f"sim_{status}" and "was asked to answer" in answer.error["message"]
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_REFUSED, status=status)


SHAPES: dict[str, tuple[object, str]] = {
    "openai": ({"error": {"message": "it broke", "type": "server_error", "code": 500}}, "it broke"),
    "vllm": ({"object": "error", "message": "it broke", "type": "InternalServerError", "code": 500}, "it broke"),
    "words": ({"error": "it broke"}, "it broke"),
    "tgi": ({"error": "it broke", "error_type": "overloaded"}, "it broke"),
    "fastapi": ({"error": {"detail": "it broke"}}, "it broke"),
    "llama.cpp": ({"error": {"code": 500, "message": "it broke", "type": "server_error"}}, "it broke"),
    "openrouter": (
        {
            "error": {"code": 502, "message": "it broke"},
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
        },
        "it broke",
    ),
    "typed": ({"type": "error", "error": {"type": "overloaded_error", "message": "it broke"}}, "it broke"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_30_any_llm_847_every_shape_of_error_inside_a_200_is_an_error(shape: str, first: bool) -> None:
    error, words = SHAPES[shape]
    async with open_house() as house:
        block = b"data: " + json.dumps(error).encode() + b"\n\n"
        house.engine.will_say(CHUNKED + (b"" if first else AB) + in_chunks(block, b"data: [DONE]\n\n"))
        answer = await house.ask(chat(model="script"))
        told = answer.error if first else answer.in_band_error
        assert told is not None and told["message"] == words and told["code"] == "upstream_error_event"
        assert answer.status == (502 if first else 200)


NO_ERRORS = [
    delta("a", error=None),
    delta("a", error={}),
    delta('{"error":{"message":"quoted"}}'),
    delta('"object":"error"'),
    b'data: {"object":"ping"}\n\n',
    b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
]


@pytest.mark.parametrize("block", NO_ERRORS)
async def test_30_any_llm_847_what_only_looks_like_an_error_is_none(block: bytes) -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(block, *WHOLE))
        answer = await house.ask(chat(model="script"))
        assert answer.in_band_error is None and answer.pieces == [block, *WHOLE]


async def test_32_go_model_1048_once_the_status_is_sent_a_timeout_is_told_in_band() -> None:
    """A 504 was promised in the middle of a body."""
    async with open_house(commit_after_ms=1000, first_byte_timeout_s=20, heartbeat_s=60) as house:
        house.engine.will_say(HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        house.pass_time(2)
        assert (await client.head()).status == 200
        house.pass_time(20)
        answer = await client.rest()
        assert answer.is_whole and answer.is_marked_done
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_timeout"
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_TIMEOUT, status=200)


async def test_33_grok2api_968_an_empty_stream_is_never_a_200_of_no_bytes() -> None:
    async with open_house() as house:
        for script in ((CHUNKED + LAST_CHUNK,), (head_of(b"content-length: 0"),), (head_of(), FIN)):
            house.engine.will_say(*script)
            answer = await house.ask(chat(model="script"))
            assert answer.status == 502 and answer.error["code"] == "upstream_incomplete"


async def test_33_grok2api_968_nothing_is_committed_before_the_engine_has_said_something() -> None:
    async with open_house(commit_after_ms=0, heartbeat_s=1) as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED, go_on, LAST_CHUNK)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        house.pass_time(500)
        go_on.set()
        assert (await client.answer()).status == 502, "it could still be told by a status"


# Section D's storm of readers.


async def test_55_litellm_36429_thirty_clients_that_drop_large_streams_stop_nobody() -> None:
    """There their tokens were counted by a tokenizer, on the loop. Here nothing is counted that was not counted before."""
    async with open_house(arena_bytes=64 << 20, write_high_water_bytes=16384) as house:
        large = delta("x" * 4000)
        house.engine.will_say(CHUNKED + in_chunks(*[large] * 300, last=False), HOLD)
        first = await house.connect()
        first.post(chat(model="script"), {"longwire-on-disconnect": "run"})
        stream_id = (await first.head()).stream_id
        await until(lambda: house.stream(stream_id).log.event_count == 300, "the engine has said its part")
        readers = [await _slow_reader(house.port, stream_id) for _ in range(30)]
        await until(lambda: len(house.stream(stream_id).subscribers) == 31, "all of them read")
        for reader in readers:
            reader.reset()
        assert (await house.ask(chat())).is_marked_done
        await until(lambda: len(house.stream(stream_id).subscribers) == 1, "their leaving is seen")
        first.close()


async def _slow_reader(port: int, stream_id: str) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    client = Client(reader, writer)
    client.get(f"/v1/streams/{stream_id}", EVENTS)
    await client.head()
    return client
