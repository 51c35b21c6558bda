"""The text that anyone can foretell."""

from __future__ import annotations

import json

import pytest

from longwire.sim.answer import (
    CACHED_TOKENS,
    WORDS,
    TokenTable,
    answer_text,
    count_tokens,
    mix,
    position_after,
    token_text,
)


def test_the_text_never_changes() -> None:
    """Recorded answers and other languages' clients rely on it."""
    assert answer_text(0, 8) == " copper0 silver1 cloud2 glass3 light4 水の音5 compass6 paper7"
    assert answer_text(7, 4) == ' "quoted"0 光1 garden2 light3'
    assert mix(1, 2) == 2578627564


def test_each_token_names_its_index() -> None:
    assert all(token_text(5, index).endswith(str(index)) for index in range(300))


def test_seeds_tell_streams_apart() -> None:
    assert len({answer_text(seed, 12) for seed in range(500)}) == 500


def test_multi_byte_text_is_never_far() -> None:
    widest = {max(len(char.encode()) for char in token_text(0, index)) for index in range(100)}
    assert widest == {1, 2, 3, 4}
    assert any("\u200d" in word for word in WORDS)


def test_tables_hold_the_inside_of_json_strings() -> None:
    table = TokenTable(9)
    for index in (0, 77, 3, CACHED_TOKENS + 5):
        assert json.loads(b'"' + table.inner(index) + b'"') == token_text(9, index)


@pytest.mark.parametrize("seed", [0, 3])
def test_an_answer_cut_anywhere_can_be_continued(seed: int) -> None:
    whole = answer_text(seed, 24)
    for cut in range(len(whole) + 1):
        start, lead = position_after(seed, whole[:cut])
        assert whole[:cut] + lead + answer_text(seed, 24 - start, start) == whole


def test_a_foreign_prefix_starts_a_new_answer() -> None:
    assert position_after(0, "Hello") == (0, "")
    assert position_after(0, answer_text(1, 3)) == (0, "")


def test_a_token_is_a_word() -> None:
    assert count_tokens("one two\n three") == 3
    assert count_tokens("") == 0
