"""One watchman over all generations: when it looks, what it counts and says, and that no one of them is in another's way."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from longwire.engines import clocks as clocks_module
from longwire.engines import watchman as watchman_module
from longwire.engines.clocks import Clocks, Pace
from longwire.engines.watchman import MAX_MODEL_CHARS, MAX_NOTES, SLICE_ITEMS, Watchman
from longwire.observe.instruments import Instruments
from longwire.words.clock import VirtualClock
from longwire.words.reasons import CloseReason

NEVER = Clocks(first_byte_s=600, first_token_s=0, silence_s=0, min_tokens_per_s=0, rate_window_s=60, total_s=0)
SILENCE = replace(NEVER, silence_s=8)
COUNTERS = (
    "silence_warnings_total",
    "busy_silences_total",
    "clock_first_token_total",
    "clock_silence_total",
    "clock_rate_total",
    "clock_total_total",
)


@pytest.fixture(autouse=True)
def _look_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that times here are easily told."""
    for module in (clocks_module, watchman_module):
        monkeypatch.setattr(module, "LONGEST_LOOK_S", 1.0)


@dataclass(eq=False)
class Generation:
    """What is watched: values that a test sets, and how it was given up."""

    pace: Pace
    name: str = "gpu"
    model: str = "m"
    last_token_at: float | None = None
    tokens: int = 0
    busy: bool = False
    paused: bool = False
    looks: list[float] = field(default_factory=list)
    clock: VirtualClock | None = None
    on_end: Callable[[], object] | None = None
    ends: list[tuple[CloseReason, str]] = field(default_factory=list)

    def has_moved(self, now: float) -> bool:
        return False  # what a look costs is the call's matter: test_call has the short one

    def is_generating(self) -> bool:
        return self.busy

    def is_paused(self) -> bool:
        if self.clock is not None:
            self.looks.append(self.clock.now())
        return self.paused

    def give_up(self, reason: CloseReason, message: str) -> None:
        self.ends.append((reason, message))
        if self.on_end is not None:
            self.on_end()


class Broken(Generation):
    """A fault of ours in one of them."""

    def is_paused(self) -> bool:
        raise KeyError("a fault")


@dataclass
class Post:
    """A watchman at work."""

    clock: VirtualClock = field(default_factory=lambda: VirtualClock(0))
    instruments: Instruments = field(default_factory=Instruments)

    def __post_init__(self) -> None:
        self.watchman = Watchman(self.clock, self.instruments)

    def watch(self, clocks: Clocks, make: type[Generation] = Generation, **values: Any) -> Generation:
        generation = make(Pace(clocks, self.clock.now()), **values)
        self.watchman.add(generation)
        return generation

    def counts(self) -> dict[str, int]:
        """The counters that are not 0."""
        return {name: count for name in COUNTERS if (count := getattr(self.instruments, name))}

    @property
    def timers(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self.clock._timers)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    """The events that were logged, and their fields."""
    return [(record.getMessage(), getattr(record, "fields", {})) for record in caplog.records]


@pytest.mark.parametrize(
    ("clocks", "values", "after_s", "reason", "counts"),
    [
        (replace(NEVER, first_token_s=20), {}, 20, CloseReason.FIRST_TOKEN_TIMEOUT, {"clock_first_token_total": 1}),
        (replace(NEVER, total_s=30), {}, 30, CloseReason.TOTAL_TIMEOUT, {"clock_total_total": 1}),
        (
            SILENCE,
            {"last_token_at": 0.0},
            24,
            CloseReason.TOKEN_SILENCE,
            {"silence_warnings_total": 2, "clock_silence_total": 1},
        ),
        (
            replace(NEVER, min_tokens_per_s=1, rate_window_s=10),
            {"last_token_at": 0.0, "tokens": 5},
            11,
            CloseReason.TOO_SLOW,
            {"clock_rate_total": 1},
        ),
    ],
)
def test_each_clock_gives_the_engine_up_once_and_is_counted(
    clocks: Clocks, values: dict[str, Any], after_s: float, reason: CloseReason, counts: dict[str, int]
) -> None:
    post = Post()
    generation = post.watch(clocks, **values)
    post.clock.advance(after_s - 0.5)
    assert generation.ends == []
    post.clock.advance(0.5)
    assert [end for end, _ in generation.ends] == [reason] and generation.ends[0][1].endswith(".")
    post.clock.advance(1000)
    assert len(generation.ends) == 1 and post.counts() == counts
    assert post.timers == 0 and post.watchman.statistics()["watched"] == 0


