"""One timer for all streams."""

from __future__ import annotations

from longwire.sim.wheel import Wheel
from longwire.words.clock import VirtualClock


class Recorder:
    """Notes when it was woken."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.woken: list[float] = []

    def wake(self) -> None:
        self.woken.append(round(self.clock.now() - 1000, 6))


class CountingClock(VirtualClock):
    timers = 0

    def call_later(self, delay_s, call, *args):  # type: ignore[no-untyped-def]
        self.timers += 1
        return super().call_later(delay_s, call, *args)


def test_nobody_is_woken_early_and_all_within_a_millisecond() -> None:
    clock = VirtualClock()
    wheel = Wheel(clock)
    times = [0.0101, 0.0205, 0.0009, 0.5, 0.0104]
    recorders = [Recorder(clock) for _ in times]
    for at, recorder in zip(times, recorders, strict=True):
        wheel.call_at(1000 + at, recorder)
    clock.advance(1)
    for at, recorder in zip(times, recorders, strict=True):
        assert len(recorder.woken) == 1
        assert at <= recorder.woken[0] <= at + 0.001
    assert wheel.sleepers == 0


def test_sleepers_of_one_millisecond_share_a_timer() -> None:
    clock = CountingClock()
    wheel = Wheel(clock)
    recorders = [Recorder(clock) for _ in range(1000)]
    for recorder in recorders:
        wheel.call_at(1000.05, recorder)
    clock.advance(0.1)
    assert all(recorder.woken == [0.05] for recorder in recorders)
    assert clock.timers == 1


def test_an_earlier_sleeper_moves_the_timer_forward() -> None:
    clock = VirtualClock()
    wheel = Wheel(clock)
    late, early = Recorder(clock), Recorder(clock)
    wheel.call_at(1000.5, late)
    wheel.call_at(1000.1, early)
    clock.advance(1)
    assert (early.woken, late.woken) == ([0.1], [0.5])


def test_a_sleeper_that_comes_back_while_it_is_woken_waits_its_time() -> None:
    clock = VirtualClock()
    wheel = Wheel(clock)

    class Again(Recorder):
        def wake(self) -> None:
            super().wake()
            if len(self.woken) < 4:
                wheel.call_at(self.clock.now() + 0.02, self)

    again = Again(clock)
    wheel.call_at(1000.02, again)
    clock.advance(1)
    assert again.woken == [0.02, 0.04, 0.06, 0.08]


def test_what_is_overdue_is_woken_at_once() -> None:
    clock = VirtualClock()
    wheel = Wheel(clock)
    recorder = Recorder(clock)
    wheel.call_at(990.0, recorder)
    clock.advance(0)
    assert recorder.woken == [0.0]


def test_a_closed_wheel_wakes_nobody() -> None:
    clock = VirtualClock()
    wheel = Wheel(clock)
    recorder = Recorder(clock)
    wheel.call_at(1000.1, recorder)
    wheel.close()
    clock.advance(1)
    assert recorder.woken == []
    assert "0 sleepers" in repr(wheel)
