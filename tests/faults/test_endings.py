"""A truthful ending for each way in which an engine can end (law 4), streamed, whole and relayed.

Client's bytes, JSON state, log line, metric and replay must tell one and the same story each time.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.house import (
    CHUNKED,
    DONE,
    FIN,
    HOLD,
    RST,
    WHOLE,
    Answer,
    Step,
    TestHouse,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
)

from longwire.engines.exchange import HELD_BODY_BYTES
from longwire.wire.chunked import LAST_CHUNK, encode_chunk
from longwire.words.reasons import CloseReason as Reason

OPENAI_ERROR = {"error": {"message": "The model fell over.", "type": "server_error", "param": None, "code": 500}}
VLLM_ERROR = {"object": "error", "message": "EngineCore died.", "type": "InternalServerError", "code": 500}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
HTML = b"<!DOCTYPE html><html><body><h1>Bad gateway</h1></body></html>"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def sized(body: bytes, *, status: bytes = b"200 OK", kind: bytes = b"application/json", more: bytes = b"") -> bytes:
    """A whole response with Content-Length."""
    fields = [b"content-length: %d" % len(body), *([more] if more else [])]
    return head_of(*fields, status=status, kind=kind) + body


@dataclass(frozen=True)
class Case:
    """One way to end. ``text`` is the content that came before; ``words`` stand in the error's message."""

    name: str
    script: tuple[Step, ...]
    reason: Reason
    status: int = 200
    text: str = ""
    words: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def case(name: str, *script: Step, reason: Reason, **more: Any) -> Case:
    return Case(name, script, reason, **more)


AB = in_chunks(delta("a"), delta("b"), last=False)

