"""Saturation: 256 clients ask all the time of an engine whose KV cache holds 80 of their requests.

A real `longwire serve` before an engine with a KV cache of blocks (kv_batch.py) that preempts as vLLM does. First the clients
are few, which is unloaded; then as many as a static limit would let through, one run for each limit, of which the best is the
yardstick of goodput; then all of them, with shedding and without. Afterwards all but a few stop, and it is taken how long
those few go on feeling it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from arrivals import Asked, Asker, lengths, ttft_ms
from children import Worker
from gateway import Gateway
from outcome import Outcome, command_line, put_first, run_command, say

PROMPT_TOKENS, ANSWER_TOKENS = 256, 128
LENGTHS = lengths(ANSWER_TOKENS)
"""Answers differ, each by its request's max_tokens."""
FITS = 80
BLOCKS = FITS * (PROMPT_TOKENS + ANSWER_TOKENS) // 16
FEW = 8
STATIC_LIMITS = (96, 128)
RAMP_S = 2.0
"""In which all clients begin to ask: in one instant they would be a wave that no limit spreads."""
QUEUE_DEADLINE_S = 2.0
RECOVER_S = 10.0
PREEMPTED_GOAL_PERCENT = 5.0
TTFT_GOAL_TIMES = 2.0
GOODPUT_GOAL_SHARE = 0.95
LATE_GOAL_MS = 100.0
ON = {"shed": "true", "queue_deadline_s": str(QUEUE_DEADLINE_S)}
OFF = {"shed": "false"}

EPILOG = """
The time to the first token counts from the moment the engine has the request: what a request waits in the gateway is bounded
by the queue's deadline, and shown beside it. Goodput is tokens per second of answers that came whole.

The exit status is 0 when the runs were valid, whatever the figures are. A checkout without the settings of shedding measures
the gateway as it is, and says so.

examples:
  benchmarks/saturate.py
  benchmarks/saturate.py --seconds 4      # to see that it works; not to be cited
"""


@dataclass(slots=True)
class Run:
    """What one number of clients got."""

    asked: list[Asked]
    engine: dict[str, Any]
    seconds: float
    began: float
    few: list[Asked] = field(default_factory=list)
    """Those that came afterwards, when the others had ceased to ask."""

    def recovered_s(self, unloaded_ms: float) -> float:
        """Until when those that came afterwards felt what was before: when the last slow one had its first token."""
        slow = [
            each.first_at or each.ended_at
            for each in self.few
            if not each.first_at or each.ttft_s * 1000 > TTFT_GOAL_TIMES * unloaded_ms
        ]
        return max([self.began + self.seconds, *slow]) - self.began - self.seconds

    @property
    def goodput(self) -> float:
        """Tokens per second of whole answers, over the time in which all clients ask."""
        begins, ends = self.began + RAMP_S, self.began + self.seconds
        return sum(each.tokens for each in self.asked if each.whole and begins <= each.ended_at <= ends) / (
            ends - begins
        )

    @property
    def refused(self) -> list[Asked]:
        return [each for each in self.asked if each.is_refused]

    @property
    def preempted_percent(self) -> float:
        return 100 * float(self.engine["preempted_requests"]) / max(1, self.engine["requests"])


class Yardstick(NamedTuple):
    """What a run with all clients is held against."""

    engine_ms: float
    client_ms: float
    goodput: float


