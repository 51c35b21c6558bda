"""How long an engine may take: whose word counts for a clock, and what a pace says at each look."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.breaker import weigh
from longwire.engines.clocks import LATE_LOOKS, LONGEST_LOOK_S, SHORTEST_LOOK_S, Clocks, Finding, Pace, clocks_for
from longwire.words.reasons import CloseReason
from longwire.words.settings import ModelSettings, Settings
from longwire.words.wishes import WISHES

NEVER = Clocks(first_byte_s=600, first_token_s=0, silence_s=0, min_tokens_per_s=0, rate_window_s=60, total_s=0)
FIRST, QUIET, BUSY = Finding.FIRST_TOKEN_TIMEOUT, Finding.SILENCE, Finding.BUSY_SILENCE
SILENT, SLOW, TOTAL = Finding.TOKEN_SILENCE, Finding.TOO_SLOW, Finding.TOTAL_TIMEOUT

# Which clocks a request has.

SETTINGS = Settings(
    first_byte_timeout_s=600,
    first_token_timeout_s=0,
    token_silence_s=8,
    min_tokens_per_s=2,
    total_timeout_s=7200,
    max_request_timeout_s=3600,
    models=[
        ModelSettings(name="slow-*", token_silence_s=60, min_tokens_per_s=0, total_timeout_s=0),
        ModelSettings(name="quick", first_byte_timeout_s=3, first_token_timeout_s=5),
    ],
)
FIELDS = {
    "first-byte": "first_byte_s",
    "first-token": "first_token_s",
    "silence": "silence_s",
    "total": "total_s",
    "min-rate": "min_tokens_per_s",
}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("any", (600, 0, 8, 2, 7200)),
        ("", (600, 0, 8, 2, 7200)),
        ("slow-1", (600, 0, 60, 0, 0)),
        ("quick", (3, 5, 8, 2, 7200)),
    ],
)
def test_a_models_table_stands_above_the_gateways_settings(model: str, expected: tuple[float, ...]) -> None:
    clocks = clocks_for(SETTINGS, model, {})
    assert tuple(getattr(clocks, field) for field in FIELDS.values()) == (*expected[:3], expected[4], expected[3])
    assert (clocks.rate_window_s, clocks.shortened) == (60, frozenset())


@pytest.mark.parametrize(
    ("model", "name", "wish", "granted", "is_shorter"),
    [
        ("any", "first-byte", 20, 20, True),
        ("any", "first-byte", 600, 600, False),
        ("any", "first-byte", 1000, 1000, False),
        ("any", "first-byte", 5000, 3600, False),  # longer, up to max_request_timeout_s
        ("any", "first-byte", 0, 3600, False),
        ("any", "total", 60, 60, True),
        ("any", "total", 7000, 7000, True),  # a longer configured one stays reachable
        ("any", "total", 9000, 7200, False),
        ("any", "total", 0, 7200, False),
        ("any", "first-token", 20, 20, True),  # where there was none
        ("any", "first-token", 9000, 9000, True),
        ("any", "first-token", 0, 0, False),
        ("any", "silence", 0.5, 0.5, True),
        ("slow-1", "silence", 20, 20, True),
        ("slow-1", "silence", 90, 90, False),
        ("slow-1", "total", 10, 10, True),
        ("any", "min-rate", 5, 5, True),
        ("any", "min-rate", 1, 2, False),  # it can only be raised
        ("any", "min-rate", 0, 2, False),
        ("slow-1", "min-rate", 1, 1, True),
    ],
)
def test_a_wish_is_granted_within_bounds(model: str, name: str, wish: float, granted: float, is_shorter: bool) -> None:
    before, clocks = clocks_for(SETTINGS, model, {}), clocks_for(SETTINGS, model, {name: wish})
    assert getattr(clocks, FIELDS[name]) == granted
    assert clocks.shortened == ({name} if is_shorter else set())
    others = {field: getattr(before, field) for field in FIELDS.values() if field != FIELDS[name]}
    assert {field: getattr(clocks, field) for field in others} == others


@given(
    st.dictionaries(st.sampled_from(WISHES), st.floats(0, 1e7), max_size=5),
    st.sampled_from(["any", "slow-1", "quick"]),
    st.floats(0, 7 * 86_400),
)
def test_no_wish_goes_beyond_what_may_be(wishes: dict[str, float], model: str, longest_s: float) -> None:
    settings = replace(SETTINGS, max_request_timeout_s=longest_s)
    before, clocks = clocks_for(settings, model, {}), clocks_for(settings, model, wishes)
    for name, field in FIELDS.items():
        was, is_now = getattr(before, field), getattr(clocks, field)
        if name == "min-rate":
            assert is_now >= was and (name in clocks.shortened) == (is_now > was)
        else:
            assert (is_now or inf) <= max(was or inf, longest_s)
            assert (name in clocks.shortened) == ((is_now or inf) < (was or inf))
    assert clocks.shortened <= set(wishes)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (CloseReason.UPSTREAM_TIMEOUT, "first-byte"),
        (CloseReason.FIRST_TOKEN_TIMEOUT, "first-token"),
        (CloseReason.TOKEN_SILENCE, "silence"),
        (CloseReason.TOO_SLOW, "min-rate"),
        (CloseReason.TOTAL_TIMEOUT, "total"),
    ],
)
def test_who_has_set_the_clock_that_found_it(reason: CloseReason, name: str) -> None:
    """What an impatient client finds says nothing about the engine."""
    for clock in WISHES:
        assert replace(NEVER, shortened=frozenset({clock})).is_clients_own(reason) == (clock == name)
    assert not NEVER.is_clients_own(reason)


def test_what_no_clock_has_found_is_nobodys_wish() -> None:
    every = replace(NEVER, shortened=frozenset(WISHES))
    found = {reason for reason in CloseReason if every.is_clients_own(reason)}
    assert found == {finding.reason for finding in Finding if finding.reason} | {CloseReason.UPSTREAM_TIMEOUT}
    assert {reason for reason in found if not weigh(reason, 0)} == {CloseReason.TOTAL_TIMEOUT}, (
        "no engine's fault anyway"
    )


@pytest.mark.parametrize(
    ("clocks", "shortest_s", "look_every_s"),
    [
        (NEVER, inf, LONGEST_LOOK_S),
        (replace(NEVER, silence_s=8), 8, LONGEST_LOOK_S),
        (replace(NEVER, silence_s=2, total_s=1), 1, 0.25),
        (replace(NEVER, first_token_s=0.1), 0.1, SHORTEST_LOOK_S),
        (replace(NEVER, min_tokens_per_s=1, rate_window_s=2), 2, 0.5),
        (replace(NEVER, rate_window_s=2), inf, LONGEST_LOOK_S),
    ],
)
def test_how_often_it_is_looked_at(clocks: Clocks, shortest_s: float, look_every_s: float) -> None:
    assert (clocks.shortest_s, clocks.look_every_s) == (shortest_s, look_every_s)
    assert Pace(clocks, 0).look_every_s == look_every_s


# What a look finds.


class Moment(NamedTuple):
    """What stands at a time."""

    now: float
    last_token_at: float | None = None
    tokens: int = 0
    is_generating: bool = False
    is_paused: bool = False


def look(pace: Pace, moment: Moment) -> Finding | None:
    now, last_token_at, tokens, is_generating, is_paused = moment
    return pace.look(now, last_token_at=last_token_at, tokens=tokens, is_generating=is_generating, is_paused=is_paused)


def run(
    pace: Pace,
    until: float,
    tokens_at: list[float] = [],  # noqa: B006
    busy: tuple[float, float] = (0, 0),
    gone: tuple[float, float] = (0, 0),
    paused: tuple[float, float] = (0, 0),
    start: float = 0,
) -> list[tuple[float, Finding]]:
    """Look every second, but for times at which the process is gone; what was found when, and what ends it comes last."""
    found = []
    at = start
    while at < until:
        at += 1
        if gone[0] < at < gone[1]:
            continue
        passed = [token for token in tokens_at if token <= at]
        moment = Moment(
            at, passed[-1] if passed else None, len(passed), busy[0] <= at < busy[1], paused[0] <= at < paused[1]
        )
        finding = look(pace, moment)
        if finding is not None:
            found.append((at, finding))
            if finding.reason is not None:
                break
    return found


def test_the_first_token_has_a_time() -> None:
    clocks = replace(NEVER, first_token_s=20, silence_s=8)
    assert run(Pace(clocks, 0), 100) == [(20, FIRST)]
    assert run(Pace(clocks, 0), 27, [19]) == [(27, QUIET)]
    assert run(Pace(replace(clocks, first_token_s=0), 0), 1000) == [], "and none where it is switched off"


def test_the_first_look_may_come_late() -> None:
    assert look(Pace(replace(NEVER, first_token_s=20), 0), Moment(21)) is FIRST


def test_two_silences_are_warned_about_and_the_third_is_acted_on() -> None:
    clocks = replace(NEVER, silence_s=8)
    assert run(Pace(clocks, 0), 100, [1]) == [(9, QUIET), (17, QUIET), (25, SILENT)]
    assert run(Pace(replace(clocks, silence_s=0), 0), 1000, [1]) == []


def test_the_end_is_found_again_for_as_long_as_nobody_acts() -> None:
    pace = Pace(replace(NEVER, silence_s=1), 0)
    found = [look(pace, Moment(at / 4, 0.0, 1)) for at in range(17)]
    assert [each for each in found if each] == [QUIET, QUIET, *5 * [SILENT]]


def test_a_token_begins_the_count_anew() -> None:
    found = run(Pace(replace(NEVER, silence_s=8), 0), 60, [1, 20, 40])
    assert found == [(9, QUIET), (17, QUIET), (28, QUIET), (36, QUIET), (48, QUIET), (56, QUIET)]


def test_one_token_in_ten_seconds_lives_as_long_as_its_total_allows() -> None:
    clocks = clocks_for(Settings(total_timeout_s=3600), "any", {})
    *warned, end = run(Pace(clocks, 0), 10_000, [float(at) for at in range(10, 10_000, 10)])
    assert [finding for _, finding in warned] == 359 * [QUIET]
    assert end == (3600, TOTAL)


def test_a_busy_engine_is_not_given_up() -> None:
    """While its own count moves, each further silence is counted; once it stands still, the next one is acted on."""
    found = run(Pace(replace(NEVER, silence_s=8), 0), 100, [1], busy=(20, 40))
    assert found == [(9, QUIET), (17, QUIET), (25, BUSY), (33, BUSY), (41, SILENT)]
    found = run(Pace(replace(NEVER, silence_s=8), 0), 44, [1, 30], busy=(0, 100))
    assert found == [(9, QUIET), (17, QUIET), (25, BUSY), (38, QUIET)], "and a token is a token"


def test_the_total_is_not_excused() -> None:
    clocks = replace(NEVER, silence_s=8, total_s=60)
    assert run(Pace(clocks, 0), 100, [1], busy=(0, 100))[-1] == (60, TOTAL)
    assert run(Pace(clocks, 0), 100, [1], gone=(2, 70))[-1] == (70, TOTAL), "not by a stop of our own either"
    assert run(Pace(clocks, 0), 100, [1], paused=(2, 100)) == [(60, TOTAL)], "nor by want of room"
    assert run(Pace(clocks, 30, started_at=0), 100, start=30) == [(60, TOTAL)], "it counts over all upstreams"


def test_too_few_tokens_over_the_window() -> None:
    clocks = replace(NEVER, min_tokens_per_s=0.8, rate_window_s=10)
    steady = [float(at) for at in range(1, 200)]
    assert run(Pace(clocks, 0), 150, steady) == []
    assert run(Pace(clocks, 0), 150, steady[::2]) == [(11, SLOW)], "judged as soon as there is one window"
    assert run(Pace(clocks, 0), 150) == [], "before the first token another clock runs"
    found = run(Pace(clocks, 0), 150, [*steady[:50], *steady[51::2]])
    assert [finding for _, finding in found] == [SLOW] and 52 <= found[0][0] <= 62, "and the past is no credit"


def test_samples_are_few() -> None:
    pace = Pace(replace(NEVER, min_tokens_per_s=1, rate_window_s=60), 0)
    for at in range(1, 1000):
        assert look(pace, Moment(at / 2, at / 2, at)) is None
        assert pace._samples is not None and len(pace._samples) <= 11


# Time that does not count.


def test_a_stop_of_our_own_is_no_silence_of_the_engine() -> None:
    clocks = replace(NEVER, first_token_s=20, silence_s=8)
    assert run(Pace(clocks, 0), 50, [3, 35.5], gone=(5, 35)) == [(44, QUIET)]
    assert run(Pace(clocks, 0), 100, gone=(5, 35)) == [(46, FIRST)], "30 s of it, less two looks"


def test_a_token_that_came_before_the_stop_says_nothing_about_it() -> None:
    pace = Pace(replace(NEVER, silence_s=8), 0)
    assert look(pace, Moment(1, 1.0, 1)) is None
    assert look(pace, Moment(61, 1.5, 2)) is None, "it came since the last look, and then we were stopped"
    assert pace.statistics() == {"silences": 0, "forgiven_s": 56}
    assert run(pace, 80, [1, 1.5], start=61) == [(65, QUIET), (73, QUIET)]


def test_what_we_do_not_read_is_no_silence() -> None:
    found = run(Pace(replace(NEVER, silence_s=8), 0), 60, [1], paused=(12, 32))
    assert found == [(9, QUIET), (37, QUIET), (45, SILENT)], "it goes on where it stood"
    assert run(Pace(replace(NEVER, first_token_s=20), 0), 60, paused=(12, 32)) == [(40, FIRST)]
    slow = replace(NEVER, min_tokens_per_s=1, rate_window_s=10)
    tokens = [*map(float, range(1, 12)), *map(float, range(32, 100))]
    assert run(Pace(slow, 0), 60, tokens, paused=(12, 32)) == []
    assert run(Pace(slow, 0), 60, tokens)[-1][1] is SLOW


def test_after_an_adoption_it_is_waited_for_anew() -> None:
    """Nobody looked between the death of one process and the next one's first look."""
    pace = Pace(replace(NEVER, silence_s=8, total_s=500), 100, started_at=0)
    assert run(pace, 200, [3.0], start=100) == [(108, QUIET), (116, QUIET), (124, SILENT)]