ENDS_IN_MID_STREAM = [
    case("clean", CHUNKED + in_chunks(*WHOLE), reason=Reason.COMPLETED, text="ab"),
    case(
        "clean, the last chunk later",
        CHUNKED + in_chunks(*WHOLE, last=False),
        LAST_CHUNK,
        reason=Reason.COMPLETED,
        text="ab",
    ),
    case(
        "clean, by length",
        head_of(b"content-length: %d" % len(b"".join(WHOLE))) + b"".join(WHOLE),
        reason=Reason.COMPLETED,
        text="ab",
    ),
    case("clean, by close", head_of() + b"".join(WHOLE), FIN, reason=Reason.COMPLETED, text="ab"),
    case("a finish without the end marker", CHUNKED + in_chunks(*WHOLE[:-1]), reason=Reason.COMPLETED, text="ab"),
    case(
        "a finish, then closed without the last chunk",
        CHUNKED + in_chunks(*WHOLE[:-1], last=False),
        FIN,
        reason=Reason.COMPLETED,
        text="ab",
    ),
    case(
        "the end marker without a finish",
        CHUNKED + AB + in_chunks(DONE),
        reason=Reason.UPSTREAM_INCOMPLETE,
        text="ab",
        words="without a finish",
    ),
    case(
        "a clean end without a finish",
        CHUNKED + AB + LAST_CHUNK,
        reason=Reason.UPSTREAM_INCOMPLETE,
        text="ab",
        words="without a finish",
    ),
    case(
        "a close-delimited end without a finish",
        head_of() + delta("a") + delta("b"),
        FIN,
        reason=Reason.UPSTREAM_INCOMPLETE,
        text="ab",
    ),
    case("closed between events", CHUNKED + AB, FIN, reason=Reason.UPSTREAM_RESET, text="ab", words="broke"),
    case("reset between events", CHUNKED + AB, RST, reason=Reason.UPSTREAM_RESET, text="ab", words="broke"),
    case(
        "closed inside an event",
        CHUNKED + AB + encode_chunk(delta("c"))[:30],
        FIN,
        reason=Reason.UPSTREAM_RESET,
        text="ab",
    ),
    case(
        "reset inside an event",
        CHUNKED + AB,
        encode_chunk(delta("c"))[:30],
        RST,
        reason=Reason.UPSTREAM_RESET,
        text="ab",
    ),
    case("closed inside a chunk's size", CHUNKED + AB + b"4", FIN, reason=Reason.UPSTREAM_RESET, text="ab"),
    case(
        "closed inside an event that spans chunks",
        CHUNKED + AB + encode_chunk(delta("c")[:20]),
        FIN,
        reason=Reason.UPSTREAM_RESET,
        text="ab",
    ),
    case(
        "a close-delimited end inside an event",
        head_of() + delta("a") + delta("b") + b'data: {"choi',
        FIN,
        reason=Reason.UPSTREAM_INCOMPLETE,
        text="ab",
    ),
    case(
        "an error object later",
        CHUNKED + AB + in_chunks(event(OPENAI_ERROR)),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        text="ab",
        words="fell over",
    ),
    case(
        "vLLM's error object later",
        CHUNKED + AB + in_chunks(event(VLLM_ERROR), DONE),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        text="ab",
        words="EngineCore died",
    ),
    case(
        "an error in words later",
        CHUNKED + AB + in_chunks(event({"error": "out of memory"})),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        text="ab",
        words="out of memory",
    ),
    case(
        "an error beside choices later",
        CHUNKED + AB + in_chunks(delta("", "error", error={"code": 502, "message": "Provider disconnected"}), DONE),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        text="ab",
        words="Provider disconnected",
    ),
    case(
        "an event named error later",
        CHUNKED + AB + in_chunks(b'event: error\ndata: {"message":"it broke","code":500}\n\n'),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        text="ab",
        words="it broke",
    ),
    case(
        "garbage after events",
        CHUNKED + AB,
        b"\xfe\xff\x00 no chunk\n",
        FIN,
        reason=Reason.UPSTREAM_PROTOCOL,
        text="ab",
        words="chunked coding broke",
    ),
    case(
        "an event too large",
        CHUNKED + AB + in_chunks(delta("x" * 3000)),
        reason=Reason.EVENT_TOO_LARGE,
        text="ab",
        words="over 2048 bytes",
        settings={"max_event_bytes": 2048},
    ),
    case(
        "an event without end",
        CHUNKED + AB + encode_chunk(b"data: " + b"x" * 2000),
        encode_chunk(b"x" * 2000),
        HOLD,
        reason=Reason.EVENT_TOO_LARGE,
        text="ab",
        settings={"max_event_bytes": 2048},
    ),
    case(
        "a length too long",
        head_of(b"content-length: 1000") + delta("a") + delta("b"),
        FIN,
        reason=Reason.UPSTREAM_RESET,
        text="ab",
    ),
    case(
        "a length too short",
        head_of(b"content-length: %d" % (len(delta("a") * 2) + 9)) + delta("a") + delta("b") + delta("c"),
        reason=Reason.UPSTREAM_INCOMPLETE,
        text="ab",
    ),
    case(
        "a stream too large",
        CHUNKED + AB + in_chunks(*[delta("x" * 1000)] * 70, last=False),
        HOLD,
        reason=Reason.STREAM_TOO_LARGE,
        text="ab",
        words="max_stream_bytes",
        settings={"max_stream_bytes": 65536},
    ),
]

