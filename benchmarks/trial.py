"""One run: one gateway, one scenario, one window of time.

What lives here: the order of events in a run, and the figures that come out of it.
What must not: how runs are put together and shown (report.py, proxy_cost.py).

A run starts its own engine, gateway and load, so that none inherits another's memory. A few streams are opened before
memory is first read: what a process loads once, on its first stream, is not a cost per stream.
"""

from __future__ import annotations

import http.client
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import procstat
from children import Child, RunFailed, Worker
from event import MODEL
from targets import DIRECT, Target

SETTLES_S = 3.0
"""What a gateway begins by its clock, once it serves."""
CALM_S = 0.5
CALM_MS = 15.0
"""A gateway that uses so little processor has nothing left to do that it does only once, as starting a spare process."""
CALM_WITHIN_S = 15.0
FIRST_STREAMS = 16
FIRST_SETTLE_S = 0.5
READY_WITHIN_S = 30.0
OPEN_WITHIN_S = 120.0
FINISH_WITHIN_S = 60.0
MAX_LATE_MS = 10.0  # beyond that the engine stand-in, not the gateway, shapes the delays
MIN_RATE_SHARE = 0.98
MAX_LOST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scenario:
    """So many streams at so many events per second each."""

    streams: int
    rate: float

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """``500x20``."""
        streams, _, rate = text.partition("x")
        scenario = cls(int(streams), float(rate))
        if scenario.streams <= FIRST_STREAMS or not 0 < scenario.rate <= 1000:
            raise ValueError(f"a scenario has more than {FIRST_STREAMS} streams and at most 1000 events/s each: {text}")
        return scenario

    @property
    def name(self) -> str:
        return f"{self.streams}x{self.rate:g}"

    def __str__(self) -> str:
        return f"{self.streams:,} streams at {self.rate:g} events/s"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all runs."""

    seconds: float
    settle_s: float
    tick_us: int
    gateway_core: int | None
    load_core: int | None
    next_port: Callable[[], int]


@dataclass(slots=True)
class Figures:
    """What one run gave. Of the direct run only the delays mean anything."""

    target: str
    events: int
    seconds: float
    delays_ms: dict[str, float]
    events_per_read: float
    user_us: float
    system_us: float
    core_share: float  # of the gateway's core, used by the gateway
    waited_share: float  # of the window, in which the gateway was ready to run and others had its core
    stolen_share: float  # of the window, in which the hypervisor had its core
    anonymous_kib: float  # per stream, as all below
    shared_kib: float
    sockets_kib: float  # data in TCP buffers, whole host
    kernel_kib: float  # socket, file and epoll objects, whole host: four sockets a stream, or two without a gateway
    engine_late_p99_ms: float
    invalid: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def cpu_us(self) -> float:
        return self.user_us + self.system_us


def run(target: Target | None, scenario: Scenario, conditions: Conditions) -> Figures:
    """Start everything, measure, stop everything."""
    with tempfile.TemporaryDirectory(prefix="proxy_cost_") as name, ExitStack() as stack:
        directory = Path(name)
        engine = stack.enter_context(start_engine(scenario, conditions, directory))
        port = engine_port = int(engine.answer()["port"])
        gateway: Child | None = None
        if target is not None:
            port = conditions.next_port()
            argv = target.command(port, f"http://127.0.0.1:{engine_port}", directory)
            gateway = Child(target.name, argv, conditions.gateway_core, directory / "gateway.log")
            stack.enter_context(gateway)
            wait_ready(gateway, port)
            wait_calm(gateway)
        load = Worker("load.py", ["--port", str(port)], conditions.load_core, directory / "load.log")
        stack.enter_context(load)
        readings = _measure(scenario, conditions, engine, gateway, load)
    return _figures(target.name if target else DIRECT, scenario, readings)


def free_port() -> int:
    """One that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start_engine(scenario: Scenario, conditions: Conditions, directory: Path) -> Worker:
    """The stand-in at the scenario's rate, on the load's core. Its first answer is its port."""
    arguments = ["--port", str(conditions.next_port()), "--rate", str(scenario.rate)]
    arguments += ["--tick-us", str(conditions.tick_us)]
    return Worker("engine.py", arguments, conditions.load_core, directory / "engine.log")


def wait_ready(gateway: Child, port: int) -> None:
    """Until the engine's model can be seen through the gateway."""
    deadline = time.monotonic() + READY_WITHIN_S
    seen = "nothing"
    while time.monotonic() < deadline:
        gateway.must_live()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            response = connection.getresponse()
            seen = f"{response.status} {response.read()[:200]!r}"
            if response.status == 200 and f'"{MODEL}"' in seen:
                return
        except (OSError, http.client.HTTPException) as error:
            seen = repr(error)
        finally:
            connection.close()
        time.sleep(0.05)
    raise RunFailed(f"{gateway.name} is not ready: GET /v1/models gave {seen}; its last words: {gateway.last_words()}")


