"""Both clocks keep the same promises; the virtual one moves only when told to."""

from __future__ import annotations

import time

import pytest

from longwire.words.clock import Clock, LoopClock, VirtualClock


class FakeLoop:
    """What of an event loop a clock uses."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.timer = object()

    def time(self) -> float:
        return 7.5

    def call_later(self, *call: object) -> object:
        self.calls.append(call)
        return self.timer


def test_time_stands_still_until_it_is_moved() -> None:
    virtual = VirtualClock(start=0.0)
    clock: Clock = virtual
    assert (clock.now(), clock.now()) == (0.0, 0.0)
    wall = clock.wall()
    virtual.advance(2.5)
    assert clock.now() == 2.5
    assert clock.wall() - wall == 2.5


def test_timers_fire_in_order_of_their_time_and_then_of_their_making() -> None:
    clock = VirtualClock(start=0.0)
    fired: list[tuple[str, float]] = []
    for name, delay_s in [("c", 3.0), ("a", 1.0), ("b2", 2.0), ("b1", 2.0), ("now", 0.0)]:
        clock.call_later(delay_s, lambda name: fired.append((name, clock.now())), name)
    assert fired == [], "a timer never fires while it is made"
    clock.advance(2.0)
    assert fired == [("now", 0.0), ("a", 1.0), ("b2", 2.0), ("b1", 2.0)]
    clock.advance(0.999)
    assert len(fired) == 4
    clock.advance(0.001)
    assert fired[-1] == ("c", 3.0)
    assert clock.now() == 3.0


def test_a_timer_set_by_a_timer_fires_on_the_way_if_it_falls_due() -> None:
    clock = VirtualClock(start=0.0)
    beats: list[float] = []

    def beat() -> None:
        beats.append(clock.now())
        clock.call_later(10.0, beat)

    clock.call_later(10.0, beat)
    clock.advance(35.0)
    assert beats == [10.0, 20.0, 30.0]
    assert clock.now() == 35.0


def test_a_cancelled_timer_does_not_fire_and_can_be_cancelled_again() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    timer = clock.call_later(1.0, fired.append, 1)
    other = clock.call_later(1.0, fired.append, 2)
    timer.cancel()
    timer.cancel()
    clock.advance(1.0)
    other.cancel()
    assert fired == [2]


def test_a_timer_can_cancel_another_that_is_due_at_the_same_time() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    clock.call_later(1.0, lambda: second.cancel())
    second = clock.call_later(1.0, fired.append, 2)
    clock.advance(5.0)
    assert fired == []


def test_what_a_timer_raises_is_raised_where_time_is_moved() -> None:
    clock = VirtualClock(start=0.0)

    def fail() -> None:
        raise LookupError("so")

    clock.call_later(1.0, fail)
    with pytest.raises(LookupError):
        clock.advance(5.0)
    assert clock.now() == 1.0


def test_the_real_clock_is_the_loops() -> None:
    loop = FakeLoop()
    clock: Clock = LoopClock(loop)  # type: ignore[arg-type]
    assert clock.now() == 7.5
    assert clock.call_later(1.5, print, 1) is loop.timer
    assert loop.calls == [(1.5, print, 1)]
    before = time.time()
    assert before <= clock.wall() <= time.time()
