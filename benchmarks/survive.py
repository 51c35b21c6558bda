"""What a killed shard costs the streams in it: how long each one pauses, and whether that depends on its length.

A real `longwire serve` with several shards, an engine stand-in and a load in processes of their own. The streams run, a
serving shard (from /v1/shards) is killed with SIGKILL, its streams are taken over, and so on. The pause of a stream is its
longest gap around the kill less the usual gap. The load checks every event of every stream: one that is missing, doubled
or torn, and every connection that is closed, counts as broken; the engine must have seen one request per stream.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from children import Worker
from control import percentile
from gateway import Gateway
from outcome import Outcome, command_line, put_first, run_command, say
from procstat import available_bytes

GOAL_P99_MS = 300.0
GOAL_RATIO = 1.2
EVENT_IN_LOG_BYTES = 260
SETTLE_S = 2.0
AFTER_KILL_S = 1.5
"""From the successor's word that it serves until the gaps are read: the last streams have had their next event by then."""
AFTERWARDS_S = 12.0
"""After the last kill: longer than any time limit of a new connection, none of which may hold for one that was taken over."""
OPEN_WITHIN_S = 120.0
FILL_WITHIN_S = 600.0
FINISH_WITHIN_S = 120.0
GIB = 1 << 30
USABLE_SHARE = 0.6
"""Of the memory that is free now: for the arena. The rest is for indexes, sockets and the processes themselves."""

EPILOG = """
A pause is seen only where an event falls into it, so the rate should not be far below 1 / pause: 5 events/s show a pause of
200 ms in every stream. More events take the cores away from taking over, which is a load and not a pause.

The exit status is 0 when the figures are valid and no stream was broken, whatever the pauses were.

examples:
  benchmarks/survive.py                            # 2,000 streams, ten kills, logs of 100 and 8,000 events
  benchmarks/survive.py --streams 200 --kills 2    # to see that it works; not to be cited
"""


@dataclass(slots=True)
class Kill:
    """One kill and what came of it."""

    slot: int
    streams: int
    serving_after_ms: float
    others_p99_ms: float
    pauses_ms: list[float] = field(default_factory=list)


