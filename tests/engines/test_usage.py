"""The usage of an answer whose engine broke before it could tell it; the sum of two parts is tested with the seam."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from longwire.engines.said import CannotContinue, Said
from longwire.engines.usage import usage_so_far


def say(*events: dict[str, Any]) -> Said:
    said = Said()
    for event in events:
        with suppress(CannotContinue):
            said.add(b"data: " + json.dumps(event).encode() + b"\n\n")
    return said


def event(content: str = "", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}], **more}


def used(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def test_where_nobody_has_told_of_the_prompt_nothing_is_made_up() -> None:
    assert usage_so_far(say(event("a"), event("b"))) is None
    assert usage_so_far(say(event("a", prompt_token_ids=[]), event("b"))) is None


def test_it_is_counted_by_the_ids_of_the_prompt() -> None:
    assert usage_so_far(say(event("a", prompt_token_ids=[1, 2, 3]), event("b"))) == used(3, 2)


@pytest.mark.parametrize("told", range(6))
def test_what_was_said_behind_the_last_count_is_added_to_it(told: int) -> None:
    events = [event(letter, usage=used(7, number)) for number, letter in enumerate("abcde"[:told], 1)]
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": used(7, 0)}
    assert usage_so_far(say(role, *events, *(event(letter) for letter in "abcde"[told:]))) == used(7, 5)


def test_an_engine_s_count_goes_before_ours() -> None:
    """One that sends several tokens in an event knows how many."""
    assert usage_so_far(say(event("ab", usage=used(7, 2)), event("cd", usage=used(7, 4)))) == used(7, 4)


def test_what_else_was_told_stays() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    assert usage_so_far(say(event("a", usage={**used(7, 1), **details}), event("b"))) == {**used(7, 2), **details}
    assert usage_so_far(say(event("a", usage={"completion_tokens": 1}), event("b"))) == {"completion_tokens": 2}


@pytest.mark.parametrize("odd", [{"a": 1}, True, 10**30, -1, "5", None, [5], 5.0])
def test_what_is_no_count_is_not_added_up(odd: object) -> None:
    """It would raise at the very end of an answer, or keep what was counted ourselves from being told."""
    assert usage_so_far(say(event("a", usage={"prompt_tokens": odd, "completion_tokens": 1}), event("b"))) == {
        "completion_tokens": 2
    }
    told = used(7, 1) | {"completion_tokens": odd}
    assert (usage_so_far(say(event("a", usage=used(7, 1)), event("b", usage=told)))) == used(7, 2)
