"""Logs that have grown by a block are brought up to date soon, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from longwire.streams.settling import AT_ONCE, STEP_S, Settling
from longwire.words.clock import VirtualClock

from .world import Entry, World, data_block

ONE = Entry("hot", data_block(b"one"))


@dataclass(eq=False)
class Fake:
    """As much of a stream as the line needs."""

    settle: Callable[[], object]


def test_a_few_at_a_time_in_order_and_no_timer_afterwards() -> None:
    clock = VirtualClock(0)
    settling = Settling(clock)
    settled: list[tuple[float, int]] = []
    for number in range(2 * AT_ONCE + 1):
        stream = Fake(lambda number=number: settled.append((round(clock.now(), 6), number)))
        settling.add(cast(Any, stream))
    assert settled == [] and repr(settling) == f"<Settling, {2 * AT_ONCE + 1} in line>"
    clock.advance(1)
    assert [number for _, number in settled] == list(range(2 * AT_ONCE + 1))
    assert [at for at, _ in settled] == [STEP_S] * AT_ONCE + [2 * STEP_S] * AT_ONCE + [3 * STEP_S]
    assert not [timer for _, _, timer in clock._timers if not timer.cancelled]


def test_a_long_line_empties_however_fast_it_grows_and_has_each_stream_once() -> None:
    clock = VirtualClock(0)
    settling = Settling(clock)
    settled: list[int] = []
    streams = [Fake(lambda number=number: settled.append(number)) for number in range(1000)]
    for _ in range(3):
        for stream in streams:
            settling.add(cast(Any, stream))
    assert repr(settling) == "<Settling, 1000 in line>"
    clock.advance(100 * STEP_S)
    assert settled == list(range(1000))


def test_what_goes_wrong_with_one_keeps_no_other_waiting() -> None:
    clock = VirtualClock(0)
    settling = Settling(clock)
    settled: list[str] = []

    def fail() -> None:
        raise KeyError("a fault")

    for settle in (fail, lambda: settled.append("other")):
        settling.add(cast(Any, Fake(settle)))
    with pytest.raises(KeyError):
        clock.advance(STEP_S)
    clock.advance(STEP_S)
    assert settled == ["other"]


def test_a_stream_that_ends_while_it_is_in_line_is_as_it_would_be_without() -> None:
    with World() as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        feeder.feed(ONE, ONE)
        assert feeder.stream.log.deliverable < 3, "the last ones went the short way"
        feeder.stream.settle_soon()
        feeder.stream.settle_soon()
        world.clock.advance(STEP_S)
        assert feeder.stream.log.deliverable == 3
        feeder.feed(ONE)
        feeder.stream.settle_soon()
        feeder.end()
        world.clock.advance(STEP_S)
        assert feeder.stream.log.event_count == 4
