"""Sends what is due, reads what comes, and keeps a record of each.

What lives here: one process's connections, requests under way, time limits and cuts. asyncio's side of the bench.
What must not: reading answers (reading.py), figures (figures.py), talking to the parent (worker.py).
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from typing import Any

from .checking import Checker
from .connection import Connection
from .doors import DOORS
from .job import Job
from .lateness import NOTED_NS, Lateness
from .outcomes import Outcome
from .prompts import Requests
from .reading import AnswerReader
from .records import Cut, Record
from .schedule import Load, arrivals, share_of, slots_of

SWEEP_S = 0.25
"""Between two looks at what is overdue: fine enough for limits of seconds."""
DONE_FOR_NS = 1_000_000_000
"""After the end marker the body should end at once. One that does not costs its connection, and nothing else."""
PAUSE_AFTER_FAILURE_S = 0.1
"""Of a closed loop's slot: a refusal comes in microseconds, and would be asked for again at once."""
MAX_RESUME_TRIES = 10
RESUME_PAUSE_S = 0.2
"""Together two seconds: a gateway that takes a stream over needs less."""
MAX_SHOWN_TTFTS = 10_000
"""For the live view, between two looks."""


class Live:
    """A request under way."""

    __slots__ = ("connection", "reader", "record", "slot", "target", "tries")

    def __init__(self, record: Record, reader: AnswerReader, slot: int) -> None:
        self.record = record
        self.reader = reader
        self.slot = slot
        self.connection: Connection | None = None
        self.target = b""
        """Where it can be resumed; set once it was cut."""
        self.tries = 0

    def __repr__(self) -> str:
        return f"<Live {self.record!r}>"