# The look that costs least.


@pytest.mark.parametrize("late_s", [0.5, 1.0, 3.9, 30.0])
@pytest.mark.parametrize("silences", [0, 1, 3])
def test_a_look_that_only_hears_of_another_token_ends_as_any_other_does(late_s: float, silences: int) -> None:
    """Either both stand alike afterwards, or the short one has left it to the other."""
    clocks = replace(NEVER, first_token_s=20, silence_s=8, total_s=1000)
    long, short = Pace(clocks, 0), Pace(clocks, 0)
    for pace in long, short:
        look(pace, Moment(1, 1.0, 1))
        look(pace, Moment(100, 1.0, 1))  # a stop of our own
        pace.silences = silences
    now = 100 + late_s
    has_moved = short.moved(now)
    assert has_moved == (late_s <= 2 * LONGEST_LOOK_S)
    assert look(long, Moment(now, now, 2)) is None
    if not has_moved:
        assert look(short, Moment(now, now, 2)) is None
    assert repr(short) == repr(long) and short.statistics() == long.statistics()
    assert run(short, 200, [now], start=now) == run(long, 200, [now], start=now) != []


def test_the_short_look_leaves_to_the_other_what_it_cannot_tell() -> None:
    unheard = Pace(replace(NEVER, silence_s=8), 0)
    assert not unheard.moved(1), "a first token is more than another one"
    counted = Pace(replace(NEVER, min_tokens_per_s=1, rate_window_s=10), 0)
    look(counted, Moment(1, 1.0, 1))
    assert not counted.moved(2)
    over = Pace(replace(NEVER, total_s=3), 0)
    look(over, Moment(1, 1.0, 1))
    assert over.moved(2) and not over.moved(3) and look(over, Moment(3, 3.0, 2)) is Finding.TOTAL_TIMEOUT


