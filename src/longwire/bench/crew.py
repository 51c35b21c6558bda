"""The sending processes of one repeat.

What lives here: starting them together, adding up what they say meanwhile, and gathering what they have measured.
What must not: sending (worker.py), figures (figures.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .children import end_child
from .endpoint import RunFailed
from .job import Job
from .records import TIME, Record, unpack

START_S = 60.0
"""For all processes to be there; each takes some 0.2 s of a core."""
HEAD_START_NS = 200_000_000
"""Between the word and the beginning: each process has heard it by then."""
MAX_LINE_BYTES = 1 << 26
REPORT_S = 120.0
"""How long a process may take to report after the last request could end."""
KEPT_TTFTS = 20_000
"""The latest, for the live view's percentiles."""


@dataclass(slots=True)
class Progress:
    """What the live view shows of one repeat."""

    label: str = ""
    started_s: float = field(default_factory=time.monotonic)
    planned_s: float = 0.0
    by_worker: dict[int, dict[str, int]] = field(default_factory=dict)
    ttfts_ms: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TTFTS))
    tokens_per_s: float = 0.0
    is_over: bool = False
    _looked_s: float = 0.0
    _looked_tokens: int = 0

    def take(self, worker: int, told: dict[str, Any]) -> None:
        """One process's counts."""
        self.ttfts_ms.extend(told.pop("ttfts_ms"))
        self.by_worker[worker] = told

    def totals(self) -> Counter[str]:
        """All processes together."""
        total: Counter[str] = Counter()
        for told in self.by_worker.values():
            total.update(told)
        return total

    def note_rate(self, now_s: float) -> None:
        """Tokens per second since the last call."""
        tokens = self.totals()["tokens"]
        elapsed_s = now_s - (self._looked_s or self.started_s)
        if elapsed_s > 0:
            self.tokens_per_s = (tokens - self._looked_tokens) / elapsed_s
        self._looked_s, self._looked_tokens = now_s, tokens


@dataclass(slots=True)
class Gathered:
    """What all processes of a repeat have measured."""

    go_ns: int
    records: list[Record] = field(default_factory=list)
    lags: array[int] = field(default_factory=lambda: array(TIME))
    cpu_share: float = 0.0
    skipped: int = 0
    uncut: int = 0
    examples: dict[str, str] = field(default_factory=dict)


class Crew:
    """Processes with one job among them."""

    def __init__(self, job: Job, workers: int, progress: Progress) -> None:
        self._jobs = [replace(job, worker=worker, workers=workers) for worker in range(workers)]
        self._limit_s = job.warm_up_s + job.duration_s + job.drain_s + REPORT_S
        self._progress = progress
        self._processes: list[asyncio.subprocess.Process] = []
        self.go_ns = 0

    def __repr__(self) -> str:
        return f"<Crew of {len(self._processes)}>"

    async def start(self) -> int:
        """Start them all, and say go; the time from which the schedule counts.

        Raises:
            RunFailed: one could not be started.
        """
        for job in self._jobs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "longwire.bench.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for us: we tell them to stop, and they report
            )
            self._processes.append(process)
            _stdin(process).write(job.encode())
        try:
            async with asyncio.timeout(START_S):
                for process in self._processes:
                    await _hear(process)
        except TimeoutError:
            raise RunFailed(f"The sending processes were not there within {START_S:g} s.") from None
        self.go_ns = time.monotonic_ns() + HEAD_START_NS
        self._tell(b"go %d\n" % self.go_ns)
        return self.go_ns

    def stop(self) -> None:
        """Have them send nothing more, and report."""
        self._tell(b"stop\n")

    async def gather(self) -> Gathered:
        """Wait for their reports.

        Raises:
            RunFailed: one gave none.
        """
        found = Gathered(self.go_ns)
        try:
            async with asyncio.timeout(self._limit_s):
                reports = [self._follow(number, process, found) for number, process in enumerate(self._processes)]
                await asyncio.gather(*reports)
        except TimeoutError:
            raise RunFailed("A sending process has not reported in time.") from None
        found.records.sort(key=lambda record: record.number)
        return found

    async def close(self) -> None:
        """End those that are left."""
        await asyncio.gather(*map(end_child, self._processes))
        self._processes.clear()

    async def _follow(self, number: int, process: asyncio.subprocess.Process, found: Gathered) -> None:
        while True:
            line = await _hear(process)
            self._progress.take(number, line["progress"])
            if "done" in line:
                break
        done = line["done"]
        assert process.stdout is not None
        try:
            rows, times, lags = [await process.stdout.readexactly(size) for size in done["sizes"]]
        except asyncio.IncompleteReadError:
            raise RunFailed("A sending process has died while it reported.") from None
        found.records += unpack(rows, times)
        found.lags.frombytes(lags)
        found.cpu_share = max(found.cpu_share, done["cpu_s"] / done["wall_s"])
        found.skipped += done["skipped"]
        found.uncut += done["uncut"]
        found.examples |= done["examples"]

    def _tell(self, line: bytes) -> None:
        for process in self._processes:
            if process.returncode is None:
                _stdin(process).write(line)


def _stdin(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


async def _hear(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RunFailed(f"A sending process has died (status {await process.wait()}); what it said is above.")
    told: dict[str, Any] = json.loads(line)
    return told


Show = Callable[[Progress], None]
