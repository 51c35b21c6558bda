"""Every row against every relay: which of them fails which row.

What lives here: the runs, some at a time in processes of their own. What must not: what is asked of the outcome.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from longwire.conform.engine import Engine
from longwire.conform.playing import Theatre
from longwire.conform.row import Row
from longwire.conform.rows import choose
from longwire.conform.run import run
from longwire.conform.stage import Target

from .relay import Relay
from .relays import BROKEN

PROCESSES = 4
"""Most of the time is waiting."""
RIGHT = "right"
LOOKED_AT = ("secrets", "in-band")
"""Of the optional groups: no relay has anything of the others."""
BASIC = {"streams-only-when-asked", "content-type"}
"""What a relay must do to be tried at all: these fail only on one that fails everywhere, and are given time."""
PATIENT = 3.0
PACE = 0.25
"""A broken relay is mostly waited for in vain; the right one has all its time."""

Outcome = dict[str, str]
"""What is wrong with each case, by its name."""


async def _hold(relay: Relay, engine: Engine, rows: Sequence[Row], pace_s: float) -> Outcome:
    port = await relay.start()
    try:
        results = await run(rows, Theatre(engine, Target("127.0.0.1", port), pace_s))
    finally:
        await relay.stop()
    return {result.case.name: result.wrong for result in results}


async def _against(name: str, pattern: str) -> Outcome:
    engine = Engine()
    await engine.start()
    kind = BROKEN.get(name, Relay)
    rows = [row for row in choose(pattern) if row.is_required or row.group in LOOKED_AT]
    basic, others = [row for row in rows if row.name in BASIC], [row for row in rows if row.name not in BASIC]
    try:
        if kind is Relay:
            in_band = [row for row in rows if row.group == "in-band"]
            outcome = await _hold(Relay(engine.port), engine, in_band, PACE)
            return outcome | await _hold(
                Relay(engine.port), engine, [row for row in rows if row not in in_band], PATIENT
            )
        outcome = await _hold(kind(engine.port), engine, basic, 1.0)
        others = [one_api(row) for row in others if row.group != "in-band"]
        return outcome | await _hold(kind(engine.port), engine, others, PACE)
    finally:
        await engine.stop()


def one_api(row: Row) -> Row:
    """The relays know nothing of APIs: one of them says as much as both."""
    return replace(row, forms=tuple(form for form in row.forms if form[0] == "chat"))


def against(name: str, pattern: str = "") -> Outcome:
    """All rows against one relay."""
    return asyncio.run(_against(name, pattern))


def matrix() -> dict[str, Outcome]:
    """All rows against all relays."""
    names = [RIGHT, *BROKEN]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        return dict(zip(names, pool.map(against, names), strict=True))


if __name__ == "__main__":
    for name in sys.argv[1:2] or [RIGHT, *BROKEN]:
        outcome = against(name, sys.argv[2] if len(sys.argv) > 2 else "")
        print(f"{name}: {sum(map(bool, outcome.values()))} of {len(outcome)}")
        for case, wrong in outcome.items():
            if wrong:
                print(f"    {case}: {wrong}")
