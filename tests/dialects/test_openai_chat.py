"""OpenAI's requests: what the gateway reads, what it adds, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.dialects.base import MAX_ANSWER_TOKENS, Ask
from longwire.dialects.openai_chat import DONE_BLOCK, MAX_CHOICES, OpenAiWords, read_request
from longwire.words.errors import BadJson, RemoteError
from longwire.words.reasons import CloseReason

from .test_base import JSON_VALUES, NASTY

MESSAGES = [{"role": "user", "content": "Hi"}]


def read(**fields: Any) -> Ask:
    return read_request(json.dumps(fields).encode())


def refused(**fields: Any) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


# What is read.


def test_a_plain_request_goes_on_as_it_is() -> None:
    ask = read(model="m", messages=MESSAGES, temperature=0.5)
    assert (ask.model, ask.wants_stream, ask.choices, ask.hides_usage, ask.plain_body) == ("m", False, 1, False, None)
    assert json.loads(ask.body) == {"model": "m", "messages": MESSAGES, "temperature": 0.5}


@pytest.mark.parametrize("stream", [False, None])
def test_no_stream_is_no_stream(stream: bool | None) -> None:
    ask = read(model="m", stream=stream, stream_options=None)
    assert not ask.wants_stream
    assert json.loads(ask.body) == {"model": "m", "stream": stream, "stream_options": None}


@pytest.mark.parametrize("stream", [1, 0, 1.0, "true", "false", "", [], {}, [True]])
def test_what_engines_read_differently_is_refused(stream: object) -> None:
    """One takes 1 for true and streams, another ignores it and does not."""
    assert refused(model="m", stream=stream).param == "stream"


@pytest.mark.parametrize("model", [None, 1, True, ["m"], {"id": "m"}])
def test_a_model_is_a_string(model: object) -> None:
    assert refused(model=model).param == "model"


def test_no_model_is_left_to_the_engines() -> None:
    assert read(messages=MESSAGES).model == ""


@pytest.mark.parametrize("n", [1, 2, MAX_CHOICES])
def test_choices_are_counted(n: int) -> None:
    assert read(model="m", n=n).choices == n


def test_no_n_is_one() -> None:
    assert read(model="m", n=None).choices == 1


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1, 10**30, True, False, 1.0, 1.5, "2", [2], {}])
def test_n_is_bounded(n: object) -> None:
    assert refused(model="m", n=n).param == "n"


@pytest.mark.parametrize(
    ("prompt", "n", "finishes"),
    [
        ("one", None, 1),
        ("one", 3, 3),
        (["one"], None, 1),
        (["one", "two"], None, 2),
        (["one", "two"], 3, 6),
        ([1, 2, 3], None, 1),
        ([[1, 2], [3]], None, 2),
        ([], None, 1),
        (None, 2, 2),
    ],
)
def test_a_list_of_prompts_is_answered_once_each(prompt: object, n: int | None, finishes: int) -> None:
    assert read(model="m", prompt=prompt, n=n, stream=True).choices == finishes


def test_what_is_no_json_is_said_to_be_none() -> None:
    with pytest.raises(BadJson):
        read_request(b'{"model": "m", "model": "n"}')
    with pytest.raises(BadJson):
        read_request(b'{"model": "\\ud800"}')
    with pytest.raises(BadJson):
        read_request(b'{"model": "m", "stream": true, "messages": ["\\ud800"]}')


# What is added.


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_is_asked_for_where_the_client_did_not(options: dict[str, object] | None) -> None:
    fields = {"model": "m", "stream": True, "messages": MESSAGES}
    if options is not None:
        fields["stream_options"] = options
    ask = read(**fields)
    assert (ask.wants_stream, ask.hides_usage) == (True, True)
    assert json.loads(ask.body) == {**fields, "stream_options": {"include_usage": True}}
    assert ask.plain_body is not None
    assert json.loads(ask.plain_body) == fields, "for an engine that refuses what was added"


def test_other_options_stay() -> None:
    ask = read(model="m", stream=True, stream_options={"continuous_usage_stats": True, "x": [1]})
    assert json.loads(ask.body)["stream_options"] == {"continuous_usage_stats": True, "x": [1], "include_usage": True}


def test_a_client_that_asks_itself_gets_it() -> None:
    fields = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    ask = read(**fields)
    assert (ask.hides_usage, ask.plain_body) == (False, None)
    assert json.loads(ask.body) == fields


def test_nothing_is_added_where_no_stream_was_asked_for() -> None:
    ask = read(model="m", stream_options={"x": 1})
    assert json.loads(ask.body) == {"model": "m", "stream_options": {"x": 1}}
    assert (ask.hides_usage, ask.plain_body) == (False, None)


@pytest.mark.parametrize("options", [[], "x", 1, True, [["include_usage", True]]])
def test_options_are_an_object(options: object) -> None:
    assert refused(model="m", stream=True, stream_options=options).param == "stream_options"


@given(st.dictionaries(st.sampled_from(["messages", "tools", "x", "logit_bias", "temperature"]), JSON_VALUES))
def test_unknown_fields_and_numbers_survive(fields: dict[str, Any]) -> None:
    ask = read(model="m", stream=True, **fields)
    sent = json.loads(ask.body)
    assert sent.pop("stream_options") == {"include_usage": True}
    assert repr(sent) == repr({"model": "m", "stream": True, **fields})


# Words.


def test_a_bad_ending_is_an_error_and_the_end_marker() -> None:
    """Clients of this API read until [DONE]: without it they wait, or take a cut answer for a whole one."""
    blocks = OpenAiWords().error_blocks(CloseReason.UPSTREAM_RESET, NASTY, {"stream_id": "lw_x", "last_seq": 7})
    assert blocks[1:] == [DONE_BLOCK]
    line, *rest = blocks[0].split(b"\n")
    assert rest == [b"", b""]
    error = json.loads(line.removeprefix(b"data: "))["error"]
    assert (error["message"], error["code"], error["stream_id"], error["last_seq"]) == (
        NASTY,
        "upstream_reset",
        "lw_x",
        7,
    )


# Tokens.


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 0),
        ({"max_tokens": None}, 0),
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 100, "max_completion_tokens": 200, "stream": True}, 200),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 10, "n": 2, "prompt": ["a", "b", "c"]}, 60),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": 64.0}, 64),
        ({"max_tokens": 10**300, "n": 128}, MAX_ANSWER_TOKENS),
    ],
)
def test_an_answer_is_bounded_by_what_the_request_says(fields: dict[str, Any], most: int) -> None:
    assert read(model="m", **fields).answer_tokens == most


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", ["100", True, [100], {}])
def test_a_bound_that_engines_read_differently_is_refused(name: str, value: object) -> None:
    assert refused(model="m", **{name: value}).param == name


def test_a_prompt_counts_a_quarter_of_its_bytes_without_what_the_gateway_adds() -> None:
    plain = read(model="m", messages=MESSAGES, stream=False)
    assert plain.prompt_tokens == -(-len(plain.body) // 4)
    ours = read(model="m", messages=MESSAGES, stream=True)
    assert ours.plain_body is not None and len(ours.body) > len(ours.plain_body)
    assert ours.prompt_tokens == -(-len(ours.plain_body) // 4)
