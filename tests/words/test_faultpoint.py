"""Places to die at: which process dies, and which does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longwire.words import faultpoint

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
