"""Longwire itself, as a process like any other gateway: all rows, and everything that is optional."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.source import ROOT
from tests.e2e.gateways import environment

pytestmark = pytest.mark.e2e

LIMIT_S = 150
PACE = "3"
"""A machine that tests run on is busy: what is right may take longer, and is right all the same."""


class Examination:
    """``longwire conform`` before ``longwire serve``."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.report = folder / "all.json"
        start = f"{sys.executable} -P -m longwire serve --port {{port}} --admin-port 0 --engine {{upstream}} --shards 2"
        command = [sys.executable, "-P", "-m", "longwire", "conform", "--start", start, "--json", str(self.report)]
        self.process = subprocess.Popen(
            [*command, "--log", str(folder / "gateway.log"), "--pace", PACE, *arguments],
            env=environment(ROOT / "src"),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self) -> tuple[int, dict[str, object], str]:
        """Exit code, JSON, and what was said."""
        said, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, json.loads(self.report.read_text()), said

    def end(self) -> None:
        """If nobody has waited: by the signal upon which it ends the gateway, too."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def examinations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Examination]]:
    """All of them, side by side: each waits most of the time."""
    begun = {
        name: Examination(tmp_path_factory.mktemp(name), *arguments)
        for name, arguments in {"alone": (), "beside": ("--beside", "100", "--only", "clients")}.items()
    }
    yield begun
    for each in begun.values():
        each.end()


def test_all_rows_pass_and_all_that_is_optional_is_offered(examinations: dict[str, Examination]) -> None:
    code, found, said = examinations["alone"].wait()
    wrong = [case for case in found["cases"] if case["state"] not in ("passed", "offered")]  # type: ignore[attr-defined]
    assert wrong == [], said
    assert code == 0


def test_all_rows_pass_with_streams_beside(examinations: dict[str, Examination]) -> None:
    code, found, said = examinations["beside"].wait()
    assert code == 0, said
    assert found["counts"].keys() == {"passed"}  # type: ignore[attr-defined]
    assert "beside[chat-stream]" in {case["name"] for case in found["cases"]}  # type: ignore[attr-defined]
