"""The kill matrix: clients of every kind, kills of every sort, and afterwards an account in which nothing may be missing.

What lives here: the order of a trial, and what must be true at its end. What must not: how any part of it is done.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Coroutine

from .killing import ADOPTING, POINTS, Killer
from .load import Load
from .processes import LOOK_S, STAND_INS, Trial, descriptors, still_there

ROUNDS_PER_POINT = 5
WARM_UP_S = 1.0
"""Until clients of all kinds are in mid-answer."""
GONE_S = 30.0
"""What is retained for 2 s, and idle connections to the engine, are gone much earlier."""
MOST_SHOWN = 5
ATTEMPTS_EVERY = 5
"""Steps between two looks at how often answers were asked for: the stand-ins remember much more than is asked meanwhile."""
LEAST_FAILOVERS = 100
UNBORN = re.compile(
    r"Traceback .*\n(?:  .*\n)*  .*/multiprocessing/spawn\.py.*\n(?:  .*\n)*EOFError: Ran out of input\n"
)
"""What the process that reads large bodies says when its shard is killed while it is being started."""
EXPECTED = ("shard_died", "longwire: killed at ", "resource_tracker")
"""What the gateway's log says of kills; all else is shown."""

Step = tuple[str, Callable[[Killer], Coroutine[None, None, None]]]


def plan(rng: random.Random, at_random: int) -> list[Step]:
    """Every point so often, two at once and in mid-adoption a few times, and the rest at random; in random order."""

    def at(point: str) -> Step:
        return point, lambda killer: killer.at_point(point)

    steps: list[Step] = [at(point) for point in (*POINTS, *ADOPTING) for _ in range(ROUNDS_PER_POINT)]
    steps += [("two at once", Killer.two_at_once), ("in adoption", Killer.in_adoption)] * ROUNDS_PER_POINT
    steps += [("random", Killer.at_random)] * at_random
    rng.shuffle(steps)
    return steps


async def run(seed: int, at_random: int, seconds: float = 0.0) -> list[str]:
    """One trial: the plan once, and again until so many seconds have passed. Returns what is to be printed.

    Raises:
        AssertionError: something was broken, lost or left behind.
    """
    rng = random.Random(seed)
    begun = time.monotonic()
    async with Trial() as trial:
        base = await _descriptors(trial)
        load = Load(trial, seed)
        killer = Killer(trial, load, rng)
        await trial.befall(load.faults())
        load.start()
        await asyncio.sleep(WARM_UP_S)
        try:
            while True:
                for turn, (name, step) in enumerate(plan(rng, at_random)):
                    await step(killer)
                    await _check_engine(trial, load, name)
                    if turn % ATTEMPTS_EVERY == 0:
                        await _check_attempts(trial, load)
                    await asyncio.sleep(rng.random() * 0.1)
                    assert len(load.broken) < MOST_SHOWN, "\n".join(report(seed, trial, load, killer, begun))
                if time.monotonic() - begun >= seconds:
                    break
        finally:
            await load.finish()
        lines = report(seed, trial, load, killer, begun)
        assert not load.broken, "\n".join(lines)
        await _check_account(trial, load)
        await _check_clean(trial, base)
        await _check_end(trial)
        return lines


async def _check_engine(trial: Trial, load: Load, after: str) -> None:
    """The engine that never fails is asked once for each of its streams, and is never left."""
    engine = await trial.engine()
    generations = engine["answered"] + engine["cancelled"] + engine["open_streams"]
    asked = load.asked - len(load.frail)
    assert generations <= asked, f"after {after}: the engine was asked twice: {await trial.twice()}"
    assert not engine["cancelled"], f"after {after}: the engine was left {await trial.twice()} {load.broken}"


async def _check_attempts(trial: Trial, load: Load) -> int:
    """No answer whose engine fails is asked for more often than it may be; how many were looked at."""
    kills = load.most_kills
    attempts = await trial.attempts()
    over = {seed: n for seed, n in attempts.items() if n > load.frail[seed].most_requests(max(kills, load.most_kills))}
    assert not over, f"asked for too often: {over}"
    return len(attempts)


