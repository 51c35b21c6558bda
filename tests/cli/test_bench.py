"""``longwire bench`` on the command line: files, exit codes, Ctrl-C. The figures are the bench room's tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from longwire.bench.result import read_result

from .conftest import Run

LIMIT_S = 60.0
"""For what takes two seconds; processes are waited for, and a machine may have no time for them."""
SHORT = (
    "--repeats",
    "1",
    "--warm-up-s",
    "0",
    "--duration-s",
    "0.4",
    "--rate",
    "50",
    "--tokens",
    "4",
    "--control",
    "none",
)
FAST = ("--body", '{"sim": {"itl_ms": 1, "ttft_ms": 1}}')


@pytest.mark.parametrize("flag", ["--json", "--markdown", "--html"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(run: Run, flag: str) -> None:
    result = run("bench", "sim", flag, "nowhere/a")
    assert result.exit_code == 2 and "'nowhere' is no directory that can be written to" in result.stderr


@pytest.mark.e2e
def test_a_run_from_start_to_report(run: Run, tmp_path: Path) -> None:
    files = ("--json", "a.json", "--html", "a.html", "--markdown", "a.md", "--raw")
    result = run("bench", "sim", *SHORT, *FAST, *files, "--verify", "--processes", "2", "--fail-if", "ttft.p50_ms > 0")
    assert result.exit_code == 1 and "ttft.p50_ms > 0 holds" in result.stderr
    found = read_result("a.json")
    metrics = {path: each["value"] for path, each in found["metrics"].items() if each["value"] is not None}
    assert metrics["load.sent"] == metrics["load.complete"] == metrics["order.verified"] == 20
    assert metrics["order.lost"] == metrics["failures.share"] == 0
    (repeat,) = found["raw"]
    assert [each["number"] for each in repeat] == list(range(20)) and {len(each["content_ns"]) for each in repeat} == {
        4
    }
    assert "| load.complete " in result.stdout and Path("a.md").read_text() in result.stdout
    assert Path("a.html").read_text().startswith("<!doctype html>")
    assert "repeat 1/1" in result.stderr

    compared = run("bench", "compare", "a.json", "a.json", "--html", "both.html", "--markdown", "both.md")
    assert compared.exit_code == 0, compared.output
    assert "| ttft.p50_ms" in Path("both.md").read_text() and "<svg" in Path("both.html").read_text()


@pytest.mark.e2e
def test_ctrl_c_gives_the_report_so_far(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    command = [
        sys.executable,
        "-m",
        "longwire",
        "bench",
        "sim",
        *SHORT,
        *FAST,
        "--duration-s",
        "600",
        "--json",
        "a.json",
    ]
    env = {**os.environ, "PYTHONPATH": source}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **pipes)
    try:
        assert process.stderr is not None
        while not re.search(r"\b[1-9][0-9]* done", process.stderr.readline()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["stopped"] and not found["valid"] and "It was stopped by hand." in found["problems"]
    assert found["metrics"]["load.complete"]["value"] > 0
    assert "**NOT VALID:** It was stopped by hand." in stdout


def test_an_endpoint_that_is_not_there_is_a_sentence(run: Run, closed_url: str) -> None:
    result = run("bench", closed_url, *SHORT)
    assert result.exit_code == 1
    assert (
        result.stderr.startswith("longwire: ") and "does not answer" in result.stderr and result.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ftp://x",), "is no endpoint"),
        (("sim", "--fail-if", "ttft > 5"), "did you mean"),
        (("sim", "--fail-if", "oops"), "a figure, an operator and a number"),
        (("sim", "--rate", "fast"), "rate"),
        (("sim", "--door", "back"), "sse or chunked"),
        (("sim", "--chaos", "kill-shard=1"), "--admin"),
        (("compare", "no.json", "no.json"), "cannot be read"),
    ],
)
def test_a_wrong_command_line_is_an_error_at_the_start(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("bench", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
