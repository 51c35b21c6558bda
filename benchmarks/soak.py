"""A soak: 500 streams of 8,192 tokens at once for a quarter of an hour, a tenth of them cut by their client and resumed.

What lives here: the phases, the readings of memory, and the goals.
What must not: streams (soak_load.py), the engine stand-in (soak_engine.py), statistics (growth.py).

First many short streams fill what is kept of the last so many. The first long ones are of all lengths, so that after one
full life (and the time for which ended streams are kept, made short here) as many begin as end, and memory stands still
unless something leaks. Only then does the quarter of an hour begin.
One gateway process on a core of its own; the engine and the load share the other. The rate is what both carry with room to
spare: a slower stream is a longer one, and never a shorter one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import procstat
from children import Child, RunFailed, Worker
from growth import Slope, slope
from targets import Target, resolve
from trial import MAX_LATE_MS, free_port, wait_calm, wait_ready
from work import INVALID, Figures, Goal, Work, command_line, middle, run_command, say, show, two_cores

RETENTION_S = 10
FORGOTTEN_WITHIN_S = 60.0
FILL = 33_000
"""Streams that come and go before: a gateway may remember the last so many (Longwire: the ids of 10,000), which is no leak. The
table of such a memory is filled a few times before it has its last size: Longwire's processes grew up to the 27,500th stream,
and by not one page from there to the 44,000th."""
FILL_WITHIN_S = 900.0
SAMPLE_S = 1.0
OPEN_WITHIN_S = 120.0
FINISH_WITHIN_S = 60.0
GOAL_GROWTH_KIB = 64.0
GOAL_P99_SHARE = 1.10
MAX_LOAD_TURN_MS = 250.0
"""A load that does not look for so long sees gaps where there were none."""
MAX_STOLEN_SHARE = 0.02
"""Of the cores' time. A hypervisor that takes more takes it in bursts: a core is gone for tenths of a second, or half of it for
a minute. What piles up then makes gaps of its own, and may have needed memory that the heap keeps."""
TIMES = ("interrupted", "interrupted_per_stream", "gaps", "gaps_per_1000_tokens", "longest_gap_ms", "resume_p99_ms",
         "first_p99_ms", "last_p99_ms", "first_p50_ms", "last_p50_ms")  # fmt: skip
"""Figures of a run that mean nothing where the engine was late or the load deaf: whether streams are whole does not
depend on that."""
UNTIMELY = "untimely_"
"""Before the names of such figures: they are kept, and no median is made of them."""
COLUMNS = (
    ("streams", "streams", 0),
    ("events", "events", 0),
    ("not_whole", "not whole", 0),
    ("interrupted", "interrupted", 0),
    ("gaps_per_1000_tokens", "gaps/1k tokens", 4),
    ("engine_gaps", "engine's gaps", 0),
    ("resumed", "resumed", 0),
    ("growth_kib", "KiB/1k streams", 1),
    ("growth_high_kib", "at most", 1),
    ("blocks_left", "blocks left", 0),
    ("first_p99_ms", "first p99 ms", 2),
    ("last_p99_ms", "last p99 ms", 2),
    ("core_share", "core", 2),
    ("stolen_share", "stolen", 3),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at some time, and how many streams had ended by then."""

    streams: int
    anonymous_bytes: int


