"""Which answers can be gone on with, and what is asked for then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.joining import CHAT, COMPLETIONS, JSON, block_of, say

from longwire.engines.continuation import (
    LIMITS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    CannotContinue,
    Said,
    check_request,
    continued_body,
    continues_by_ids,
    is_chat,
    stops_of,
)
from longwire.engines.kinds import Abilities, Continues

FINAL = Abilities(continues=Continues.FINAL_MESSAGE)
THINKS = Abilities(continues=Continues.FINAL_MESSAGE, continues_reasoning=True)
PREFILL = Abilities(continues=Continues.PREFILL)
IDS = Abilities(continues=Continues.FINAL_MESSAGE, takes_token_ids=True)
USER = {"role": "user", "content": "Hi"}
ASKED = {"continue_final_message": True, "add_generation_prompt": False}


def said_of(*contents: str, thought: str = "", ids: list[int] | None = None) -> Said:
    thoughts = [{"choices": [{"delta": {"reasoning_content": thought}}]}] if thought else []
    frames = [{"choices": [{"delta": {"content": content}}]} for content in contents]
    said = say([block_of(frame) for frame in thoughts + frames])
    if ids is not None:
        said.token_ids, said.prompt_token_ids = ids, [7, 8]
    return said


def continued(target: bytes, said: Said, abilities: Abilities, **body: Any) -> Any:
    rest = continued_body(target, json.dumps(body).encode(), said, abilities)
    return None if rest is None else json.loads(rest)


def messages_of(said: Said, abilities: Abilities, *messages: Any, **body: Any) -> Any:
    return continued(CHAT, said, abilities, messages=list(messages), **body)


# What can be gone on with.


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}}, {"response_format": "text"}, {"guided_json": {}},
        {"guided_choice": ["a"]}, {"guided_regex": "x"}, {"structured_outputs": {"regex": "x"}}, {"grammar": "root ::= x"},
        {"json_schema": {}}, {"regex": "x"}, {"ebnf": "x"}, {"structural_tag": "{}"}, {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"function_call": {"name": "f"}},
        {"modalities": ["text", "audio"]}, {"audio": {"voice": "x"}}, {"echo": True}, {"suffix": "end"}, {"prediction": {}},
        {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"logprobs": True}, {"logprobs": 0}, {"logprobs": 5},
        {"prompt_logprobs": 0}, {"n_probs": 1}, {"prompt_embeds": "x"}, {"truncate_prompt_tokens": 5},
        {"logits_processors": ["x"]}, {"stop": ["x"] * (MAX_STOPS + 1)}, {"stop": "x" * (MAX_STOP_CHARS + 1)},
    ],
)  # fmt: skip
def test_requests_that_are_refused(body: dict[str, Any]) -> None:
    for target in ("/v1/chat/completions", b"/v1/completions"):
        with pytest.raises(CannotContinue) as refused:
            check_request(target, body)
        assert refused.value.why.endswith(".")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"n": 1, "best_of": 1}, {"n": None}, {"response_format": {"type": "text"}}, {"response_format": None},
        {"tools": [{"type": "function"}]}, {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none", "function_call": "auto"},
        {"modalities": ["text"]}, {"echo": False}, {"suffix": None}, {"suffix": ""}, {"prompt": ["a"]}, {"prompt": [1, 2]},
        {"prompt": [[1, 2]]}, {"prompt": "a"}, {"prompt": []}, {"logprobs": False}, {"logprobs": None}, {"n_probs": 0},
        {"guided_json": None}, {"stop": ["x"] * MAX_STOPS}, {"stop": None}, {"seed": 5, "temperature": 1, "unknown": {}},
    ],
)  # fmt: skip
def test_requests_that_pass(body: dict[str, Any]) -> None:
    check_request("chat_completions", body)


@pytest.mark.parametrize(
    ("target", "chat"),
    [
        ("chat_completions", True), ("completions", False), ("/v1/chat/completions", True), (b"/v1/completions", False),
        (b"/base/v1/chat/completions?a=/completions", True), ("/base/v1/completions?x", False),
    ],
)  # fmt: skip
def test_apis_that_can_be_gone_on_with(target: str | bytes, chat: bool) -> None:
    assert is_chat(target) is chat


@pytest.mark.parametrize("target", ["relay", "/v1/responses", b"/v1/messages", "/v1/mycompletions", "", b"\xff"])
def test_other_apis(target: str | bytes) -> None:
    with pytest.raises(CannotContinue):
        check_request(target, {})


@pytest.mark.parametrize(
    ("stop", "stops"),
    [
        (None, ()), ("x", ("x",)), (["a", "b"], ("a", "b")), ("", ()), (["", 5, "a"], ("a",)), (5, ()), ({"a": 1}, ()),
        (["a"] * 100, ("a",) * MAX_STOPS), ("x" * 1000, ()),
    ],
)  # fmt: skip
def test_stop_strings_are_read_within_bounds(stop: Any, stops: tuple[str, ...]) -> None:
    assert stops_of({"stop": stop}) == stops
    assert stops_of({}) == ()


FIELDS = [*LIMITS, "min_tokens", "messages", "prompt", "stop", "n", "tool_choice", "response_format", "modalities", "logprobs",
          "continue_final_message", "add_generation_prompt"]  # fmt: skip


@settings(max_examples=300)
@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON | st.just([USER]) | st.just("x"), max_size=6),
    abilities=st.sampled_from([FINAL, THINKS, PREFILL, IDS]),
    target=st.sampled_from([CHAT, COMPLETIONS]),
)
def test_nothing_but_the_documented_exception_is_ever_raised(
    body: dict[str, Any], abilities: Abilities, target: bytes
) -> None:
    stops_of(body)
    try:
        check_request(target, body)
        rest = continued_body(target, json.dumps(body).encode(), said_of("x", ids=[1]), abilities)
    except CannotContinue:
        return
    assert rest is None or json.loads(rest).keys() >= body.keys()


# Messages.


@pytest.mark.parametrize("abilities", [FINAL, PREFILL])
def test_a_message_is_added(abilities: Abilities) -> None:
    asked = ASKED if abilities is FINAL else {}
    told = messages_of(said_of("Well", " so \n"), abilities, USER, seed=1, tools=[{}])
    message = {"role": "assistant", "content": "Well so"}
    assert told == {"messages": [USER, message], "seed": 1, "tools": [{}], **asked}
    assert list(told) == ["messages", "seed", "tools", *asked]


BEGUN = {"role": "assistant", "content": "Once ", "name": "x"}


def test_a_message_that_the_client_has_begun_is_gone_on_with() -> None:
    said = said_of("upon")
    merged = {**BEGUN, "content": "Once upon"}
    assert messages_of(said, FINAL, USER, BEGUN, **ASKED) == {"messages": [USER, merged], **ASKED}
    assert messages_of(said, PREFILL, USER, BEGUN) == {"messages": [USER, merged]}
    assert messages_of(said, PREFILL, USER, BEGUN, continue_final_message=True)["messages"] == [USER, merged]
    # Who did not ask for it had a new message.
    added = {"role": "assistant", "content": "upon"}
    assert messages_of(said, FINAL, USER, BEGUN)["messages"] == [USER, BEGUN, added]
    told = messages_of(said, PREFILL, USER, BEGUN, continue_final_message=False, add_generation_prompt=True)
    assert told == {"messages": [USER, BEGUN, added], **ASKED}


@pytest.mark.parametrize(
    ("content", "merged"),
    [
        (None, "upon"), ("", "upon"), ([{"type": "text", "text": "On"}], [{"type": "text", "text": "Onupon"}]),
        ([{"type": "image_url"}, {"type": "text", "text": ""}], [{"type": "image_url"}, {"type": "text", "text": "upon"}]),
    ],
)  # fmt: skip
def test_contents_of_every_shape_are_gone_on_with(content: Any, merged: Any) -> None:
    told = messages_of(said_of("upon"), PREFILL, {"role": "assistant", "content": content})
    assert told["messages"][0]["content"] == merged


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([{"role": "assistant", "content": []}], {}), ([{"role": "assistant", "content": [{"type": "image_url"}]}], {}),
        ([{"role": "assistant", "content": 5}], {}), ([{"role": "assistant", "tool_calls": [{}]}], {}), ([USER], ASKED),
        ([], {}), (["x"], {}), ("x", {}), ([USER], {"continue_final_message": "content"}),
        ([USER], {"continue_final_message": {}}),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_gone_on_with(messages: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(CannotContinue):
        continued(CHAT, said_of("x"), PREFILL, messages=messages, **fields)


def test_reasoning_goes_on_where_the_engine_can() -> None:
    thinking = {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    assert messages_of(said_of(thought="Hm "), THINKS, USER)["messages"][1] == thinking
    answering = {"role": "assistant", "content": "Well", "reasoning_content": "Hm "}
    assert messages_of(said_of("Well", thought="Hm "), THINKS, USER)["messages"][1] == answering
    begun = {"role": "assistant", "content": "", "reasoning_content": "A"}
    assert messages_of(said_of(thought="Hm"), THINKS, USER, begun, **ASKED)["messages"][1]["reasoning_content"] == "AHm"
    for abilities in (FINAL, PREFILL):
        with pytest.raises(CannotContinue, match="reasoning"):
            messages_of(said_of("Well", thought="Hm"), abilities, USER)
    with pytest.raises(CannotContinue, match="reasoned"):
        messages_of(said_of(thought="Hm"), THINKS, USER, {"role": "assistant", "content": "x"}, **ASKED)


@pytest.mark.parametrize("said", [said_of(), said_of(" ", "\n"), said_of("\n", thought=" ")])
@pytest.mark.parametrize("abilities", [Abilities(), FINAL, PREFILL, IDS])
def test_where_nothing_was_said_it_is_the_same_request(said: Said, abilities: Abilities) -> None:
    for target in (CHAT, COMPLETIONS):
        assert (
            continued_body(target, b'{"max_tokens": 1, "messages": 5}', said, abilities)
            == b'{"max_tokens": 1, "messages": 5}'
        )


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS])
def test_engines_that_are_not_known_to_go_on_are_not_asked(target: bytes) -> None:
    with pytest.raises(CannotContinue, match="not known"):
        continued(target, said_of("x"), Abilities(), messages=[USER], prompt="x")


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b""])
def test_a_request_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(CannotContinue, match="no JSON"):
        continued_body(CHAT, body, said_of("x"), FINAL)


def test_half_a_character_and_the_end_cannot_be_gone_on_with() -> None:
    with pytest.raises(CannotContinue, match="inside a character"):
        messages_of(say([b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n']), FINAL, USER)
    said = said_of("x")
    said.is_finished = True
    with pytest.raises(CannotContinue, match="finished"):
        messages_of(said, FINAL, USER)


# Prompts.


@pytest.mark.parametrize(("prompt", "told"), [("Say", "Say so"), (["Say"], ["Say so"]), ("", " so")])
def test_a_prompt_gets_longer(prompt: Any, told: Any) -> None:
    for abilities in (FINAL, PREFILL, IDS):
        assert continued(COMPLETIONS, said_of(" so "), abilities, prompt=prompt, seed=1) == {"prompt": told, "seed": 1}


@pytest.mark.parametrize(
    ("prompt", "told"),
    [("Say", [7, 8, 1, 2]), (["Say"], [[7, 8, 1, 2]]), ([7, 8], [7, 8, 1, 2]), ([[7, 8]], [[7, 8, 1, 2]])],
)
def test_a_prompt_goes_on_by_token_ids(prompt: Any, told: Any) -> None:
    said = said_of(" so ", ids=[1, 2])
    assert continued(COMPLETIONS, said, IDS, prompt=prompt, max_tokens=5) == {"prompt": told, "max_tokens": 3}
    assert continues_by_ids(COMPLETIONS, b"{}", said, IDS)
    assert not continues_by_ids(CHAT, b"{}", said, IDS)
    assert not continues_by_ids(COMPLETIONS, b"{}", said, FINAL)
    assert not continues_by_ids(COMPLETIONS, b"{}", said_of(" so "), IDS)


def test_with_stop_strings_ids_are_not_sure() -> None:
    """Their text may have been held back."""
    said = said_of(" so ", ids=[1, 2])
    assert continued(COMPLETIONS, said, IDS, prompt="Say", stop="x")["prompt"] == "Say", "nor the last word"
    assert not continues_by_ids(COMPLETIONS, b'{"stop":"x"}', said, IDS)


@pytest.mark.parametrize("prompt", [[7, 8], [[7, 8]], None, 5, [], ["a", "b"]])
def test_prompts_that_text_cannot_be_added_to(prompt: Any) -> None:
    with pytest.raises(CannotContinue):
        continued(COMPLETIONS, said_of("x"), IDS, prompt=prompt)
    with pytest.raises(CannotContinue):
        continued(COMPLETIONS, said_of("x", thought="y"), IDS, prompt="x")


# Limits.


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_tokens": 10}, {"max_tokens": 8}), ({"max_completion_tokens": 3}, {"max_completion_tokens": 1}),
        ({"n_predict": -1}, {"n_predict": -1}), ({"n_predict": 5}, {"n_predict": 3}),
        ({"max_tokens": 10.0}, {"max_tokens": 8}), ({"max_tokens": "5"}, {"max_tokens": "5"}),
        ({"max_tokens": None}, {"max_tokens": None}), ({"max_tokens": True}, {"max_tokens": True}),
        ({"max_tokens": 10, "max_completion_tokens": 5}, {"max_tokens": 8, "max_completion_tokens": 3}),
        ({"min_tokens": 5}, {"min_tokens": 3}), ({"min_tokens": 1}, {"min_tokens": 0}),
        ({"min_tokens": None}, {"min_tokens": None}),
    ],
)  # fmt: skip
def test_limits_are_for_the_rest(limits: dict[str, Any], left: dict[str, Any]) -> None:
    told = messages_of(said_of("a", "b", " "), FINAL, USER, **limits)
    assert {name: told[name] for name in limits} == left


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 2}, {"max_tokens": 1}, {"max_tokens": 9, "max_completion_tokens": 2}]
)
def test_an_answer_as_long_as_it_may_be_is_whole(limits: dict[str, Any]) -> None:
    assert messages_of(said_of("a", "b"), FINAL, USER, **limits) is None
    assert continued(COMPLETIONS, said_of("a", "b"), FINAL, prompt="x", **limits) is None
