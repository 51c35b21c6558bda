"""What is read out of the log of a cut answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.joining import BLOCKS, block_of, say

from longwire.engines.said import MAX_WORD_CHARS, CannotContinue, Said


def chat(content: Any = None, finish: Any = None, more: dict[str, Any] | None = None, **delta: Any) -> bytes:
    fields = delta if content is None else {"content": content, **delta}
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return block_of({"id": "a", "created": 5, "model": "m", "choices": [{**choice, **(more or {})}]})


def text(content: str, ids: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": content, "finish_reason": None, **({} if ids is None else {"token_ids": ids}), **more}
    return block_of({"id": "a", "choices": [choice]})


def test_an_answer_is_put_together() -> None:
    said = say([
        b": longwire\n\n", chat("", role="assistant"), chat(reasoning="so "), chat(reasoning="it "), chat("He"), b": ping\n\n",
        chat("llo"), chat(None), b'data: ""\n\n', chat("!"),
        block_of({"id": "b", "system_fingerprint": "fp", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}),
    ])  # fmt: skip
    assert (said.content, said.reasoning, said.tokens, said.reasoning_tokens) == ("Hello!", "so it ", 5, 2)
    assert (said.id, said.created, said.model, said.fingerprint) == ("a", 5, "m", "fp")
    assert (said.has_role, said.reasoning_names, said.is_finished) == (True, ("reasoning",), False)
    assert said.usage == {"prompt_tokens": 3, "completion_tokens": 5}
    assert (said.token_ids, said.prompt_token_ids) == (None, None)


def test_reasoning_under_two_names_is_read_once() -> None:
    said = say([chat(reasoning="so", reasoning_content="so"), chat(reasoning="it", reasoning_content="it")])
    assert (said.reasoning, said.reasoning_names) == ("soit", ("reasoning_content", "reasoning"))


def test_the_largest_usage_counts() -> None:
    told = [
        {"completion_tokens": 2},
        {"completion_tokens": 7, "x": "y"},
        {"completion_tokens": 7, "z": 1},
        {},
        "no",
        None,
        5,
    ]
    assert say([block_of({"choices": [], "usage": usage}) for usage in told]).usage == {"completion_tokens": 7}


def test_token_ids_are_counted_and_kept() -> None:
    said = say([text("ab", [1, 2], prompt_token_ids=[7, 8]), text("c", [3])])
    assert (said.token_ids, said.prompt_token_ids, said.tokens) == ([1, 2, 3], [7, 8], 3)
    assert say([block_of({"prompt_token_ids": [7], "choices": []}), text("c", [3])]).prompt_token_ids == [7]


def test_ids_whose_text_is_still_to_come_are_not_said() -> None:
    said = say([text("a", [1]), text("", [2]), text("", [3])])
    assert (said.token_ids, said.tokens) == ([1], 1)
    said.add(text("🚀", [4]))
    assert (said.token_ids, said.tokens) == ([1, 2, 3, 4], 4)
    assert say([text("", [2]), text("b", [3])]).token_ids == [2, 3]


@pytest.mark.parametrize("ids", [None, "x", [1, "2"], [True], [-1], [1.5]])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_ids_that_are_not_all_known_are_unknown(ids: Any, at: int) -> None:
    blocks = [text("a", [1]), text("b", [2])]
    blocks.insert(at, text("x", ids))
    said = say(blocks)
    assert (said.token_ids, said.tokens) == (None, 3)


def test_the_lead_ends_before_white_space() -> None:
    said = say([chat("Hello"), chat(" you"), chat(" "), chat("\n")])
    assert said.lead() == ("Hello you", "", " \n", "", 2)
    assert say([chat(reasoning="so"), chat(reasoning=" ")]).lead() == ("", "so", "", " ", 1)
    # Reasoning that is over stays as it was.
    assert say([chat(reasoning="so"), chat(reasoning=" "), chat("\n")]).lead() == ("", "so ", "\n", "", 2)
    assert say([chat(reasoning=" "), chat("\n")]).lead()[:4] == ("", "", "\n", " ")
    assert say([chat(reasoning=" "), chat("x\n")]).lead() == ("x", " ", "\n", "", 2)
    assert say([]).lead() == ("", "", "", "", 0)


@pytest.mark.parametrize(
    ("pieces", "lead"),
    [
        (["Hel", "lo", " wo", "rld"], ("Hello", "", " world", "", 2)),
        (["Hello", " wo", "rld", " \n"], ("Hello", "", " world \n", "", 1)),
        (["Hel", "lo"], ("", "", "Hello", "", 0)),
        ([" "], ("", "", " ", "", 0)),
        ([], ("", "", "", "", 0)),
        (["x" * 200_000, " end"], ("x" * 200_000, "", " end", "", 1)),  # a search from the left would take minutes
    ],
)
def test_the_lead_to_words_ends_before_the_last_word(pieces: list[str], lead: tuple[str, ...]) -> None:
    assert say([chat(piece) for piece in pieces]).lead(to_words=True) == lead


def test_a_last_word_without_an_end_in_sight_is_not_guessed() -> None:
    said = say([chat("so " + "x" * MAX_WORD_CHARS)])
    assert said.lead(to_words=True).content == "so"
    said = say([chat("so " + "x" * (MAX_WORD_CHARS + 1))])
    with pytest.raises(CannotContinue, match="last token"):
        said.lead(to_words=True)


def test_halves_of_a_character_become_one() -> None:
    halves = [b'data: {"choices":[{"delta":{"content":"\\u%b"}}]}\n\n' % half for half in (b"d83d", b"de80")]
    assert say(halves).content == "🚀"
    assert say(halves[:1]).content == "\ud83d"
    said = Said()
    for half in halves:
        said.add(half)
        assert said.content  # also where it is asked for in between
    assert said.content == "🚀"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (chat(tool_calls=[{"index": 0}]), "tool"), (chat(function_call={"name": "f"}), "function"),
        (chat(audio={"id": "x"}), "audio"), (chat(refusal="No"), "refusal"), (chat(images=["x"]), "more than text: images"),
        (chat("x", more={"index": 1}), "choice"), (block_of({"choices": [{"delta": {}}, {"delta": {}}]}), "choices"),
        (block_of({"choices": 5}), "choices"), (block_of({"choices": [5]}), "choices"),
        (block_of({"choices": [{"delta": 5}]}), "delta"), (chat(["x"]), "no text"),
        (chat(reasoning=5), "no text"), (b'data: {"choices":\n\n', "no JSON"), (b'data: {"x": "\xff"}\n\n', "no JSON"),
        (b"data: " + b'{"a":' * 100_000 + b"\n\n", "no JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_gone_on_with(block: bytes, why: str) -> None:
    said = say([chat("x")])
    with pytest.raises(CannotContinue, match=why) as refused:
        said.add(block)
    assert refused.value.why == str(refused.value)
    assert not said.is_finished


def test_empty_fields_of_other_kinds_are_nothing() -> None:
    said = say(
        [chat("x", tool_calls=[], refusal=None, audio={}, function_call=None), block_of({"choices": [{"delta": None}]})]
    )
    assert said.content == "x"


def test_from_the_finish_on_all_is_noted_and_refused() -> None:
    said = say([chat("x"), chat("y")])
    for block in (chat("z", "stop"), block_of({"choices": [], "usage": {"completion_tokens": 3}}), chat("!")):
        with pytest.raises(CannotContinue, match="finished"):
            said.add(block)
    said.add(b"data: [DONE]\n\n")
    assert (said.content, said.is_finished, said.is_done) == ("xyz!", True, True)
    assert said.usage == {"completion_tokens": 3}


def test_an_error_in_the_log_says_nothing_of_the_answer() -> None:
    said = say([chat("x"), block_of({"error": {"message": "cut"}}), b"event: error\ndata: {}\n\n", b"data: [DONE]\n\n"])
    assert (said.content, said.is_done, said.is_finished) == ("x", True, False)


def test_what_was_said_does_not_stand_in_logs() -> None:
    assert "secret" not in repr(say([chat("secret"), chat(reasoning="secret")]))


@settings(max_examples=300)
@given(blocks=st.lists(BLOCKS, max_size=5))
def test_nothing_but_the_documented_exception_is_ever_raised(blocks: list[bytes]) -> None:
    said = say([chat("x")])
    for block in blocks:
        try:
            said.add(block)
        except CannotContinue:
            break
    assert said.lead().content + said.lead().content_cut == said.content
    assert said.usage is None or isinstance(said.usage, dict)


@given(pieces=st.lists(st.text(max_size=5), max_size=30))
def test_events_that_are_told_by_their_form_count_like_the_others(pieces: list[str]) -> None:
    compact = say([chat(piece) for piece in pieces])
    styles = [{"indent": 1}, {"separators": (",", ": ")}]
    parsed = say([
        b"data: " + json.dumps({"choices": [{"delta": {"content": piece}}]}, **styles[n % 2]).replace("\n", "\ndata: ").encode()
        + b"\n\n"
        for n, piece in enumerate(pieces)
    ])  # fmt: skip
    assert compact.content == parsed.content == "".join(pieces)
    assert compact.tokens == parsed.tokens
    assert compact.lead() == parsed.lead()
