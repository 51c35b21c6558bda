"""Whether the rest of an answer can be asked for, and the one cause why not."""

from __future__ import annotations

from typing import Any

import pytest

from longwire.streams.terms import Facts, Kind, why_no_part
from longwire.words.reasons import CloseReason


def facts(**others: Any) -> Facts:
    """Of an answer whose rest can be asked for, but for what is other."""
    told = {"route": "chat_completions", "first_token_at": 1.0, "can_be_continued": True, **others}
    return Facts("t", 0, **told)


def test_nothing_speaks_against_the_rest_of_a_cut_answer() -> None:
    assert why_no_part(facts(), Kind.EVENTS, CloseReason.CANCELLED) == ""


@pytest.mark.parametrize(
    ("others", "cause"),
    [
        ({"route": "relay"}, "this API"),
        ({"choices": 2}, "several answers"),
        ({"first_token_at": None}, "Nothing of this answer has come"),
        ({"can_be_continued": False}, "'kind' of an engine"),
        ({"route": "relay", "first_token_at": None, "can_be_continued": False}, "this API"),
        ({"first_token_at": None, "can_be_continued": False}, "Nothing of this answer has come"),
    ],
)
def test_one_cause_is_told(others: dict[str, Any], cause: str) -> None:
    assert cause in why_no_part(facts(**others), Kind.EVENTS, CloseReason.UPSTREAM_RESET)


def test_what_is_whole_or_in_one_piece_has_no_rest() -> None:
    assert "is whole" in why_no_part(facts(can_be_continued=False), Kind.EVENTS, CloseReason.COMPLETED)
    assert "one piece" in why_no_part(facts(first_token_at=None), Kind.BODY, CloseReason.UPSTREAM_RESET)
