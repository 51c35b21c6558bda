"""A burst: from nothing to ten times the floor of warm connections within a second, at an engine that is slow to connect to.

A real `longwire serve` before an engine whose new connections are deaf for a while. After a rest, requests arrive evenly
within a second, and each client takes the time to its first token. The same is done with warming and scaling off.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from arrivals import Asked, Asker, ttft_ms
from children import RunFailed, Worker
from gateway import Gateway
from outcome import Outcome, command_line, put_first, run_command, say

FLOOR = 4
TTFT_GOAL_MS = 386.0
FAILED_GOAL_PERCENT = 0.2
REST_S = 6.0
"""Before each burst: longer than idle connections are kept, so that nothing is left of the one before."""
ON = {"warm_floor": str(FLOOR), "warm_ceiling": "16"}
OFF = {"warm_floor": "0", "warm_ceiling": "0"}

EPILOG = """
The exit status is 0 when every run was valid, whatever the figures are. A checkout without the settings of warming measures
the gateway as it is, and says so.

examples:
  benchmarks/burst.py
  benchmarks/burst.py --connect-ms 100 --bursts 1      # to see that it works; not to be cited
"""


def main() -> int:
    """Run it; 0 when it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--requests", type=int, default=10 * FLOOR, help="requests of one burst (40)")
    parser.add_argument("--bursts", type=int, default=3, help="bursts of each run, one after the other (3)")
    parser.add_argument("--connect-ms", type=float, default=400.0, help="how long a new connection is deaf (400)")
    parser.add_argument("--shards", type=int, default=1, help="processes that serve (1)")
    options = parser.parse_args()
    if not 1 <= options.requests <= 1000 or not 1 <= options.bursts <= 5 or options.connect_ms < 0:
        parser.error("1 to 1000 requests, 1 to 5 bursts, and no negative time")
    return run_command(options, lambda: measure(options))


def measure(options: argparse.Namespace) -> Sequence[Outcome]:
    """With warming, and without."""
    from longwire.words.config import declared  # the path to it was set by then
    from longwire.words.settings import Settings

    outcome = Outcome(
        f"{options.requests} requests within a second, new connections deaf for {options.connect_ms:g} ms"
    )
    can_warm = all(name in declared(Settings) for name in ON)
    runs = {"warming": ON, "off": OFF} if can_warm else {"as it is": {}}
    if not can_warm:
        outcome.notes.append("this checkout has no settings of warming: there is one run only")
    for name, settings in runs.items():
        say(name)
        asked, connections = one_run(settings, options)
        is_goal = name != "off"
        failed = 100 * sum(not each.whole for each in asked) / len(asked)
        outcome.add(f"{name}: failed", failed, "%", FAILED_GOAL_PERCENT if is_goal else None, digits=2)
        outcome.add(f"{name}: TTFT p50", ttft_ms(asked, 0.5), "ms")
        outcome.add(f"{name}: TTFT p99", ttft_ms(asked, 0.99), "ms", TTFT_GOAL_MS if is_goal else None)
        outcome.add(f"{name}: connections made per burst", connections / options.bursts)
        outcome.raw[name] = [(each.at, each.status, each.ttft_s, each.whole) for each in asked]
    return [outcome]


def one_run(settings: dict[str, str], options: argparse.Namespace) -> tuple[list[Asked], float]:
    """All bursts of one gateway."""
    with tempfile.TemporaryDirectory(prefix="burst_") as name, ExitStack() as stack:
        directory = Path(name)
        arguments = ["--connect-ms", str(options.connect_ms)]
        engine = stack.enter_context(Worker("kv_engine.py", arguments, None, directory / "engine.log"))
        port = int(engine.answer()["port"])
        flags = [part for key, value in settings.items() for part in ("--" + key.replace("_", "-"), value)]
        gateway = Gateway(port, directory, options.shards, ["--log-level", "error", *flags])
        stack.enter_context(gateway)
        gateway.wait_ready()
        put_first(engine)
        asker = Asker(gateway.port, prompt_tokens=100, answers=[64])
        engine.ask("begin")
        asked: list[Asked] = []
        for _ in range(options.bursts):
            time.sleep(REST_S)
            asked += asyncio.run(asker.spread(options.requests, 1.0))
        seen = engine.ask("end")
    if not asked:
        raise RunFailed("nothing was asked")
    return asked, float(seen["connections"])


if __name__ == "__main__":
    sys.exit(main())
