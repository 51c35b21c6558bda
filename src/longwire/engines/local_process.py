"""The embedded engine's process, from the parent's side: started, listened to, killed.

What lives here: the real child process and the small protocol that a fake one follows in tests.
What must not: when to start or kill it (local_states.py), what runs in it (local_child.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from typing import Protocol

KEPT_STDERR_BYTES = 4096
"""Of the child's last words, for the reason that is logged when it dies."""


_NATIVE_PREFIX = re.compile(r"[\d.]+ [A-Z] ")
"""llama.cpp's time stamp and severity."""


class Child(Protocol):
    """One running child. It calls back ``on_report(url)`` at most once, then ``on_exit(reason)`` exactly once."""

    def kill(self) -> None:
        """SIGKILL: it holds nothing that would need an orderly end, and native code cannot hold that up."""


OnReport = Callable[[str], None]
OnExit = Callable[[str], None]
Spawn = Callable[[list[str], OnReport, OnExit], Child]


class ChildProcess:
    """The real :class:`Child`: an asyncio subprocess with three pipes (their contract: local_child.py)."""

    def __init__(self, command: list[str], on_report: OnReport, on_exit: OnExit) -> None:
        self._on_report = on_report
        self._on_exit = on_exit
        self._killed = False
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(command), name="local-engine")

    def kill(self) -> None:
        self._killed = True
        if self._process and self._process.returncode is None:
            self._process.kill()

    async def _run(self, command: list[str]) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            self._on_exit(f"it could not be started: {error}")
            return
        self._process = process
        if self._killed:
            process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        last_words = asyncio.create_task(_read_end(process.stderr))
        error_text = self._take_report(await _read_line(process.stdout))
        words = await last_words
        code = await process.wait()
        self._on_exit(_describe_exit(code, error_text, words))

    def _take_report(self, line: bytes) -> str:
        """Pass on the address; returns the child's own error message, or nothing."""
        if not line:
            return ""
        try:
            report = json.loads(line)
        except ValueError:
            report = None
        if not isinstance(report, dict):
            self.kill()
            return "its report could not be read"
        if url := report.get("url"):
            self._on_report(url)
        return str(report.get("error", ""))


async def _read_line(pipe: asyncio.StreamReader) -> bytes:
    """One line, or what there is of it.

    Never wait for the pipe's end instead: under uvloop the child has inherited a second descriptor of each of its pipes.
    """
    try:
        return await pipe.readline()
    except ValueError:  # longer than any report
        return b"too long"


async def _read_end(pipe: asyncio.StreamReader) -> bytes:
    """Read a pipe to its end, keeping the last few kilobytes."""
    kept = b""
    while data := await pipe.read(KEPT_STDERR_BYTES):
        kept = (kept + data)[-KEPT_STDERR_BYTES:]
    return kept


def _describe_exit(code: int, error_text: str, last_words: bytes) -> str:
    """One line for the log: how it ended, and why in the words of native code or else its own.

    A start that fails logs the cause first and then what follows from it; after a crash the last line is the nearest.
    """
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [
        _NATIVE_PREFIX.sub("", line).strip() for line in last_words.decode("utf-8", "replace").strip().splitlines()
    ]
    if not lines:
        return "; ".join(filter(None, (how, error_text)))
    return f"{how}; {lines[0 if error_text else -1]}"
