"""What is read out of an engine's events, and how little is read of most."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.fakes import Scene
from tests.house import CHUNKED, DONE, WHOLE, delta, in_chunks

from longwire.engines.base import Verdict
from longwire.engines.openai import (
    ChatWatch,
    RelayWatch,
    describe_error,
    is_error,
    most_usage,
    usage_of_body,
    usage_of_event,
    words_of,
)
from longwire.words.reasons import CloseReason

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def watching(choices: int = 1, hides_usage: bool = False) -> ChatWatch:
    """A watch that has seen its first token."""
    watch = ChatWatch(choices, hides_usage)
    assert watch.read(delta("first")) is Verdict.PASS
    return watch


def event(value: object, **style: Any) -> bytes:
    return b"data: " + json.dumps(value, **style).encode() + b"\n\n"


def with_finish(finish: object, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": finish}], **more}


# Plain frames.


@pytest.mark.parametrize(
    ("frame", "is_plain"),
    [
        (event(with_finish(None)), True),
        (event(with_finish(None), separators=(",", ":")), True),
        (event(with_finish(None), indent=1), True),
        (event(with_finish(None)).replace(b'"finish_reason": null', b'"finish_reason" : null'), False),
        (event(with_finish(None)).replace(b'"finish_reason": null', b'"finish_reason":  null'), False),
        (event(with_finish("stop")), False),
        (event(with_finish("null")), False),
        (event(with_finish("")), False),
        (event({"choices": [{"index": 0, "delta": {"content": "x"}}]}), False),
        (event({"choices": [], "usage": USAGE}), False),
        (event({"error": {"message": "no"}}), False),
        (DONE, False),
        (b'data: {"choices":[{"delta":{},"native_finish_reason":null,"finish_reason":"stop"}]}\n\n', False),
        (b'data: {"choices":[{"delta":{},"finish_reason":null,"native_finish_reason":null}]}\n\n', True),
    ],
)
def test_a_frame_is_plain_only_where_its_finish_is_null(frame: bytes, is_plain: bool) -> None:
    assert watching().is_plain(frame) is is_plain


@pytest.mark.parametrize(
    "content",
    [
        '"finish_reason":null',
        '","finish_reason":null}]}',
        '\\"finish_reason\\":null',
        '\\","finish_reason": null',
        'finish_reason":null',
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_no_text_of_a_model_can_imitate_the_key(content: str, separators: tuple[str, str]) -> None:
    """A quote inside a JSON string is escaped, so the key's own quote is never followed by the text's."""
    for finish in ("stop", "length"):
        frame = {"choices": [{"delta": {"content": content}, "index": 0, "finish_reason": finish}]}
        assert not watching().is_plain(event(frame, separators=separators))
        last = {"choices": [{"finish_reason": finish, "index": 0, "delta": {"content": content}}]}
        assert not watching().is_plain(event(last, separators=separators))


PIECES = ['"', "\\", ":", ",", "{", "}", "[", "]", " ", "null", "finish_reason", '"finish_reason":null', "é"]


@given(content=st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_text_whatever_hides_a_finish(content: str) -> None:
    watch = watching()
    frame = event({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]}, separators=(",", ":"))
    assert not watch.is_plain(frame)
    assert watch.read(frame) is Verdict.PASS and watch.outcome(True) == (CloseReason.COMPLETED, True)


def test_with_several_choices_a_frame_that_tells_of_two_is_read() -> None:
    two = {
        "choices": [
            {"index": 0, "delta": {}, "finish_reason": None},
            {"index": 1, "delta": {}, "finish_reason": "stop"},
        ]
    }
    assert not watching(choices=2).is_plain(event(two, separators=(",", ":")))
    assert watching(choices=2).is_plain(event(with_finish(None), separators=(",", ":")))


def test_until_the_first_token_every_frame_is_read() -> None:
    watch = ChatWatch(1, False)
    role = event(
        with_finish(None) | {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    )
    assert not watch.is_plain(role)
    watch.read(role)
    assert not watch.saw_token() and not watch.is_fresh()
    watch.read(delta("x"))
    assert watch.saw_token() and watch.is_fresh()


@pytest.mark.parametrize(
    "field", ["content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio"]
)
def test_reasoning_and_tool_calls_are_tokens_too(field: str) -> None:
    watch = ChatWatch(1, False)
    watch.read(event({"choices": [{"delta": {field: [{"index": 0}] if field == "tool_calls" else "x"}}]}))
    assert watch.saw_token() and watch.tokenless == 0


def test_text_completions_are_watched_as_well() -> None:
    watch = ChatWatch(1, False)
    watch.read(event({"choices": [{"text": "x", "index": 0, "finish_reason": None}]}))
    assert watch.saw_token()
    watch.read(event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]}))
    assert watch.outcome(True) == (CloseReason.COMPLETED, True)


# Outcomes.


def test_an_answer_is_whole_when_every_choice_has_finished() -> None:
    watch = ChatWatch(2, False)
    watch.read(event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}))
    watch.read(event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}))
    assert watch.outcome(True) == (CloseReason.UPSTREAM_INCOMPLETE, False), "one choice twice is not two"
    assert not watch.is_fresh() and ChatWatch(2, False).outcome(False) == (CloseReason.UPSTREAM_RESET, False)
    watch.read(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
    assert watch.outcome(False) == (CloseReason.COMPLETED, True)
    assert watch.read(DONE) is Verdict.END
    assert watch.outcome(False) == (CloseReason.COMPLETED, False)


def test_an_empty_finish_is_none() -> None:
    """Servers without null in their types send "" in each delta: taken for a finish, every cut would look like success."""
    watch = ChatWatch(1, False)
    watch.read(event(with_finish("")))
    assert watch.outcome(False) == (CloseReason.UPSTREAM_RESET, False)


@pytest.mark.parametrize(
    "choices", [None, "x", 3, {"a": 1}, [None], ["x"], [{"delta": "x"}], [{"delta": None, "index": []}]]
)
def test_choices_of_any_shape_do_no_harm(choices: object) -> None:
    watch = watching()
    assert watch.read(event({"choices": choices})) is Verdict.PASS
    assert watch.outcome(True)[0] is CloseReason.UPSTREAM_INCOMPLETE


@pytest.mark.parametrize("data", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data:  [DONE] \n\n"])
def test_the_end_marker_in_any_spacing(data: bytes) -> None:
    assert watching().read(data) is Verdict.END


# Usage, in every place where engines put it (row 62 of the field's reports).


def test_usage_in_a_frame_of_its_own_is_kept_back_unless_it_was_asked_for() -> None:
    frame = event({"choices": [], "usage": USAGE})
    for hides, verdict in ((True, Verdict.HIDE), (False, Verdict.PASS)):
        watch = watching(hides_usage=hides)
        assert watch.read(frame) is verdict and watch.usage == USAGE


@pytest.mark.parametrize(
    "frame",
    [
        with_finish("stop", usage=USAGE),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE},
        {"usage": USAGE, "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
    ],
)
def test_usage_beside_choices_is_counted_and_passed_on(frame: dict[str, object]) -> None:
    watch = watching(hides_usage=True)
    assert watch.read(event(frame)) is Verdict.PASS and watch.usage == USAGE


def test_azure_s_first_frame_is_passed_on() -> None:
    watch = ChatWatch(1, True)
    assert watch.read(event({"choices": [], "prompt_filter_results": [{}]})) is Verdict.PASS
    assert watch.read(event({"choices": [], "usage": None})) is Verdict.PASS
    assert watch.usage is None


def test_a_usage_frame_behind_the_finish_does_not_undo_it() -> None:
    scene = Scene().feed(CHUNKED + in_chunks(*WHOLE[:3], event({"choices": [], "usage": USAGE}), DONE))
    assert scene.ended.reason is CloseReason.COMPLETED and scene.watch.usage == USAGE


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"usage": USAGE}, USAGE),
        ({"type": "response.completed", "response": {"usage": {"output_tokens": 3}}}, {"output_tokens": 3}),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 3}}}, {"input_tokens": 3}),
        ({"type": "message_delta", "usage": {"output_tokens": 3}}, {"output_tokens": 3}),
        ({"usage": None, "response": None}, None),
        ({"usage": "x"}, None),
        ({"text": '"usage"'}, None),
        ([], None),
    ],
)
def test_usage_of_an_event(value: object, usage: object) -> None:
    assert usage_of_event(event(value)) == usage


def test_of_several_usages_the_latest_counts() -> None:
    early, late = {"completion_tokens": 3}, {"completion_tokens": 5}
    assert most_usage([None, early, late, None]) == late and most_usage([late, early]) == late
    assert most_usage([None, {}]) is None and most_usage([{"output_tokens": 9}, late]) == {"output_tokens": 9}
    assert most_usage([{"completion_tokens": "x"}]) == {"completion_tokens": "x"}


@pytest.mark.parametrize(
    ("body", "usage"), [(b'{"usage":{"a":1}}', {"a": 1}), (b'{"usage":3}', None), (b"[1]", None), (b"{", None)]
)
def test_usage_of_a_whole_answer(body: bytes, usage: object) -> None:
    assert usage_of_body(body) == usage


def test_nested_beyond_reason_is_no_usage() -> None:
    assert usage_of_body(b'{"usage":' * 100_000) is None


# Errors.


@pytest.mark.parametrize(
    ("value", "message", "status"),
    [
        ({"error": {"message": "m", "code": 429}}, "m", 429),
        ({"error": {"message": "m", "code": "rate_limited"}}, "m", 0),
        ({"error": {"message": "m", "code": 200}}, "m", 0),
        ({"error": {"message": "m", "status": 503}}, "m", 503),
        ({"error": {"detail": "d"}}, "d", 0),
        ({"error": {"code": "c"}}, "c", 0),
        ({"error": "words"}, "words", 0),
        ({"object": "error", "message": "m", "code": 400}, "m", 400),
        ({"error": {"message": {"nested": 1}}}, "{'nested': 1}", 0),
        ({"error": [1]}, "The engine reported an error without words.", 0),
        ({"error": {"x": 1}}, "The engine reported an error without words.", 0),
    ],
)
def test_errors_of_every_shape(value: dict[str, object], message: str, status: int) -> None:
    assert is_error(value) and describe_error(value) == (message, status)
    watch = watching()
    assert watch.read(event(value)) is Verdict.ERROR
    assert (watch.error_message, watch.error_status) == (message, status)
    assert watch.reads_error(json.dumps(value).encode())


@pytest.mark.parametrize(
    "value", [{}, {"error": None}, {"error": {}}, {"error": ""}, {"object": "error", "choices": []}, {"object": "chat"}]
)
def test_no_errors(value: dict[str, object]) -> None:
    assert not is_error(value) and not watching().reads_error(json.dumps(value).encode())


def test_an_event_named_error_is_one_whatever_it_holds() -> None:
    watch = watching()
    assert watch.read(b'event: error\ndata: {"message":"m"}\n\n') is Verdict.ERROR and watch.error_message == "m"


def test_long_words_are_cut() -> None:
    assert len(describe_error({"error": {"message": "x" * 10_000}})[0]) == 2000
    assert len(describe_error({"error": "x" * 10_000})[0]) == 2000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"detail":"d"}', "d"),
        (b'{"message":"m"}', "m"),
        (b'{"other":1}', '{"other":1}'),
        (b"<html>\n <h1>Bad</h1>\n</html>", "<html> <h1>Bad</h1> </html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"  ", "no words"),
        (b"x" * 10_000, "x" * 2000),
    ],
)
def test_the_words_of_an_error_body(body: bytes, words: str) -> None:
    assert words_of(body) == words


@pytest.mark.parametrize(
    ("start", "is_one"),
    [
        (b'{"error":{', True),
        (b' {\n "error" : "x', True),
        (b'{"object": "error","m', True),
        (b'{"error":null,"choices"', False),
        (b'{"id":"x","object":"chat.completion"', False),
        (b'{"object":"chat.completion"', False),
        (b'["error"]', False),
        (b"", False),
    ],
)
def test_an_error_shows_itself_by_its_first_key(start: bytes, is_one: bool) -> None:
    assert ChatWatch(1, False).begins_error(start) is is_one
    assert not RelayWatch().begins_error(start)


# Events that are no events.


@pytest.mark.parametrize("data", [b'""', b"", b"null", b"[]", b"3", b"ping", b'"x"'])
def test_a_ping_is_hidden(data: bytes) -> None:
    assert watching().read(b"data: " + data + b"\n\n") is Verdict.HIDE


@pytest.mark.parametrize("data", [b"{", b'{"choices":[{"delta":{"con', b"{]", b'{"a":1}}', b'{"a":' * 5000])
def test_a_broken_object_is_broken(data: bytes) -> None:
    assert watching().read(b"data: " + data + b"\n\n") is Verdict.BROKEN


@pytest.mark.parametrize(
    ("block", "whole"),
    [
        (b"data: [DONE]", True),
        (b'data: {"a":1}', True),
        (b'data: {"a":1', False),
        (b"data: [DO", False),
        (b"data: x", False),
        (b"event: x", False),
    ],
)
def test_an_unterminated_event_is_taken_only_if_it_is_seen_to_be_whole(block: bytes, whole: bool) -> None:
    assert ChatWatch(1, False).is_whole(block) is whole and RelayWatch().is_whole(block) is whole


# The relay.


def test_the_relay_reads_nothing_and_believes_the_body() -> None:
    watch = RelayWatch()
    assert not watch.saw_token() and not watch.is_plain(b"x") and not watch.is_fresh()
    assert watch.read(event({"error": {"message": "m"}})) is Verdict.PASS
    assert watch.saw_token() and watch.is_plain(b"x") and watch.is_fresh()
    assert watch.outcome(True) == (CloseReason.COMPLETED, False)
    assert watch.outcome(False) == (CloseReason.UPSTREAM_RESET, False)
    assert not watch.reads_error(b'{"error":"x"}') and not watch.strips_fields


@pytest.mark.parametrize("choices", [1, 3])
def test_an_engine_that_names_choices_without_end_is_counted_up_to_those_asked_for(choices: int) -> None:
    watch = ChatWatch(choices, hides_usage=False)
    many = {"choices": [{"index": n, "delta": {"content": "x"}, "finish_reason": "stop"} for n in range(1000)]}
    for _ in range(2):
        watch.read(b"data: " + json.dumps(many).encode() + b"\n\n")
    assert watch.is_finished() and len(watch._finished) == choices
    other = ChatWatch(1, hides_usage=False)
    assert not other.is_finished(), "nothing of it is another answer's"
