"""What surviving costs while nothing happens, and what one tenant costs the others.

rows        reading and writing a stream's row with its lookup by id, in this process and from another; counters of limits
passing     a request that belongs to another shard, beside one that does not, on one keep-alive connection; and the same
            between two event loops that keep nothing of it
adoption    processor time per stream that a successor takes over
neighbours  other tenants' p99 delay while one floods, and while 500 of its readers are stuck

No message, fork or system call per stream is made for survival while nothing happens; what there is, is here.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import memory_costs
import neighbours
from children import RunFailed, Worker
from gateway import Gateway, processor_ns
from outcome import Outcome, command_line, put_first, run_command, say

PARTS = ("rows", "passing", "adoption", "neighbours")
PASSING_GOAL_US = 150.0
OPEN_WITHIN_S = 120.0
FEW_STREAMS = 40
"""So many that each shard has some."""
LIST_WITHIN_S = 2.0

EPILOG = """
rows need no gateway and take seconds. passing is what the client sees: the time of GET /v1/streams/{id} as JSON when ids of two
shards alternate (every request finds the connection at the other one), less the time when they do not. Its floor is what the
descriptor and a new transport for it take, with no head parsed and no row written (bare_hop.py). adoption is the
successor's own processor time, so it does not depend on what else runs.

The exit status is 0 when the figures are valid, whatever they are.

examples:
  benchmarks/costs.py                                           # everything, about three minutes
  benchmarks/costs.py --only rows passing
  benchmarks/costs.py --only neighbours --quiet 50 --stuck 100  # to see that it works; not to be cited
"""


def main() -> int:
    """Run what was asked for; 0 when all of it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (all)")
    parser.add_argument("--requests", type=int, default=2000, help="passing: requests of each kind (2000)")
    parser.add_argument("--streams", type=int, default=1000, help="adoption: streams in all shards (1000)")
    parser.add_argument("--log", type=int, nargs="+", default=[100, 2000], help="adoption: events per log (100 2000)")
    parser.add_argument("--quiet", type=int, default=250, help="neighbours: streams of each quiet tenant (250)")
    parser.add_argument("--flood", type=int, default=64, help="neighbours: connections that flood (64)")
    parser.add_argument("--stuck", type=int, default=500, help="neighbours: readers that do not read (500)")
    parser.add_argument("--rate", type=float, default=5.0, help="events per second and stream (5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="neighbours: length of each window (10)")
    options = parser.parse_args()
    return run_command(options, lambda: [measure(part, options) for part in PARTS if part in options.only])


def measure(part: str, options: argparse.Namespace) -> Outcome:
    """One part. What goes wrong in it does not take the others' figures away."""
    say(part)
    try:
        return _PARTS[part](options)
    except RunFailed as error:
        return Outcome(part, invalid=[str(error)])


def rows(options: argparse.Namespace) -> Outcome:
    """Operations on shared memory, in this process; there is nothing to choose."""
    del options
    return memory_costs.measure()


class Scene:
    """An engine, a gateway of two shards and open streams."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace, streams: int, fill: int = 0) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="costs_")))
        arguments = ["--rate", str(options.rate), "--fill", str(fill)]
        self.engine = stack.enter_context(Worker("prefilled.py", arguments, None, directory / "engine.log"))
        arena = streams * (fill * 260 + (128 << 10)) * 2 + (256 << 20)
        settings = ["--arena-bytes", str(arena), "--log-level", "error"]
        self.gateway = Gateway(int(self.engine.answer()["port"]), directory, 2, settings)
        stack.enter_context(self.gateway)
        self.gateway.wait_ready()
        arguments = ["--port", str(self.gateway.port), "--fill", str(fill)]
        self.load = stack.enter_context(Worker("readers.py", arguments, None, directory / "load.log"))
        put_first(self.engine, self.load)
        self.load.ask("open", streams=streams, within_s=OPEN_WITHIN_S)
        self.load.ask("fill", within_s=OPEN_WITHIN_S)


# Passing.


def passing(options: argparse.Namespace) -> Outcome:
    """The same question about streams of one shard, and of two in turn."""
    outcome = Outcome(f"Passing a request to another shard, {options.requests:,} requests of each kind")
    with ExitStack() as stack:
        scene = Scene(stack, options, FEW_STREAMS)
        listed = scene.gateway.get(scene.gateway.port, "/v1/streams")["data"]
        by_slot = {int(each["id"][-2:], 16): each["id"] for each in listed}
        if set(by_slot) != {0, 1}:
            raise RunFailed(f"all streams are in slot {next(iter(by_slot), 'none')}: nothing to pass between")
        connection = http.client.HTTPConnection("127.0.0.1", scene.gateway.port, timeout=5)
        kinds = {"same": [by_slot[0]], "same too": [by_slot[1]], "passed": [by_slot[0], by_slot[1]]}
        times = {kind: ask(connection, ids, options.requests) for kind, ids in kinds.items()}
        connection.close()
    same = (median(times["same"]) + median(times["same too"])) / 2
    passed = median(times["passed"])
    outcome.add("request of the connection's own shard, p50", same, "us")
    outcome.add("request that is passed on, p50", passed, "us")
    outcome.add("  difference", passed - same, "us", PASSING_GOAL_US)
    mean_same = (sum(times["same"]) + sum(times["same too"])) / (2 * options.requests)
    outcome.add("  difference of the means", sum(times["passed"]) / options.requests - mean_same, "us")
    outcome.add("floor: the same difference between two bare loops, p50", bare_hop(options.requests), "us")
    return outcome


def bare_hop(requests: int) -> float:
    """What a hop takes of which nothing is kept, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="costs_") as name:
        with Worker("bare_hop.py", [], None, Path(name) / "bare.log") as loops:
            connection = http.client.HTTPConnection("127.0.0.1", int(loops.answer()["port"]), timeout=5)
            same, passed = (median(ask(connection, ids, requests)) for ids in (["0"], ["0", "1"]))
            connection.close()
    return passed - same


