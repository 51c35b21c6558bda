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
from typing import Protocol, cast

LAST_WORDS_LIMIT_S = 0.25
"""How long after its death the rest of what it wrote is waited for: it lies in the pipes, ready to be read."""

KEPT_BYTES = 4096
"""Of the child's last words, for the reason that is logged when it dies; also more than any report is long."""

STDOUT, STDERR = 1, 2


_NATIVE_PREFIX = re.compile(r"[\d.]+ [A-Z] ")
"""llama.cpp's time stamp and severity."""


class Child(Protocol):
    """One running child. It calls back ``on_report(url)`` at most once, then ``on_exit(reason)`` exactly once."""

    def kill(self) -> None:
        """SIGKILL: it holds nothing that would need an orderly end, and native code cannot hold that up."""


OnReport = Callable[[str], None]
OnExit = Callable[[str], None]
Spawn = Callable[[list[str], OnReport, OnExit], Child]


class ChildProcess(asyncio.SubprocessProtocol):
    """The real :class:`Child`: a subprocess with three pipes (their contract: local_child.py).

    A line on stdout is the report; nothing here waits for the end of a pipe. Under uvloop a child inherits a second descriptor
    of each of its pipes, and so may a process that is started at the same moment: an end can be late, or never come.
    """

    def __init__(self, command: list[str], on_report: OnReport, on_exit: OnExit) -> None:
        self._on_report = on_report
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._killed = False
        self._report = b""
        self._error_text = ""
        self._last_words = b""
        self._open_pipes = {STDOUT, STDERR}
        self._last_call: asyncio.TimerHandle | None = None
        self._task = self._loop.create_task(self._start(command), name="local-engine")

    def kill(self) -> None:
        self._killed = True
        if self._transport and self._transport.get_returncode() is None:
            self._transport.kill()

    async def _start(self, command: list[str]) -> None:
        try:
            await self._loop.subprocess_exec(lambda: self, *command)
        except OSError as error:
            self._on_exit(f"it could not be started: {error}")

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        if self._killed:
            self._transport.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._last_words = (self._last_words + data)[-KEPT_BYTES:]
        elif not self._report.endswith(b"\n"):
            self._report += data
            if self._report.endswith(b"\n") or len(self._report) > KEPT_BYTES:
                self._take_report()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if self._last_call and not self._open_pipes:
            self._finish()

    def process_exited(self) -> None:
        self._last_call = self._loop.call_later(LAST_WORDS_LIMIT_S, self._finish)
        if not self._open_pipes:
            self._finish()

    # What follows from it.

    def _take_report(self) -> None:
        try:
            report = json.loads(self._report)
        except ValueError:
            report = None
        if not isinstance(report, dict):
            self._error_text = "its report could not be read"
            self.kill()
            return
        self._error_text = str(report.get("error", ""))
        if url := report.get("url"):
            self._on_report(url)

    def _finish(self) -> None:
        assert self._transport is not None
        assert self._last_call is not None
        if self._last_call.cancelled():
            return
        self._last_call.cancel()
        code = self._transport.get_returncode()
        self._transport.close()  # with its pipes: uvloop's own close would wait for their ends
        self._on_exit(_describe_exit(code or 0, self._error_text, self._last_words))


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
