"""What another upstream is asked for, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.base import Failure
from longwire.engines.retry import BUDGET_WINDOW_S, MAX_TENANTS, PART_S, RetryBudget, is_retryable
from longwire.words.reasons import CloseReason
from longwire.words.settings import Settings

TOO_LONG = b'{"object":"error","message":"The decoder prompt is longer than the maximum model length of 4096."}'


@pytest.mark.parametrize(
    ("status", "can_be"),
    [
        (400, False), (401, False), (404, False), (408, False), (413, False), (422, False), (429, True),
        (500, True), (501, False), (502, True), (503, True), (504, True), (505, False), (529, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_band", [False, True], ids=["answer", "error object"])
def test_a_status_decides(status: int, can_be: bool, in_band: bool) -> None:
    answer = CloseReason.UPSTREAM_REFUSED if status < 500 else CloseReason.UPSTREAM_FAILED
    reason = CloseReason.UPSTREAM_ERROR_EVENT if in_band else answer
    assert is_retryable(Failure(reason, "", status)) is can_be


def test_an_error_object_without_a_status_may_be_mended() -> None:
    assert is_retryable(Failure(CloseReason.UPSTREAM_ERROR_EVENT, "EngineCore died", 0))


@pytest.mark.parametrize(
    "failure",
    [
        Failure(CloseReason.UPSTREAM_FAILED, "", 500, TOO_LONG),
        Failure(CloseReason.UPSTREAM_ERROR_EVENT, "This model's maximum context length is 4096 tokens.", 0),
    ],
)
def test_a_prompt_that_is_too_long_is_so_everywhere(failure: Failure) -> None:
    assert not is_retryable(failure)


def test_every_ending_is_decided() -> None:
    can_be = {reason.value for reason in CloseReason if is_retryable(Failure(reason, ""))}
    assert can_be == {
        "upstream_unreachable", "upstream_reset", "upstream_incomplete", "upstream_protocol", "upstream_timeout",
        "connect_timeout", "first_token_timeout", "token_silence", "upstream_error_event",
    }  # fmt: skip


# The budget.


def grants(budget: RetryBudget, tenant: str, now: float, asked: int = 1000) -> int:
    return sum(budget.may_retry(tenant, now) for _ in range(asked))


def test_a_share_of_the_requests_and_a_floor_anyway() -> None:
    budget = RetryBudget(Settings(retry_budget_percent=20, retry_budget_floor=3))
    assert grants(budget, "a", 0) == 3
    for _ in range(14):
        budget.note_request("a", 0)
    assert grants(budget, "a", 0) == 0, "20 % of 14 is 2, and 3 were had"
    for _ in range(36):
        budget.note_request("a", 1)
    assert grants(budget, "a", 1) == 7


def test_tenants_have_budgets_of_their_own() -> None:
    budget = RetryBudget(Settings(retry_budget_floor=2))
    assert [grants(budget, tenant, 0) for tenant in "aba"] == [2, 2, 0]


def test_it_can_be_switched_off() -> None:
    budget = RetryBudget(Settings(retry_budget_percent=0, retry_budget_floor=0))
    budget.note_request("a", 0)
    assert not budget.may_retry("a", 0)


def test_after_a_minute_it_is_there_again() -> None:
    budget = RetryBudget(Settings(retry_budget_floor=2))
    assert grants(budget, "a", 0) == 2
    assert grants(budget, "a", BUDGET_WINDOW_S) == 0
    assert grants(budget, "a", BUDGET_WINDOW_S + PART_S) == 2


def test_memory_is_bounded_over_tenants_and_time() -> None:
    budget = RetryBudget(Settings())
    for number in range(MAX_TENANTS + 10):
        budget.note_request(f"t{number}", 0)
    assert budget.statistics() == {"tenants": MAX_TENANTS}
    for now in range(1000):
        budget.note_request("a", now)
    assert len(budget._tenants["a"]._parts) <= BUDGET_WINDOW_S / PART_S + 2
    assert str(MAX_TENANTS) in repr(budget)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=200),
    st.floats(0, 100),
    st.integers(0, 5),
)
def test_retries_never_multiply(steps: list[tuple[float, bool]], percent: float, floor: int) -> None:
    """In any minute: at most the floor, or the share of what was asked (in it, and the minute before its end)."""
    budget = RetryBudget(Settings(retry_budget_percent=percent, retry_budget_floor=floor))
    now, asked, retried = 0.0, list[float](), list[float]()
    for wait_s, is_request in steps:
        now += wait_s
        if is_request:
            budget.note_request("a", now)
            asked.append(now)
        elif budget.may_retry("a", now):
            retried.append(now)
            retries = sum(at > now - BUDGET_WINDOW_S for at in retried)
            requests = sum(at > now - BUDGET_WINDOW_S - PART_S for at in asked)
            assert retries <= max(floor, requests * percent / 100)
