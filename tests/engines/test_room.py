"""What a request needs of an engine, what fits, and which answers are given a bound."""

from __future__ import annotations

import random

import pytest
from benchmarks.kv_batch import BLOCK_TOKENS, KvBatch, Sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from longwire.engines.room import (
    BELIEVED_ANSWERS,
    BLOCK_SLACK_TOKENS,
    LEAST_CLAMP_TOKENS,
    MAX_REQUESTS_RECKONED,
    NOTHING,
    OVERDUE_SHARE,
    PROMPT_WEIGHT_TOKENS,
    UNBOUND_ANSWER_TOKENS,
    Answers,
    Bounds,
    Holding,
    Need,
    added,
    bounds_of,
    clamp_header,
    find_clamp,
    fits,
    holding_of,
    need_of,
    note_answer,
    peak_tokens,
    taken_off,
)

needs = st.builds(Need, st.floats(1, 100), st.floats(0, 1e6), st.floats(0, 1e6))
holdings = st.lists(st.builds(Holding, st.integers(0, 10_000), st.integers(1, 5000)), max_size=12)


def after(*lengths: int, declared: int = 0) -> Answers:
    answers = Answers()
    for length in lengths:
        answers = note_answer(answers, declared, length)
    return answers


# Needs.


def test_a_long_prompt_counts_as_several_requests() -> None:
    assert need_of(10, 100, 1, Answers()).weight == 1
    assert need_of(4 * PROMPT_WEIGHT_TOKENS, 100, 1, Answers()).weight == 4


def test_prompt_and_declared_answer_are_reserved_until_answers_were_seen() -> None:
    assert need_of(100, 4096, 1, Answers()).tokens == 100 + 4096 + BLOCK_SLACK_TOKENS
    assert need_of(100, 0, 1, Answers()).answer_tokens == UNBOUND_ANSWER_TOKENS
    assert need_of(100, 0, 3, Answers()).answer_tokens == 3 * UNBOUND_ANSWER_TOKENS
    few = after(*[1024] * (BELIEVED_ANSWERS - 1), declared=4096)
    assert need_of(100, 4096, 1, few).answer_tokens == 4096
    known = note_answer(few, 4096, 1024)
    assert need_of(100, 4096, 1, known).answer_tokens == 1024
    assert need_of(100, 400, 1, known).answer_tokens == 100
    assert need_of(100, 3 * 4096, 3, known).answer_tokens == 3 * 1024
    assert need_of(100, 0, 1, known).answer_tokens == UNBOUND_ANSWER_TOKENS, (
        "of answers without a bound nothing is known"
    )
    assert need_of(100, 0, 1, after(*[300] * BELIEVED_ANSWERS)).answer_tokens == 300


def test_beside_many_others_the_margin_of_each_is_smaller() -> None:
    answers = after(*[100, 300] * 30)
    assert answers.expected(0) == pytest.approx(200 + 3 * 100, rel=0.02)
    assert answers.expected(0, among=100) == pytest.approx(200 + 3 * 10, rel=0.02)


@given(st.lists(st.integers(0, 10_000), min_size=BELIEVED_ANSWERS, max_size=100), st.integers(1, 20_000))
def test_never_more_is_kept_than_a_client_has_declared(lengths: list[int], declared: int) -> None:
    assert 0 <= after(*lengths, declared=5000).expected(declared) <= declared
    lengths_seen = after(*lengths).lengths
    assert min(lengths) - 1e-6 <= lengths_seen.mean <= max(lengths) + 1e-6
    assert lengths_seen.likely(1) >= lengths_seen.mean


def test_the_expectation_follows_answers_that_become_longer() -> None:
    answers = after(*[100] * 200, *[2000] * 300)
    assert 1900 < answers.lengths.mean <= 2000


# Fitting.


@pytest.mark.parametrize(
    ("need", "held", "bounds", "answer"),
    [
        (Need(1, 50, 50), Need(300, 1e9, 0), Bounds(), True),
        (Need(1, 50, 50), Need(9, 0, 0), Bounds(10), True),
        (Need(1, 50, 50), Need(9.5, 0, 0), Bounds(10), False),
        (Need(1, 50, 50), Need(5, 400, 500), Bounds(10, 1000), True),
        (Need(1, 50, 51), Need(5, 400, 500), Bounds(10, 1000), False),
        (Need(50, 1e9, 0), NOTHING, Bounds(10, 1000), True),
    ],
)
def test_what_fits(need: Need, held: Need, bounds: Bounds, answer: bool) -> None:
    assert fits(need, held, bounds) is answer


