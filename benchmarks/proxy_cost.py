"""What a gateway costs: CPU time per event, added delay and memory per stream, beside nginx in the same run.

What lives here: the command line, and the order of the runs.
What must not: how one run works (trial.py) or is shown (report.py).

One gateway process has a core of its own; the engine stand-in and the load share another. Targets take turns (A B C,
A B C, …), so that a machine that slows down slows all of them. See docs/benchmarks.md for how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import report
from children import RunFailed, raise_descriptor_limit
from targets import DIRECT, Target, resolve, use_this_checkout
from trial import Conditions, Figures, Scenario, free_port, run

SCENARIOS = ("500x20", "9000x2")
TICK_US = 970
"""Not 1000: the kernel tells user from system time by looking at its own clock's ticks, and must not see one phase only."""
SPARE_DESCRIPTORS = 200
PORTS_IN_RANGE = 64
OVERHEAD_S = 6.0  # starting, opening, ending; for the estimate only


def main() -> int:
    """Run everything; 0 when all runs are valid."""
    options = _options()
    if not sys.platform.startswith("linux"):
        _say("this benchmark reads /proc and pins processes to cores: it runs on Linux only")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every child is stopped on the way out
    try:
        scenarios = _feasible([Scenario.parse(text) for text in options.scenario], raise_descriptor_limit())
        targets, remarks = resolve(options.targets)
    except ValueError as error:
        _say(str(error))
        return 2
    for remark in remarks:
        _say(remark)
    if not scenarios:
        return 2
    use_this_checkout()
    conditions = _conditions(options)
    try:
        os.nice(options.nice)  # children inherit it
    except PermissionError:
        _say("--nice below 0 needs root: going on without")
    _say(_plan(scenarios, targets, options))
    try:
        results = [(each, _rounds(each, targets, options.runs, conditions)) for each in scenarios]
    except KeyboardInterrupt:
        return 130
    _show(results, targets, options)
    valid = all(len(each) == len(targets) + 1 for _, rounds in results for each in rounds)
    return 0 if valid and not any(_invalid(rounds) for _, rounds in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--scenario", nargs="+", default=SCENARIOS, metavar="NxR", help="N streams at R events/s each (500x20 9000x2)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each window (10)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each target, interleaved (3)")
    parser.add_argument(
        "--targets",
        nargs="+",
        default=["nginx", "longwire"],
        help="nginx, longwire, relay (the floor for Python), or NAME=COMMAND with {port} and {upstream}; "
        "direct (no gateway) always runs as control",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured to FILE")
    parser.add_argument("--quick", action="store_true", help="one run of 4 s: to see that it works, not to be cited")
    parser.add_argument(
        "--settle", type=float, default=2.0, metavar="SECONDS", help="between opening and measuring (2)"
    )
    parser.add_argument(
        "--tick-us", type=int, default=TICK_US, help=f"the engine sends what is due this often ({TICK_US})"
    )
    parser.add_argument(
        "--ports", type=int, default=0, metavar="FIRST", help=f"use {PORTS_IN_RANGE} ports from here (any)"
    )
    parser.add_argument("--cores", default="", metavar="GATEWAY,LOAD", help="which cores (the first two we may use)")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of all processes, -20 (first; root only) to 19 (0)"
    )
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, min(options.seconds, 4.0)
    if not (1 <= options.runs <= 100 and 1 <= options.seconds <= 600 and 0 <= options.settle <= 600):
        parser.error("runs are 1 to 100, windows 1 to 600 s")
    return options


def _feasible(scenarios: Sequence[Scenario], descriptors: int) -> list[Scenario]:
    """Those for which a gateway may open enough sockets: two a stream."""
    possible = []
    for scenario in scenarios:
        needed = 2 * scenario.streams + SPARE_DESCRIPTORS
        if needed <= descriptors:
            possible.append(scenario)
        else:
            _say(f"{scenario} needs {needed:,} open files; here are {descriptors:,}: left out (raise `ulimit -Hn`)")
    return possible


def _conditions(options: argparse.Namespace) -> Conditions:
    cores = sorted(os.sched_getaffinity(0))
    if options.cores:
        cores = [int(core) for core in options.cores.split(",")]
    pinned = len(cores) >= 2
    if pinned:
        os.sched_setaffinity(0, {cores[1]})
    else:
        _say("only one core: gateway, engine and load share it, and the delays mean little")
    ports: Callable[[], int] = free_port
    if options.ports:
        ports = cycle(range(options.ports, options.ports + PORTS_IN_RANGE)).__next__
    return Conditions(
        seconds=options.seconds,
        settle_s=options.settle,
        tick_us=options.tick_us,
        gateway_core=cores[0] if pinned else None,
        load_core=cores[1] if pinned else None,
        next_port=ports,
    )


def _plan(scenarios: Sequence[Scenario], targets: Sequence[Target], options: argparse.Namespace) -> str:
    runs = len(scenarios) * (len(targets) + 1) * options.runs
    minutes = runs * (options.seconds + options.settle + OVERHEAD_S) / 60
    return f"{runs} runs of {options.seconds:g} s, about {minutes:.0f} min in all"


def _rounds(scenario: Scenario, targets: Sequence[Target], runs: int, conditions: Conditions) -> list[report.Round]:
    """All runs of a scenario, the targets taking turns."""
    rounds: list[report.Round] = []
    for number in range(1, runs + 1):
        results: report.Round = {}
        rounds.append(results)
        for target in [None, *targets]:
            name = target.name if target else DIRECT
            try:
                results[name] = run(target, scenario, conditions)
                _say(f"{scenario.name} run {number}/{runs} {_line(results[name])}")
            except RunFailed as error:
                _say(f"{scenario.name} run {number}/{runs} {name} FAILED: {error}")
    return rounds


def _line(figures: Figures) -> str:
    cpu = (
        "" if figures.target == DIRECT else f" {figures.cpu_us:5.1f} us/event, {figures.anonymous_kib:5.1f} KiB/stream,"
    )
    delays = figures.delays_ms
    problems = "; ".join(["", *figures.invalid, *figures.remarks])
    return f"{figures.target:10}{cpu} p50 {delays['p50']:.2f} p99 {delays['p99']:.2f} ms{problems}"


def _show(
    results: Sequence[tuple[Scenario, list[report.Round]]], targets: Sequence[Target], options: argparse.Namespace
) -> None:
    machine = {
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "targets": {target.name: target.version for target in targets},
        "command": " ".join(sys.argv),
    }
    print(f"{machine['cpu']}, Linux {machine['kernel']}")
    print(*(f"{target.name}: {target.version}" for target in targets), "", sep="\n")
    for scenario, rounds in results:
        print(report.table(scenario, rounds, options.seconds))
    if options.json:
        scenarios = [report.as_json(scenario, rounds) for scenario, rounds in results]
        options.json.write_text(json.dumps({"machine": machine, "scenarios": scenarios}, indent=1) + "\n")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _invalid(rounds: Sequence[report.Round]) -> bool:
    return any(figures.invalid for each in rounds for figures in each.values())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
