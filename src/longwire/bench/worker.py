"""``python -m longwire.bench.worker``: a process that sends.

What lives here: its conversation with the parent. What must not: sending (sender.py).

On stdin: the order, a line; then ``go NANOSECONDS``; then, perhaps, ``stop``. On stdout: ``ready``, lines of progress, in the
end ``done`` with the sizes of what follows: records, times, lags. When stdin ends, the parent is gone, and so are we.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from typing import Any

import uvloop

from .job import Job
from .records import pack
from .sender import Sender

PROGRESS_S = 0.5
READ_BYTES = 65536


class Orders(asyncio.Protocol):
    """The lines after the first."""

    def __init__(self) -> None:
        self.go: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.sender: Sender | None = None
        self.is_over = False
        self._pending = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            word, _, argument = line.partition(b" ")
            if word == b"go" and not self.go.done():
                self.go.set_result(int(argument))
            elif word == b"stop" and self.sender is not None:
                self.sender.stop()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over:
            os._exit(1)  # What has been measured has nobody to go to.


def say(**words: Any) -> None:
    """One line to the parent."""
    sys.stdout.buffer.write(json.dumps(words, separators=(",", ":")).encode() + b"\n")
    sys.stdout.buffer.flush()


async def work(job: Job) -> None:
    """One repeat, from the order to the report."""
    loop = asyncio.get_running_loop()
    _, orders = await loop.connect_read_pipe(Orders, sys.stdin.buffer)
    sender = orders.sender = Sender(job, loop)
    say(ready=True)
    go_ns = await orders.go
    settle_down()
    ticker = loop.create_task(_tell(sender))
    cpu_s, wall_ns = time.process_time(), time.monotonic_ns()
    await sender.run(go_ns)
    cpu_s = time.process_time() - cpu_s
    wall_s = (time.monotonic_ns() - wall_ns) / 1e9
    ticker.cancel()
    orders.is_over = True
    report(sender, cpu_s, wall_s)


async def _tell(sender: Sender) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        say(progress=sender.statistics())


def report(sender: Sender, cpu_s: float, wall_s: float) -> None:
    """All that was measured."""
    rows, times = pack(sender.records)
    lags = sender.lags.tobytes()
    say(
        progress=sender.statistics(),
        done={
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "skipped": sender.skipped,
            "uncut": sender.uncut,
            "examples": sender.examples,
            "sizes": [len(rows), len(times), len(lags)],
        },
    )
    for part in (rows, times, lags):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def settle_down() -> None:
    """No pauses by the collector while something is measured: what a stream leaves behind has no cycles for long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> None:
    """Read the order, do it, and leave without ceremony."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it says stop
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with os.fdopen(0, "rb", buffering=0, closefd=False) as unbuffered:  # what follows is the loop's
        line = unbuffered.readline()
    if not line:
        sys.exit(1)
    uvloop.run(work(Job.decode(line)))
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
