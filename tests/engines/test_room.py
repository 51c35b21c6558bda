"""What a request needs of an engine, what fits, and which answers are given a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.room import (
    BELIEVED_ANSWERS,
    LEAST_CLAMP_TOKENS,
    NOTHING,
    PROMPT_WEIGHT_TOKENS,
    UNBOUND_ANSWER_TOKENS,
    Answers,
    Bounds,
    Need,
    added,
    bounds_of,
    clamp_header,
    find_clamp,
    fits,
    need_of,
    note_answer,
    taken_off,
)

tokens = st.integers(0, 200_000)
needs = st.builds(Need, st.floats(1, 100), st.floats(0, 1e6))


def after(*lengths: int) -> Answers:
    answers = Answers()
    for length in lengths:
        answers = note_answer(answers, length)
    return answers


# Needs.


def test_a_long_prompt_counts_as_several_requests() -> None:
    assert need_of(10, 100, Answers()).weight == 1
    assert need_of(4 * PROMPT_WEIGHT_TOKENS, 100, Answers()).weight == 4


def test_prompt_and_declared_answer_are_reserved_until_answers_were_seen() -> None:
    assert need_of(100, 4096, Answers()).tokens == 4196
    assert need_of(100, 0, Answers()).tokens == 100 + UNBOUND_ANSWER_TOKENS
    assert need_of(100, 0, Answers(), choices=3).tokens == 100 + 3 * UNBOUND_ANSWER_TOKENS
    few = after(*[300] * (BELIEVED_ANSWERS - 1))
    assert need_of(100, 4096, few).tokens == 4196
    assert need_of(100, 4096, note_answer(few, 300)).tokens == 400
    assert need_of(100, 3 * 4096, note_answer(few, 300), choices=3).tokens == 1000


@given(st.lists(st.integers(0, 10_000), min_size=BELIEVED_ANSWERS, max_size=100), st.integers(1, 20_000))
def test_never_more_is_kept_than_a_client_has_declared(lengths: list[int], declared: int) -> None:
    answers = after(*lengths)
    assert 0 <= answers.expected(declared) <= declared
    assert min(lengths) - 1e-6 <= answers.mean <= max(lengths) + 1e-6
    assert answers.expected(0) >= answers.mean


def test_the_expectation_follows_answers_that_become_longer() -> None:
    answers = after(*[100] * 200, *[2000] * 300)
    assert 1900 < answers.mean <= 2000
    assert answers.expected(4096) > 1900


# Fitting.


@pytest.mark.parametrize(
    ("need", "held", "bounds", "answer"),
    [
        (Need(1, 100), Need(300, 1e9), Bounds(), True),
        (Need(1, 100), Need(9, 0), Bounds(10), True),
        (Need(1, 100), Need(9.5, 0), Bounds(10), False),
        (Need(1, 100), Need(5, 900), Bounds(10, 1000), True),
        (Need(1, 101), Need(5, 900), Bounds(10, 1000), False),
        (Need(50, 1e9), NOTHING, Bounds(10, 1000), True),
    ],
)
def test_what_fits(need: Need, held: Need, bounds: Bounds, answer: bool) -> None:
    assert fits(need, held, bounds) is answer


@given(st.lists(needs, max_size=40), st.floats(1, 500), st.floats(1, 1e6))
def test_more_than_one_request_is_never_beyond_a_bound(arriving: list[Need], limit: float, capacity: float) -> None:
    bounds, held, count = Bounds(limit, capacity), NOTHING, 0
    for need in arriving:
        if fits(need, held, bounds):
            held, count = added(held, need), count + 1
        assert count <= 1 or (held.weight <= limit and held.tokens <= capacity)
    assert count >= 1 or not arriving


@given(st.lists(needs, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_what_has_ended_leaves_nothing_behind(arriving: list[Need], random: object) -> None:
    held = NOTHING
    for need in arriving:
        held = added(held, need)
    for left, need in zip(reversed(range(len(arriving))), arriving, strict=True):
        held = taken_off(held, need, left)
        assert held.weight >= 0 and held.tokens >= 0
    assert held == NOTHING


@pytest.mark.parametrize(
    ("operator", "learned", "capacity", "share", "bounds"),
    [
        (0, None, None, 1.0, Bounds()),
        (16, None, None, 1.0, Bounds(16)),
        (16, 9.5, 1000.0, 1.0, Bounds(9.5, 1000)),
        (4, 9.5, 1000.0, 0.5, Bounds(4, 500)),
        (0, 9.5, 0.0, 1.0, Bounds(9.5)),
        (0, None, float("inf"), 1.0, Bounds()),
        (0, None, float("nan"), 1.0, Bounds()),
        (0, None, 1000.0, 0.0, Bounds()),
    ],
)
def test_the_tighter_limit_holds(
    operator: int, learned: float | None, capacity: float | None, share: float, bounds: Bounds
) -> None:
    assert bounds_of(operator, learned, capacity, share) == bounds


# The clamp.


@given(st.integers(1, 100_000), st.booleans())
def test_a_bound_of_the_client_s_own_is_never_touched(declared: int, may_clamp: bool) -> None:
    assert find_clamp(declared, Answers(), Bounds(4, 1000), may_clamp=may_clamp) is None


def test_an_answer_without_a_bound_gets_what_is_reserved_for_it() -> None:
    bounds = Bounds(4, 1000)
    assert find_clamp(0, Answers(), bounds, may_clamp=True) == UNBOUND_ANSWER_TOKENS
    assert find_clamp(0, after(*[400] * 40), bounds, may_clamp=True) == 400
    assert find_clamp(0, after(*[10] * 40), bounds, may_clamp=True) == LEAST_CLAMP_TOKENS


def test_nothing_is_clamped_without_need_or_against_anybody_s_will() -> None:
    assert find_clamp(0, Answers(), Bounds(4, 1000), may_clamp=False) is None
    assert find_clamp(0, Answers(), Bounds(4, None), may_clamp=True) is None


def test_a_header_tells_of_it() -> None:
    assert clamp_header(None) == []
    assert clamp_header(400) == [(b"longwire-max-tokens", b"400")]
