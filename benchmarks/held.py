"""Held connections: 50,000 readers of live streams at once, none of which is dropped, and then as many events as can be.

What lives here: the phases, the memory of a connection, and the goals.
What must not: streams and readers (channel_stage.py, channel_load.py).

A process may have only so many open files (often 20,000), and a reader costs one: so there
are several shards and several loads. 500 streams are started and left to run; 100 readers of each come by GET. They are held at
a slow pace, then have 20,000 events a second in all, then as many as the cores carry, which carry the readers too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import procstat
from channel_stage import SLOW_RATE, Size, Stage, judge, stopped_by
from children import raise_descriptor_limit
from targets import resolve
from work import Figures, Goal, Round, Work, command_line, middle, run_command, say, show

PER_S = (20_000.0, 30_000.0, 40_000.0, 51_700.0)
GOAL_PER_S, GOAL_MEAN_MS, GOAL_MOST_PER_S = 20_000.0, 4.8, 51_700.0
CARRIED_SHARE = 0.98
QUEUES_MS = 100.0
"""Beyond that in the middle a rate is not carried: events only queue."""
SETTLE_S = 3.0
HOLD_S = 20.0
SPARE_DESCRIPTORS = 2000
COLUMNS = (
    ("held", "held", 0),
    ("dropped", "dropped", 0),
    ("events_per_s", "events/s", 0),
    ("share", "of those due", 3),
    ("mean_ms", "mean ms", 2),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("process_kib", "process KiB each", 2),
    ("kernel_kib", "kernel KiB each", 2),
    ("cpu_us", "us CPU each", 1),
    ("gateway_cores", "gateway cores", 2),
    ("load_cores", "load cores", 2),
)


def main() -> int:
    """Run everything; 0 when all runs are valid."""
    parser = command_line(__doc__, ["longwire"], seconds=10.0, runs=1)
    parser.add_argument("--streams", type=int, default=500, help="live streams (500)")
    parser.add_argument("--readers", type=int, default=50_000, help="connections of all streams together (50000)")
    parser.add_argument("--shards", type=int, default=4, help="processes that serve (4)")
    parser.add_argument("--loads", type=int, default=4, help="processes that read (4)")
    parser.add_argument(
        "--hold", type=float, default=HOLD_S, metavar="SECONDS", help=f"held before events come faster ({HOLD_S:g})"
    )
    parser.add_argument("--per-second", type=float, nargs="+", default=PER_S, help="events per second in all, in turn")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds, options.hold = 1, min(options.seconds, 2.0), 2.0
        options.streams, options.readers = min(options.streams, 50), min(options.readers, 2000)
        options.per_second = options.per_second[:1]
    each = raise_descriptor_limit() - SPARE_DESCRIPTORS
    if options.readers > each * min(options.shards, options.loads):
        parser.error(f"a shard and a load hold at most {each:,} connections: take more of them")
    if options.readers % (options.streams * options.loads):
        parser.error("every load has the same number of readers of each stream")
    return run_command(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """All rounds."""
    if options.targets != ["longwire"]:
        raise ValueError("one stream has many readers: longwire is the only target that has that")
    (target,), _ = resolve(options.targets)
    work = Work("held", f"Held: {options.readers:,} connections, {options.streams} streams, {options.shards} shards")
    work.versions = {target.name: target.version}
    for number in range(1, options.runs + 1):
        say(f"run {number}/{options.runs}")
        work.rounds.append(run(options, work))
    work.goals = goals(work.rounds, options)
    show(work, COLUMNS, options.json)
    return 0 if work.is_valid else 1


def run(options: argparse.Namespace, work: Work) -> Round:
    """Open, hold, and faster and faster."""
    size = Size(options.streams, options.readers, options.shards, options.loads)
    found: Round = {}
    with tempfile.TemporaryDirectory(prefix="held_") as name, ExitStack() as stack:
        stage = Stage(size, Path(name), stack)
        ids = stage.start()
        empty = procstat.memory(stage.gateway.pid)  # with the streams and without readers
        opened = stage.open(ids)
        say(f"{opened['open']:,} connections in {opened['opened_s']:.1f} s; holding")
        time.sleep(options.hold)
        full = procstat.memory(stage.gateway.pid)
        found["longwire, held"] = held = stage.window(SLOW_RATE, 0.0, options.seconds)
        held |= per_connection(empty, full, opened["open"]) | {"opened_s": opened["opened_s"]}
        for per_s in options.per_second:
            figures = found[named(per_s)] = stage.window(per_s / options.readers, SETTLE_S, options.seconds)
            say(
                f"{named(per_s)}: {figures['events_per_s']:,.0f}/s, mean {figures['mean_ms']:.2f} ms; {stopped_by(figures)}"
            )
        end = stage.finish()
    for figures in found.values():
        figures["held"] = figures["readers"]
        figures["dropped"] = options.readers - figures["readers"]
    judge(work, found, end, options.readers)
    return found


def per_connection(empty: procstat.MemoryReading, full: procstat.MemoryReading, count: int) -> Figures:
    """KiB for each; the kernel's is of both ends, the gateway's and the reader's, and of the whole host."""
    between = {
        "process_kib": full.anonymous_bytes - empty.anonymous_bytes,
        "shared_kib": full.shared_bytes - empty.shared_bytes,
        "kernel_kib": full.kernel_bytes - empty.kernel_bytes,
        "sockets_kib": full.sockets_bytes - empty.sockets_bytes,
    }
    return {name: value / 1024 / max(1, count) for name, value in between.items()}


def named(per_s: float) -> str:
    """The name of a target at a rate of all together."""
    return f"longwire {per_s:,.0f}/s"


def goals(rounds: Sequence[Round], options: argparse.Namespace) -> list[Goal]:
    """Held, delay at the goal's rate, and the highest rate that was carried."""
    held, dropped = (middle(rounds, "longwire, held", figure) for figure in ("held", "dropped"))
    mean = middle(rounds, named(GOAL_PER_S), "mean_ms")
    carried = [per_s for per_s in sorted(options.per_second) if is_carried(rounds, per_s)]
    most = middle(rounds, named(carried[-1]), "events_per_s") if carried else None
    beyond = [per_s for per_s in sorted(options.per_second) if not carried or per_s > carried[-1]]
    return [
        Goal.least("connections held", "", held, options.readers),
        Goal.most("connections dropped", "connections", dropped, 0.0),
        Goal.most(f"mean delay at {GOAL_PER_S:,.0f} events/s", "ms", mean, GOAL_MEAN_MS),
        Goal.least("events delivered", "events/s", most, GOAL_MOST_PER_S, stop_note(rounds, carried, beyond)),
    ]


def is_carried(rounds: Sequence[Round], per_s: float) -> bool:
    """Whether a rate was delivered without falling behind."""
    share, half = (middle(rounds, named(per_s), figure) for figure in ("share", "p50_ms"))
    return share is not None and half is not None and share >= CARRIED_SHARE and half <= QUEUES_MS


def stop_note(rounds: Sequence[Round], carried: Sequence[float], beyond: Sequence[float]) -> str:
    """What ended it: the cores at the first rate that was not carried, or that nothing did."""
    per_s = beyond[0] if beyond else carried[-1]
    figures = {
        f"{who}_cores": middle(rounds, named(per_s), f"{who}_cores") or 0.0 for who in ("gateway", "load", "engine")
    }
    return f"{'not carried' if beyond else 'still carried'}: {per_s:,.0f}/s; {stopped_by(figures)}"


if __name__ == "__main__":
    sys.exit(main())
