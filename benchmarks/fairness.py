"""Fairness: nine tenants that keep to their shares, and one that asks for a hundred times its own.

A real `longwire serve` before an engine that is given a bounded number of requests at a time, so that the gateway decides
whose turn it is. The quiet tenants ask at times that were drawn beforehand (a Poisson process for each, and the same times in
every run): first alone, then with the greedy one beside them. The same is done with the fair queue of no use: all ten are one
tenant to the gateway, so that their requests wait in one line.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from arrivals import Asked, Asker, lengths, ttft_ms
from children import RunFailed, Worker
from gateway import Gateway
from outcome import Outcome, command_line, put_first, run_command, say

QUIET = 9
TIMES_SHARE = 100
RATIO_GOAL = 2.0
SETTLE_S = 2.0
"""For the greedy one's queue to fill: what is measured is the time in which it is full."""
PROMPT_TOKENS = 100
SEED = 5
MOST_RATE = 4000.0
"""Requests a second of the greedy tenant: more is a test of the load, not of the gateway."""

EPILOG = """
A share is the tenth part of what the engine answers in a second. At a busy engine even the next in line waits until one of the
answers under way ends, so what the greedy tenant can add at least depends on how many those are, and on their length: the
waits are shown in answers, too.

The exit status is 0 when the runs were valid, whatever the figures are.

examples:
  benchmarks/fairness.py
  benchmarks/fairness.py --at-once 16 --answer-tokens 20
  benchmarks/fairness.py --seconds 3      # to see that it works; not to be cited
"""


class Window(NamedTuple):
    """What the quiet tenants got in one stretch of time."""

    asked: list[Asked]

    @property
    def p50_ms(self) -> float:
        return ttft_ms(self.asked, 0.5)

    @property
    def p99_ms(self) -> float:
        return ttft_ms(self.asked, 0.99)

    @property
    def failed(self) -> int:
        return sum(not each.whole for each in self.asked)


class Load(NamedTuple):
    """Who asks how often. ``answer_s`` is how long the engine takes for one answer."""

    answer_s: float
    share: float
    times: list[list[float]]


def main() -> int:
    """Run it; 0 when it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--at-once", type=int, default=64, help="requests that the engine is given at once (64)")
    parser.add_argument("--answer-tokens", type=int, default=50, help="tokens of an answer, on average (50)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="what the engine takes for each of them (20)")
    parser.add_argument("--used", type=float, default=0.5, help="what each quiet tenant uses of its share (0.5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each stretch that is measured (15)")
    options = parser.parse_args()
    if not 1 <= options.at_once <= 1000 or options.answer_tokens < 2 or options.step_ms <= 0:
        parser.error("1 to 1000 requests at once, answers of 2 tokens and more, and steps that take time")
    if not 0 < options.used <= 1 or not 1 <= options.seconds <= 60:
        parser.error("a part of the share above 0 and up to 1, and 1 to 60 seconds")
    if TIMES_SHARE * load_of(options).share > MOST_RATE:
        parser.error(f"that would be more than {MOST_RATE:g} requests a second: take longer answers, or fewer at once")
    return run_command(options, lambda: measure(options))


def load_of(options: argparse.Namespace) -> Load:
    """The quiet tenants' times, the same in every run."""
    answer_s = options.answer_tokens * options.step_ms / 1000
    share = options.at_once / answer_s / (QUIET + 1)
    return Load(
        answer_s, share, [times(Random(SEED + each), share * options.used, options.seconds) for each in range(QUIET)]
    )


def times(dice: Random, rate: float, seconds: float) -> list[float]:
    """When a tenant asks that asks so often on average."""
    found: list[float] = []
    at = dice.expovariate(rate)
    while at < seconds:
        found.append(at)
        at += dice.expovariate(rate)
    return found


def measure(options: argparse.Namespace) -> Sequence[Outcome]:
    """Each for itself, and all as one tenant."""
    load = load_of(options)
    outcome = Outcome(
        f"{QUIET} tenants at {options.used:g} of their share ({load.share:.3g} requests/s), one at {TIMES_SHARE} times; "
        f"{options.at_once} answers of {load.answer_s * 1000:.0f} ms at once"
    )
    for name, is_fair in (("fair", True), ("all one tenant", False)):
        say(name)
        before, during, told = one_run(load, options, is_fair=is_fair)
        show(outcome, name, (before, during), told, load, is_fair=is_fair)
    return [outcome]