def ask(connection: http.client.HTTPConnection, ids: Sequence[str], requests: int) -> list[float]:
    """How long each request took, in microseconds, on one connection."""
    took = []
    for number in range(requests):
        began = time.monotonic_ns()
        connection.request("GET", f"/v1/streams/{ids[number % len(ids)]}", headers={"accept": "application/json"})
        response = connection.getresponse()
        body = response.read()
        took.append((time.monotonic_ns() - began) / 1000)
        if response.status != 200:
            raise RunFailed(f"GET /v1/streams/… gave {response.status}: {body[:200]!r}")
    return took


# Adoption.


def adoption(options: argparse.Namespace) -> Outcome:
    """The processor time of the successor, from the kill until it serves."""
    outcome = Outcome(f"Taking over, among {options.streams:,} streams at {options.rate:g} events/s")
    for events in options.log:
        with ExitStack() as stack:
            scene = Scene(stack, options, options.streams, events)
            time.sleep(LIST_WITHIN_S)
            if not scene.gateway.wait_spare():
                outcome.notes.append(f"logs of {events:,} events: no spare was warm")
            before = {pid: processor_ns(pid) for pid in scene.gateway.spares()}
            streams, after_s = scene.gateway.kill(0)
            successor = scene.gateway.shards()[0]["pid"]
            used_us = (processor_ns(successor) - before.get(successor, 0)) / 1000
            scene.engine.ask("finish")
            end = scene.load.ask("finish", within_s=OPEN_WITHIN_S)
        outcome.add(f"logs of {events:,} events: streams taken over", streams, digits=0)
        outcome.add("  processor time per stream", used_us / max(1, streams), "us")
        outcome.add("  in all", used_us / 1000, "ms")
        outcome.add("  serving after", after_s * 1000, "ms")
        if end["errors"] or not streams:
            outcome.invalid.append(f"logs of {events:,} events: {streams} taken over, {end}")
    return outcome


_PARTS = {"rows": rows, "passing": passing, "adoption": adoption, "neighbours": neighbours.measure}


if __name__ == "__main__":
    sys.exit(main())
