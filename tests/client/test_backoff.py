"""The bounds of a stream's patience."""

from __future__ import annotations

import pytest

from longwire.client.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "low_s", "high_s"), [(1, 0.125, 0.25), (2, 0.25, 0.5), (6, 4.0, 8.0), (50, 4.0, 8.0)]
)
def test_waits_double_up_to_the_cap_and_are_jittered(failures: int, low_s: float, high_s: float) -> None:
    assert Backoff(random=lambda: 0.0).delay_s(failures) == low_s
    assert Backoff(random=lambda: 1.0).delay_s(failures) == high_s


def test_the_default_gives_up_before_the_gateway_does() -> None:
    backoff = Backoff(random=lambda: 1.0)
    assert sum(backoff.delay_s(failures) for failures in range(1, backoff.attempts)) < 30.0


@pytest.mark.parametrize(("asked_s", "granted_s"), [(-1.0, 0.0), (2.5, 2.5), (1e9, 60.0)])
def test_a_gateway_cannot_ask_for_eternity(asked_s: float, granted_s: float) -> None:
    assert Backoff().bounded_s(asked_s) == granted_s