def show(
    outcome: Outcome, name: str, windows: tuple[Window, Window], told: dict[str, Any], load: Load, *, is_fair: bool
) -> None:
    """The rows of one run; the goals are the fair queue's."""
    before, during = windows
    ratio = during.p99_ms / before.p99_ms
    for when, window in (("alone", before), ("with the greedy one", during)):
        outcome.add(f"{name}: quiet, {when}: TTFT p50", window.p50_ms, "ms")
        outcome.add(f"{name}: quiet, {when}: TTFT p99", window.p99_ms, "ms")
    words = f"<= {RATIO_GOAL:g} x" if is_fair else ""
    outcome.add(f"{name}: p99, with / alone", ratio, "x", RATIO_GOAL if is_fair else None, digits=2, goal=words)
    added = (during.p99_ms - before.p99_ms) / load.answer_s / 1000
    outcome.add(f"{name}: p99 longer by", added, "answers", digits=2)
    failed = before.failed + during.failed
    outcome.add(f"{name}: quiet, failed", failed, "", 0 if is_fair else None, digits=0)
    outcome.add(f"{name}: greedy, asked", told["asked"], "", digits=0)
    outcome.add(f"{name}: greedy, answered", told.get("whole", 0), "", digits=0)
    outcome.add(f"{name}: greedy, refused", told.get("refused", 0), "", digits=0)
    without = told.get("refused without Retry-After", 0)
    outcome.add(f"{name}: refused without Retry-After", without, "", 0, digits=0)
    outcome.raw[name] = {
        "greedy": told,
        "quiet": [[(each.status, each.ttft_s) for each in window.asked] for window in windows],
    }
    kept_back = told.get("kept back", 0)
    if kept_back > told["asked"] / 10:
        outcome.invalid.append(f"{name}: the greedy tenant kept {kept_back} of {told['asked']} requests back")


def one_run(load: Load, options: argparse.Namespace, *, is_fair: bool) -> tuple[Window, Window, dict[str, Any]]:
    """One gateway: the quiet ones alone, then with the greedy one, and what that one has counted."""
    with tempfile.TemporaryDirectory(prefix="fairness_") as place, ExitStack() as stack:
        directory = Path(place)
        arguments = ["--step-ms", str(options.step_ms), "--max-running", "1000"]
        engine = stack.enter_context(Worker("kv_engine.py", arguments, None, directory / "engine.log"))
        names = [f"quiet{each}" for each in range(QUIET)] + ["greedy"]
        keys = {name: f"lwk-{secrets.token_urlsafe(24)}" for name in names}
        tenants = {name: [name] for name in names} if is_fair else {"all": names}
        config = write_config(directory, int(engine.answer()["port"]), tenants, keys, options.at_once)
        gateway = stack.enter_context(Gateway(0, directory, 1, ["--config", str(config), "--log-level", "error"]))
        gateway.wait_ready({"Authorization": f"Bearer {keys['greedy']}"})
        headers = {name: f"Authorization: Bearer {key}" for name, key in keys.items()}
        rate = ["--rate", str(TIMES_SHARE * load.share), "--answer-tokens", str(options.answer_tokens)]
        more = ["--port", str(gateway.port), "--header", headers["greedy"], "--prompt-tokens", str(PROMPT_TOKENS)]
        greedy = stack.enter_context(Worker("greedy.py", [*rate, *more], None, directory / "greedy.log"))
        put_first(engine)
        askers = [
            Asker(gateway.port, PROMPT_TOKENS, lengths(options.answer_tokens), [headers[name]])
            for name in names
            if name != "greedy"
        ]
        time.sleep(SETTLE_S)
        before = asyncio.run(ask_all(askers, load))
        greedy.ask("start")
        time.sleep(SETTLE_S)
        during = asyncio.run(ask_all(askers, load))
        greedy.ask("stop")
        told = greedy.ask("count")
    if not before.asked or not during.asked:
        raise RunFailed("nobody has asked")
    return before, during, told


async def ask_all(askers: list[Asker], load: Load) -> Window:
    """All quiet tenants, each at its times."""
    found = await asyncio.gather(*(asker.at_times(at) for asker, at in zip(askers, load.times, strict=True)))
    return Window([each for asked in found for each in asked])


def write_config(directory: Path, port: int, tenants: dict[str, list[str]], keys: dict[str, str], at_once: int) -> Path:
    """An engine that is given so many requests at once, and tenants by the names of their keys."""
    from longwire.admission.tenants import hash_key  # the path to it was set by then

    lines = [f"max_upstream_requests = {at_once}", "[[engines]]", f'url = "http://127.0.0.1:{port}"']
    for tenant, names in tenants.items():
        hashes = ", ".join(f'"{hash_key(keys[name])}"' for name in names)
        lines += ["[[tenants]]", f'name = "{tenant}"', "max_streams = 1000", f"key_hashes = [{hashes}]"]
    path = directory / "longwire.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
