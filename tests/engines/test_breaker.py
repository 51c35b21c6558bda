"""When an upstream is trusted: every transition, and what holds whatever happens."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.breaker import (
    MAX_REASON_CHARS,
    MAX_REASONS,
    MOST_RESTS,
    TRANSITIONS,
    TRIAL_LIMIT_S,
    WINDOW_PARTS,
    Breaker,
    BreakerState,
    Signal,
    is_too_long,
    weigh,
)
from longwire.words.reasons import CloseReason
from longwire.words.settings import Settings

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
SETTINGS = Settings(breaker_faults=3, breaker_window_s=30, breaker_open_s=5)


def breaker_in(state: BreakerState, trial: bool = False) -> Breaker:
    """A breaker that has come to this state by time 0."""
    breaker = Breaker(SETTINGS)
    if state is not CLOSED:
        opened = [breaker.note_fault(-6, 1, "upstream_reset") for _ in range(3)]
        assert opened == [False, False, True]
    if state is HALF_OPEN:
        breaker.note_probe(-1, True)
        if trial:
            assert breaker.may_try(-1)
            breaker.begin_trial(-1)
    assert breaker.state is state
    return breaker


# One at a time.

THINGS = {
    "sent": lambda b: b.begin_trial(0),
    "success": lambda b: b.note_success(0),
    "neutral": lambda b: b.note_neutral(0),
    "weightless": lambda b: b.note_fault(0, 0, "upstream_refused"),
    "fault": lambda b: b.note_fault(0, 1, "upstream_failed 500"),
    "heavy": lambda b: b.note_fault(0, 3, "upstream_failed 500"),
    "good probe": lambda b: b.note_probe(0, True),
    "bad probe": lambda b: b.note_probe(0, False),
}
STAYS_CLOSED = dict.fromkeys(THINGS, (CLOSED, True)) | {"heavy": (OPEN, False)}
HALF_OPEN_FREE = dict.fromkeys(THINGS, (HALF_OPEN, True)) | {
    "sent": (HALF_OPEN, False),
    "success": (CLOSED, True),
    "bad probe": (OPEN, False),
}
HALF_OPEN_TAKEN = dict.fromkeys(THINGS, (HALF_OPEN, False)) | {
    "success": (CLOSED, True),
    "neutral": (HALF_OPEN, True),
    "weightless": (HALF_OPEN, True),
    "fault": (OPEN, False),
    "heavy": (OPEN, False),
    "bad probe": (OPEN, False),
}
RESTED = dict.fromkeys(THINGS, (OPEN, False)) | {"good probe": (HALF_OPEN, True)}
EXPECTED = {
    (CLOSED, False): STAYS_CLOSED,
    (OPEN, False): RESTED,
    (HALF_OPEN, False): HALF_OPEN_FREE,
    (HALF_OPEN, True): HALF_OPEN_TAKEN,
}


@pytest.mark.parametrize(("start", "thing"), list(product(EXPECTED, THINGS)), ids=str)
def test_each_thing_in_each_state(start: tuple[BreakerState, bool], thing: str) -> None:
    breaker = breaker_in(*start)
    opened = THINGS[thing](breaker)
    assert (breaker.state, breaker.may_try(0)) == EXPECTED[start][thing]
    assert bool(opened) is (breaker.state is OPEN and start[0] is not OPEN)
    assert bool(breaker.why) is (breaker.state is not CLOSED)


def test_the_table_leaves_no_state_without_a_way_out() -> None:
    for state in BreakerState:
        assert any(at is state and to is not state for (at, _), (to, _) in TRANSITIONS.items())
    assert {signal for _, signal in TRANSITIONS} == set(Signal)


def test_a_good_probe_is_believed_only_after_the_rest() -> None:
    breaker = breaker_in(OPEN)  # opened at -6, rests until -1
    assert breaker.rest_left_s(-3) == 2
    breaker.note_probe(-1.001, True)
    assert breaker.state is OPEN and breaker.rest_left_s(0) == 0
    breaker.note_probe(-1, False)
    assert breaker.state is OPEN
    breaker.note_probe(-1, True)
    assert breaker.state is HALF_OPEN and breaker.rest_left_s(0) == 0


def test_rests_double_up_to_twelvefold_and_begin_anew_once_closed() -> None:
    breaker, now, rests = breaker_in(OPEN), -6.0, []
    for _ in range(7):
        rests.append(breaker.rested_at - now)
        now = breaker.rested_at
        breaker.note_probe(now, True)
        breaker.begin_trial(now)
        assert breaker.note_fault(now, 1, "upstream_reset")
    assert rests == [5, 10, 20, 40, 5 * MOST_RESTS, 60, 60]
    assert breaker.opened_total == 8 and breaker.statistics()["state"] == OPEN
    breaker.note_probe(now + 60, True)
    breaker.begin_trial(now + 60)
    breaker.note_success(now + 61)
    assert breaker.state is CLOSED
    assert breaker.note_fault(now + 62, 3, "x") and breaker.rested_at == now + 67


def test_a_trial_that_never_reports_frees_its_place() -> None:
    breaker = breaker_in(HALF_OPEN, trial=True)
    assert not breaker.may_try(-1 + TRIAL_LIMIT_S - 0.01)
    assert breaker.may_try(-1 + TRIAL_LIMIT_S)
    breaker.begin_trial(TRIAL_LIMIT_S)
    assert not breaker.may_try(TRIAL_LIMIT_S)
    breaker.note_success(TRIAL_LIMIT_S)
    assert breaker.state is CLOSED


def test_stragglers_of_the_time_before_change_nothing_while_it_rests() -> None:
    """A hundred streams can fall silent at once; each reports when its own clock runs out."""
    breaker = breaker_in(OPEN)
    rested_at, why = breaker.rested_at, breaker.why
    assert not any(breaker.note_fault(-3, 1, "upstream_reset") for _ in range(100))
    breaker.note_success(-3)
    breaker.begin_trial(-3)
    assert (breaker.rested_at, breaker.why, breaker.state) == (rested_at, why, OPEN)
    breaker.note_probe(0, True)
    assert not breaker.note_fault(0, 1, "upstream_reset") and breaker.may_try(0)


def test_each_success_counts_against_the_faults_but_is_no_credit() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(1000):
        breaker.note_success(0)
    faults = [breaker.note_fault(1, 1, "a") for _ in range(2)]
    breaker.note_success(1)
    faults += [breaker.note_fault(1, 1, "a") for _ in range(2)]
    assert faults == [False, False, False, True]


def test_faults_are_forgotten_after_the_window() -> None:
    breaker = Breaker(SETTINGS)
    assert not any(breaker.note_fault(now, 1, "a") for now in range(0, 1000, 15))
    assert breaker.state is CLOSED


def test_why_names_the_faults_and_how_many_there_were() -> None:
    breaker = Breaker(SETTINGS)
    for why in ("upstream_failed 503", "upstream_reset", "upstream_reset"):
        breaker.note_fault(0, 1, why)
    assert breaker.why == "3 faults within 30 s: upstream_reset (2), upstream_failed 503."
    assert "open" in repr(breaker) and "upstream_reset" in repr(breaker)
    again = breaker_in(HALF_OPEN, trial=True)
    again.note_fault(0, 1, "first_token_timeout")
    assert again.why == "It failed again after a rest: first_token_timeout."


def test_faults_that_were_forgiven_are_not_named() -> None:
    breaker = Breaker(SETTINGS)
    breaker.note_fault(0, 1, "old")
    breaker.note_fault(100, 3, "new")
    assert "old" not in breaker.why and "new" in breaker.why


def test_failed_probes_alone_open_it() -> None:
    breaker = Breaker(SETTINGS)
    assert [breaker.note_probe(now, False) for now in range(3)] == [False, False, True]
    assert "model list" in breaker.why


# Whatever happens.

STEPS = st.lists(
    st.tuples(
        st.floats(0, 40, allow_nan=False),
        st.sampled_from(sorted(THINGS)),
        st.floats(0, 4, allow_nan=False),
        st.text(max_size=200),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens(steps: list[tuple[float, str, float, str]]) -> None:
    """Open only by a fault, out of open only by a good probe after the rest, one trial at a time, everything bounded."""
    breaker, now = Breaker(SETTINGS), 0.0
    for wait_s, thing, weight, why in steps:
        now += wait_s
        before, may = breaker.state, breaker.may_try(now)
        assert may is breaker.may_try(now), "looking changes nothing"
        opened = act(breaker, thing, now, weight, why)
        after = breaker.state
        assert opened is (after is OPEN and before is not OPEN)
        if before is OPEN and after is not OPEN:
            assert (after, thing) == (HALF_OPEN, "good probe") and now >= breaker.rested_at
        if after is CLOSED and before is not CLOSED:
            assert thing == "success"
        if thing == "sent" and after is HALF_OPEN:
            assert not breaker.may_try(now)
        assert after is CLOSED or breaker.why
        assert len(breaker.why) < (MAX_REASONS + 1) * (MAX_REASON_CHARS + 20) + 60 and "\n" not in breaker.why
        assert breaker.rest_left_s(now) <= 5 * MOST_RESTS
        assert len(breaker._tally._parts) <= WINDOW_PARTS + 1


def act(breaker: Breaker, thing: str, now: float, weight: float, why: str) -> bool:
    match thing:
        case "sent":
            breaker.begin_trial(now)
        case "success":
            breaker.note_success(now)
        case "neutral":
            breaker.note_neutral(now)
        case "good probe" | "bad probe":
            return breaker.note_probe(now, thing == "good probe")
        case _:
            return breaker.note_fault(now, weight, why)
    return False


@given(STEPS)
def test_it_always_comes_back(steps: list[tuple[float, str, float, str]]) -> None:
    breaker, now = Breaker(SETTINGS), 0.0
    for wait_s, thing, weight, why in steps:
        now += wait_s
        act(breaker, thing, now, weight, why)
    now += 5 * MOST_RESTS + TRIAL_LIMIT_S
    breaker.note_probe(now, True)
    assert breaker.may_try(now)
    breaker.begin_trial(now)
    breaker.note_success(now)
    assert breaker.state is CLOSED and breaker.why == ""


@given(st.lists(st.floats(0, 100), min_size=3, max_size=30))
def test_so_many_faults_in_a_row_open_it_and_fewer_never(times: list[float]) -> None:
    breaker = Breaker(SETTINGS)
    times.sort()
    opened_at = next((now for now in times if breaker.note_fault(now, 1, "a")), None)
    near = any(last - first <= 27 for first, last in zip(times, times[2:], strict=False))
    far = all(last - first > 30 for first, last in zip(times, times[2:], strict=False))
    assert opened_at is not None or not near
    assert opened_at is None or not far


# How much an outcome weighs.

LONG = b'{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested 5000."}}'


@pytest.mark.parametrize(
    ("reason", "status", "body", "weight"),
    [
        *[(CloseReason.UPSTREAM_REFUSED, status, b"", 0) for status in (400, 401, 404, 408, 413, 422, 429)],
        *[(CloseReason.UPSTREAM_FAILED, status, b"oops", 1) for status in (500, 502, 503, 504)],
        *[(CloseReason.UPSTREAM_FAILED, status, b"", 0) for status in (501, 505)],
        (CloseReason.UPSTREAM_FAILED, 500, LONG, 0),
        (CloseReason.UPSTREAM_ERROR_EVENT, 0, b"", 1),
        (CloseReason.UPSTREAM_ERROR_EVENT, 500, b"", 1),
        (CloseReason.UPSTREAM_ERROR_EVENT, 400, b"", 0),
        (CloseReason.UPSTREAM_ERROR_EVENT, 0, LONG, 0),
    ],
)
def test_an_error_s_weight(reason: CloseReason, status: int, body: bytes, weight: float) -> None:
    assert weigh(reason, status, body) == weight


def test_every_ending_has_a_weight() -> None:
    heavy = {reason.value for reason in CloseReason if weigh(reason, 0)}
    assert heavy == {
        "upstream_failed", "upstream_unreachable", "upstream_reset", "upstream_incomplete", "upstream_error_event",
        "upstream_protocol", "upstream_timeout", "connect_timeout", "first_token_timeout", "token_silence", "too_slow",
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "prompt is too long: 210000 tokens > 200000 maximum",
        '{"error":{"code":"context_length_exceeded"}}',
        "Prompt length (9000) exceeds maximum input length (8192). Set log level to info",
    ],
)
def test_a_prompt_that_is_too_long_is_recognised_by_its_words(words: str) -> None:
    assert is_too_long(words.encode())


@pytest.mark.parametrize(
    "words", ["", "CUDA out of memory", "EngineCore encountered an issue", "Internal Server Error"]
)
def test_an_engine_s_own_trouble_is_not_taken_for_it(words: str) -> None:
    assert not is_too_long(words.encode()) and weigh(CloseReason.UPSTREAM_FAILED, 500, words.encode()) == 1
