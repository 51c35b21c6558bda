"""Points at which a test has a process killed: by name, by detail, in one process only."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from longwire.words import faultpoint


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    pids: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: pids.append(pid))
    yield pids
    faultpoint.disarm()


def test_a_point_is_passed_so_often_and_no_further(killed: list[int]) -> None:
    faultpoint.arm("here=3,there")
    faultpoint.reach("here")
    faultpoint.reach("elsewhere")
    faultpoint.reach("here", "whatever")
    assert not killed
    faultpoint.reach("here")
    assert killed == [os.getpid()]


def test_only_what_the_detail_says_counts(killed: list[int]) -> None:
    faultpoint.arm("here:poison=1")
    faultpoint.reach("here")
    faultpoint.reach("here", "sound")
    assert not killed
    faultpoint.reach("here", "poison")
    assert killed


def test_only_the_process_that_is_named_is_armed(killed: list[int]) -> None:
    faultpoint.arm("here@4=1", 3)
    faultpoint.reach("here")
    assert not killed
    faultpoint.arm("here@4=1", 4)
    faultpoint.reach("here")
    assert killed


def test_things_are_there_until_they_are_taken_away(killed: list[int]) -> None:
    assert not faultpoint.lacks("clone")
    faultpoint.take_away("clone,counters")
    assert faultpoint.lacks("clone") and faultpoint.lacks("counters")
    faultpoint.disarm()
    assert not faultpoint.lacks("clone")