ENDS_BEFORE_CONTENT = [
    case("closed before the head", FIN, reason=Reason.UPSTREAM_RESET, status=502, words="before it answered"),
    case("reset before the head", RST, reason=Reason.UPSTREAM_RESET, status=502, words="before it answered"),
    case("half a head", CHUNKED[:40], FIN, reason=Reason.UPSTREAM_RESET, status=502, words="before it answered"),
    case(
        "garbage instead of a head",
        b"\x16\x03\x01\x02\x00garbage",
        FIN,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="HTTP/1.1",
    ),
    case(
        "a malformed head",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        FIN,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="malformed",
    ),
    case(
        "two lengths in the head",
        head_of(b"content-length: 5", b"content-length: 6"),
        FIN,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="malformed",
    ),
    case(
        "a head without end",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        HOLD,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="too large",
    ),
    case(
        "interim responses without end",
        b"HTTP/1.1 103 Hints\r\n\r\n" * 20,
        HOLD,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="interim",
    ),
    case(
        "gzip",
        head_of(b"content-encoding: gzip", b"transfer-encoding: chunked") + in_chunks(gzip.compress(b"".join(WHOLE))),
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="gzip",
    ),
    case(
        "a refusal, faithfully",
        sized(b'{"error":{"message":"no"}}', status=b"422 No"),
        reason=Reason.UPSTREAM_REFUSED,
        status=422,
        words="no",
    ),
    case(
        "too many requests",
        sized(b'{"error":{"message":"busy"}}', status=b"429 Busy", more=b"retry-after: 7"),
        reason=Reason.UPSTREAM_REFUSED,
        status=429,
        words="busy",
    ),
    case(
        "a refusal that is cut",
        head_of(b"content-length: 900", status=b"404 No", kind=b"application/json") + b'{"error":{"message":"no"}}',
        RST,
        reason=Reason.UPSTREAM_REFUSED,
        status=404,
        words="no",
    ),
    case(
        "a failure with words",
        sized(b'{"error":{"message":"CUDA out of memory"}}', status=b"500 Oh"),
        reason=Reason.UPSTREAM_FAILED,
        status=502,
        words="CUDA out of memory",
    ),
    case(
        "a failure without words", sized(b"", status=b"500 Oh"), reason=Reason.UPSTREAM_FAILED, status=502, words="500"
    ),
    case(
        "a proxy's failure page",
        sized(HTML, status=b"504 Timeout", kind=b"text/html"),
        reason=Reason.UPSTREAM_FAILED,
        status=502,
        words="504",
    ),
    case(
        "a proxy's page", sized(HTML, kind=b"text/html"), reason=Reason.UPSTREAM_PROTOCOL, status=502, words="text/html"
    ),
    case(
        "a redirect",
        head_of(b"location: http://elsewhere/", b"content-length: 0", status=b"307 There"),
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="307",
    ),
]

NOTHING_STREAMED = [
    case("no content at all", head_of(status=b"204 No"), reason=Reason.UPSTREAM_PROTOCOL, status=502, words="204"),
    case(
        "a stream without events",
        CHUNKED + LAST_CHUNK,
        reason=Reason.UPSTREAM_INCOMPLETE,
        status=502,
        words="without sending anything",
    ),
    case(
        "an empty stream by length",
        head_of(b"content-length: 0"),
        reason=Reason.UPSTREAM_INCOMPLETE,
        status=502,
        words="without sending anything",
    ),
    case(
        "an empty stream by close",
        head_of(),
        FIN,
        reason=Reason.UPSTREAM_INCOMPLETE,
        status=502,
        words="without sending anything",
    ),
    case(
        "only the end marker",
        CHUNKED + in_chunks(DONE),
        reason=Reason.UPSTREAM_INCOMPLETE,
        status=502,
        words="without sending anything",
    ),
    case("closed before the first event", CHUNKED, FIN, reason=Reason.UPSTREAM_RESET, status=502, words="broke"),
    case("reset before the first event", CHUNKED, RST, reason=Reason.UPSTREAM_RESET, status=502, words="broke"),
    case(
        "reset inside the first event",
        CHUNKED,
        encode_chunk(delta("a"))[:20],
        RST,
        reason=Reason.UPSTREAM_RESET,
        status=502,
        words="broke",
    ),
    case(
        "garbage before the first event",
        CHUNKED + b"no chunk\r\n",
        FIN,
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="chunked coding broke",
    ),
    case(
        "an error object first",
        CHUNKED + in_chunks(event(OPENAI_ERROR)),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="fell over",
    ),
    case(
        "vLLM's error object first",
        CHUNKED + in_chunks(event(VLLM_ERROR), DONE),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="EngineCore died",
    ),
    case(
        "an error with a status first",
        CHUNKED + in_chunks(event({"error": {"message": "slow down", "code": 429}})),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=429,
        words="slow down",
    ),
    case(
        "JSON instead of events",
        sized(b'{"choices":[]}'),
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="application/json",
    ),
    case(
        "an error in JSON instead of events",
        sized(json.dumps(OPENAI_ERROR).encode()),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="fell over",
    ),
    case(
        "the first event too large",
        CHUNKED + in_chunks(delta("x" * 3000)),
        reason=Reason.EVENT_TOO_LARGE,
        status=502,
        words="over 2048 bytes",
        settings={"max_event_bytes": 2048},
    ),
]

