"""What clients are told: how much is left, and when to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.admission.fairqueue import Full
from longwire.admission.limiter import RETRY_AFTER_S, RETRY_SPREAD
from longwire.admission.ratelimits import (
    LONGEST_RETRY_S,
    Allowance,
    allowance,
    is_own_doing,
    rate_headers,
    refusal,
    retry_after_s,
    spell,
)
from longwire.words.settings import TenantSettings


@pytest.mark.parametrize(
    ("before", "current", "now", "left"),
    [
        (0, 0, 600.0, Allowance(100, 100, 0.0)),
        (0, 30, 615.0, Allowance(100, 70, 105.0)),
        (40, 0, 615.0, Allowance(100, 70, 45.0)),
        (80, 70, 630.0, Allowance(100, 0, 90.0)),
    ],
)
def test_what_is_left_of_a_minute(before: int, current: int, now: float, left: Allowance) -> None:
    assert allowance(100, before, current, now) == left


def test_only_limits_that_there_are_are_told() -> None:
    both = TenantSettings(max_requests_per_min=100, max_tokens_per_min=5000)
    assert rate_headers(both, (0, 30), (0, 5001), 615.0) == [
        (b"x-ratelimit-limit-requests", b"100"),
        (b"x-ratelimit-remaining-requests", b"70"),
        (b"x-ratelimit-reset-requests", b"1m45s"),
        (b"x-ratelimit-limit-tokens", b"5000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m45s"),
    ]
    assert rate_headers(TenantSettings(), (0, 30), (0, 5001), 615.0) == []
    assert len(rate_headers(TenantSettings(max_requests_per_min=5), (0, 0), (0, 0), 615.0)) == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0ms"), (-1, b"0ms"), (0.0001, b"1ms"), (0.9995, b"1s"), (1.2, b"2s"), (60, b"1m0s"), (90.5, b"1m31s")],
)
def test_times_are_spelt_as_clients_know_them(seconds: float, text: bytes) -> None:
    assert spell(seconds) == text


@given(st.integers(0, 10**6), st.floats(), st.integers(0, 10**6))
def test_the_wait_is_bounded_whatever_is_known(waiting: int, served_per_s: float, refused: int) -> None:
    wait_s = retry_after_s(waiting, served_per_s, refused)
    assert RETRY_AFTER_S <= wait_s <= LONGEST_RETRY_S + RETRY_SPREAD - 1


def test_it_is_what_the_queue_takes_and_not_the_same_for_all() -> None:
    assert [retry_after_s(40, 10.0, refused) for refused in range(5)] == [4, 5, 6, 7, 4]
    assert retry_after_s(40, 0.0, 0) == RETRY_AFTER_S


@pytest.mark.parametrize(
    ("own", "waiting", "tenants", "blame"),
    [(50, 60, 3, True), (20, 60, 3, False), (5, 60, 3, False), (1, 1, 1, False), (7, 7, 1, True), (1, 60, 60, False)],
)
def test_whose_doing_it_is(own: int, waiting: int, tenants: int, blame: bool) -> None:
    assert is_own_doing(own, waiting, tenants) is blame


@pytest.mark.parametrize(
    ("full", "own_doing", "status", "code"),
    [
        (Full.TENANT, False, 429, "too_many_waiting"),
        (Full.QUEUE, True, 503, "overloaded"),
        (None, True, 429, "too_many_waiting"),
        (None, False, 503, "waited_in_vain"),
    ],
)
def test_a_refusal_says_whose_doing_it_is_and_when_to_come_back(
    full: Full | None, own_doing: bool, status: int, code: str
) -> None:
    error = refusal(full, 3.0, own_doing=own_doing)
    assert (error.status, error.code, error.retryable) == (status, code, True)
    assert error.headers() == [(b"retry-after", b"3")]
