"""Short requests: what a gateway costs where an answer is one token, beside nginx and the Rust routers in the same run.

What lives here: the order of a run and its goals.
What must not: the bytes (short_answer.py), the load (short_load.py), the engine stand-in (short_engine.py).

64 connections, each asking again as soon as it has its answer, give the most that a gateway does; CPU time per request is
compared there and, as equal work for all, at a given rate (about 60 % of Longwire's most). One process on a core of its
own; the engine and the load share the other. `longwire-all` is Longwire as it is shipped, a process for each core, with
engine and load on the same cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import procstat
from children import Child, RunFailed, Worker
from short_goals import ALL, OURS, goals, limits
from targets import DIRECT, Target, resolve
from trial import free_port, wait_calm, wait_ready
from work import INVALID, Figures, Round, Work, command_line, run_command, say, show, two_cores

WARM_S = 0.5
PACED_SHARE = 0.6
SEED = 20260101
COLUMNS = (
    ("requests_per_s", "requests/s", 0),
    ("cpu_us", "us CPU each", 1),
    ("user_us", "user", 1),
    ("system_us", "system", 1),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("core_share", "core", 2),
    ("paced_requests_per_s", "paced/s", 0),
    ("paced_cpu_us", "us CPU each", 1),
    ("paced_p50_ms", "p50 ms", 2),
    ("paced_p99_ms", "p99 ms", 2),
)


def main() -> int:
    """Run everything; 0 when all runs are valid."""
    parser = command_line(__doc__, ["nginx", "longwire", ALL], seconds=10.0, runs=5)
    parser.add_argument("--connections", type=int, default=64, help="that ask at once (64)")
    parser.add_argument("--pace", type=float, default=0.0, metavar="RATE", help="requests/s (60 %% of Longwire's most)")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, min(options.seconds, 2.0)
    if not (1 <= options.runs <= 100 and 1 <= options.seconds <= 600 and 1 <= options.connections <= 5000):
        parser.error("runs are 1 to 100, windows 1 to 600 s, connections 1 to 5000")
    return run_command(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """All rounds, the targets taking turns."""
    work = Work("short", f"Short requests: one token, {options.connections} connections")
    words = [word for word in options.targets if word != ALL]
    targets, remarks = resolve(words)
    if ALL in options.targets:
        targets.append(all_shards())
    for remark in remarks:
        work.remark(remark)
    work.versions = {target.name: target.version for target in targets}
    pace = options.pace or find_pace(targets, options)
    work.remark(f"the paced runs are {pace:.0f} requests/s for every target")
    for number in range(1, options.runs + 1):
        figures: Round = {}
        work.rounds.append(figures)
        for target in [None, *targets]:
            name = target.name if target else DIRECT
            try:
                figures[name] = run(target, options, pace, work)
                say(f"run {number}/{options.runs} {name}: {shown(figures[name])}")
            except RunFailed as error:
                work.remark(f"run {number}/{options.runs} {name} FAILED: {error}")
    work.goals = goals(work.rounds)
    work.remarks += limits(work.rounds)
    show(work, COLUMNS, options.json)
    return 0 if work.is_valid and all(len(each) == len(targets) + 1 for each in work.rounds) else 1


def all_shards() -> Target:
    """Longwire with as many processes as it takes by itself."""
    (ours,), _ = resolve([OURS])

    def command(port: int, upstream: str, directory: Path) -> list[str]:
        argv = ours.command(port, upstream, directory)
        argv[argv.index("--shards") + 1] = "0"
        return argv

    return replace(ours, name=ALL, command=command)


def find_pace(targets: Sequence[Target], options: argparse.Namespace) -> float:
    """A share of the most that Longwire (or else the first target) does, found in a run that is not counted."""
    target = next((each for each in targets if each.name == OURS), targets[0] if targets else None)
    with tempfile.TemporaryDirectory(prefix="short_") as name, ExitStack() as stack:
        stage = Stage(target, Path(name), stack)
        found = stage.closed(options.connections, min(2.0, options.seconds))
    return max(1.0, round(PACED_SHARE * found["requests"] / found["seconds"], -2))


class Stage:
    """Engine, gateway and load of one run."""

    def __init__(self, target: Target | None, directory: Path, stack: ExitStack) -> None:
        gateway_core, load_core = two_cores()
        if target and target.name == ALL:
            gateway_core = load_core = None
        self.core = gateway_core or 0
        self.engine = stack.enter_context(Worker("short_engine.py", [], load_core, directory / "engine.log"))
        port = int(self.engine.answer()["port"])
        self.measured: Child = self.engine
        if target:
            upstream = f"http://127.0.0.1:{port}"
            port = free_port()
            argv = target.command(port, upstream, directory)
            self.measured = stack.enter_context(Child(target.name, argv, gateway_core, directory / "gateway.log"))
            wait_ready(self.measured, port)
            wait_calm(self.measured)
        self.load = stack.enter_context(
            Worker("short_load.py", ["--port", str(port)], load_core, directory / "load.log")
        )

    def closed(self, connections: int, seconds: float) -> dict[str, Any]:
        """As many requests as there can be."""
        return self._between(seconds, "closed", connections=connections, warm_s=WARM_S)

    def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """So many requests a second."""
        return self._between(seconds, "paced", rate=rate, seed=SEED)

    def _between(self, seconds: float, do: str, **details: float) -> dict[str, Any]:
        """What the load measured, with the CPU time of all three meanwhile."""
        self.load.ask(do, seconds=seconds, **details)
        before = [procstat.cpu(each.pid, self.core) for each in (self.measured, self.engine, self.load)]
        found = self.load.answer(seconds + 60.0)
        after = [procstat.cpu(each.pid, self.core) for each in (self.measured, self.engine, self.load)]
        self.measured.must_live()
        spent = [b.user_ms + b.system_ms - a.user_ms - a.system_ms for a, b in zip(before, after, strict=True)]
        found |= {"cpu_ms": spent[0], "engine_ms": spent[1], "load_ms": spent[2]}
        found["user_ms"] = after[0].user_ms - before[0].user_ms
        found["taken_s"] = after[0].at_s - before[0].at_s
        found["waited_ms"] = after[0].waited_ms - before[0].waited_ms
        return found


def run(target: Target | None, options: argparse.Namespace, pace: float, work: Work) -> Figures:
    """One target: as fast as it can, then at the given rate."""
    with tempfile.TemporaryDirectory(prefix="short_") as name, ExitStack() as stack:
        stage = Stage(target, Path(name), stack)
        closed = stage.closed(options.connections, options.seconds)
        paced = stage.paced(pace, options.seconds)
    figures = figures_of(closed)
    figures |= {f"paced_{figure}": value for figure, value in figures_of(paced).items()}
    name = target.name if target else DIRECT
    for what, found in (("as fast as it can", closed), ("paced", paced)):
        if found["errors"]:
            figures[INVALID] = 1.0
            work.remark(f"{name}, {what}: NOT VALID: {found['errors']} errors, among them {found['examples']}")
    if paced["skipped"]:
        work.remark(f"{name}: {paced['skipped']} of its paced requests were not sent: it cannot do {pace:.0f}/s")
    return figures


def figures_of(found: dict[str, Any]) -> Figures:
    """Per second and per request."""
    requests = max(1, found["requests"])
    return {
        "requests_per_s": found["requests"] / found["seconds"],
        "cpu_us": found["cpu_ms"] * 1000 / requests,
        "user_us": found["user_ms"] * 1000 / requests,
        "system_us": (found["cpu_ms"] - found["user_ms"]) * 1000 / requests,
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "core_share": found["cpu_ms"] / 1000 / found["taken_s"],
        "waited_share": found["waited_ms"] / 1000 / found["taken_s"],
        "engine_us": found["engine_ms"] * 1000 / requests,
        "load_us": found["load_ms"] * 1000 / requests,
        "skipped": float(found["skipped"]),
    }


def shown(figures: Figures) -> str:
    """One line of progress."""
    return (
        f"{figures['requests_per_s']:,.0f}/s, {figures['cpu_us']:.1f} us each, p99 {figures['p99_ms']:.1f} ms; "
        f"paced {figures['paced_cpu_us']:.1f} us each, p99 {figures['paced_p99_ms']:.1f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
