"""How soon what failed is tried again, by a clock of the test's."""

from __future__ import annotations

import pytest

from longwire.keeper.pace import FIRST_PAUSE_S, FORGET_S, MAX_PAUSE_S, Pace


def pause_after(failures: int) -> float:
    pace = Pace()
    for _ in range(failures):
        pace.note_failure("shard", 100.0)
    pace.put_off("shard", 100.0)
    return pace.again["shard"] - 100.0


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause_after(n) for n in (1, 2, 3)] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pause_after(1000) == MAX_PAUSE_S


def test_kinds_do_not_wait_for_each_other() -> None:
    pace = Pace()
    pace.note_failure("admin", 0.0)
    assert (pace.failures("admin"), pace.failures("shard")) == (1, 0)
    assert "admin" in repr(pace)


def test_what_is_due_is_due_once() -> None:
    pace = Pace({"shard": 5.0, "admin": 9.0})
    assert pace.wait_s(4.0, 10.0) == 1.0
    assert pace.wait_s(4.0, 0.5) == 0.5
    assert pace.take_due(4.9) == []
    assert pace.take_due(5.0) == ["shard"]
    assert pace.take_due(5.0) == []
    assert pace.wait_s(20.0, 1.0) == 0.0


def test_who_waits_already_is_not_put_off_again() -> None:
    pace = Pace({"shard": 5.0})
    pace.put_off("shard", 4.9)
    assert pace.again == {"shard": 5.0}


def test_failures_are_forgiven_and_forgotten() -> None:
    pace = Pace()
    pace.note_failure("shard", 0.0)
    pace.note_failure("shard", FORGET_S)
    assert pace.failures("shard") == 2
    pace.note_failure("shard", 2 * FORGET_S + 1)
    assert pace.failures("shard") == 1
    pace.forgive("shard")
    assert pace.failures("shard") == 0