JSON_ANSWER = json.dumps(
    {"object": "chat.completion", "choices": [{"message": {"content": "ab"}}], "usage": USAGE}
).encode()
JSON_HEAD = head_of(b"content-length: %d" % len(JSON_ANSWER), kind=b"application/json")
JSON_CHUNKED = head_of(b"transfer-encoding: chunked", kind=b"application/json")

WHOLE_ANSWERS = [
    case("by length", JSON_HEAD + JSON_ANSWER, reason=Reason.COMPLETED),
    case("by length in two reads", JSON_HEAD + JSON_ANSWER[:20], JSON_ANSWER[20:], reason=Reason.COMPLETED),
    case("in chunks", JSON_CHUNKED + in_chunks(JSON_ANSWER[:30], JSON_ANSWER[30:]), reason=Reason.COMPLETED),
    case("by close", head_of(kind=b"application/json") + JSON_ANSWER, FIN, reason=Reason.COMPLETED),
    case(
        "after interim responses",
        b"HTTP/1.1 103 Hints\r\nlink: </x>\r\n\r\n" + JSON_HEAD + JSON_ANSWER,
        reason=Reason.COMPLETED,
    ),
]

LARGE_ANSWER = JSON_ANSWER[:-1] + b" " * HELD_BODY_BYTES + b"}"


def cut_answers(whole: bytes) -> list[Case]:
    """Each way in which an answer in one piece can break off."""
    json_head = head_of(b"content-length: %d" % len(whole), kind=b"application/json")
    part = whole[:-9]
    return [
        case("closed in the middle", json_head + part, FIN, reason=Reason.UPSTREAM_RESET),
        case("reset in the middle", json_head, part, RST, reason=Reason.UPSTREAM_RESET),
        case(
            "closed between chunks",
            JSON_CHUNKED + in_chunks(part, last=False),
            FIN,
            reason=Reason.UPSTREAM_RESET,
        ),
        case("reset in a chunk", JSON_CHUNKED, encode_chunk(whole)[:-9], RST, reason=Reason.UPSTREAM_RESET),
        case(
            "reset while it comes by close",
            head_of(kind=b"application/json"),
            part,
            RST,
            reason=Reason.UPSTREAM_RESET,
        ),
        case(
            "garbage for a chunk",
            JSON_CHUNKED + in_chunks(part, last=False),
            b"no chunk\r\n",
            FIN,
            reason=Reason.UPSTREAM_PROTOCOL,
        ),
        case(
            "larger than a stream may be",
            head_of(b"content-length: 99999", kind=b"application/json"),
            b"x" * 99999,
            reason=Reason.STREAM_TOO_LARGE,
            settings={"max_stream_bytes": 90_000},
        ),
    ]


NO_WHOLE_ANSWER = [
    case("no content at all", head_of(status=b"204 No"), reason=Reason.UPSTREAM_PROTOCOL, status=502, words="204"),
    case(
        "events instead of JSON",
        CHUNKED + in_chunks(*WHOLE),
        reason=Reason.UPSTREAM_PROTOCOL,
        status=502,
        words="text/event-stream",
    ),
    case(
        "closed before there was enough to know what it is",
        JSON_HEAD + JSON_ANSWER[:50],
        FIN,
        reason=Reason.UPSTREAM_RESET,
        status=502,
        words="broke",
    ),
    case(
        "reset before there was enough to know what it is",
        JSON_CHUNKED + b"40\r\n{",
        RST,
        reason=Reason.UPSTREAM_RESET,
        status=502,
        words="broke",
    ),
    case(
        "an error object",
        sized(json.dumps(OPENAI_ERROR).encode()),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="fell over",
    ),
    case(
        "vLLM's error object",
        sized(json.dumps(VLLM_ERROR).encode()),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="EngineCore died",
    ),
    case(
        "an error object in pieces",
        JSON_CHUNKED,
        in_chunks(b'{"er', last=False),
        in_chunks(json.dumps(OPENAI_ERROR).encode()[4:]),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        status=502,
        words="fell over",
    ),
]


def ids(cases: list[Case]) -> dict[str, Any]:
    return {"argvalues": cases, "ids": [c.name.replace(" ", "_") for c in cases]}


async def answer_to(house: TestHouse, one: Case, body: dict[str, object], path: str = "/v1/chat/completions") -> Answer:
    house.engine.will_say(*one.script)
    return await house.ask(body, path=path)


