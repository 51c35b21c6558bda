"""One other process that reads large bodies, as an executor that is ready before it is needed.

What lives here: having that process, asking it, and replacing it when it has died. What must not: what it does
(processes/reading.py), and when it is wanted (lifecycle).

It is executed, not forked: a fork would carry every socket of this process along. And it is none of multiprocessing's: such a
process imports all that its parent has, which takes it ten times as long and five times the memory, all the time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "longwire.processes.reading")


class ReadingProcess(Executor):
    """One other process, for what would hold up the loop; a new one takes its place when it has died.

    All waiting is done by a thread of its own, which also starts the process: the kernel ends a process with the *thread* that
    has started it, where it was asked to.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reading")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._asked = 0

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
        """Have a process, with its imports done. Called now and then, it replaces one that has died since."""
        if self.pid is None and not self._is_closed:
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

    # In the thread.

    def _ask(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            process = self._living()
        assert process.stdin is not None and process.stdout is not None
        self._asked += 1
        try:
            pickle.dump((fn, args, kwargs), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            is_well, answer = pickle.load(process.stdout)  # noqa: S301 - from our own child
        except (OSError, EOFError, pickle.UnpicklingError) as exc:
            with self._lock:
                self._bury()
            raise BrokenExecutor("The process that reads large bodies has died.") from exc
        if not is_well:
            raise answer
        return answer

    def _living(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise BrokenExecutor("There is no process for large bodies any more.")
        if self.pid is None:
            self._bury()
            try:
                self._process = subprocess.Popen(
                    [*COMMAND, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            except OSError as exc:
                raise BrokenExecutor(f"No process can be started for large bodies: {exc}") from exc
        assert self._process is not None
        return self._process

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