def most_by_playing(held: list[Holding]) -> float:
    """The peak, token by token."""
    most, now = 0.0, list(held)
    while now:
        now = [Holding(each.held_tokens + 1, each.left_tokens - 1) for each in now]
        most = max(most, sum(each.held_tokens for each in now))
        now = [each for each in now if each.left_tokens > 0]
    return most


@settings(max_examples=30, deadline=None)
@given(holdings)
def test_the_peak_is_what_it_comes_to_token_by_token(held: list[Holding]) -> None:
    assert peak_tokens(held) == most_by_playing(held)
    assert peak_tokens(held) <= sum(each.held_tokens + each.left_tokens for each in held)


def test_requests_at_different_places_do_not_need_all_of_it_at_once() -> None:
    need = Need(1, 100, 100)
    together = [holding_of(need, 0) for _ in range(10)]
    in_turn = [holding_of(need, 10 * number) for number in range(10)]
    held, bounds = Need(10, 1000, 1000), Bounds(None, 1800)
    assert peak_tokens(together) == 2000
    assert not fits(need, held, bounds, lambda: together)
    assert fits(need, held, bounds, lambda: in_turn)
    assert not fits(need, held, bounds), "without knowing where they are the sum holds"
    assert not fits(need, held, bounds, lambda: in_turn * MAX_REQUESTS_RECKONED)


def test_an_answer_that_is_longer_than_expected_still_grows() -> None:
    assert holding_of(Need(1, 100, 100), 40) == (140, 60)
    assert holding_of(Need(1, 100, 100), 100) == (200, 100 * OVERDUE_SHARE)
    assert holding_of(Need(1, 100, 10), 10) == (110, BLOCK_SLACK_TOKENS)


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
        assert min(held.weight, held.prompt_tokens, held.answer_tokens) >= 0
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


# The whole, before an engine that preempts.

PROMPT, LEAST_ANSWER, MOST_ANSWER, PLACES, ASKING = 256, 64, 192, 80, 256
CAPACITY_BLOCKS = PLACES * (PROMPT + (LEAST_ANSWER + MOST_ANSWER) // 2) // BLOCK_TOKENS


class Door:
    """Lets requests in as a static limit says, or as they fit, to an engine that 256 of them want to be at all the time."""

    def __init__(self, limit: int | None = None, declared: int = 0) -> None:
        self.engine = KvBatch(CAPACITY_BLOCKS, max_running=ASKING)
        self.bounds = Bounds(limit, None if limit else CAPACITY_BLOCKS * BLOCK_TOKENS)
        self.declared = declared
        self.there: dict[Sequence, Need] = {}
        self.held, self.answers = NOTHING, Answers()
        self.ended = self.preempted = 0
        self.dice = random.Random(1)
        self.next_answer = self.dice.randint(LEAST_ANSWER, MOST_ANSWER)

    def play(self, steps: int) -> Door:
        for step in range(steps):
            for _ in range(min(ASKING, 3 * (step + 1)) - len(self.there)):
                if not self.let_in():
                    break
            for over in [each for each in self.engine.step() if each.is_over]:
                self.held = taken_off(self.held, self.there.pop(over), len(self.there))
                self.answers = note_answer(self.answers, self.declared or over.answer_tokens, over.generated)
                self.ended += 1
                self.preempted += over.preempted > 0
        return self

    def let_in(self) -> bool:
        need = need_of(PROMPT, self.declared or self.next_answer, 1, self.answers, len(self.there) + 1)
        if not fits(need, self.held, self.bounds, self.running):
            return False
        sequence = Sequence(PROMPT, self.next_answer)
        self.engine.enter(sequence)
        self.there[sequence] = need
        self.held = added(self.held, need)
        self.next_answer = self.dice.randint(LEAST_ANSWER, MOST_ANSWER)
        return True

    def running(self) -> list[Holding]:
        return [holding_of(need, sequence.generated) for sequence, need in self.there.items()]


def test_reserving_preempts_next_to_nothing_and_costs_little_goodput() -> None:
    steps = 500
    best = max(Door(limit).play(steps).engine.generated for limit in (80, 96, 112))
    unshed, reserved = Door(ASKING).play(steps), Door().play(steps)
    assert unshed.preempted > 0.15 * unshed.ended
    assert reserved.preempted <= 0.05 * reserved.ended
    assert reserved.engine.generated >= 0.95 * best


def test_declared_bounds_that_nobody_uses_do_not_keep_an_engine_idle() -> None:
    """Each declares 1,024 tokens and takes an eighth. Once that is known, as many run as if they had said so."""
    door = Door(declared=1024).play(400)
    before, door.ended, door.preempted = door.engine.generated, 0, 0
    door.play(400)
    assert door.engine.generated - before >= 0.9 * Door(96).play(400).engine.generated
    assert door.preempted <= 0.05 * door.ended
