"""How many connections are to stand ready: what one upstream has seen, on a clock that is only a number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.elastic import GROW, LOWS_IN_A_ROW, MAX_OPENING, SAMPLE_S, Span
from longwire.engines.reserve import LEAST_RENEW_LOOK_S, LOOK_S, REST_S, Warming, renew_look_s, span_of
from longwire.words.settings import Settings

NOW = 1000.0


@pytest.mark.parametrize(
    ("settings", "kind", "span"),
    [
        ({}, "vllm", Span(4, 16)),
        ({}, "openai", Span(4, 16)),
        ({"warm_floor": 2, "warm_ceiling": 3}, "vllm", Span(2, 3)),
        ({"max_upstream_idle": 8}, "vllm", Span(4, 8)),
        ({"max_upstream_idle": 1}, "vllm", Span(1, 1)),
        ({"max_upstream_idle": 0}, "vllm", Span(0, 0)),
        ({"upstream_keep_alive_s": 0}, "vllm", Span(0, 0)),
        ({}, "llamacpp", Span(0, 0)),
    ],
)
def test_the_span_is_what_is_set_within_what_may_be_kept(settings: dict[str, Any], kind: str, span: Span) -> None:
    assert span_of(Settings(**settings), kind) == span


def test_ages_are_looked_at_several_times_in_a_life() -> None:
    assert renew_look_s(Settings(upstream_keep_alive_s=4)) == 0.5
    assert renew_look_s(Settings(upstream_keep_alive_s=0)) == LEAST_RENEW_LOOK_S


def test_the_floor_is_wanted_from_the_beginning() -> None:
    assert Warming(Span(4, 16), NOW).to_open(ready=0, opening=0, now=NOW) == 4
    assert Warming(Span(4, 16), NOW).to_open(ready=1, opening=2, now=NOW) == 1
    assert Warming(Span(40, 99), NOW).to_open(ready=0, opening=0, now=NOW) == MAX_OPENING


def test_without_a_ceiling_nothing_is_ever_wanted() -> None:
    warming = Warming(Span(0, 0), NOW)
    warming.note_missed(NOW)
    warming.sample(NOW)
    assert warming.is_stopped and warming.wanted == 0 and "stopped" in repr(warming)


def test_a_request_that_found_none_makes_it_grow_at_once() -> None:
    warming = Warming(Span(4, 16), NOW)
    warming.note_missed(NOW)
    assert warming.wanted == 4 + GROW and warming.statistics() == {"size": 6, "wanted": 6, "missed": 1}
    for _ in range(20):
        warming.note_missed(NOW)
    assert warming.wanted == 16


def test_what_was_taken_at_once_makes_it_grow_and_rest_makes_it_shrink() -> None:
    warming = Warming(Span(4, 16), NOW)
    for ready in (3, 2, 1, 0, 4):
        warming.note_taken(ready, NOW)
    warming.sample(NOW + SAMPLE_S)
    assert warming.reserve.size == 4 + GROW
    for sample in range(2, 2 + 2 * LOWS_IN_A_ROW):
        warming.sample(NOW + sample * SAMPLE_S)
    assert warming.reserve.size == 4, "what was used is forgotten with the sample that has told it"


def test_a_slow_engine_is_prepared_for_further_ahead() -> None:
    """The kernel connects at once for an engine that accepts late; its probes know better."""
    quick, slow = Warming(Span(4, 64), NOW), Warming(Span(4, 64), NOW)
    quick.note_connect(0.001)
    slow.note_connect(0.001)
    slow.note_answer(0.8)
    assert (quick.connect_s, slow.connect_s) == (0.001, 0.8)
    for request in range(40):
        quick.note_taken(4, NOW + request / 40)
        slow.note_taken(4, NOW + request / 40)
    assert quick.wanted == 4 and slow.wanted > 20
    slow.look(NOW + 30)
    assert slow.wanted == 4, "the rate is forgotten"


def test_requests_between_two_looks_count_all_the_same() -> None:
    one, many = Warming(Span(0, 999), NOW), Warming(Span(0, 999), NOW)
    for warming, count in ((one, 1), (many, 50)):
        warming.note_answer(1.0)
        for _ in range(count):
            warming.note_taken(9, NOW + LOOK_S / 2)
        warming.look(NOW + LOOK_S)
    assert many.wanted > 20 * one.wanted


def test_after_a_failure_it_rests_a_while() -> None:
    warming = Warming(Span(4, 16), NOW)
    warming.rest(NOW)
    assert warming.to_open(0, 0, NOW + REST_S * 0.99) == 0
    assert warming.to_open(0, 0, NOW + REST_S) == 4


def test_what_is_stopped_wants_nothing() -> None:
    warming = Warming(Span(4, 16), NOW)
    warming.stop()
    assert warming.to_open(0, 0, NOW) == 0 and warming.wanted == 0


@given(
    st.lists(st.tuples(st.sampled_from("tmslca"), st.floats(0, 10), st.integers(0, 40)), max_size=60),
    st.tuples(st.integers(0, 20), st.integers(0, 100)).map(lambda each: Span(each[0], sum(each))),
)
def test_it_never_leaves_its_span(steps: list[tuple[str, float, int]], span: Span) -> None:
    warming, now = Warming(span, NOW), NOW
    for what, passed_s, number in steps:
        now += passed_s
        match what:
            case "t":
                warming.note_taken(number, now)
            case "m":
                warming.note_missed(now)
            case "s":
                warming.sample(now)
            case "l":
                warming.look(now)
            case "c":
                warming.note_connect(passed_s)
            case _:
                warming.note_answer(passed_s)
        assert span.floor <= warming.wanted <= span.ceiling
        assert 0 <= warming.to_open(0, 0, now) <= MAX_OPENING
