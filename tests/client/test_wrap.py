"""A wrapped openai client against a scripted gateway: what a program sees, and what the gateway was asked."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from tests.client.fake_gateway import (
    OPENAI_LIBRARY,
    STREAM_ID,
    Answer,
    Defer,
    Deliver,
    FakeGateway,
    Lose,
    chat_events,
    text_events,
)
from tests.client.skins import LIBRARIES, WORDS, Outcome, Skin, create_chat

from longwire.client import AsyncResumableStream, Backoff, ResumableStream, ResumeError, StreamGone, resumable

ANSWER = "".join(WORDS)
EVENTS = len(WORDS) + 1
POST = "POST /v1/chat/completions"
GET = f"GET /v1/streams/{STREAM_ID}"


def assert_whole(outcome: Outcome) -> None:
    assert outcome.error is None
    assert outcome.text == ANSWER
    assert len(outcome.items) == len(WORDS)


# Nothing breaks.


def test_an_unbroken_stream_is_as_ever(skin: Skin) -> None:
    outcome = skin.run()
    assert_whole(outcome)
    assert all(isinstance(item, ChatCompletionChunk) for item in outcome.items)
    assert outcome.gateway.asked() == [POST]
    assert outcome.stream.response.headers["x-stream-id"] == STREAM_ID
    assert outcome.stream.stream_id == STREAM_ID
    assert str(outcome.stream.cursor) == f"0-{len(WORDS)}"
    assert outcome.stream.statistics()["events"] == EVENTS


def test_the_stream_is_one_of_openais(skin: Skin) -> None:
    stream = skin.run().stream
    assert isinstance(stream, openai.AsyncStream if skin.is_async else openai.Stream)
    assert isinstance(stream, AsyncResumableStream if skin.is_async else ResumableStream)
    assert "ended" in repr(stream)


def test_the_post_asks_to_be_resumable(skin: Skin) -> None:
    headers = skin.run().gateway.requests[0].headers
    assert headers["longwire-on-disconnect"] == "grace=30"
    assert headers["idempotency-key"].startswith("lwc-")


def test_each_call_has_a_key_of_its_own() -> None:
    gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS))
    client = resumable(gateway.sync_client(), grace_s=2.5)
    for _ in range(2):
        create_chat(client).close()
    first, second = gateway.requests
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert first.headers["longwire-on-disconnect"] == "grace=3", "whole seconds"


def test_the_grace_can_be_left_to_the_gateway() -> None:
    gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS))
    create_chat(resumable(gateway.sync_client(), grace_s=None)).close()
    assert "longwire-on-disconnect" not in gateway.requests[0].headers
    assert "idempotency-key" in gateway.requests[0].headers


def test_the_programs_own_headers_win(skin: Skin) -> None:
    own = {"idempotency-key": "mine", "LONGWIRE-ON-DISCONNECT": "run", "X-Team": "blue"}
    outcome = skin.run([Deliver(2)], call=lambda client: create_chat(client, extra_headers=own))
    assert_whole(outcome)
    post, get = outcome.gateway.requests
    assert post.headers.get_list("idempotency-key") == ["mine"]
    assert post.headers.get_list("longwire-on-disconnect") == ["run"]
    assert get.headers["x-team"] == "blue"
    assert "idempotency-key" not in get.headers and "longwire-on-disconnect" not in get.headers


# The connection breaks.


@pytest.mark.parametrize("then", ["eof", "ReadError", "RemoteProtocolError", "ReadTimeout"])
@pytest.mark.parametrize("count", range(EVENTS))
def test_a_break_after_any_event(skin: Skin, count: int, then: str) -> None:
    outcome = skin.run([Deliver(count, then=then)])
    assert_whole(outcome)
    assert outcome.gateway.asked() == [POST, GET + (f" 0-{count - 1}" if count else "")]
    assert outcome.waits_s == [1.0]


def test_a_break_after_every_event(skin: Skin) -> None:
    outcome = skin.run([Deliver(1, then="ReadError")] * EVENTS)
    assert_whole(outcome)
    assert outcome.gateway.asked() == [POST, GET + " 0-0", *(f"{GET} 1-{seq}" for seq in range(1, len(WORDS)))]


def test_a_break_inside_an_event(skin: Skin) -> None:
    assert_whole(skin.run([Deliver(2, tail=b'data: {"id": "x', then="ReadError"), Deliver(1, tail=b"id: 1-3\n")]))


def test_text_completions_resume_as_well(skin: Skin) -> None:
    outcome = skin.run(
        [Deliver(3, then="ReadError")],
        events=text_events(WORDS),
        call=lambda client: client.completions.create(model="m", prompt="?", stream=True),
    )
    assert all(isinstance(item, Completion) for item in outcome.items)
    assert "".join(item.choices[0].text for item in outcome.items) == ANSWER
    assert outcome.gateway.asked() == ["POST /v1/completions", GET + " 0-2"]


def test_the_resume_carries_the_clients_identity_and_queries(skin: Skin) -> None:
    outcome = skin.run(
        [Deliver(2)],
        call=lambda client: create_chat(client, extra_query={"zone": "b"}, timeout=7.0),
        default_headers={"X-Default": "d"},
    )
    get = outcome.gateway.requests[1]
    assert get.headers["authorization"] == "Bearer key-1"
    assert get.headers["accept"] == "text/event-stream"
    assert get.headers["x-default"] == "d"
    assert get.url.query == b"zone=b"
    assert get.extensions["timeout"]["read"] == 7.0


def test_a_lost_answer_is_asked_for_again_with_the_same_key(skin: Skin) -> None:
    outcome = skin.run([Lose(), Lose("RemoteProtocolError"), Deliver(2)])
    assert_whole(outcome)
    assert outcome.gateway.asked() == [POST, POST, POST, GET + " 0-1"]
    assert len({request.headers["idempotency-key"] for request in outcome.gateway.requests[:3]}) == 1
    assert outcome.waits_s == [1.0, 2.0, 1.0]


def test_openais_own_retries_use_the_same_key() -> None:
    gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS), [Answer(503, {"retry-after-ms": "1"})])
    assert len(list(create_chat(resumable(gateway.sync_client(max_retries=1))))) == len(WORDS)
    assert len({request.headers["idempotency-key"] for request in gateway.requests}) == 1


def test_a_gateway_that_restarts_with_our_request_in_it_is_waited_for(skin: Skin) -> None:
    assert_whole(skin.run([Lose(), Lose("ConnectError"), Deliver()]))


# The gateway says something else.


def test_a_draining_gateway_is_asked_again_when_it_says(skin: Skin) -> None:
    outcome = skin.run([Deliver(2), Defer(1500), Defer(2500), Deliver()])
    assert_whole(outcome)
    assert outcome.waits_s == [1.0, 1.5, 2.5]
    assert outcome.gateway.asked() == [POST, *[GET + " 0-1"] * 3]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_gateway_is_asked_again(skin: Skin, status: int) -> None:
    backoff = Backoff(attempts=4, first_s=1.0, random=lambda: 1.0)
    outcome = skin.run([Deliver(2), Answer(status), Answer(status, {"retry-after": "5"}), Deliver()], backoff=backoff)
    assert_whole(outcome)
    assert outcome.waits_s == [1.0, 2.0, 5.0]


def test_no_content_ends_it(skin: Skin) -> None:
    outcome = skin.run([Deliver(3), Answer(204, body=b"")])
    assert outcome.error is None
    assert len(outcome.items) == 3


@pytest.mark.parametrize("status", [404, 410])
def test_a_stream_that_is_gone_says_how_much_was_delivered(skin: Skin, status: int) -> None:
    outcome = skin.run([Deliver(3, then="ReadError"), Answer(status)])
    assert len(outcome.items) == 3
    error = outcome.error
    assert isinstance(error, StreamGone) and isinstance(error, openai.APIError)
    assert (error.events, error.stream_id, str(error.cursor)) == (3, STREAM_ID, "0-2")
    assert str(error) == (
        f"Stream {STREAM_ID} could not be resumed: the gateway no longer has the stream; "
        "3 events had been delivered (cursor 0-2)."
    )
    assert isinstance(error.__cause__, openai.APIStatusError)


def test_a_refused_resume_is_not_tried_again(skin: Skin) -> None:
    outcome = skin.run([Deliver(1), Answer(401)])
    assert isinstance(outcome.error, ResumeError) and not isinstance(outcome.error, StreamGone)
    assert "(401); 1 event had been" in str(outcome.error)
    assert len(outcome.gateway.requests) == 2


def test_a_gap_is_an_error_and_nothing_is_read_after_it(skin: Skin) -> None:
    outcome = skin.run([Deliver(2), Deliver(1, tail=b"id: 1-9\ndata: {}\n\n", then="hang")])
    assert isinstance(outcome.error, ResumeError)
    assert "went on with event 1-9 where 3 was due; 3 events had been delivered" in str(outcome.error)


def test_patience_ends(skin: Skin) -> None:
    outcome = skin.run([Deliver(2, then="ReadError"), Lose("ConnectError"), Answer(503), Deliver()])
    assert isinstance(outcome.error, ResumeError)
    assert "3 tries in a row" in str(outcome.error) and "2 events had been" in str(outcome.error)
    assert outcome.waits_s == [1.0, 2.0]


def test_an_in_band_error_is_raised_and_not_retried(skin: Skin) -> None:
    events = [
        *chat_events(WORDS[:2])[:-1],
        b'{"error": {"message": "engine died", "code": "upstream_reset"}}',
        b"[DONE]",
    ]
    outcome = skin.run([Deliver(1), Deliver()], events=events)
    assert isinstance(outcome.error, openai.APIError) and not isinstance(outcome.error, ResumeError)
    assert outcome.error.message == "engine died" and outcome.error.code == "upstream_reset"
    assert len(outcome.items) == 2
    assert len(outcome.gateway.requests) == 2


def test_an_error_before_the_stream_is_openais_own(skin: Skin) -> None:
    outcome = skin.run([Answer(400)])
    assert isinstance(outcome.error, openai.BadRequestError)
    assert len(outcome.gateway.requests) == 1


@pytest.mark.parametrize(
    ("lost", "kind"), [("ConnectError", openai.APIConnectionError), ("ReadTimeout", openai.APITimeoutError)]
)
def test_nobody_there_and_the_programs_own_timeout_are_said_at_once(
    skin: Skin, lost: str, kind: type[Exception]
) -> None:
    outcome = skin.run([Lose(lost)])
    assert type(outcome.error) is kind
    assert outcome.waits_s == []


def test_a_post_without_answer_raises_openais_error_in_the_end(skin: Skin) -> None:
    outcome = skin.run([Lose()] * 3)
    assert type(outcome.error) is openai.APIConnectionError
    assert len(outcome.gateway.requests) == 3


def test_a_server_that_is_no_gateway_is_left_alone(skin: Skin) -> None:
    outcome = skin.run([Deliver(3, stream_id=None)])
    assert len(outcome.items) == 3
    assert type(outcome.stream) in (openai.Stream, openai.AsyncStream)
    assert outcome.gateway.asked() == [POST]


# Leaving.


def test_close_is_no_break(skin: Skin) -> None:
    outcome = skin.run([Deliver(4, then="ReadError")], use=lambda stream: stream.close())
    assert outcome.gateway.asked() == [POST]
    assert len(outcome.items) == 1


def test_cancel_stops_the_generation(skin: Skin) -> None:
    outcome = skin.run([Deliver(4, then="ReadError")], use=lambda stream: stream.cancel())
    assert outcome.gateway.asked() == [POST, f"DELETE /v1/streams/{STREAM_ID}"]


def test_the_context_manager_closes() -> None:
    gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS), [Deliver(1)])
    with create_chat(resumable(gateway.sync_client())) as stream:
        assert next(stream).choices[0].delta.content == WORDS[0]
        assert str(stream.cursor) == "0-0"
    assert stream.response.is_closed
    assert list(stream) == []


def test_the_async_context_manager_closes() -> None:
    async def main() -> None:
        gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS), [Deliver(1)])
        async with await create_chat(resumable(gateway.async_client())) as stream:
            assert (await anext(stream)).choices[0].delta.content == WORDS[0]
        assert stream.response.is_closed
        assert [item async for item in stream] == []

    asyncio.run(main())


# Everything else is untouched.


def client_of(*turns: Any, **options: Any) -> tuple[FakeGateway, openai.OpenAI]:
    gateway = FakeGateway(OPENAI_LIBRARY, chat_events(WORDS), turns)
    return gateway, resumable(gateway.sync_client(**options), sleep=lambda delay_s: None)


def test_the_client_is_still_a_client() -> None:
    gateway = FakeGateway(OPENAI_LIBRARY, [])
    plain = gateway.sync_client()
    client = resumable(plain)
    assert type(client) is openai.OpenAI
    assert client.base_url == plain.base_url and client.api_key == plain.api_key
    assert "create" not in vars(plain.chat.completions), "the given client is left as it was"


def test_a_call_that_does_not_stream_is_untouched() -> None:
    body = b'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'
    gateway, client = client_of(Answer(200, body=body))
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
    assert answer.id == "c"
    assert "idempotency-key" not in gateway.requests[0].headers


def test_a_raw_response_is_untouched() -> None:
    gateway, client = client_of()
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": "?"}], stream=True
    )
    assert raw.headers["x-stream-id"] == STREAM_ID
    assert "idempotency-key" not in gateway.requests[0].headers


def test_with_options_keeps_it_resumable() -> None:
    gateway, client = client_of(Deliver(2), timeout=3.0)
    assert len(list(create_chat(client.with_options(timeout=9.0)))) == len(WORDS)
    assert gateway.asked() == [POST, GET + " 0-1"]


def test_wrapping_twice_does_not_resume_twice() -> None:
    gateway, client = client_of(Deliver(2))
    assert len(list(create_chat(resumable(client)))) == len(WORDS)
    assert gateway.asked() == [POST, GET + " 0-1"]


def test_openais_own_stream_helper_resumes() -> None:
    gateway, client = client_of(Deliver(2))
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == ANSWER
    assert gateway.asked() == [POST, GET + " 0-1"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_compressed_answers_are_read(library: str) -> None:
    gateway = FakeGateway(library, chat_events(WORDS))
    answer = gateway._answer

    def compress(request: Any) -> Any:
        status, headers, parts = answer(request)
        return (
            status,
            headers | {"content-encoding": "gzip"},
            [gzip.compress(b"".join(p for p in parts if isinstance(p, bytes)))],
        )

    gateway._answer = compress  # type: ignore[method-assign]
    assert len(list(create_chat(resumable(gateway.sync_client())))) == len(WORDS)


def test_without_openai_importing_it_is_one_sentence() -> None:
    code = "import sys; sys.modules['openai'] = None\nimport longwire.client"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": "src"})
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last == "ImportError: longwire.client needs the openai package: pip install openai."
