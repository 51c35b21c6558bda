"""One other process that reads large bodies, as an executor that is ready before it is needed.

What lives here: having that process, asking it, and replacing it when it has died. What must not: what it does
(processes/reading.py), and when it is wanted (lifecycle).

It is executed, not forked: a fork would carry every socket of this process along. And it is none of multiprocessing's: such a
process imports all that its parent has, which takes it ten times as long and five times the memory, all the time.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from .words.clock import Clock
from .words.settings import MIB

log = logging.getLogger("longwire.reading")

COMMAND = (sys.executable, "-P", "-m", "longwire.processes.reading")
FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 60.0
"""Before one is started after the second of several deaths in a row, doubled for each further one: the first may be a chance.
An interpreter that starts takes a core for half a second: once a minute that is a hundredth of a core, and whoever has mended
the machine waits no longer."""
LIVED_S = 60.0
"""One that was there for so long could live: its death has nothing to do with those before it."""
ANSWER_S, ANSWER_S_PER_MIB = 10.0, 1.0
"""How long an answer may take before the process is taken for hung, as one that was stopped: twenty times what an
interpreter takes to start, and ten times what a MiB of nothing but brackets takes, which is the slowest that there is. Whoever
asked goes on without it, and so late only where something is very wrong."""
FAREWELL_S = 1.0
"""For one that no longer answers to end by itself. Killed at once, its exit status would be of our making."""


class Asked(NamedTuple):
    """A question that waits for its answer, and until when it may."""

    process: subprocess.Popen[bytes]
    due_s: float


class ReadingProcess(Executor):
    """One other process, for what would hold up the loop; a new one takes its place when it has died.

    All waiting is done by a thread of its own, which also starts the process: the kernel ends a process with the *thread* that
    has started it, where it was asked to.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "reading")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._under_way: Asked | None = None
        """Written by the thread, and looked at by :meth:`prepare`."""
        self._hung: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self._deaths = 0
        """In a row, none of them long after its birth."""
        self._born_s = self._not_before_s = 0.0

    def __repr__(self) -> str:
        return f"<ReadingProcess {self.pid or 'not started'}, asked {self._asked} times>"

    @property
    def pid(self) -> int | None:
        """The process that lives now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of any executor. What a process was doing that dies has failed with BrokenExecutor; the next gets a new one."""
        return self._thread.submit(self._ask, fn, args, kwargs)

    def prepare(self) -> None:
        """Have a process, with its imports done. Called now and then, it replaces one that has died since, or that hangs."""
        self._end_hung()
        if self.pid is None and not self._is_closed and self._clock.now() >= self._not_before_s:
            self.submit(os.getpid)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the process; with ``cancel_futures`` at once, whatever it is doing."""
        if wait and not cancel_futures:
            self._thread.shutdown()
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        self._thread.shutdown(wait, cancel_futures=cancel_futures)
        with self._lock:
            self._bury()

    def _end_hung(self) -> None:
        """Kill one that owes an answer for too long: its pipes break then, and the thread that waits at them goes on."""
        asked = self._under_way
        if asked is not None and self._hung is not asked.process and self._clock.now() > asked.due_s:
            self._hung = asked.process
            asked.process.kill()

    # In the thread.

    def _ask(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Before anything else: a fault in that is no fault of the process.
        question = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            process = self._living()
        self._under_way = Asked(process, self._clock.now() + ANSWER_S + ANSWER_S_PER_MIB * len(question) / MIB)
        self._asked += 1
        try:
            is_well, answer = _put(process, question)
        except Exception as exc:  # a broken answer makes anything of unpickling; whoever asked goes on without
            self._under_way = None
            with suppress(subprocess.TimeoutExpired):
                process.wait(FAREWELL_S)
            with self._lock:
                self._lose("no answer in time" if self._hung is process else type(exc).__name__)
            raise BrokenExecutor("The process that reads large bodies has died, or said what is no answer.") from exc
        self._under_way = None
        if not is_well:
            raise answer
        return answer

    def _living(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise BrokenExecutor("There is no process for large bodies any more.")
        if self.pid is None:
            self._lose("")
            if self._clock.now() < self._not_before_s:
                raise BrokenExecutor("No process for large bodies has lived; the next one is not due yet.")
            self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        self._born_s = self._clock.now()
        try:
            self._process = subprocess.Popen(
                [*COMMAND, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as exc:
            self._note_death(None, str(exc))
            raise BrokenExecutor(f"No process can be started for large bodies: {exc}") from exc

    def _lose(self, problem: str) -> None:
        """Bury one that is of no use although nobody has asked it to end, and remember that."""
        process = self._process
        if process is None:
            return
        self._bury()
        if not self._is_closed:
            self._note_death(process.returncode, problem)

    def _note_death(self, status: int | None, problem: str) -> None:
        """Say it once: what cannot live dies again and again, and the second line would say nothing new."""
        now = self._clock.now()
        if now - self._born_s > LIVED_S:
            self._deaths = 0
        self._deaths += 1
        if self._deaths == 1:
            log.warning("reading_process_died", extra={"fields": {"status": status, "problem": problem}})
        else:
            self._not_before_s = now + min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(16, self._deaths - 2))

    def _bury(self) -> None:
        """Leave nothing of a process that is of no more use."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what lay there for a process that is gone is lost
                pipe.close()


def _put(process: subprocess.Popen[bytes], question: bytes) -> tuple[bool, Any]:
    """Whether it went well, and the answer; else the exception that it made.

    Raises:
        Exception: whatever comes of asking a process that is gone, and of an answer that is none.
    """
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(question)
    process.stdin.flush()
    is_well, answer = pickle.load(process.stdout)  # noqa: S301 - from our own child
    if not is_well and not isinstance(answer, Exception):
        raise pickle.UnpicklingError("no exception where one must be")
    return is_well, answer