def report(seed: int, trial: Trial, load: Load, killer: Killer, begun: float) -> list[str]:
    """Kills, points, streams and connections."""
    deaths = trial.deaths()
    sorts = ", ".join(f"{count} {sort}" for sort, count in sorted(killer.sorts.items()))
    return [
        f"kill matrix, seed {seed}: {killer.kills} kills in {time.monotonic() - begun:.0f} s ({sorts})",
        f"points: {', '.join(f'{point} {deaths[point]}' for point in (*POINTS, *ADOPTING))}",
        f"streams: {load.asked} asked for, {len(load.frail)} of an engine that fails, {len(load.broken)} clients broken",
        f"connections: {load.connections} by {load.clients} clients; slot served again after {killer.longest_s:.2f} s at most",
        f"clients: {', '.join(f'{kind} {count}' for kind, count in sorted(load.ended.items()))}",
        *load.broken[:MOST_SHOWN],
        *(line for line in trial.log().splitlines() if not any(word in line for word in EXPECTED)),
    ]


async def _check_account(trial: Trial, load: Load) -> None:
    """One connection per client, one request to the engine per stream unless it fails, and every point passed."""
    assert load.connections == load.clients, f"{load.connections} connections by {load.clients} clients"
    engine, frail, twin = [await trial.engine(name) for name in STAND_INS]
    asked = load.asked - len(load.frail)
    assert not engine["cancelled"] and not engine["open_streams"], engine
    assert engine["answered"] == asked, (engine, asked, await trial.twice())
    assert not frail["open_streams"] and not twin["open_streams"], (frail, twin)
    assert await _check_attempts(trial, load) > 0 and twin["answered"] > LEAST_FAILOVERS, (frail, twin)
    deaths = trial.deaths()
    missed = {point: deaths[point] for point in (*POINTS, *ADOPTING) if deaths[point] < ROUNDS_PER_POINT}
    assert not missed, missed
    log = UNBORN.sub("", trial.log())
    for fault in ("Traceback", "Fatal error", "adoption_fault", "poisoned"):
        assert fault not in log, log[-5000:]


async def _check_clean(trial: Trial, base: dict[str, int]) -> None:
    """No stream, connection, block or descriptor is left of all that."""
    give_up = time.monotonic() + GONE_S
    while True:
        shards = await trial.shards()
        left = {name: sum(int(shard[name]) for shard in shards) for name in ("streams", "connections")}
        left["blocks"] = int(await trial.used_blocks())
        now = await _descriptors(trial)
        left |= {name: now[name] - count for name, count in base.items() if now[name] > count + LEFT_OPEN}
        if not any(left.values()):
            return
        assert time.monotonic() < give_up, f"left behind: {left}"
        await asyncio.sleep(LOOK_S * 10)


async def _descriptors(trial: Trial) -> dict[str, int]:
    """Of the keeper and of each slot's shard. A spare that waits for its turn is the keeper's, too: it is there again."""

    async def is_settled() -> bool:
        return trial.guardians() == GUARDIANS

    await trial.wait("the spare", is_settled)
    shards = {f"shard {shard['index']}": descriptors(int(shard["pid"])) for shard in await trial.shards()}
    return {"keeper": descriptors(trial.gateway.process.pid), **shards}


GUARDIANS = 3
"""Two shards and a spare have one each."""
LEFT_OPEN = 16
"""Of the process that reads large bodies, which is started when it is needed, and the engine's connection for probes."""


async def _check_end(trial: Trial) -> None:
    """SIGTERM ends all of it."""
    family = trial.family()
    code = await asyncio.to_thread(trial.gateway.end)
    assert code == 0, trial.log()[-2000:]
    give_up = time.monotonic() + GONE_S
    while left := still_there(family):
        assert time.monotonic() < give_up, f"processes left behind: {left}"
        await asyncio.sleep(LOOK_S)
