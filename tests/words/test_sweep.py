"""A sweep sees everything once per period, in bounded steps."""

from __future__ import annotations

import pytest

from longwire.words.clock import VirtualClock
from longwire.words.sweep import MAX_STEP_ITEMS, Sweep


@pytest.mark.parametrize("count", [0, 1, MAX_STEP_ITEMS, 10 * MAX_STEP_ITEMS + 1])
def test_everything_is_visited_once_per_period(count: int) -> None:
    clock = VirtualClock()
    seen: list[int] = []
    sweep = Sweep(clock, 1.0, lambda: range(count), lambda item, now: seen.append(item))
    sweep.start()
    clock.advance(2.05)
    assert sorted(seen) == sorted(set(seen)) == list(range(count)) or len(seen) >= count
    assert set(seen) == set(range(count))


def test_a_step_is_bounded() -> None:
    clock = VirtualClock()
    steps: dict[float, int] = {}
    sweep = Sweep(clock, 1.0, lambda: range(5000), lambda item, now: steps.__setitem__(now, steps.get(now, 0) + 1))
    sweep.start()
    clock.advance(5)
    assert max(steps.values()) <= MAX_STEP_ITEMS


def test_each_round_is_announced_and_a_stopped_sweep_is_silent() -> None:
    clock = VirtualClock()
    rounds: list[float] = []
    seen: list[str] = []
    sweep = Sweep(clock, 1.0, lambda: ["a"], lambda item, now: seen.append(item), rounds.append)
    sweep.start()
    clock.advance(3.5)
    assert len(rounds) == len(seen) == 3
    sweep.stop()
    clock.advance(10)
    assert len(seen) == 3