@pytest.mark.parametrize("one", **ids(ENDS_IN_MID_STREAM))
async def test_a_stream_that_has_begun_ends_with_the_finish_or_with_an_error_in_band(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, chat(model="script"))
        assert answer.status == 200 and answer.is_whole and answer.is_marked_done
        assert answer.text.rstrip("x") == one.text
        error = answer.in_band_error
        state = await house.check_ending(answer.stream_id, one.reason, status=200, engine="script", tenant="anonymous")
        if one.reason.is_success:
            assert error is None
        else:
            assert error is not None, "an end without a finish must be told"
            assert one.words in error["message"]
            assert error["code"] == str(one.reason)
            assert error["type"] == "api_error" and error["param"] is None
            assert error["stream_id"] == answer.stream_id and error["resumable"] is one.reason.resumable
            assert error["last_seq"] == len(answer.data) - 3
        assert state["last_seq"] == len(answer.data) - 1
        replay = await house.replay(answer.stream_id)
        assert replay.data == answer.data, "a replay equals the live run"
        assert (await house.replay(answer.stream_id, f"1-{state['last_seq']}")).status == 204


@pytest.mark.parametrize("one", **ids(ENDS_BEFORE_CONTENT + NOTHING_STREAMED))
async def test_a_stream_that_never_began_is_an_ordinary_error(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, chat(model="script"))
        await check_refusal(house, answer, one)


@pytest.mark.parametrize("one", **ids(ENDS_BEFORE_CONTENT + NO_WHOLE_ANSWER))
async def test_a_whole_answer_that_never_began_is_an_ordinary_error(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, chat(False, model="script"))
        await check_refusal(house, answer, one)


async def check_refusal(house: TestHouse, answer: Answer, one: Case) -> None:
    assert answer.status == one.status and answer.is_whole
    assert one.words in answer.body.decode()
    if answer.status >= 500:
        assert answer.error["code"] == str(one.reason)
        assert one.words in answer.error["message"]
    if answer.status == 429 and one.reason is Reason.UPSTREAM_REFUSED:
        assert answer.header("retry-after") == "7"
    state = await house.check_ending(answer.stream_id, one.reason, status=one.status, events=0)
    assert state["readable"] is False
    again = await house.replay(answer.stream_id)
    assert (again.status, again.body) == (answer.status, answer.body)


@pytest.mark.parametrize("one", **ids(WHOLE_ANSWERS))
async def test_a_whole_answer_comes_as_it_is(one: Case) -> None:
    async with open_house() as house:
        answer = await answer_to(house, one, chat(False, model="script"))
        assert answer.status == 200 and answer.is_whole and answer.body == JSON_ANSWER
        state = await house.check_ending(answer.stream_id, one.reason, prompt_tokens=7, completion_tokens=2)
        assert state["usage"] == USAGE and state["usage_estimated"] is False


@pytest.mark.parametrize("one", **ids(cut_answers(LARGE_ANSWER)))
async def test_a_whole_answer_that_is_cut_is_seen_to_be_cut(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, chat(False, model="script"))
        assert answer.status == 200 and not answer.is_whole, "the client must see that this is not all"
        assert LARGE_ANSWER.startswith(answer.body) or one.settings
        await house.check_ending(answer.stream_id, one.reason, status=200)


@pytest.mark.parametrize("one", **ids(cut_answers(JSON_ANSWER)[:-1]))
async def test_one_that_is_cut_while_it_is_held_is_an_ordinary_error(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, chat(False, model="script"))
        assert answer.status == 502 and answer.is_whole and answer.error["code"] == str(one.reason)
        await house.check_ending(answer.stream_id, one.reason, status=502, events=0)