def main() -> int:
    """Run it; 0 when it is valid."""
    parser = command_line(__doc__, ["longwire"], seconds=60.0, runs=1)
    parser.add_argument("--minutes", type=float, default=15.0, help="after the first full life (15)")
    parser.add_argument("--streams", type=int, default=500, help="at once (500)")
    parser.add_argument("--tokens", type=int, default=8192, help="of each stream (8192)")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of each (20)")
    parser.add_argument("--fill", type=int, default=FILL, help=f"short streams before ({FILL})")
    options = parser.parse_args()
    if options.quick:
        options.fill = min(options.fill, 500)
        options.runs, options.minutes, options.seconds = 1, 0.5, 8.0
        options.streams, options.tokens = min(options.streams, 100), min(options.tokens, 320)
    if not (1 <= options.runs <= 10 and 0 < options.minutes <= 1440 and 1 <= options.streams <= 9000):
        parser.error("runs are 1 to 10, minutes up to 1440, streams 1 to 9000")
    if options.tokens < 20 or not 0 < options.rate <= 1000 or options.minutes * 60 < 2 * options.seconds:
        parser.error("at least 20 tokens, at most 1000/s, and time for a first and a last window of --seconds")
    return run_command(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """The runs, one after the other."""
    if options.targets != ["longwire"]:
        raise ValueError("the soak resumes streams by cursor: longwire is the only target that has them")
    (target,), _ = resolve(options.targets)
    life_s = options.tokens / options.rate
    title = f"Soak: {options.streams} streams of {options.tokens:,} tokens at {options.rate:g}/s ({life_s:.0f} s each)"
    work = Work("soak", f"{title}, {options.minutes:g} minutes", versions={target.name: target.version})
    work.remark(
        f"ended streams are kept for {RETENTION_S} s (--retention-s), so that logs kept on purpose do not look like a leak"
    )
    for number in range(1, options.runs + 1):
        figures = run(target, options, work)
        work.rounds.append({target.name: figures})
        say(f"run {number}/{options.runs}: {figures}")
    work.goals = goals(work, target.name)
    show(work, COLUMNS, options.json)
    is_timely = not any(name.startswith(UNTIMELY) for each in work.rounds for name in each[target.name])
    return 0 if work.is_valid and is_timely else 1


def run(target: Target, options: argparse.Namespace, work: Work) -> Figures:
    """One soak from start to end."""
    with tempfile.TemporaryDirectory(prefix="soak_") as name, ExitStack() as stack:
        stage = Stage(target, options, Path(name), stack)
        say(f"{options.fill:,} short streams come and go")
        stage.load.ask("fill", streams=options.fill, within_s=FILL_WITHIN_S)
        say(f"opening {options.streams} streams")
        stage.load.ask("open", streams=options.streams, within_s=OPEN_WITHIN_S)
        stage.sample(options.tokens / options.rate + RETENTION_S, "warming up")
        stage.engine.ask("begin")
        before, start = procstat.cpu(stage.gateway.pid, stage.core), stage.load.ask("state")
        stolen_ms = stage.stolen_ms()
        readings = stage.window(options.seconds, "first window")
        readings += stage.sample(options.minutes * 60 - 2 * options.seconds, "soaking")
        readings += stage.window(options.seconds, "last window")
        after, end = procstat.cpu(stage.gateway.pid, stage.core), stage.load.ask("state")
        stolen_ms = stage.stolen_ms() - stolen_ms
        engine = stage.engine.ask("finish")
        stage.load.ask("finish", within_s=FINISH_WITHIN_S)
        whole, delays = stage.load.ask("state"), stage.load.ask("windows")
        left = stage.wait_blocks()
        stage.gateway.must_live()
    found = figures_of(start, end, readings)
    used_ms = after.user_ms + after.system_ms - before.user_ms - before.system_ms
    found["blocks_left"] = float(left)
    found["core_share"] = used_ms / 1000 / (after.at_s - before.at_s)
    found["stolen_share"] = stolen_ms / 1000 / (after.at_s - before.at_s) / len(stage.cores)
    found["cpu_us"] = used_ms * 1000 / max(1.0, found["events"])
    for share in ("p99_ms", "p50_ms"):
        found[f"first_{share}"], found[f"last_{share}"] = delays[share]
    found["engine_late_p99_ms"] = engine["late_p99_ms"]
    if found["stolen_share"] > MAX_STOLEN_SHARE:
        found[INVALID] = 1.0
        work.remark(f"NOT VALID: the hypervisor took {found['stolen_share']:.1%} of the cores' time")
    if untimely := problems(end, engine):
        found = {UNTIMELY + name if name in TIMES else name: value for name, value in found.items()}
    for problem in untimely:
        work.remark(f"NOT VALID, as far as time is concerned: {problem}")
    if whole["errors"]:
        work.remark(f"{whole['errors']} problems, among them {whole['examples']}")
    return found


class Stage:
    """Engine, gateway and load."""

    def __init__(self, target: Target, options: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
        gateway_core, load_core = two_cores()
        self.core = gateway_core or 0
        self.cores = [self.core] if load_core is None else [self.core, load_core]
        rate = ["--rate", str(options.rate)]
        self.engine = stack.enter_context(Worker("soak_engine.py", rate, load_core, directory / "engine.log"))
        upstream, port = f"http://127.0.0.1:{self.engine.answer()['port']}", free_port()
        self.admin_port = free_port()
        argv = target.command(port, upstream, directory)
        argv += ["--retention-s", str(RETENTION_S), "--admin-port", str(self.admin_port)]
        self.gateway = stack.enter_context(Child(target.name, argv, gateway_core, directory / "gateway.log"))
        wait_ready(self.gateway, port)
        wait_calm(self.gateway)
        arguments = ["--port", str(port), "--streams", str(options.streams), "--tokens", str(options.tokens)]
        self.load = stack.enter_context(Worker("soak_load.py", arguments, load_core, directory / "load.log"))

    def window(self, seconds: float, what: str) -> list[Reading]:
        """The readings in a window whose delays are kept."""
        self.load.ask("begin")
        readings = self.sample(seconds, what)
        self.load.ask("end")
        return readings

    def sample(self, seconds: float, what: str) -> list[Reading]:
        """Readings, one a second."""
        say(f"{what} for {seconds:.0f} s")
        readings, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(SAMPLE_S, left))
            self.gateway.must_live()
            state, memory = self.load.ask("state"), procstat.memory(self.gateway.pid)
            readings.append(Reading(state["streams"], memory.anonymous_bytes))
        return readings

    def stolen_ms(self) -> float:
        """By the hypervisor, of all that this runs on."""
        return sum(map(procstat.stolen_ms, self.cores))

    def wait_blocks(self) -> int:
        """Blocks of the arena that are still in use when every stream has ended and been forgotten: 0, unless some leak."""
        deadline = time.monotonic() + FORGOTTEN_WITHIN_S
        while (left := self._blocks_used()) and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
        return left

    def _blocks_used(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        used = [line for line in lines if line.startswith("longwire_arena_used_blocks")]
        if not used:
            raise RunFailed("the metrics say nothing of the arena's blocks")
        return sum(int(float(line.rpartition(" ")[2])) for line in used)


def figures_of(start: dict[str, Any], end: dict[str, Any], readings: Sequence[Reading]) -> Figures:
    """What came in between, and how memory went."""
    between = {key: end[key] - start[key] for key in start if isinstance(start[key], (int, float))}
    tokens = max(1, between["all_events"])
    found = {
        "streams": float(between["streams"]),
        "whole": float(between["whole"]),
        "events": float(between["all_events"]),
        "broken": float(between["broken"]),
        "not_whole": float(between["streams"] - between["whole"]),
        "gaps": float(between["gaps"]),
        "engine_gaps": float(between["engine_gaps"]),
        "interrupted": float(between["broken"] + between["gap_streams"]),
        "interrupted_per_stream": (between["broken"] + between["gap_streams"]) / max(1, between["streams"]),
        "gaps_per_1000_tokens": between["gaps"] * 1000 / tokens,
        "longest_gap_ms": end["longest_gap_ms"],
        "cuts": float(between["cuts"]),
        "resumed": float(between["resumed"]),
        "resume_p99_ms": end["resume_p99_ms"],
        "errors": float(between["errors"]),
    }
    streams = [reading.streams / 1000 for reading in readings]
    return found | grown("growth", slope(streams, [each.anonymous_bytes / 1024 for each in readings]))


def grown(name: str, found: Slope | None) -> Figures:
    """KiB per 1,000 streams, with the bounds of the 95 % confidence interval."""
    if found is None:
        return {}
    return {f"{name}_kib": found.value, f"{name}_low_kib": found.low, f"{name}_high_kib": found.high}


def problems(end: dict[str, Any], engine: dict[str, Any]) -> list[str]:
    """Why the gaps and the delays of a run must not be cited."""
    found = []
    if engine["late_p99_ms"] > MAX_LATE_MS:
        found.append(
            f"the engine stand-in was {engine['late_p99_ms']:.1f} ms late (p99): its core is too slow or too busy"
        )
    if end["load_turn_max_ms"] > MAX_LOAD_TURN_MS:
        found.append(f"the load did not read for {end['load_turn_max_ms']:.0f} ms: gaps may be its own")
    return found


def goals(work: Work, name: str) -> list[Goal]:
    """IR, growth, and whether the last minute is like the first."""
    rounds = work.rounds
    not_whole, interrupted, gaps = (
        middle(rounds, name, figure) for figure in ("not_whole", "interrupted", "gaps_per_1000_tokens")
    )
    high, left = (middle(rounds, name, figure) for figure in ("growth_high_kib", "blocks_left"))
    first, last = (middle(rounds, name, figure) for figure in ("first_p99_ms", "last_p99_ms"))
    worse = last / first if first and last is not None else None
    note = "anonymous memory of all processes; upper bound of the 95 % confidence interval"
    return [
        Goal.most(
            "streams that are not whole", "streams", not_whole, 0.0, note="every byte of every event, and the end"
        ),
        Goal.most("interrupted streams", "streams", interrupted, 0.0, note="no end marker, or a gap over 500 ms"),
        Goal.most("gaps over 500 ms", "per 1,000 tokens", gaps, 0.0, note="the engine's own apart"),
        Goal.most("memory growth", "KiB per 1,000 streams", high, GOAL_GROWTH_KIB, note=note),
        Goal.most(
            "blocks of the arena in use when all has ended", "blocks", left, 0.0, note="while streams run, it swings"
        ),
        Goal.most("p99 delay of the last window", "x the first", worse, GOAL_P99_SHARE),
    ]


if __name__ == "__main__":
    sys.exit(main())
