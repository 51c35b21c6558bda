"""A limit is learned from an engine that is saturated, from no other, and is forgotten when it is not needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.load import Load, smooth
from longwire.engines.saturation import (
    DECREASE_EVERY_S,
    FORGET_S,
    KV_MOST,
    KV_ROOM,
    LEAST_LIMIT,
    QUEUE_ALONE_READINGS,
    SILENT_S,
    STEPS_UP,
    Pressure,
    Saturation,
    learn,
)

STALE_S = 10.0
shares = st.none() | st.floats(0, 1)
counts = st.none() | st.floats(0, 2000)
loads = st.builds(Load, shares, counts, counts, counts, counts, st.floats(0, 100))


def told(at: float, kv: float | None = 0.5, running: float = 80, waiting: float = 0, preempted: float = 0) -> Load:
    return Load(kv, running, waiting, preempted, None, at)


def play(readings: list[Load], in_flight: float = 100, start: Saturation | None = None) -> Saturation:
    state = start or Saturation()
    for load in readings:
        state = learn(state, load, in_flight, load.at, STALE_S)
    return state


# What a reading says.


@pytest.mark.parametrize("kv", [0.90, 0.95, 1.0])
def test_a_full_cache_with_nothing_waiting_is_healthy(kv: float) -> None:
    state = play([told(at, kv) for at in range(1, 100)])
    assert (state.limit, state.is_hot) == (None, False)


def test_a_queue_behind_a_full_cache_is_saturation() -> None:
    state = play([told(1, 0.97, running=80, waiting=20)])
    assert state.pressure is Pressure.HOT
    assert state.limit == pytest.approx(100 * 80 / 100)


def test_preemptions_are_whatever_the_cache_shows() -> None:
    state = play([told(1, 0.3, preempted=5), told(2, 0.3, preempted=6)])
    assert state.pressure is Pressure.HOT and state.limit == 80


def test_those_before_the_first_look_and_those_of_an_engine_started_anew_say_nothing() -> None:
    state = play([told(1, preempted=500), told(2, preempted=500), told(3, preempted=2), told(4, preempted=2)])
    assert state.limit is None


def test_prompts_that_wait_to_be_read_for_a_moment_are_no_saturation() -> None:
    burst = [told(1, 0.2, running=5, waiting=95), told(2, 0.4, running=60, waiting=40), told(3, 0.5, running=100)]
    assert play(burst).limit is None


@pytest.mark.parametrize("kv", [None, 0.2])
def test_a_long_queue_that_stays_is(kv: float | None) -> None:
    readings = [told(at, kv, running=64, waiting=64) for at in range(1, QUEUE_ALONE_READINGS + 1)]
    assert play(readings[:-1]).limit is None
    assert play(readings).limit == pytest.approx(50)


# Never from what is not believed.


@given(loads, loads, st.floats(0, 500), st.floats(0, 500))
def test_stale_and_repeated_readings_change_nothing(first: Load, second: Load, in_flight: float, late: float) -> None:
    known = learn(Saturation(), replace(first, at=1.0), in_flight, 1.0, STALE_S)
    assert learn(known, None, in_flight, 1.0 + late, STALE_S) == known
    assert learn(known, replace(second, at=1.0), in_flight, 1.0 + late, STALE_S) == known
    assert learn(known, replace(second, at=5.0), in_flight, 5.0 + STALE_S + late, STALE_S) == known


@given(st.lists(st.tuples(loads, st.floats(0, 2000)), max_size=60))
def test_a_limit_is_never_below_one_and_never_above_what_it_was_learned_from(seen: list[tuple[Load, float]]) -> None:
    state, at, most = Saturation(), 0.0, 0.0
    for load, in_flight in seen:
        at += 1.0
        state = learn(state, replace(load, at=at), in_flight, at, STALE_S)
        most = max(most, in_flight)
        assert state.limit is None or LEAST_LIMIT <= state.limit <= max(LEAST_LIMIT, most) * (
            1 + len(seen) / STEPS_UP
        ) + len(seen)


# AIMD.


def test_a_decrease_is_waited_for_before_the_next() -> None:
    saturated = [told(at / 10, 0.97, waiting=80) for at in range(10, 10 + int(DECREASE_EVERY_S * 10))]
    first = play(saturated)
    assert first.limit == 50
    later = told(1.0 + DECREASE_EVERY_S, 0.97, waiting=80)
    assert play([later], in_flight=50, start=first).limit == 25


def test_it_is_at_most_quartered_and_lowered_by_a_tenth_at_least() -> None:
    assert play([told(1, 0.97, running=1, waiting=99)]).limit == 25
    assert play([told(1, 0.97, running=99, waiting=10)]).limit == 90


def test_while_what_was_let_in_before_drains_it_stays() -> None:
    first = play([told(1, 0.97, running=80, waiting=176)], in_flight=256)
    assert first.limit == 80
    draining = [told(at, 0.97, running=80, waiting=120, preempted=at) for at in range(2, 40)]
    assert play(draining, 200, first).limit == 80


def test_after_a_decrease_it_rises_by_equal_steps_while_it_holds_requests_back() -> None:
    hot = play([told(1, 0.97, waiting=80)], in_flight=256)
    assert hot.limit == 128
    state, limits = hot, []
    for at in range(2, 2 + STEPS_UP):
        state = learn(state, told(at, 0.6), state.limit or 0, at, STALE_S)
        limits.append(state.limit)
    assert limits == [128 + 8 * step for step in range(1, STEPS_UP + 1)]


def test_it_stands_still_between_the_bounds() -> None:
    hot = play([told(1, 0.97, waiting=200)])
    edge = [told(at, (KV_ROOM + KV_MOST) / 2 + 0.01 * (-1) ** at) for at in range(2, 50)]
    assert play(edge, in_flight=50, start=hot).limit == hot.limit
    assert play(edge, in_flight=50, start=hot).is_hot


def test_it_is_not_raised_where_it_holds_nobody_back_and_forgotten_after_a_while() -> None:
    hot = play([told(1, 0.97, waiting=200)])
    calm = [told(at, 0.1) for at in range(2, 4 + int(FORGET_S))]
    assert play(calm[: int(FORGET_S)], in_flight=3, start=hot).limit == hot.limit
    after = play(calm, in_flight=3, start=hot)
    assert (after.limit, after.is_hot) == (None, False)


def test_an_engine_that_falls_silent_is_not_held_down_for_ever() -> None:
    hot = play([told(1, 0.97, waiting=200)])
    assert hot.limit_at(1 + SILENT_S - 0.1) == hot.limit
    assert hot.limit_at(1 + SILENT_S) is None
    assert play([told(2 + SILENT_S)], start=hot).limit is None


def test_a_shard_with_nothing_there_learns_nothing() -> None:
    assert play([told(at, 0.99, waiting=100, preempted=at) for at in range(1, 50)], in_flight=0).limit is None


# The whole loop, against an engine with so many places.


class Engine:
    """``places`` requests run, each for ``service_s``; the rest wait inside. A full cache with a queue preempts."""

    def __init__(self, places: int, service_s: float) -> None:
        self.places = places
        self.service_s = service_s
        self.running: list[float] = []
        self.waiting = 0
        self.done = 0

    def step(self, step_s: float) -> None:
        left = [each - step_s for each in self.running]
        self.done += sum(each <= 0 for each in left)
        self.running = [each for each in left if each > 0]
        while self.waiting and len(self.running) < self.places:
            self.waiting -= 1
            self.running.append(self.service_s)

    def load(self, at: float) -> Load:
        used = min(1.0, len(self.running) / self.places)
        return Load(used, len(self.running), self.waiting, 0, None, at)


def run(seconds: int, *, limit: float | None = None, learns: bool = False) -> tuple[Engine, int, float]:
    """An engine whose every place is wanted; what it did, its longest queue in the last half, and the last limit."""
    engine, state, load, longest = Engine(80, 4.0), Saturation(), None, 0
    for tick in range(seconds * 10):
        at = 1.0 + tick / 10
        if learns and tick % 10 == 0:
            load = smooth(load, engine.load(at))
            state = learn(state, load, len(engine.running) + engine.waiting, at, STALE_S)
        most = (state.limit_at(at) if learns else limit) or 256.0
        while len(engine.running) + engine.waiting + 1 <= most:
            engine.waiting += 1
        engine.step(0.1)
        if tick > seconds * 5:
            longest = max(longest, engine.waiting)
    return engine, longest, state.limit or 0.0


def test_in_a_loop_it_comes_to_what_the_engine_can_run() -> None:
    best, _, _ = run(60, limit=80)
    _, queue_unshed, _ = run(60)
    learned, queue, limit = run(60, learns=True)
    assert queue_unshed == 256 - 80
    assert queue <= 0.25 * 80, "what waits inside is what was let in to find out"
    assert learned.done >= 0.95 * best.done
    assert 0.75 * 80 <= limit <= 1.25 * 80


def test_it_has_recovered_within_ten_seconds() -> None:
    _, _, after_ten = run(10, learns=True)
    assert 0.75 * 80 <= after_ten <= 1.25 * 80