class Sender:
    """One process's part of the load. ``records`` are complete when ``run`` has returned."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._loop = loop
        self._requests = Requests(job)
        self._door = DOORS[job.door]
        self._tls: Any = ssl.create_default_context() if job.tls else None
        self._lateness = Lateness(loop)
        self._chance = random.Random(job.seed * 1009 + job.worker)
        self._live: dict[AnswerReader, Live] = {}
        self._idle: deque[Connection] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connects = 0
        self._go_ns = self._end_ns = 0
        self._stop = asyncio.Event()
        self._sent = self._failed = self._tokens = 0
        self.records: list[Record] = []
        self.skipped = 0
        self.uncut = 0
        """Cuts that were due and found no stream that can be resumed."""
        self.examples: dict[str, str] = {}
        self.fresh_ttfts_ms: list[float] = []

    def __repr__(self) -> str:
        return f"<Sender {self._sent} sent, {len(self._live)} live>"

    def statistics(self) -> dict[str, Any]:
        """What the live view shows, since the last call as to TTFTs."""
        ttfts, self.fresh_ttfts_ms = self.fresh_ttfts_ms, []
        return {
            "sent": self._sent,
            "live": len(self._live),
            "done": len(self.records) - self._failed,
            "failed": self._failed,
            "tokens": self._tokens + sum(len(live.record.times) for live in self._live.values()),
            "ttfts_ms": ttfts[:MAX_SHOWN_TTFTS],
        }

    @property
    def lags(self) -> Any:
        """How late the loop was, tick by tick, in nanoseconds."""
        return self._lateness.lags

    def stop(self) -> None:
        """Send nothing more, and let ``run`` return at once."""
        self._stop.set()

    async def run(self, go_ns: int) -> None:
        """All of it, from ``go_ns`` on."""
        job = self.job
        self._go_ns = go_ns
        self._end_ns = go_ns + int((job.warm_up_s + job.duration_s) * 1e9)
        self._lateness.start()
        works = [self._sweep(), self._closed_loop() if job.concurrency else self._open_loop()]
        if job.resets_per_s:
            works.append(self._cut_some())
        tasks = [self._loop.create_task(work) for work in works]
        stopped = self._loop.create_task(self._until_done(tasks[1]))
        await stopped
        self._lateness.stop()
        for task in [*tasks, *self._tasks]:
            task.cancel()
        await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
        self._end_all()

    async def _until_done(self, sending: asyncio.Task[None]) -> None:
        """Until all is sent and ended, or the drain time is over, or it was stopped."""
        waiting = self._loop.create_task(self._stop.wait())
        await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        deadline_ns = self._end_ns + int(self.job.drain_s * 1e9)
        while self._live and not self._stop.is_set() and time.monotonic_ns() < deadline_ns:
            await asyncio.wait({waiting}, timeout=0.02)
        waiting.cancel()

    def _end_all(self) -> None:
        for live in list(self._live.values()):
            self._finish(live, Outcome.COMPLETE if live.reader.is_done else Outcome.UNFINISHED)
        for connection in list(self._idle):
            connection.close()
        self._idle.clear()

    # Sending.

    async def _open_loop(self) -> None:
        job = self.job
        due = deque(share_of(arrivals(job.load, job.seed), job.worker, job.workers))
        while due:
            now_ns = time.monotonic_ns() - self._go_ns
            while due and due[0][1] * 1e9 <= now_ns:
                number, at_s = due.popleft()
                self._launch(Record(number, self._go_ns + int(at_s * 1e9)), 0)
            if due:
                await asyncio.sleep(max(0.0, due[0][1] - (time.monotonic_ns() - self._go_ns) / 1e9))

    async def _closed_loop(self) -> None:
        """Each slot begins in its turn within the warm-up: all at once would meet an endpoint as no load ever does."""
        job = self.job
        slots = slots_of(job.concurrency, job.worker, job.workers)
        for slot in range(slots):
            due_ns = self._go_ns + int(job.warm_up_s * 1e9 * slot / slots)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            self._next_of(slot + 1)
        await asyncio.sleep(max(0.0, (self._end_ns - time.monotonic_ns()) / 1e9))

    def _next_of(self, slot: int) -> None:
        """A closed loop's next request; slots are counted from 1."""
        now_ns = time.monotonic_ns()
        if now_ns < self._end_ns and not self._stop.is_set():
            self._launch(Record(self._sent * self.job.workers + self.job.worker, now_ns), slot)

    def _launch(self, record: Record, slot: int) -> None:
        if len(self._live) >= self.job.max_in_flight:
            self.skipped += 1
            return
        record.sent_ns = time.monotonic_ns()
        self._sent += 1
        reader = self._reader_of(record)
        if self.job.verify:
            reader.check = Checker(record, self.job.answer_seed, self.job.tokens)
        live = self._live[reader] = Live(record, reader, slot)
        self._submit(live)

    def _reader_of(self, record: Record, *, is_resumed: bool = False) -> AnswerReader:
        return AnswerReader(record, self._door, self._lateness.was_late, is_resumed=is_resumed)

    def _submit(self, live: Live) -> None:
        """Over an idle connection, the one that was used last; else over a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._begin(live, connection)
                return
        self._spawn(self._connect(live))

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, live: Live) -> None:
        job = self.job
        self._connects += 1
        source = (f"127.0.0.{2 + self._connects % job.sources}", 0) if job.sources > 1 else None
        try:
            async with asyncio.timeout(job.timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self), job.host, job.port, ssl=self._tls, local_addr=source
                )
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            self._note(live, Outcome.REFUSED if refused else Outcome.UNREACHABLE, str(error) or type(error).__name__)
            return
        if live.reader not in self._live:
            connection.close()
            return
        self._begin(live, connection)

    def _begin(self, live: Live, connection: Connection) -> None:
        record = live.record
        live.connection = connection
        if live.target:
            request = self._requests.resume(live.target, record.events - 1)
        else:
            request = self._requests.post(record.number)
            record.ready_ns = time.monotonic_ns()
        connection.last_ns = time.monotonic_ns()
        connection.begin(request, live.reader)

    # What connections say.

    def answered(self, connection: Connection, now_ns: int) -> None:
        """A response is over."""
        reader, connection.reader = connection.reader, None
        assert reader is not None
        if reader.reusable and connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        live = self._live.get(reader)
        if live is not None:
            live.connection = None
            status = f"status {reader.head.status}" if reader.head is not None else ""
            self._note(live, reader.outcome, status)

    def lost(self, connection: Connection, error: Exception | None) -> None:
        """A connection has ended."""
        reader, connection.reader = connection.reader, None
        live = self._live.get(reader) if reader is not None else None
        if reader is None or live is None:
            return
        live.connection = None
        reader.receive_eof(is_reset=error is not None)
        if reader.outcome is Outcome.DROPPED and connection.answers and not live.tries:
            # The endpoint has closed an idle connection while the request was on its way: every client asks once more.
            live.tries = 1
            self._ask_again(live)
            return
        self._note(live, reader.outcome, str(error or "closed by the endpoint"))

    def _ask_again(self, live: Live) -> None:
        del self._live[live.reader]
        check = live.reader.check
        live.reader = self._reader_of(live.record, is_resumed=bool(live.target))
        live.reader.check = check
        self._live[live.reader] = live
        self._spawn(self._connect(live))  # Another idle connection may have been closed just so.

    def _note(self, live: Live, outcome: Outcome, words: str) -> None:
        """An ending; of a resumed stream one that may be tried again is tried again."""
        if live.target and outcome is not Outcome.COMPLETE and not live.record.cuts[-1].back_ns:
            if live.tries < MAX_RESUME_TRIES:
                live.tries += 1
                _let_go(live)
                self._loop.call_later(RESUME_PAUSE_S, self._try_again, live)
                return
            outcome = Outcome.NOT_RESUMED
        if outcome.fails:
            self.examples.setdefault(outcome.word, words)
        self._finish(live, outcome)

    def _try_again(self, live: Live) -> None:
        if live.reader in self._live:
            self._ask_again(live)

    def _finish(self, live: Live, outcome: Outcome) -> None:
        record = live.record
        del self._live[live.reader]
        _let_go(live)
        record.outcome = outcome
        record.end_ns = record.end_ns or time.monotonic_ns()
        self.records.append(record)
        self._failed += outcome.fails
        self._tokens += len(record.times)
        if record.times and len(self.fresh_ttfts_ms) < MAX_SHOWN_TTFTS:
            self.fresh_ttfts_ms.append((record.times[0] - record.sent_ns) / 1e6)
        if live.slot:
            if outcome.fails:
                self._loop.call_later(PAUSE_AFTER_FAILURE_S, self._next_of, live.slot)
            else:
                self._loop.call_soon(self._next_of, live.slot)

    # Time limits and cuts.

    async def _sweep(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + int(SWEEP_S * 1e9)
            await asyncio.sleep(SWEEP_S)
            now_ns = time.monotonic_ns()
            if now_ns - due_ns > NOTED_NS:
                continue  # We stood still ourselves: what has come meanwhile is to be read first.
            for live in list(self._live.values()):
                if live.connection is not None:
                    self._check_limits(live, now_ns, (now_ns - live.connection.last_ns) / 1e9)

    def _check_limits(self, live: Live, now_ns: int, silent_s: float) -> None:
        job = self.job
        if live.reader.is_done:
            if now_ns - live.record.end_ns > DONE_FOR_NS:
                self._finish(live, live.reader.outcome)
        elif not live.record.body_ns:
            if silent_s > job.timeout_s:
                self._note(live, Outcome.LATE, f"nothing within {job.timeout_s:g} s")
        elif silent_s > job.silence_s:
            self._note(live, Outcome.SILENT, f"nothing for {job.silence_s:g} s")

    async def _cut_some(self) -> None:
        """Cut a stream, any one, each time that it is due."""
        job = self.job
        load = Load(job.resets_per_s, job.resets_per_s, job.duration_s)
        for _, at_s in share_of(arrivals(load, job.seed), job.worker, job.workers):
            due_ns = self._go_ns + int((job.warm_up_s + at_s) * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            self.cut_one()

    def cut_one(self) -> None:
        """Reset the connection of a stream that has begun, and go on with it over another."""
        able = [live for live in self._live.values() if _resume_target(live)]
        if not able:
            self.uncut += 1
            return
        live = self._chance.choice(able)
        live.target = _resume_target(live)
        connection, live.connection = live.connection, None
        assert connection is not None
        connection.reader = None
        connection.reset()
        live.record.cuts.append(Cut(len(live.record.times), time.monotonic_ns(), 0))
        live.tries = 0
        self._ask_again(live)


def _let_go(live: Live) -> None:
    """End the connection of a request that has no more use for it."""
    connection, live.connection = live.connection, None
    if connection is not None:
        connection.reader = None
        connection.close()


def _resume_target(live: Live) -> bytes:
    """Where a stream can be resumed by cursor, as the gateway has said it; nothing where it cannot be."""
    head = live.reader.head
    if live.connection is None or head is None or not live.record.events or live.reader.is_done:
        return b""
    if live.record.cuts and not live.record.cuts[-1].back_ns:
        return b""  # It is not back from the cut before.
    return live.target or (head.get(b"location") or b"") * (head.get(b"x-stream-id") is not None)
