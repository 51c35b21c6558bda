"""The table of rows is whole, each row can be played in each of its forms, and none passes where nothing comes."""

from __future__ import annotations

import re

import pytest
from tests.conform.recordings import nothing, parts_of, plays_of, unchanged

from longwire.conform.row import GROUPS, OPTIONAL, Case, cases
from longwire.conform.rows import ROWS, choose
from longwire.conform.saying import Gate, Last, Pause

CASES = cases(ROWS)
by_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])

NOT_BY_BYTES_ALONE = {
    "hop-fields", "bad-json", "unknown-path", "wrong-method", "oversized-head", "garbage", "two-lengths", "length-and-chunked",
    "surplus-answer",
}  # fmt: skip
"""Rows that ask more of a gateway than to pass bytes on."""


def test_names_are_unique_and_speak() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", name) for name in names)
    assert not set(names) & set(GROUPS), "--only would not know which is meant"


def test_every_group_has_rows_and_they_stand_together() -> None:
    assert list(dict.fromkeys(row.group for row in ROWS)) == list(GROUPS)


def test_every_row_says_what_it_is_about() -> None:
    for row in ROWS:
        assert row.sent and row.must and row.why.endswith("."), row.name
        assert row.forms, row.name
        assert all(re.fullmatch(r"([\w.-]+/)?[\w.-]+#\d+", report) for report in row.reports), row.name
        assert "|" not in row.must + row.why, "it stands in a table"


def test_rows_are_chosen_by_name_group_or_pattern() -> None:
    assert [row.name for row in choose("crlf")] == ["crlf"]
    assert {row.group for row in choose("framing")} == {"framing"}
    assert len(choose("leaves-*")) == 6
    assert choose("") == list(ROWS)
    assert choose("no-such") == []


def test_there_are_about_as_many_required_rows_as_ways_to_break() -> None:
    assert len([row for row in ROWS if row.is_required]) >= 50
    assert {row.group for row in ROWS if not row.is_required} == OPTIONAL


@by_case
def test_every_case_can_be_played(case: Case) -> None:
    parts = parts_of(case)
    for play in plays_of(case, parts).values():
        assert all(isinstance(step, (bytes, Pause, Gate, Last)) for step in play.steps)
        assert play.steps


@by_case
def test_a_gateway_that_says_nothing_passes_nothing(case: Case) -> None:
    assert case.row.check(nothing(case))


PLAIN = [case for case in CASES if case.row.group in ("framing", "headers", "concurrency", "requests", "errors")]
PASSED_ON = [case for case in PLAIN if case.row.name not in NOT_BY_BYTES_ALONE]


@pytest.mark.parametrize("case", PASSED_ON, ids=[case.name for case in PASSED_ON])
def test_bytes_that_are_passed_on_as_they_are_pass(case: Case) -> None:
    """So a script says what its check wants, and a failure is the gateway's."""
    assert case.row.check(unchanged(case)) == ""


@pytest.mark.parametrize("group", ["endings", "in-band"])
def test_endings_that_are_passed_on_as_they_are_make_up_no_success(group: str) -> None:
    """A plain proxy is honest, as far as its engine is."""
    optional = [case.name for case in CASES if case.row.group == group and case.row.check(unchanged(case))]
    if group == "endings":
        assert [name for name in optional if "before-head" not in name] == [], (
            "only what has no head needs one of its own"
        )
    else:
        assert optional, "what is told in words is told by a gateway"