RELAYED = (b'event: response.created\ndata: {"type":"response.created"}\n\n', b'event: x\nid: 7\ndata: {"n":1}\n\n')
RELAY_ENDS = [
    case("clean", CHUNKED + in_chunks(*RELAYED), reason=Reason.COMPLETED),
    case("by close", head_of() + b"".join(RELAYED), FIN, reason=Reason.COMPLETED),
    case(
        "an error of the API's own",
        CHUNKED + in_chunks(*RELAYED, b'event: error\ndata: {"type":"error"}\n\n'),
        reason=Reason.COMPLETED,
    ),
    case("closed between events", CHUNKED + in_chunks(*RELAYED, last=False), FIN, reason=Reason.UPSTREAM_RESET),
    case("reset between events", CHUNKED + in_chunks(*RELAYED, last=False), RST, reason=Reason.UPSTREAM_RESET),
    case(
        "reset inside an event",
        CHUNKED + in_chunks(*RELAYED, last=False),
        b"20\r\ndata: {",
        RST,
        reason=Reason.UPSTREAM_RESET,
    ),
    case("garbage", CHUNKED + in_chunks(*RELAYED, last=False), b"no chunk\r\n", FIN, reason=Reason.UPSTREAM_PROTOCOL),
    case(
        "an event too large",
        CHUNKED + in_chunks(*RELAYED, b"data: " + b"x" * 3000 + b"\n\n"),
        reason=Reason.EVENT_TOO_LARGE,
        settings={"max_event_bytes": 2048},
    ),
]


@pytest.mark.parametrize("one", **ids(RELAY_ENDS))
async def test_a_relayed_stream_ends_as_its_body_does_or_with_a_typed_error(one: Case) -> None:
    async with open_house(**one.settings) as house:
        answer = await answer_to(house, one, {"model": "script", "stream": True}, "/v1/responses")
        assert answer.status == 200 and answer.is_whole
        assert answer.body.startswith(b"".join(RELAYED)), "fields of the engine's own are left alone"
        await house.check_ending(answer.stream_id, one.reason)
        if one.reason.is_success:
            assert answer.body == b"".join(s for s in answer.pieces) and b"gateway" not in answer.body
            assert b"[DONE]" not in answer.body, "this API has no end marker, and none is made up"
        else:
            last = answer.blocks[-1]
            assert last.startswith(b"event: error\ndata: ")
            error = json.loads(answer.data[-1])
            assert error["type"] == "error" and error["error"]["code"] == str(one.reason)
            assert error["error"]["last_seq"] == 1
        assert (await house.replay(answer.stream_id)).data == answer.data


@pytest.mark.parametrize("one", **ids(ENDS_BEFORE_CONTENT[:-2] + ENDS_BEFORE_CONTENT[-1:]))
async def test_a_relayed_request_that_fails_is_an_ordinary_error(one: Case) -> None:
    async with open_house() as house:
        answer = await answer_to(house, one, {"model": "script"}, "/v1/embeddings")
        await check_refusal(house, answer, one)


async def test_a_relayed_body_of_any_type_comes_as_it_is() -> None:
    async with open_house() as house:
        house.engine.will_say(sized(HTML, kind=b"text/html", more=b"x-own: 1"))
        answer = await house.ask({"model": "script"}, path="/v1/audio/speech")
        assert answer.status == 200 and answer.body == HTML
        assert answer.header("x-own") == "1" and answer.header("content-type") == "text/html"
        await house.check_ending(answer.stream_id, Reason.COMPLETED)


async def test_a_relayed_answer_without_content_has_no_length() -> None:
    """RFC 9110 8.6: a 204 must not say Content-Length."""
    async with open_house() as house:
        house.engine.will_say(head_of(status=b"204 No Content", kind=b"text/plain"))
        answer = await house.ask({"model": "script"}, path="/v1/feedback")
        assert answer.status == 204
        assert answer.head.get(b"content-length") is None and answer.head.get(b"transfer-encoding") is None
        await house.check_ending(answer.stream_id, Reason.COMPLETED)


# After the commit: a heartbeat has sent the status before the engine's first byte.

LATE_FAILURES = [
    case(
        "refused",
        sized(b'{"error":{"message":"too long a prompt"}}', status=b"413 Large"),
        reason=Reason.UPSTREAM_REFUSED,
        words="413: too long a prompt",
    ),
    case(
        "failed",
        sized(b'{"error":{"message":"CUDA error"}}', status=b"500 Oh"),
        reason=Reason.UPSTREAM_FAILED,
        words="500: CUDA error",
    ),
    case(
        "a proxy's page", sized(HTML, status=b"502 Bad", kind=b"text/html"), reason=Reason.UPSTREAM_FAILED, words="502"
    ),
    case("closed", FIN, reason=Reason.UPSTREAM_RESET, words="before it answered"),
    case("nothing", CHUNKED + LAST_CHUNK, reason=Reason.UPSTREAM_INCOMPLETE, words="without sending anything"),
    case(
        "an error object",
        CHUNKED + in_chunks(event(VLLM_ERROR)),
        reason=Reason.UPSTREAM_ERROR_EVENT,
        words="EngineCore died",
    ),
]