def test_a_busy_engine_is_counted_and_kept() -> None:
    post = Post()
    generation = post.watch(replace(SILENCE, total_s=100), last_token_at=0.0, busy=True)
    post.clock.advance(50)
    assert post.counts() == {"silence_warnings_total": 2, "busy_silences_total": 4} and not generation.ends
    generation.busy = False
    post.clock.advance(6)
    assert [end for end, _ in generation.ends] == [CloseReason.TOKEN_SILENCE]


def test_what_we_do_not_read_is_not_held_against_the_engine() -> None:
    post = Post()
    generation = post.watch(SILENCE, last_token_at=0.0, paused=True)
    post.clock.advance(1000)
    assert post.counts() == {} and not generation.ends


def test_one_timer_for_all_and_only_while_there_is_something() -> None:
    post = Post()
    assert post.timers == 0
    generations = [post.watch(SILENCE, clock=post.clock) for _ in range(10)]
    assert post.timers == 1
    post.clock.advance(3)
    assert all(generation.looks == [1, 2, 3] for generation in generations) and post.timers == 1
    for generation in generations:
        post.watchman.discard(generation)
        post.watchman.discard(generation)
    assert post.timers == 0
    post.watchman.add(generations[0])
    post.watchman.add(generations[0])
    post.clock.advance(1)
    assert generations[0].looks == [1, 2, 3, 4] and post.timers == 1
    post.watchman.close()
    post.clock.advance(5)
    assert generations[0].looks == [1, 2, 3, 4] and post.timers == 0


def test_the_shortest_clock_says_how_often() -> None:
    post = Post()
    slow = post.watch(SILENCE, clock=post.clock)
    post.clock.advance(0.5)
    quick = post.watch(replace(NEVER, total_s=1), clock=post.clock)
    post.clock.advance(0.5)
    assert quick.looks == slow.looks == [0.75, 1.0]
    post.watchman.discard(quick)
    post.clock.advance(0.25)
    assert slow.looks == [0.75, 1.0, 1.25], "the round that was due"
    post.clock.advance(2)
    assert slow.looks == [0.75, 1.0, 1.25, 2.25, 3.25] and post.watchman.statistics()["every_s"] == 1.0


@pytest.mark.parametrize("count", [1, SLICE_ITEMS, SLICE_ITEMS + 1, 3 * SLICE_ITEMS + 7])
def test_each_is_looked_at_once_in_a_round(count: int) -> None:
    post = Post()
    generations = [post.watch(SILENCE, clock=post.clock) for _ in range(count)]
    post.clock.advance(2.999)
    for generation in generations:
        first, second = generation.looks
        assert 1 <= first < 2 and second == pytest.approx(first + 1)


def most_at_once(generations: list[Generation]) -> int:
    """How many looks fell into one turn of the loop."""
    return max(Counter(look for generation in generations for look in generation.looks).values())


def test_a_round_of_many_is_spread_over_its_time() -> None:
    post = Post()
    generations = [post.watch(SILENCE, clock=post.clock) for _ in range(100 * SLICE_ITEMS)]
    post.clock.advance(5)
    assert most_at_once(generations) == SLICE_ITEMS
    times = sorted({look for generation in generations for look in generation.looks})
    assert all(after - before == pytest.approx(0.01) for before, after in pairwise(times))


def test_a_short_clock_is_kept_among_many_though_steps_are_larger_then() -> None:
    post = Post()
    generations = [post.watch(SILENCE, clock=post.clock) for _ in range(100 * SLICE_ITEMS)]
    post.clock.advance(1.5)
    hurried = post.watch(replace(NEVER, total_s=0.2), clock=post.clock)
    post.clock.advance(2)
    assert hurried.ends and hurried.looks[0] <= 1.5 + 2 * 0.05 and hurried.looks[-1] <= 1.5 + 0.2 + 2 * 0.05
    assert SLICE_ITEMS < most_at_once([*generations, hurried]) <= 100 * SLICE_ITEMS * 0.002 / 0.05 + 2