# Whatever happens.

gaps = st.floats(0, 100, allow_subnormal=False)
steps = st.lists(st.tuples(gaps, st.integers(0, 3), st.booleans(), st.booleans()), max_size=60)


@given(steps, st.floats(0.05, 30))
def test_an_engine_is_given_up_only_for_time_that_counts(
    steps: list[tuple[float, int, bool, bool]], silence_s: float
) -> None:
    """However late looks come: with at most two periods between any two of them, three silences must have been counted."""
    clocks = replace(NEVER, silence_s=silence_s)
    pace = Pace(clocks, 0)
    most_s = LATE_LOOKS * clocks.look_every_s
    now, tokens, last, counted_s, warnings = 0.0, 1, 0.0, 0.0, 0
    assert look(pace, Moment(now, last, tokens)) is None
    for gap_s, came, is_generating, is_paused in steps:
        now += gap_s
        counted_s += 0 if is_paused else min(gap_s, most_s)
        if came and gap_s:
            tokens, last, counted_s, warnings = tokens + came, now, 0.0, 0
        finding = look(pace, Moment(now, last, tokens, is_generating, is_paused))
        assert finding in (None, QUIET, BUSY, SILENT)
        if finding is QUIET:
            warnings += 1
            assert warnings <= 2 and counted_s >= warnings * silence_s - 1e-6
        if finding in (BUSY, SILENT):
            assert warnings == 2 and counted_s >= 3 * silence_s - 1e-6
            assert (finding is BUSY) == is_generating
        if finding is SILENT:
            break


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=300), st.floats(0.5, 8))
def test_three_silences_are_always_found(looks: list[float], silence_s: float) -> None:
    """Where looks come in time, a silent engine is given up at the first one after three silences."""
    clocks = replace(NEVER, silence_s=silence_s)
    pace = Pace(clocks, 0)
    now, found = 0.0, []
    for share in looks:
        now += share * clocks.look_every_s
        finding = look(pace, Moment(now, 0.0, 1))
        if finding is not None:
            found.append(finding)
        assert (finding is SILENT) == (now >= 3 * silence_s)
        assert len(found) >= min(3, int(now / silence_s))
    assert found[:2] == [QUIET, QUIET][: len(found)]


