"""Many readers of few streams: engine, gateway of several shards, and as many load processes as the readers need.

What lives here: what channels.py and held.py put on, and what they measure of it.
What must not: how many there are, how fast, and what is to be reached.

Each stream is started by one POST that asks to run on (Longwire-On-Disconnect) and leaves; all readers come by
GET /v1/streams/{id}, from the first event on. The engine has priority (as root): its lateness is no delay of the gateway's.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import procstat
from channel_load import FIRST_SOURCE, SOURCES
from children import RunFailed, Worker
from gateway import Gateway
from load import BODY
from outcome import put_first
from trial import MAX_LATE_MS
from work import INVALID, Figures, Round, Work, say

OPEN_WITHIN_S = 180.0
FINISH_WITHIN_S = 60.0
SLOW_RATE = 0.25
"""Events per second while readers come: a stream must not be silent, and what each reader is sent first should be short."""
DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many of each there are."""

    streams: int
    readers: int
    shards: int
    loads: int


class Stage:
    """Everything that runs, until the stack is closed."""

    def __init__(self, size: Size, directory: Path, stack: ExitStack) -> None:
        self.size = size
        arguments = ["--rate", str(SLOW_RATE), "--streams", str(size.streams)]
        self.engine = stack.enter_context(Worker("channel_engine.py", arguments, None, directory / "engine.log"))
        put_first(self.engine)
        self.gateway = stack.enter_context(Gateway(int(self.engine.answer()["port"]), directory, size.shards))
        self.gateway.wait_ready()
        self.loads = [
            stack.enter_context(self._load(number, directory / f"load_{number}.log")) for number in range(size.loads)
        ]

    def _load(self, number: int, log: Path) -> Worker:
        source = FIRST_SOURCE + number * SOURCES
        arguments = ["--port", str(self.gateway.port), "--first-source", str(source)]
        return Worker("channel_load.py", arguments, None, log)

    def start(self) -> list[str]:
        """All streams; their ids."""
        say(f"starting {self.size.streams} streams")
        return [start_stream(self.gateway.port) for _ in range(self.size.streams)]

    def open(self, ids: Sequence[str]) -> dict[str, Any]:
        """All readers; what the loads say of them."""
        say(f"opening {self.size.readers:,} readers")
        each = self.size.readers // self.size.streams // self.size.loads
        began = time.monotonic()
        for load in self.loads:
            tell(load, "read", ids=ids, readers=each, within_s=OPEN_WITHIN_S)
        found = total([load.answer(OPEN_WITHIN_S + 60.0) for load in self.loads])
        found["opened_s"] = time.monotonic() - began
        self.gateway.must_live()
        if not found["open"]:
            raise RunFailed(f"no reader came through: {found['examples']}; {self.gateway.last_words()}")
        return found

    def window(self, rate: float, settle_s: float, seconds: float) -> Figures:
        """Every stream at so many events per second, after what an earlier window left behind has been read."""
        self.engine.ask("pace", rate=SLOW_RATE)
        time.sleep(DRAIN_S)
        self.engine.ask("pace", rate=rate)
        time.sleep(settle_s)
        self.engine.ask("begin")
        children = [self.gateway.pid, self.engine.pid, *(load.pid for load in self.loads)]
        for load in self.loads:
            load.ask("begin")
        before = [spent_ms(pid) for pid in children]
        time.sleep(seconds)
        after = [spent_ms(pid) for pid in children]
        found = total([load.ask("end") for load in self.loads])
        late = self.engine.ask("late")
        self.gateway.must_live()
        used = [b - a for a, b in zip(before, after, strict=True)]
        return delivered(found, rate * found["open"]) | {
            "rate": rate,
            "engine_late_p99_ms": late["late_p99_ms"],
            "engine_skipped": late["skipped"],
            "gateway_cores": used[0] / 1000 / seconds,
            "engine_cores": used[1] / 1000 / seconds,
            "load_cores": sum(used[2:]) / 1000 / seconds,
            "cpu_us": used[0] * 1000 / max(1, found["events"]),
        }

    def finish(self) -> dict[str, Any]:
        """Every stream ends; what the loads say."""
        self.engine.ask("finish")
        self.engine.ask("pace", rate=1.0)  # each ends at its next turn
        for load in self.loads:
            tell(load, "finish", within_s=FINISH_WITHIN_S)
        return total([load.answer(FINISH_WITHIN_S + 60.0) for load in self.loads])


def tell(worker: Worker, do: str, **details: object) -> None:
    """An order whose answer is waited for later: all loads do it at once."""
    assert worker.popen.stdin is not None
    worker.popen.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
    worker.popen.stdin.flush()


def start_stream(port: int) -> str:
    """A stream that runs on without a reader; its id."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        wish = {"content-type": "application/json", "longwire-on-disconnect": "run"}
        connection.request("POST", "/v1/chat/completions", BODY, wish)
        response = connection.getresponse()
        found = response.getheader("x-stream-id")
        if response.status != 200 or not found or response.getheader("longwire-on-disconnect") != "run":
            raise RunFailed(f"no stream that runs on: {response.status} {response.headers.items()}")
        return found
    finally:
        connection.close()


def total(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all loads: sums; of percentiles the worst, which no percentile of all together exceeds; of seconds the most."""
    found: dict[str, Any] = {}
    for answer in answers:
        for key, value in answer.items():
            if key == "examples":
                found[key] = found.get(key, []) + value
            elif key.startswith("p") or key == "seconds":
                found[key] = max(found.get(key, value), value)
            else:
                found[key] = found.get(key, 0) + value
    return found


def delivered(found: dict[str, Any], due_per_s: float) -> Figures:
    """What readers got in a window, and as a share of what was due."""
    events = found["events"]
    per_s = events / found["seconds"]
    return {
        "events_per_s": per_s,
        "share": per_s / due_per_s if due_per_s else 0.0,
        "mean_ms": found["sum_ms"] / max(1, events),
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "readers": float(found["open"]),
        "errors": float(found["errors"]),
    }


def judge(work: Work, found: Round, end: dict[str, Any], readers: int) -> None:
    """A run in which a reader had less than everything is shown, and not cited; nor is a window of a late engine."""
    if end["errors"] or end["complete"] != readers:
        work.remark(
            f"NOT VALID: {end['complete']} of {readers} readers had all; {end['errors']} errors: {end['examples']}"
        )
        for figures in found.values():
            figures[INVALID] = 1.0
    for name, figures in found.items():
        late = figures["engine_late_p99_ms"]
        if late > MAX_LATE_MS or figures["engine_skipped"]:
            work.remark(
                f"{name}: NOT VALID: the engine stand-in was {late:.1f} ms late (p99): it had too little of a core"
            )
            figures[INVALID] = 1.0


def spent_ms(pid: int) -> float:
    """CPU time of a process and all below it, up to now."""
    reading = procstat.cpu(pid, 0)
    return reading.user_ms + reading.system_ms


def stopped_by(figures: Figures) -> str:
    """Where the time of the cores went."""
    parts = [figures[f"{who}_cores"] for who in ("gateway", "load", "engine")]
    cores = len(os.sched_getaffinity(0))
    return "gateway {:.2f}, load {:.2f}, engine stand-in {:.2f}: {:.2f} of {} cores in use".format(
        *parts, sum(parts), cores
    )
