"""Medians over rounds, verdicts, and the table of a work."""

from __future__ import annotations

import json

from benchmarks.work import INVALID, Goal, Work, middle, table

ROUNDS = [
    {"a": {"x": 1.0}, "b": {"x": 10.0}},
    {"a": {"x": 3.0}, "b": {"x": 20.0, INVALID: 1.0}},
    {"a": {"x": 2.0}},
]


def test_a_median_is_made_of_valid_rounds() -> None:
    assert middle(ROUNDS, "a", "x") == 2.0
    assert middle(ROUNDS, "b", "x") == 10.0
    assert middle(ROUNDS, "b", "y") is None
    assert middle(ROUNDS, "c", "x") is None


def test_verdicts() -> None:
    assert Goal.most("n", "ms", 2.0, 2.0).met is True
    assert Goal.most("n", "ms", 2.1, 2.0).met is False
    assert Goal.most("n", "x router", None, 0.5).met is None
    assert Goal.least("n", "/s", 2.0, 2.0).met is True
    assert Goal.least("n", "/s", 1.9, 2.0).met is False


def test_a_table_has_a_line_for_each_target() -> None:
    lines = table(ROUNDS, [("x", "ex", 1), ("y", "why", 0)]).splitlines()
    assert [line.split() for line in lines] == [
        ["median", "of", "runs", "ex", "why"],
        ["a", "2.0", "-"],
        ["b", "10.0", "-"],
    ]


def test_a_work_with_an_invalid_round_is_not_valid() -> None:
    work = Work("w", "W", rounds=list(ROUNDS))
    assert not work.is_valid
    assert Work("w", "W", rounds=[{"a": {"x": 1.0}}]).is_valid
    assert not Work("w", "W").is_valid


def test_what_is_written_is_json() -> None:
    work = Work("w", "W", rounds=list(ROUNDS), goals=[Goal.most("n", "ms", 2.0, 2.0)])
    goals = json.loads(json.dumps({"goals": [goal.__getstate__() for goal in work.goals]}))["goals"]
    assert len(goals) == 1
