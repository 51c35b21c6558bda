"""How the benchmark's own processes are told what to do: one JSON object a line on stdin, one answer a line on stdout.

What lives here: both ends of that conversation, percentiles, and a sleep that ends on time.
What must not: anything about gateways.

A child whose stdin ends has lost its parent and leaves: nothing outlives a benchmark that was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
from array import array
from pathlib import Path
from typing import Any

READ_BYTES = 65536
_MCL_CURRENT = 1
"""mlockall(2): what is mapped now. Not what will be: without privileges there is a limit to it, and memory could not be had."""


class Orders:
    """The child's end: complete lines of stdin, without blocking."""

    def __init__(self) -> None:
        self._pending = b""
        self.ended = False
        os.set_blocking(0, False)

    def take(self) -> list[dict[str, Any]]:
        """The orders that have arrived; ``ended`` is set when there will be no more."""
        try:
            data = os.read(0, READ_BYTES)
        except BlockingIOError:
            return []
        self.ended = not data
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    @staticmethod
    def answer(**facts: object) -> None:
        """One answer to the parent."""
        os.write(1, json.dumps(facts).encode() + b"\n")


def percentile(ordered: array[int] | list[int], share: float) -> float:
    """The nearest-rank percentile of values in order; NaN of none."""
    if not ordered:
        return float("nan")
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


def settle_down() -> None:
    """For a process that measures: no collector pauses of its own, sleeps that end when they should, and code that stays in
    memory: some hosts page out what was not used for a while, and to read it from a disk again takes a while, too."""
    gc.disable()
    gc.freeze()
    with contextlib.suppress(OSError):  # an old kernel: sleeps end up to 50 µs late
        Path("/proc/self/timerslack_ns").write_text("1000")
    with contextlib.suppress(OSError, AttributeError):  # no such call here; where it is not allowed, it changes nothing
        ctypes.CDLL(None).mlockall(_MCL_CURRENT)


def wait_readable(poller: select.epoll, seconds: float) -> None:
    """Wait for events or the time given, to the microsecond: epoll's own timeout counts in milliseconds."""
    select.select([poller.fileno()], [], [], max(0.0, seconds))
