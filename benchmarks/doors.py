"""Doors compared: the same answers by each door of `longwire bench`, straight, behind nginx as it is shipped, and unbuffered.

What lives here: the processes of a run, and the order of runs.
What must not: figures, goals and the ways that are measured (door_figures.py), the load (`longwire bench` itself).

The floor is the engine stand-in (`longwire sim`) behind the same nginx without Longwire between: what buffering does to a
stream whose head does not ask for none. Every run has two windows, each a `longwire bench` of its own before the same
processes. In the first nobody is cut. In the second streams are cut and come back; where nothing can be resumed, the row says
`not offered`. Longwire and nginx have a core, the engine and the client the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nginx
from children import Child, RunFailed
from door_figures import (
    RECOVERY,
    RESUMED,
    TARGETS,
    WAITS,
    WAYS,
    Way,
    absent,
    figures_of,
    goals,
    problems,
    row_of,
)
from event import MODEL
from targets import Target, resolve
from trial import free_port, wait_calm, wait_ready
from work import INVALID, Figures, Round, Work, command_line, run_command, say, show, two_cores

DRAIN_S = 30.0
START_WITHIN_S = 60.0
"""A client's beginning and end: two Python processes, and a report."""


def main() -> int:
    """Run everything; 0 when all runs are valid."""
    parser = command_line(__doc__, TARGETS, seconds=10.0, runs=3)
    parser.add_argument("--streams", type=int, default=100, help="at once (100)")
    parser.add_argument("--rate", type=float, default=20.0, help="events per second of each (20)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (64)")
    parser.add_argument("--cuts", type=float, default=20.0, help="streams cut per second in the second window (20)")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, min(options.seconds, 2.0)
        options.streams, options.tokens = min(options.streams, 20), min(options.tokens, 24)
        options.cuts = min(options.cuts, 4.0)
    if not (1 <= options.runs <= 100 and 1 <= options.seconds <= 600 and 1 <= options.streams <= 5000):
        parser.error("runs are 1 to 100, windows 1 to 600 s, streams 1 to 5000")
    if not (2 <= options.tokens <= 10_000 and 0 < options.rate <= 1000 and 0.1 <= options.cuts <= 1000):
        parser.error("tokens are 2 to 10,000, events up to 1000/s, cuts 0.1 to 1000/s")
    return run_command(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """All rounds, doors and ways taking turns."""
    doors = _doors()
    title = f"Doors: {options.streams} streams of {options.tokens} tokens at {options.rate:g} events/s"
    work = Work("doors", f"{title}, {options.cuts:g} cuts/s in the second window")
    ours, ways = _resolved(options.targets, work)
    for number in range(1, options.runs + 1):
        figures: Round = {}
        work.rounds.append(figures)
        for door in doors:
            for way in ways:
                label = f"run {number}/{options.runs} {row_of(door, way)}"
                try:
                    found = Run(door, way, options, seed=number).figures(ours, label, work)
                except RunFailed as error:
                    work.remark(f"{label} FAILED: {error}")
                    continue
                figures[row_of(door, way)] = found
                say(f"{label}: {shown(found)}")
    work.goals = goals(work.rounds)
    show(work, (*WAITS, *RECOVERY), options.json, absent)
    return 0 if work.is_valid and all(len(each) == len(doors) * len(ways) for each in work.rounds) else 1


def _doors() -> list[str]:
    """Every door that the client offers."""
    from longwire.bench.doors import DOORS  # of this checkout, which is on the path by now

    return list(DOORS)


def _resolved(words: Sequence[str], work: Work) -> tuple[Target, list[Way]]:
    """Longwire, which is always there, and the ways that can be measured here."""
    if unknown := [word for word in words if word not in TARGETS]:
        raise ValueError(f"no target {unknown[0]!r}: longwire is straight, nginx all that is behind one")
    (ours,), _ = resolve(["longwire"])
    found, remarks = resolve(words)
    for remark in remarks:
        work.remark(f"all rows behind nginx: {remark}")
    if not found:
        raise ValueError("nothing is left to measure")
    work.versions = {target.name: target.version for target in [ours, *found]}
    return ours, [way for way in WAYS if way.target in work.versions and way.target in words]


class Run:
    """One door, one way, two windows."""

    def __init__(self, door: str, way: Way, options: argparse.Namespace, *, seed: int) -> None:
        self.door = door
        self.way = way
        self.options = options
        self.seed = seed

    def figures(self, ours: Target, label: str, work: Work) -> Figures:
        """Start everything, measure, stop everything."""
        with tempfile.TemporaryDirectory(prefix="doors_") as name, ExitStack() as stack:
            stage = Stage(self.way, ours, self.options.rate, Path(name), stack)
            quiet = stage.client("quiet", self.arguments(), self.limit_s)
            chaos = ["--chaos", f"reset-clients={self.options.cuts:g}"]
            cut = stage.client("cut", [*self.arguments(), *chaos], self.limit_s)
        found = figures_of(quiet, cut)
        for problem in [*problems(quiet), *problems(cut, must_cut=self.way.has_longwire)]:
            found[INVALID] = 1.0
            work.remark(f"{label}: NOT VALID: {problem}")
        return found

    @property
    def warm_up_s(self) -> float:
        """One life: a closed loop begins its streams in their turn within it, and then they end in turn, too."""
        return float(self.options.tokens / self.options.rate)

    @property
    def limit_s(self) -> float:
        return self.warm_up_s + float(self.options.seconds) + DRAIN_S + START_WITHIN_S

    def arguments(self) -> list[str]:
        """What `longwire bench` is asked for, besides where."""
        options = self.options
        body = {"sim": {"tokens": options.tokens, "seed": self.seed, "stamp": True}}
        load = ["--concurrency", str(options.streams), "--tokens", str(options.tokens), "--body", json.dumps(body)]
        times = ["--warm-up-s", f"{self.warm_up_s:g}", "--duration-s", f"{options.seconds:g}"]
        rest = ["--drain-s", f"{DRAIN_S:g}", "--repeats", "1", "--seed", str(self.seed), "--control", "none"]
        return ["--door", self.door, *load, *times, *rest, "--verify"]


class Stage:
    """The engine stand-in and what stands before it, each behind the one before."""

    def __init__(self, way: Way, ours: Target, rate: float, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._servers: list[Child] = []
        gateway_core, self._core = two_cores()
        port = free_port()
        engine = [sys.executable, "-m", "longwire", "sim", "--port", str(port), "--model", MODEL]
        self._start("engine", [*engine, "--itl-ms", f"{1000 / rate:g}"], self._core, port)
        if way.has_longwire:
            upstream, port = f"http://127.0.0.1:{port}", free_port()
            wait_calm(self._start(ours.name, ours.command(port, upstream, directory), gateway_core, port))
        if way.server:
            upstream, port = f"http://127.0.0.1:{port}", free_port()
            binary = nginx.find()
            assert binary is not None, "without nginx this way is not among those that are measured"
            self._start("nginx", nginx.command(binary, port, upstream, directory, way.server), gateway_core, port)
        self._url = f"http://127.0.0.1:{port}"

    def _start(self, name: str, argv: Sequence[str], core: int | None, port: int) -> Child:
        child = self._stack.enter_context(Child(name, argv, core, self._directory / f"{name}.log"))
        self._servers.append(child)
        wait_ready(child, port)
        return child

    def client(self, name: str, arguments: Sequence[str], limit_s: float) -> dict[str, Any]:
        """One `longwire bench`, and what it wrote."""
        file = self._directory / f"{name}.json"
        argv = [sys.executable, "-m", "longwire", "bench", self._url, *arguments, "--json", str(file)]
        with Child("longwire bench", argv, self._core, self._directory / f"{name}.log") as bench:
            try:
                status = bench.popen.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise RunFailed(f"longwire bench did not end within {limit_s:.0f} s: {bench.last_words()}") from None
            for server in self._servers:
                server.must_live()
            if status or not file.exists():
                raise RunFailed(f"longwire bench ended with status {status}: {bench.last_words()}")
        told = json.loads(file.read_text())
        assert isinstance(told, dict)
        return told


def shown(figures: Figures) -> str:
    """One line of progress."""
    ttft, itl = (figures.get(name, float("nan")) for name in ("ttft_p99_ms", "itl_p99_ms"))
    resumed = f"{figures[RESUMED]:.1%} of {figures['cuts']:.0f} cuts resumed" if RESUMED in figures else "nothing cut"
    return f"TTFT p99 {ttft:.1f} ms, ITL p99 {itl:.1f} ms, {figures.get('gaps', 0):.0f} gaps, {resumed}"


if __name__ == "__main__":
    sys.exit(main())