@given(st.lists(st.integers(0, 20), min_size=120, max_size=200), st.floats(0.5, 15))
def test_a_rate_is_judged_by_the_window_only(per_second: list[int], least: float) -> None:
    """Never where each window of that length held enough, always where a window and an eighth of it held too few."""
    clocks = replace(NEVER, min_tokens_per_s=least, rate_window_s=10)
    pace = Pace(clocks, 0)
    count, counts = 1, [1]
    for second, came in enumerate(per_second, start=1):
        count += came
        counts.append(count)
        finding = look(pace, Moment(float(second), 0.5 if second == 1 else float(second), count))
        spans = [span for span in (10, 11, 12) if second > span]
        rates = [(counts[second] - counts[second - span]) / span for span in spans]
        if finding is SLOW:
            assert rates and min(rates) < least
            return
        assert not rates or max(rates) >= least


@pytest.mark.parametrize("finding", Finding)
def test_words_tell_the_time_that_was_given(finding: Finding) -> None:
    clocks = replace(NEVER, first_token_s=11, silence_s=13, min_tokens_per_s=17, rate_window_s=19, total_s=23)
    words = finding.words(clocks)
    assert bool(words) == (finding.reason is not None)
    numbers = {FIRST: ["11 s"], SILENT: ["39 s"], SLOW: ["17 tokens", "19 s"], TOTAL: ["23 s"]}
    assert [number for number in numbers.get(finding, []) if number not in words] == []


def test_a_pace_shows_itself() -> None:
    pace = Pace(replace(NEVER, silence_s=8), 0)
    assert repr(pace) == "<Pace waits, 0 s forgiven>"
    run(pace, 10, [1])
    assert repr(pace) == "<Pace silent 1 times, 0 s forgiven>"