def main() -> int:
    """Run everything; 0 when all of it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--streams", type=int, default=2000, help="streams in all shards together (2000)")
    parser.add_argument("--rate", type=float, default=5.0, help="events per second and stream (5)")
    parser.add_argument("--kills", type=int, default=10, help="SIGKILLs in each run, the shards taking turns (10)")
    parser.add_argument("--shards", type=int, default=2, help="processes that serve (2)")
    parser.add_argument("--logs", type=int, nargs="+", default=[100, 8000], help="events in each log (100 8000)")
    options = parser.parse_args()
    if options.streams < options.shards or options.kills < 1 or not 0 < options.rate <= 1000:
        parser.error("at least a stream per shard, one kill, and a rate of up to 1000")
    return run_command(options, lambda: measure(options))


def measure(options: argparse.Namespace) -> Sequence[Outcome]:
    """A run for each size of log, and what they say together."""
    outcome = Outcome(f"{options.kills} kills among {options.streams:,} streams at {options.rate:g} events/s")
    p99s: list[float] = []
    for events in options.logs:
        streams = affordable(options.streams, events, outcome)
        kills = one_run(streams, events, options, outcome)
        pauses = sorted(pause for kill in kills for pause in kill.pauses_ms)
        p99s.append(percentile(pauses, 0.99))
        outcome.add(f"logs of {events:,} events: streams", streams, digits=0)
        outcome.add("  pause p50", percentile(pauses, 0.5), "ms")
        outcome.add("  pause p99", p99s[-1], "ms", GOAL_P99_MS)
        outcome.add("  longest pause", percentile(pauses, 1.0), "ms")
        outcome.add("  p50 of the successor serving after", median_ms(kills), "ms")
        outcome.add("  p99 of the gap in other shards' streams", max(kill.others_p99_ms for kill in kills), "ms")
        outcome.raw[str(events)] = [
            {"slot": kill.slot, "streams": kill.streams, "serving_after_ms": kill.serving_after_ms}
            | {"p50_ms": percentile(kill.pauses_ms, 0.5), "p99_ms": percentile(kill.pauses_ms, 0.99)}
            for kill in kills
        ]
    if len(p99s) > 1:
        words = f"<= {GOAL_RATIO:g} x"
        outcome.add("p99, longest logs / shortest", p99s[-1] / p99s[0], "x", GOAL_RATIO, digits=2, goal=words)
    return [outcome]


def median_ms(kills: Sequence[Kill]) -> float:
    return percentile(sorted(int(kill.serving_after_ms * 1000) for kill in kills), 0.5) / 1000


def affordable(streams: int, events: int, outcome: Outcome) -> int:
    """As many streams as there is memory for their logs."""
    most = int(available_bytes() * USABLE_SHARE / (events * EVENT_IN_LOG_BYTES))
    if most >= streams:
        return streams
    outcome.notes.append(f"logs of {events:,} events: {most:,} streams instead of {streams:,}: there is no more memory")
    return most


def one_run(streams: int, events: int, options: argparse.Namespace, outcome: Outcome) -> list[Kill]:
    """Fill the logs, kill, and let every stream end properly."""
    say(f"{streams:,} streams with {events:,} events each")
    # What is added while the kills go on, the reserve, and the unequal shares of the shards.
    events_in_all = events + int(options.rate * options.kills * 20)
    arena_bytes = int(streams * (events_in_all * EVENT_IN_LOG_BYTES + (64 << 10)) * 1.5) + (256 << 20)
    with tempfile.TemporaryDirectory(prefix="survive_") as name, ExitStack() as stack:
        directory = Path(name)
        arguments = ["--rate", str(options.rate), "--fill", str(events)]
        engine = stack.enter_context(Worker("prefilled.py", arguments, None, directory / "engine.log"))
        settings = ["--arena-bytes", str(arena_bytes), "--log-level", "warning"]
        gateway = Gateway(int(engine.answer()["port"]), directory, options.shards, settings)
        stack.enter_context(gateway)
        gateway.wait_ready()
        arguments = ["--port", str(gateway.port), "--fill", str(events)]
        load = stack.enter_context(Worker("readers.py", arguments, None, directory / "load.log"))
        put_first(engine, load)
        load.ask("open", streams=streams, within_s=OPEN_WITHIN_S)
        began = time.monotonic()
        filled = load.ask("fill", within_s=FILL_WITHIN_S)
        say(f"  {filled['filled']:,} logs filled after {time.monotonic() - began:.0f} s")
        if filled["filled"] != streams:
            outcome.invalid.append(f"only {filled['filled']} of {streams} logs were filled: {filled['examples']}")
        time.sleep(SETTLE_S)
        kills = [one_kill(number, gateway, load, options, outcome) for number in range(options.kills)]
        say(f"  {AFTERWARDS_S:g} s to see whether all go on")
        time.sleep(AFTERWARDS_S)
        started = engine.ask("count")["started"]
        engine.ask("finish")
        end = load.ask("finish", within_s=FINISH_WITHIN_S)
    broken = streams - int(end["complete"])
    outcome.add(f"logs of {events:,} events: streams broken", broken, "", 0, digits=0)
    if broken or end["errors"]:
        outcome.invalid.append(f"{broken} of {streams} streams were broken, among them {end['examples']}")
    if started != streams:
        outcome.invalid.append(f"the engine had {started} requests for {streams} streams")
    return kills


def one_kill(number: int, gateway: Gateway, load: Worker, options: argparse.Namespace, outcome: Outcome) -> Kill:
    """Kill a shard that serves streams, and see how long each of them stood still."""
    if not gateway.wait_spare():
        outcome.notes.append(f"kill {number + 1}: no spare was warm before")
    slot = number % options.shards
    load.ask("mark")
    streams, after_s = gateway.kill(slot)
    time.sleep(AFTER_KILL_S)
    found = load.ask("gaps", slot=slot)
    usual_ms = 1000 / options.rate
    pauses = [max(0.0, gap - usual_ms) for gap in found["hit"]]
    others_ms = max(0.0, found["others_p99_ms"] - usual_ms)
    kill = Kill(slot, streams, after_s * 1000, others_ms, pauses)
    if not pauses:
        outcome.invalid.append(f"kill {number + 1} hit no stream")
    say(
        f"  kill {number + 1}/{options.kills}: slot {slot}, {len(pauses)} streams, served again after "
        f"{kill.serving_after_ms:.0f} ms, pause p50 {percentile(pauses, 0.5):.0f} p99 {percentile(pauses, 0.99):.0f} ms, "
        f"{found['errors']} errors"
    )
    return kill


if __name__ == "__main__":
    sys.exit(main())