@pytest.mark.parametrize("one", **ids(LATE_FAILURES))
async def test_after_the_commit_errors_come_in_band_with_their_status_and_words(one: Case) -> None:
    async with open_house(commit_after_ms=1000, heartbeat_s=60) as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, *one.script)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        house.pass_time(2)
        head = await client.head()
        assert head.status == 200
        assert (await client.piece() or b"").startswith(b":"), "a comment, which every client passes over"
        go_on.set()
        answer = await client.rest()
        assert answer.is_whole and answer.is_marked_done
        error = answer.in_band_error
        assert error is not None and error["code"] == str(one.reason) and one.words in error["message"]
        assert error["last_seq"] == -1
        await house.check_ending(answer.stream_id, one.reason, status=200)


async def test_an_engine_that_does_not_begin_in_time_is_a_504() -> None:
    async with open_house(first_byte_timeout_s=20, commit_after_ms=0) as house:
        house.engine.will_say(HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        house.pass_time(21)
        answer = await client.answer()
        assert answer.status == 504 and answer.error["code"] == "upstream_timeout"
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_TIMEOUT, status=504)
        await house.engine.wait_for(lambda: house.engine.open_connections == 0)


async def test_an_engine_that_is_not_there_is_a_502() -> None:
    async with open_house() as house:
        await house.engine.close()
        answer = await house.ask(chat(model="script"))
        assert answer.status == 502 and answer.error["code"] == "upstream_unreachable"
        assert "engine script" in answer.error["message"] and "127.0.0.1" not in answer.error["message"]
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_UNREACHABLE, status=502)


# Usage that came before a bad end is kept.


@pytest.mark.parametrize(
    "end", [FIN, RST, in_chunks(event(OPENAI_ERROR)), in_chunks(DONE)], ids=["fin", "rst", "error", "marker"]
)
async def test_usage_that_came_before_a_bad_end_is_kept(end: Step) -> None:
    async with open_house() as house:
        with_usage = [delta("a", usage={**USAGE, "completion_tokens": 1}), delta("b", usage=USAGE)]
        house.engine.will_say(CHUNKED + in_chunks(*with_usage, last=False), end)
        answer = await house.ask(chat(model="script"))
        assert answer.in_band_error is not None
        state = await house.state(answer.stream_id)
        assert state["usage"] == USAGE and state["usage_estimated"] is False
        assert house.lines.lines[0]["completion_tokens"] == 2 and house.lines.lines[0]["tokens_estimated"] is False


async def test_without_usage_tokens_are_counted_from_events_whatever_the_end() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta(""), delta("a"), delta("b"), last=False), RST)
        answer = await house.ask(chat(model="script"))
        state = await house.state(answer.stream_id)
        assert state["usage"] == {"completion_tokens": 2} and state["usage_estimated"] is True


async def test_tokens_of_a_stream_that_its_client_left_are_counted() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), delta("b", usage=USAGE), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        stream_id = (await client.head()).stream_id
        await client.event()
        await client.event()
        client.close()
        await house.lines.wait(1)
        state = await house.check_ending(stream_id, Reason.CLIENT_LEFT, completion_tokens=2)
        assert state["usage"] == USAGE


# The connection afterwards.


@pytest.mark.parametrize(
    "one",
    [
        c
        for c in ENDS_IN_MID_STREAM + NOTHING_STREAMED
        if c.name in {"reset between events", "an error object later", "an error object first", "an event without end"}
    ],
    ids=str,
)
async def test_the_client_s_connection_can_be_used_again_after_a_bad_end(one: Case) -> None:
    async with open_house(**one.settings) as house:
        house.engine.will_say(*one.script)
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
        client = await house.connect()
        client.post(chat(model="script"))
        assert (await client.answer()).is_whole
        client.post(chat(model="script"))
        assert (await client.answer()).text == "ab"