def wait_calm(gateway: Child) -> None:
    """Until what starts behind the first answer has started: it would be counted as the streams' own."""
    time.sleep(SETTLES_S)
    deadline = time.monotonic() + CALM_WITHIN_S
    used = CALM_MS + 1
    while used > CALM_MS and time.monotonic() < deadline:
        before = procstat.cpu(gateway.pid, 0)
        time.sleep(CALM_S)
        after = procstat.cpu(gateway.pid, 0)
        used = after.user_ms + after.system_ms - before.user_ms - before.system_ms


@dataclass(frozen=True, slots=True)
class _Readings:
    """Everything that was read in one run."""

    empty: procstat.MemoryReading
    full: procstat.MemoryReading
    before: procstat.CpuReading
    after: procstat.CpuReading
    window: dict[str, float]
    engine: dict[str, float]
    end: dict[str, Any]


def _measure(
    scenario: Scenario, conditions: Conditions, engine: Worker, gateway: Child | None, load: Worker
) -> _Readings:
    """Open, settle, measure, and let every stream end properly."""
    measured = gateway or engine  # of the direct run only the delays are used
    core = (conditions.gateway_core if gateway else conditions.load_core) or 0
    open_streams(load, FIRST_STREAMS, measured)
    time.sleep(FIRST_SETTLE_S)
    empty = procstat.memory(measured.pid)
    open_streams(load, scenario.streams - FIRST_STREAMS, measured)
    time.sleep(conditions.settle_s)
    engine.ask("begin")
    load.ask("begin")
    before = procstat.cpu(measured.pid, core)
    time.sleep(conditions.seconds)
    after = procstat.cpu(measured.pid, core)
    window = load.ask("end")
    full = procstat.memory(measured.pid)
    measured.must_live()
    sent = engine.ask("finish")
    end = load.ask("finish", within_s=FINISH_WITHIN_S)
    return _Readings(empty, full, before, after, window, sent, end)


def open_streams(load: Worker, streams: int, measured: Child) -> None:
    """Open more streams; all of them or no run."""
    state = load.ask("open", streams=streams, within_s=OPEN_WITHIN_S)
    measured.must_live()
    if state["errors"]:
        raise RunFailed(
            f"opening streams: {state['errors']} errors, among them {state['examples']}; "
            f"{measured.name} wrote: {measured.last_words()}"
        )


def _figures(name: str, scenario: Scenario, read: _Readings) -> Figures:
    """From readings to figures per event and per stream."""
    events = int(read.window["events"])
    streams = scenario.streams - FIRST_STREAMS  # those that came between the two readings of memory
    user_ms = read.after.user_ms - read.before.user_ms
    system_ms = read.after.system_ms - read.before.system_ms
    window_ms = (read.after.at_s - read.before.at_s) * 1000
    figures = Figures(
        target=name,
        events=events,
        seconds=read.window["seconds"],
        delays_ms={key.removesuffix("_ms"): value for key, value in read.window.items() if key.endswith("_ms")},
        events_per_read=events / max(1, read.window["reads"]),
        user_us=user_ms * 1000 / max(1, events),
        system_us=system_ms * 1000 / max(1, events),
        core_share=(user_ms + system_ms) / window_ms,
        waited_share=(read.after.waited_ms - read.before.waited_ms) / window_ms,
        stolen_share=(read.after.stolen_ms - read.before.stolen_ms) / window_ms,
        anonymous_kib=(read.full.anonymous_bytes - read.empty.anonymous_bytes) / 1024 / streams,
        shared_kib=(read.full.shared_bytes - read.empty.shared_bytes) / 1024 / streams,
        sockets_kib=(read.full.sockets_bytes - read.empty.sockets_bytes) / 1024 / streams,
        kernel_kib=(read.full.kernel_bytes - read.empty.kernel_bytes) / 1024 / streams,
        engine_late_p99_ms=read.engine["late_p99_ms"],
        invalid=_invalid(scenario, read),
    )
    figures.remarks += _remarks(figures, scenario)
    return figures


def _invalid(scenario: Scenario, read: _Readings) -> list[str]:
    """Why the run must not be cited."""
    found = []
    if read.end["errors"] or read.end["complete"] != scenario.streams:
        found.append(
            f"{read.end['complete']} of {scenario.streams} streams came through whole; "
            f"{read.end['errors']} errors, among them {read.end['examples']}"
        )
    if read.engine["late_p99_ms"] > MAX_LATE_MS:
        found.append(
            f"the engine stand-in was {read.engine['late_p99_ms']:.1f} ms late (p99): its core is too slow or too busy"
        )
    if read.engine["skipped"]:
        found.append(f"{read.engine['skipped']} events were not sent: the gateway did not read them")
    return found


def _remarks(figures: Figures, scenario: Scenario) -> list[str]:
    """What whoever cites the run should know."""
    found = []
    arrived = figures.events / (scenario.streams * scenario.rate * figures.seconds)
    if arrived < MIN_RATE_SHARE:
        found.append(f"only {arrived:.0%} of the events arrived in time: something was saturated")
    lost = figures.waited_share + figures.stolen_share
    if lost > MAX_LOST_SHARE and figures.target != DIRECT:
        found.append(f"others kept the gateway from its core for {lost:.0%} of the time: its delays are too long")
    return found
