"""A storm of returning clients: 9,000 are cut at once and are back within a second, while 500 others go on reading.

A real `longwire serve` with several shards and an engine stand-in. The clients of one load process lose their connections
together and come back through GET /v1/streams/{id} with Last-Event-ID. The load knows what each has had: an event that is
missing or comes twice, or any answer but the stream, counts as not resumed. Another load process reads 500 streams that
nobody cuts: its p99 delay (engine's send to load's recv) is taken before and during the storm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from children import Worker
from gateway import Gateway
from outcome import Outcome, command_line, put_first, run_command, say

GOAL_TIMES = 2.0
BACK_GOAL_S = 1.0
GRACE_S = 60
SETTLE_S = 3.0
OPEN_WITHIN_S = 180.0
BACK_WITHIN_S = 60.0
FINISH_WITHIN_S = 120.0
AFTER_S = 1.0
"""How long the storm is measured beyond the last return: what it left in queues belongs to it."""
FEW_SAMPLES = 500
"""Below so many, the p99 is the word of a handful of events."""
BYTES_PER_STREAM = 96 << 10

EPILOG = """
Connections come from 127.0.0.2 to 127.0.0.9: one address alone has 28,000 ports, of which many are in TIME_WAIT afterwards.
The engine and the load of the untouched streams have priority over everything else (as root), because a delay in them is
not one of the gateway; the load that makes the storm has none, and shares the cores with the shards.

The exit status is 0 when every client resumed exactly, whatever the delays were.

examples:
  benchmarks/storm.py                                  # 9,000 clients, 500 untouched streams
  benchmarks/storm.py --clients 900 --untouched 100    # to see that it works; not to be cited
"""


def main() -> int:
    """Run it; 0 when it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--clients", type=int, default=9000, help="clients that are cut and come back (9000)")
    parser.add_argument("--untouched", type=int, default=500, help="streams that go on (500)")
    parser.add_argument("--rate", type=float, default=1.0, help="events per second and stream (1)")
    parser.add_argument("--within", type=float, default=1.0, metavar="SECONDS", help="all are back in so long (1)")
    parser.add_argument("--before", type=float, default=10.0, metavar="SECONDS", help="measured before the storm (10)")
    parser.add_argument("--shards", type=int, default=2, help="processes that serve (2)")
    options = parser.parse_args()
    if min(options.clients, options.untouched) < 1 or not 0 < options.rate <= 1000 or options.within <= 0:
        parser.error("at least one client and one untouched stream, and a rate of up to 1000")
    return run_command(options, lambda: measure(options))


def measure(options: argparse.Namespace) -> Sequence[Outcome]:
    """Open everything, measure, cut, let them come back."""
    outcome = Outcome(f"{options.clients:,} clients cut at once, {options.untouched:,} untouched streams")
    streams = options.clients + options.untouched
    with tempfile.TemporaryDirectory(prefix="storm_") as name, ExitStack() as stack:
        directory = Path(name)
        engine = stack.enter_context(
            Worker("prefilled.py", ["--rate", str(options.rate)], None, directory / "engine.log")
        )
        settings = ["--arena-bytes", str(streams * BYTES_PER_STREAM + (256 << 20)), "--log-level", "error"]
        gateway = Gateway(int(engine.answer()["port"]), directory, options.shards, settings)
        stack.enter_context(gateway)
        gateway.wait_ready()
        port = ["--port", str(gateway.port)]
        calm = stack.enter_context(Worker("load.py", port, None, directory / "untouched.log"))
        grace = ["--header", f"Longwire-On-Disconnect: grace={GRACE_S}"]
        storm = stack.enter_context(Worker("readers.py", [*port, *grace], None, directory / "storm.log"))
        put_first(engine, calm)
        say(f"opening {streams:,} streams")
        calm.ask("open", streams=options.untouched, within_s=OPEN_WITHIN_S)
        opened = storm.ask("open", streams=options.clients, within_s=OPEN_WITHIN_S)
        if opened["errors"]:
            outcome.invalid.append(f"{opened['errors']} errors at opening, among them {opened['examples']}")
        time.sleep(SETTLE_S)
        say(f"measuring the untouched for {options.before:g} s")
        calm.ask("begin")
        time.sleep(options.before)
        before = calm.ask("end")
        say("cutting")
        calm.ask("begin")
        cut = storm.ask("cut")["cut"]
        back = storm.ask("return", over_s=options.within, within_s=BACK_WITHIN_S)
        say(f"{back['back']:,} of {cut:,} are back; the last was connected after {back['connected_s']:.2f} s")
        time.sleep(AFTER_S)
        during = calm.ask("end")
        engine.ask("finish")
        ends = [load.ask("finish", within_s=FINISH_WITHIN_S) for load in (calm, storm)]
    whole = sum(int(end["complete"]) for end in ends)
    outcome.add("clients not resumed", cut - int(back["back"]), "", 0, digits=0)
    outcome.add("clients refused, or events lost or doubled", sum(end["errors"] for end in ends), "", 0, digits=0)
    outcome.add(
        "last connection made after", back["connected_s"], "s", max(BACK_GOAL_S, options.within) * 1.1, digits=2
    )
    outcome.add("last client had its next event after", back["served_s"], "s", digits=2)
    outcome.add("untouched p50 before", before["p50_ms"], "ms", digits=2)
    outcome.add("untouched p50 during", during["p50_ms"], "ms", digits=2)
    outcome.add("untouched p99 before", before["p99_ms"], "ms", digits=2)
    outcome.add("untouched p99 during", during["p99_ms"], "ms", digits=2)
    ratio = during["p99_ms"] / before["p99_ms"]
    outcome.add("untouched p99, during / before", ratio, "x", GOAL_TIMES, digits=2, goal=f"<= {GOAL_TIMES:g} x")
    outcome.raw |= {"before": before, "during": during, "back": back, "ends": ends}
    if during["events"] < FEW_SAMPLES:
        outcome.notes.append(f"only {during['events']} events of untouched streams during the storm: raise --rate")
    if whole != streams:
        outcome.invalid.append(f"{whole} of {streams} streams came through whole: {[e['examples'] for e in ends]}")
    return [outcome]


if __name__ == "__main__":
    sys.exit(main())
