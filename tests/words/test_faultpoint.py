"""Points at which a test has a process killed: by name, by detail, in one process only, and by a file in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


SRC = Path(__file__).parents[2] / "src"
PASS = (
    "from longwire.words.faultpoint import arm, reach; import sys; arm(sys.argv[1]); [reach('here') for _ in range(3)]"
)


def passes(spec: str) -> subprocess.CompletedProcess[str]:
    """A process that is armed and passes a point three times."""
    return subprocess.run(
        [sys.executable, "-c", PASS, spec], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False
    )


def test_a_list_kills_each_process_at_its_nth_passing() -> None:
    for _ in range(2):
        died = passes("there,here=3")
        assert (died.returncode, died.stderr) == (-signal.SIGKILL, "longwire: killed at here\n")
    assert passes("here=4").returncode == 0


def test_a_file_in_a_folder_kills_one_process(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    (tmp_path / "there").touch()
    assert [passes(f"{tmp_path}/").returncode for _ in range(2)] == [-signal.SIGKILL, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_nothing_is_armed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faultpoint, "_die", pytest.fail)
    faultpoint.reach("here")
    faultpoint.arm("here=2")
    faultpoint.reach("here")
    faultpoint.disarm()
    faultpoint.reach("here")
