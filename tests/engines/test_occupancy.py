"""The account of what is under way at an upstream, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.load import Load
from longwire.engines.occupancy import LEAST_RATIO, MOST_RATIO, UNBOUND, Bounding, Occupancy, Wanted
from longwire.engines.room import BELIEVED_ANSWERS, BLOCK_SLACK_TOKENS, NOTHING, Bounds
from longwire.engines.saturation import SILENT_S, Saturation


@dataclass(eq=False)
class Request:
    """So far with its answer."""

    tokens: int = 0


def load_of(capacity: float | None, at: float = 0.0) -> Load:
    return Load(0.5, 1.0, 0.0, 0.0, 0.0, at, capacity)


WANTED = st.builds(Wanted, st.integers(0, 100_000), st.integers(0, 100_000), st.integers(1, 8))


@given(st.lists(WANTED, max_size=20), st.randoms(use_true_random=False))
def test_what_came_and_left_leaves_nothing(wanted: list[Wanted], dice: object) -> None:
    occupancy = Occupancy()
    requests = [(Request(), each) for each in wanted]
    for request, each in requests:
        occupancy.enter(request, each)
    assert occupancy.statistics()["requests"] == len(requests)
    assert occupancy.held.weight >= len(requests)
    dice.shuffle(requests)  # type: ignore[attr-defined]
    for request, _ in requests:
        occupancy.leave(request)
    assert occupancy.held == NOTHING


def test_what_an_answer_has_already_is_not_to_come() -> None:
    occupancy, bounds = Occupancy(), Bounds(None, 1000.0)
    running = Request(0)
    occupancy.enter(running, Wanted(100, 500))
    assert not occupancy.has_room(Wanted(300, 300), bounds)
    running.tokens = 450  # it will have ended long before the other needs its tokens
    assert occupancy.has_room(Wanted(300, 300), bounds)


def test_prompts_are_reckoned_in_the_engine_s_own_tokens_once_it_has_told_some() -> None:
    occupancy = Occupancy()
    for seen in range(BELIEVED_ANSWERS):
        assert occupancy.need_of(Wanted(1000, 1)).prompt_tokens == 1000 + BLOCK_SLACK_TOKENS, seen
        occupancy.note_prompt(1000, 1500) if seen % 2 else occupancy.note_prompt(
            10, 90
        )  # a short one is mostly template
    assert occupancy.need_of(Wanted(1000, 1)).prompt_tokens == pytest.approx(1570, abs=20)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=80))
def test_whatever_an_engine_tells_prompts_stay_within_reason(told: list[tuple[int, int]]) -> None:
    occupancy = Occupancy()
    for estimated, tokens in told:
        occupancy.note_prompt(estimated, tokens)
        assert LEAST_RATIO <= occupancy.prompt_ratio <= MOST_RATIO


@pytest.mark.parametrize(
    ("bounding", "bounds"),
    [
        (Bounding(), Bounds(None, 8000.0)),
        (Bounding(kv_share=0.25), Bounds(None, 2000.0)),
        (Bounding(kv_share=0.0), UNBOUND),
        (Bounding(5), Bounds(5.0, 8000.0)),
        (Bounding(5, sheds=False), Bounds(5.0, None)),
        (Bounding(sheds=False), UNBOUND),
    ],
)
def test_settings_say_what_bounds_an_upstream(bounding: Bounding, bounds: Bounds) -> None:
    assert bounding.bounds(Occupancy(), load_of(8000.0), 1.0) == bounds


def test_nothing_known_is_no_bound_and_old_news_are_nothing_known() -> None:
    occupancy, bounding = Occupancy(), Bounding()
    assert bounding.bounds(occupancy, None, 1.0) is UNBOUND
    assert bounding.bounds(occupancy, load_of(None), 1.0) is UNBOUND
    assert bounding.bounds(occupancy, load_of(8000.0), SILENT_S) is UNBOUND
    occupancy.saturation = Saturation(limit=7.0, read_at=0.0)
    assert bounding.bounds(occupancy, None, 1.0) == Bounds(7.0, None)
    assert bounding.bounds(occupancy, None, SILENT_S) is UNBOUND
    assert "Occupancy of 0" in repr(occupancy)
