"""Longwire itself, as a process like any other gateway: all rows, and everything that is optional."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.source import ROOT
from tests.e2e.gateways import environment

pytestmark = pytest.mark.e2e

LIMIT_S = 150
PACE = "3"
"""A machine that tests run on is busy: what is right may take longer, and is right all the same."""


def hold(folder: Path, *arguments: str) -> tuple[int, dict[str, object], str]:
    """``longwire conform`` before ``longwire serve``: exit code, JSON, and what was said."""
    start = f"{sys.executable} -P -m longwire serve --port {{port}} --admin-port 0 --engine {{upstream}} --shards 2"
    command = [sys.executable, "-P", "-m", "longwire", "conform", "--start", start]
    done = subprocess.run(
        [
            *command,
            "--json",
            str(folder / "all.json"),
            "--log",
            str(folder / "gateway.log"),
            "--pace",
            PACE,
            *arguments,
        ],
        env=environment(ROOT / "src"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, json.loads((folder / "all.json").read_text()), done.stdout + done.stderr


def test_all_rows_pass_and_all_that_is_optional_is_offered(tmp_path: Path) -> None:
    code, found, said = hold(tmp_path)
    wrong = [case for case in found["cases"] if case["state"] not in ("passed", "offered")]  # type: ignore[attr-defined]
    assert wrong == [], said
    assert code == 0


def test_all_rows_pass_with_streams_beside(tmp_path: Path) -> None:
    code, found, said = hold(tmp_path, "--beside", "100", "--only", "clients")
    assert code == 0, said
    assert found["counts"].keys() == {"passed"}  # type: ignore[attr-defined]
    assert "beside[chat-stream]" in {case["name"] for case in found["cases"]}  # type: ignore[attr-defined]
