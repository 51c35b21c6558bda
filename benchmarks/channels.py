"""Channels: 10,000 readers of 100 streams, and the most events a second that reach them without falling behind.

What lives here: the rates that are tried, and the goals.
What must not: streams and readers (channel_stage.py, channel_load.py).

Longwire with two shards; readers, engine stand-in and gateway share the machine's cores, so that what is found is a figure of
all of them together: the table says who used how much. A rate is carried when at least 98 % of the events due in its window
came in it, and half of them within the goal's delay times ten: beyond that they only queue.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from channel_stage import Size, Stage, judge, stopped_by
from targets import resolve
from work import Figures, Goal, Round, Work, command_line, middle, run_command, say, show

RATES = (2.0, 4.0, 4.85, 5.2, 5.5, 6.0)
GOAL_PER_S, GOAL_MEAN_MS = 48_200.0, 3.2
CARRIED_SHARE = 0.98
QUEUES_MS = 10 * GOAL_MEAN_MS
SETTLE_S = 2.0
COLUMNS = (
    ("events_per_s", "events/s", 0),
    ("share", "of those due", 3),
    ("mean_ms", "mean ms", 2),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("cpu_us", "us CPU each", 1),
    ("gateway_cores", "gateway cores", 2),
    ("load_cores", "load cores", 2),
    ("engine_cores", "engine cores", 2),
)


def main() -> int:
    """Run everything; 0 when all runs are valid."""
    parser = command_line(__doc__, ["longwire"], seconds=10.0, runs=3)
    parser.add_argument("--streams", type=int, default=100, help="channels (100)")
    parser.add_argument("--readers", type=int, default=10_000, help="of all channels together (10000)")
    parser.add_argument("--shards", type=int, default=2, help="processes that serve (2)")
    parser.add_argument("--loads", type=int, default=2, help="processes that read (2)")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="events per second of each channel")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds, options.rates = 1, min(options.seconds, 2.0), options.rates[:2]
        options.streams, options.readers = min(options.streams, 20), min(options.readers, 1000)
    if not (1 <= options.runs <= 100 and 1 <= options.seconds <= 600 and options.readers <= 19_000 * options.loads):
        parser.error("runs are 1 to 100, windows 1 to 600 s, and a load holds at most 19,000 readers")
    if options.readers % (options.streams * options.loads):
        parser.error("every load has the same number of readers of each stream")
    return run_command(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """All rounds."""
    if options.targets != ["longwire"]:
        raise ValueError("one stream has many readers: longwire is the only target that has that")
    (target,), _ = resolve(options.targets)
    work = Work("channels", f"Channels: {options.readers:,} readers of {options.streams} streams")
    work.versions = {target.name: target.version}
    for number in range(1, options.runs + 1):
        say(f"run {number}/{options.runs}")
        work.rounds.append(run(options, work))
    work.goals = goals(work.rounds, options)
    show(work, COLUMNS, options.json)
    return 0 if work.is_valid else 1


def run(options: argparse.Namespace, work: Work) -> Round:
    """Everybody connected once, then one rate after the other."""
    size = Size(options.streams, options.readers, options.shards, options.loads)
    found: Round = {}
    with tempfile.TemporaryDirectory(prefix="channels_") as name, ExitStack() as stack:
        stage = Stage(size, Path(name), stack)
        opened = stage.open(stage.start())
        say(f"{opened['open']:,} readers in {opened['opened_s']:.1f} s")
        for rate in options.rates:
            figures = stage.window(rate, SETTLE_S, options.seconds)
            found[named(rate)] = figures
            say(
                f"{named(rate)}: {figures['events_per_s']:,.0f}/s, mean {figures['mean_ms']:.2f} ms; {stopped_by(figures)}"
            )
        end = stage.finish()
    judge(work, found, end, options.readers)
    return found


def named(rate: float) -> str:
    """The name of a target at a rate."""
    return f"longwire {rate:g}/s"


def carried(rounds: Sequence[Round], rates: Sequence[float]) -> Figures | None:
    """The medians at the highest rate that was delivered without falling behind."""
    best: Figures | None = None
    for rate in sorted(rates):
        read = {figure: middle(rounds, named(rate), figure) for figure, _, _ in COLUMNS}
        figures = {figure: value for figure, value in read.items() if value is not None}
        if figures.get("share", 0.0) >= CARRIED_SHARE and figures["p50_ms"] <= QUEUES_MS:
            best = figures | {"rate": rate}
    return best


def goals(rounds: Sequence[Round], options: argparse.Namespace) -> list[Goal]:
    """The highest rate that was carried; and delay and CPU use at the goal's own rate, where that was tried."""
    best = carried(rounds, options.rates)
    most, note = (None, "no rate was carried") if best is None else (best["events_per_s"], carried_note(best))
    reached = min((rate for rate in options.rates if rate * options.readers >= GOAL_PER_S), default=0.0)
    mean, cores, cpu_us = (middle(rounds, named(reached), figure) for figure in ("mean_ms", "gateway_cores", "cpu_us"))
    at = f"at {reached:g}/s of each" if reached else "no rate that high was tried"
    used = at if cpu_us is None else f"{at}; {cpu_us:.1f} us per event"
    return [
        Goal.least("events delivered", "events/s", most, GOAL_PER_S, note),
        Goal.most("mean delay", "ms", mean, GOAL_MEAN_MS, note=at),
        Goal("CPU use", "cores of the gateway", "stated", cores, None, used),
    ]


def carried_note(best: Figures) -> str:
    """At which rate, and who used the cores."""
    return f"the highest rate without falling behind, {best['rate']:g}/s of each; {stopped_by(best)}"


if __name__ == "__main__":
    sys.exit(main())