def test_those_that_leave_and_come_in_mid_round_disturb_nobody() -> None:
    """Each that is given up takes another along and has a third watched, as a failover does."""
    post = Post()
    quick = replace(NEVER, total_s=5)
    generations = [post.watch(quick) for _ in range(MANY)]
    bystanders = [post.watch(SILENCE, clock=post.clock) for _ in range(MANY)]
    fresh: list[Generation] = []
    for index, generation in enumerate(generations):
        other = generations[(index * 7 + 3) % MANY]

        def end(other: Generation = other) -> None:
            post.watchman.discard(other)
            fresh.append(post.watch(quick))

        generation.on_end = end
    post.clock.advance(6)
    given_up = [generation for generation in generations if generation.ends]
    assert all(len(generation.ends) == 1 for generation in given_up) and len(fresh) == len(given_up)
    assert post.watchman.statistics()["watched"] == len(fresh) + MANY
    gaps = [after - before for each in bystanders for before, after in pairwise([0.0, *each.looks, 6.0])]
    assert max(gaps) < 2, (
        "whoever takes another's place in the order may be looked at a round later, and no later than that"
    )
    post.clock.advance(7)
    assert all(each.ends for each in fresh) and post.watchman.statistics()["watched"] == MANY


MANY = 700
"""More than one slice."""


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_fault_in_one_ends_that_one_and_no_other_hears_of_it(place: int, caplog: pytest.LogCaptureFixture) -> None:
    post = Post()
    kinds = [Generation, Generation, Generation]
    kinds[place] = Broken
    generations = [post.watch(replace(NEVER, total_s=5), kind) for kind in kinds]
    post.clock.advance(5)
    reasons = [[reason for reason, _ in generation.ends] for generation in generations]
    assert reasons.pop(place) == [CloseReason.INTERNAL_ERROR] and reasons == 2 * [[CloseReason.TOTAL_TIMEOUT]]
    assert [name for name, _ in lines(caplog)] == ["watch_fault", "clock_fired"] and caplog.records[0].exc_info


def test_a_fault_in_giving_up_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    post = Post()

    def fail() -> None:
        if len(broken.ends) == 1:
            raise KeyError("a fault")

    others = [post.watch(replace(NEVER, total_s=5))]
    broken = post.watch(replace(NEVER, total_s=5), on_end=fail)
    others.append(post.watch(replace(NEVER, total_s=5)))
    post.clock.advance(5)
    assert [reason for reason, _ in broken.ends] == [CloseReason.TOTAL_TIMEOUT, CloseReason.INTERNAL_ERROR]
    assert all(len(other.ends) == 1 for other in others) and "watch_fault" in [name for name, _ in lines(caplog)]


# The log.


def test_streams_of_one_engine_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "longwire")
    post = Post()
    many = SLICE_ITEMS + 100
    for _ in range(many):
        post.watch(SILENCE, last_token_at=0.0)
    post.watch(SILENCE, name="other", last_token_at=0.0, busy=True)
    post.clock.advance(25.5)
    told = Counter[str]()
    for event, fields in lines(caplog):
        told[f"{event} {fields['engine']}"] += int(str(fields["streams"]))
    silent = {"token_silence gpu": 2 * many, "token_silence other": 2}
    assert told == silent | {"clock_fired gpu": many, "busy_silence other": 1}
    assert len(lines(caplog)) <= 2 * 6, "a round's are one line; those of one second may lie in two rounds"


def test_the_log_is_bounded_whatever_models_are_called(caplog: pytest.LogCaptureFixture) -> None:
    post = Post()
    for index in range(2 * MAX_NOTES):
        post.watch(SILENCE, last_token_at=0.0, model=f"{index}" + "x" * 1000)
    post.clock.advance(9.5)
    told = [fields for _, fields in lines(caplog)]
    assert len(told) == MAX_NOTES + 1 and sum(int(str(each["streams"])) for each in told) == 2 * MAX_NOTES
    assert all(len(str(each["model"])) <= MAX_MODEL_CHARS for each in told)


def test_a_watchman_shows_itself() -> None:
    post = Post()
    post.watch(SILENCE)
    assert repr(post.watchman) == "<Watchman over 1 every 1 s, 0 left in this round>"