def main() -> int:
    """Run it; 0 when it is valid."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--clients", type=int, default=256, help="clients that ask all the time (256)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run with all clients (8)")
    options = parser.parse_args()
    if not FEW < options.clients <= 1000 or not 2 * RAMP_S <= options.seconds <= 20:
        parser.error(f"{FEW + 1} to 1000 clients, {2 * RAMP_S:g} to 20 seconds")
    return run_command(options, lambda: measure(options))


def measure(options: argparse.Namespace) -> Sequence[Outcome]:
    """Unloaded, static limits, and all clients with shedding and without."""
    from longwire.words.config import declared  # the path to it was set by then
    from longwire.words.settings import Settings

    can_shed = all(name in declared(Settings) for name in ON)
    outcome = Outcome(f"{options.clients} clients, {FITS} requests of {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens fit")
    with tempfile.TemporaryDirectory(prefix="saturate_") as name:
        yardstick = find_yardstick(Path(name), options, OFF if can_shed else {}, outcome)
    runs = {"shedding": ON, "unshed": OFF} if can_shed else {"as it is": {}}
    if not can_shed:
        outcome.notes.append("this checkout has no settings of shedding: there is one run only")
    for name, settings in runs.items():
        say(name)
        with tempfile.TemporaryDirectory(prefix="saturate_") as place, Stage(Path(place), settings) as stage:
            run = stage.overload(options.clients, options.seconds)
        show(outcome, name, run, yardstick)
    return [outcome]


def find_yardstick(
    directory: Path, options: argparse.Namespace, settings: dict[str, str], outcome: Outcome
) -> Yardstick:
    """What there is without load, and the best goodput of a static limit."""
    with Stage(directory, settings) as stage:
        say("unloaded")
        few = stage.play(FEW, min(4.0, options.seconds))
        yardstick = Yardstick(float(few.engine["ttft_p99_ms"]), ttft_ms(few.asked, 0.99), 0.0)
        outcome.add(f"unloaded ({FEW} clients): TTFT p99 at the engine", yardstick.engine_ms, "ms")
        outcome.add(f"unloaded ({FEW} clients): TTFT p99 for clients", yardstick.client_ms, "ms")
        for limit in STATIC_LIMITS:
            say(f"as many clients as a limit of {limit} lets through")
            run = stage.play(limit, max(2 * RAMP_S, options.seconds * 0.75))
            outcome.add(f"static limit of {limit}: goodput", run.goodput, "tokens/s", digits=0)
            yardstick = yardstick._replace(goodput=max(yardstick.goodput, run.goodput))
            outcome.raw[f"static {limit}"] = run.engine
    return yardstick


class Stage:
    """An engine and a gateway before it."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.directory = directory
        self.flags = [part for key, value in settings.items() for part in as_flag(key, value)]
        self.stack = ExitStack()

    def __enter__(self) -> Stage:
        arguments = ["--kv-blocks", str(BLOCKS)]
        self.engine = self.stack.enter_context(Worker("kv_engine.py", arguments, None, self.directory / "engine.log"))
        spec = f"http://127.0.0.1:{self.engine.answer()['port']}"
        config = self.directory / "longwire.toml"
        config.write_text(f'[[engines]]\nurl = "{spec}"\nkind = "vllm"\n')
        flags = ["--config", str(config), "--log-level", "error", *self.flags]
        self.gateway = self.stack.enter_context(Gateway(0, self.directory, 1, flags))
        self.gateway.wait_ready()
        put_first(self.engine)
        self.asker = Asker(self.gateway.port, PROMPT_TOKENS, LENGTHS)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def overload(self, clients: int, seconds: float) -> Run:
        """All clients; a few begin to ask when all others cease to."""
        asked: list[Asked] = []
        few: list[Asked] = []

        async def all_and_then_few() -> None:
            everybody = asyncio.create_task(self.asker.keep_asking(clients, seconds, asked, RAMP_S))
            await asyncio.sleep(seconds)
            await self.asker.keep_asking(FEW, RECOVER_S, few)
            await everybody

        self.engine.ask("begin")
        began = time.monotonic()
        asyncio.run(all_and_then_few())
        return Run(asked, self.engine.ask("end"), seconds, began, few)

    def play(self, clients: int, seconds: float) -> Run:
        """So many clients for so long, until the last answer is there."""
        self.engine.ask("begin")
        asked: list[Asked] = []
        began = time.monotonic()
        asyncio.run(self.asker.keep_asking(clients, seconds, asked, RAMP_S))
        return Run(asked, self.engine.ask("end"), seconds, began)


def as_flag(name: str, value: str) -> list[str]:
    """A setting as the command line has it: true and false are spelt in the flag."""
    flag = name.replace("_", "-")
    return [f"--{flag}"] if value == "true" else [f"--no-{flag}"] if value == "false" else [f"--{flag}", value]


def show(outcome: Outcome, name: str, run: Run, yardstick: Yardstick) -> None:
    """The rows of one run with all clients; the goals are shedding's."""
    best = yardstick.goodput
    has_goal = name != "unshed"
    late = [(each.ended_at - each.at - QUEUE_DEADLINE_S) * 1000 for each in run.refused]

    def goal(most: float) -> float | None:
        return most if has_goal else None

    outcome.add(f"{name}: preempted", run.preempted_percent, "%", goal(PREEMPTED_GOAL_PERCENT))
    outcome.add(
        f"{name}: TTFT p99 at the engine",
        run.engine["ttft_p99_ms"],
        "ms",
        goal(TTFT_GOAL_TIMES * yardstick.engine_ms),
        digits=0,
    )
    outcome.add(f"{name}: TTFT p99 for clients", ttft_ms(run.asked, 0.99), "ms", digits=0)
    lost = 1 - run.goodput / best if best else 0.0
    words = f">= {GOODPUT_GOAL_SHARE:.0%} of the best static limit" if has_goal else ""
    outcome.add(f"{name}: goodput", run.goodput, "tokens/s", digits=0)
    outcome.add(f"{name}: goodput below the best", 100 * lost, "%", goal(100 * (1 - GOODPUT_GOAL_SHARE)), goal=words)
    outcome.add(f"{name}: refused", len(run.refused), "", digits=0)
    if late:
        outcome.add(f"{name}: latest refusal after the deadline", max(late), "ms", goal(LATE_GOAL_MS), digits=0)
    outcome.add(f"{name}: recovered after", run.recovered_s(yardstick.client_ms), "s", goal(RECOVER_S))
    failed = sum(not each.whole and not each.is_refused for each in run.asked)
    outcome.add(f"{name}: failed otherwise", failed, "", goal(0), digits=0)
    outcome.raw[name] = {"engine": run.engine, "asked": len(run.asked)}


if __name__ == "__main__":
    sys.exit(main())
