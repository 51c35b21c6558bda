"""No row is a check that cannot fail: each fails on a relay that is broken on purpose, and none on one that is right."""

from __future__ import annotations

import pytest
from tests.conform.matrix import BASIC, RIGHT, Outcome, matrix
from tests.conform.relays import BROKEN

from longwire.conform.row import Row
from longwire.conform.rows import ROWS

pytestmark = pytest.mark.e2e

REQUIRED = [row for row in ROWS if row.is_required]
IN_BAND = {"reset-is-told", "missing-finish-is-told", "ends-behind-error", "ends-behind-end-marker"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return matrix()


def failed(outcome: Outcome) -> set[str]:
    """Rows that failed in any form."""
    return {case.partition("[")[0] for case, wrong in outcome.items() if wrong}


def test_the_right_relay_passes_every_required_row_and_offers_nothing_in_band(outcomes: dict[str, Outcome]) -> None:
    assert {
        case: wrong for case, wrong in outcomes[RIGHT].items() if wrong and case.partition("[")[0] not in IN_BAND
    } == {}
    assert failed(outcomes[RIGHT]) == IN_BAND


def test_there_are_twelve_broken_ones_and_each_is_found_out(outcomes: dict[str, Outcome]) -> None:
    assert len(BROKEN) == 12
    assert [name for name in BROKEN if not failed(outcomes[name]) - IN_BAND] == []


@pytest.mark.parametrize("row", REQUIRED, ids=lambda row: row.name)
def test_the_row_fails_on_a_broken_relay(row: Row, outcomes: dict[str, Outcome]) -> None:
    """And not only on one that cannot pass a plain stream on: that would say nothing about this row."""
    found = {name for name in BROKEN if row.name in failed(outcomes[name])}
    if row.name not in BASIC:
        found = {name for name in found if not BASIC & failed(outcomes[name])}
    assert found


def test_secrets_are_found_where_they_go_on(outcomes: dict[str, Outcome]) -> None:
    assert {"authorization-is-kept-back", "cookies-are-kept-back"} <= failed(outcomes["forwards unseen"])
    assert not {"authorization-is-kept-back", "cookies-are-kept-back"} & failed(outcomes[RIGHT])
