"""The roll: a gateway finds those of an earlier one that still run, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwire.keeper.roll import FILE, Roll, found_line


@pytest.fixture
def somebody() -> Iterator[int]:
    """A process that runs for as long as the test."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


def lose_keeper(folder: Path, pid: int = 1 << 22) -> None:
    """The keeper of the file is one that has ended."""
    told = json.loads((folder / FILE).read_text())
    told["processes"][0][1] = pid
    (folder / FILE).write_text(json.dumps(told))


def test_who_is_left_of_an_earlier_gateway_is_found(tmp_path: Path, somebody: int) -> None:
    Roll(str(tmp_path)).write([("shard", somebody), ("admin", 1 << 22)])
    lose_keeper(tmp_path)
    left = Roll(str(tmp_path)).call()
    assert left == [("shard", somebody)]
    assert f"shard {somebody}:" in found_line(left) and "\n" not in found_line(left)


def test_a_gateway_whose_keeper_lives_is_not_an_earlier_one(tmp_path: Path, somebody: int) -> None:
    Roll(str(tmp_path)).write([("shard", somebody)])
    assert Roll(str(tmp_path)).call() == []


def test_a_number_that_was_given_out_again_is_somebody_else(tmp_path: Path, somebody: int) -> None:
    Roll(str(tmp_path)).write([("shard", somebody)])
    lose_keeper(tmp_path, os.getpid() + 1)
    told = json.loads((tmp_path / FILE).read_text())
    told["processes"][1][2] += 1
    (tmp_path / FILE).write_text(json.dumps(told))
    assert Roll(str(tmp_path)).call() == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"processes": []}', '{"processes": [["shard"]]}', "\xff", "{" * 100_000]
)
def test_a_file_that_is_none_of_ours_says_nothing(tmp_path: Path, text: str) -> None:
    assert Roll(str(tmp_path)).call() == []
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert Roll(str(tmp_path)).call() == []


def test_without_a_folder_nothing_is_written_and_a_lost_one_stops_nobody(tmp_path: Path) -> None:
    for roll in (Roll(""), Roll(str(tmp_path / "nowhere"))):
        roll.write([("shard", 1)])
        assert roll.call() == []
        roll.remove()
    assert list(tmp_path.iterdir()) == []


def test_when_all_have_ended_it_is_gone(tmp_path: Path) -> None:
    roll = Roll(str(tmp_path))
    roll.write([])
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    roll.remove()
    assert list(tmp_path.iterdir()) == []
