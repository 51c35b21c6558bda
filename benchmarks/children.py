"""The processes of a run: pinned to a core, bound to this one's life, and stopped by their own pids.

What lives here: starting, asking and stopping children.
What must not: what they are for.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent
STOP_WITHIN_S = 10.0
ANSWER_WITHIN_S = 20.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class RunFailed(Exception):
    """A run that gave no figures; the text says why, for whoever runs the benchmark."""


def raise_descriptor_limit() -> int:
    """Soft limit up to the hard one, for us and all children; returns it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Child:
    """One process in a session of its own, so that Ctrl-C reaches only us and we can end the run in order."""

    def __init__(self, name: str, argv: Sequence[str], core: int | None, log: Path, *, talks: bool = False) -> None:
        self.name = name
        self.log = log
        pipe = subprocess.PIPE if talks else None

        def before_exec() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if core is not None:
                os.sched_setaffinity(0, {core})

        with log.open("ab") as output:
            try:
                self.popen = subprocess.Popen(
                    argv,
                    stdin=pipe or subprocess.DEVNULL,
                    stdout=pipe or output,
                    stderr=output,
                    cwd=log.parent,
                    start_new_session=True,
                    preexec_fn=before_exec,  # noqa: PLW1509 (one thread only)
                )
            except OSError as error:
                raise RunFailed(f"{name} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self.popen.pid

    def last_words(self) -> str:
        """The end of what it wrote to its log."""
        return self.log.read_text(errors="replace")[-600:].strip() or "(it wrote nothing)"

    def must_live(self) -> None:
        """Raise when it is gone."""
        if self.popen.poll() is not None:
            raise RunFailed(f"{self.name} ended with status {self.popen.returncode}: {self.last_words()}")

    def stop(self) -> None:
        """Ask it to leave, and insist when it does not."""
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.popen.poll() is not None:
            return
        self.popen.terminate()
        try:
            self.popen.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # its session is its own: only what it started is in it
            self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Worker(Child):
    """One of our own scripts, which takes orders (control.py)."""

    def __init__(self, script: str, arguments: Sequence[str], core: int | None, log: Path) -> None:
        super().__init__(script, [sys.executable, str(HERE / script), *arguments], core, log, talks=True)
        self._unread = b""

    def ask(self, do: str, **details: float) -> dict[str, Any]:
        """One order, one answer; with ``within_s`` an order that may take that long."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise RunFailed(f"{self.name} is gone: {self.last_words()}") from error
        return self.answer(ANSWER_WITHIN_S + details.get("within_s", 0.0))

    def answer(self, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        """The next line that it says."""
        assert self.popen.stdout is not None
        descriptor = self.popen.stdout.fileno()
        deadline = time.monotonic() + within_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(descriptor, 65536) if ready else b""
            if not data:
                why = "is gone" if ready else f"has not answered within {within_s:g} s"
                raise RunFailed(f"{self.name} {why}: {self.last_words()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer
