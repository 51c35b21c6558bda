"""Kills: at random moments, at each named point, two at once, and in mid-adoption.

What lives here: the list of points, one kill of each sort, and the wait until all slots are served again.
What must not: clients, what is asserted of the whole (matrix.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

from .load import Load
from .processes import LOOK_S, Trial

POINTS = (
    "in_row",
    "reading_body",
    "stored_before_sent",
    "named_before_sent",
    "stream_before_reader",
    "head_written",
    "in_record",
    "block_crossing",
    "end_before_row",
    "end_after_row",
    "row_before_continue",
    "row_before_answer",
    "answer_before_row",
    "passing_before_send",
    "passing_after_send",
    "receiving_passed",
    "received_before_drop",
    "evicting",
    "failed_over",
    "broken_off",
    "continued",
)
"""Clients come by each of them by themselves."""
ADOPTING = ("adopting_stream", "adopting_connection")
"""These only an adopter passes: something must be killed first."""

REACHED_S = 20.0
SERVED_S = 20.0
"""A slot is served again within a second; this is for a machine that does much else."""


def _end(pid: int) -> None:
    """Kill it. One that has died since we looked is a death that the keeper has not counted yet, and does as well."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Killer:
    """Kills one thing after the other and remembers how."""

    def __init__(self, trial: Trial, load: Load, rng: random.Random) -> None:
        self.trial, self.load, self.rng = trial, load, rng
        self.sorts: Counter[str] = Counter()
        self.longest_s = 0.0

    @property
    def kills(self) -> int:
        return self.load.kills

    async def at_random(self) -> None:
        """A shard that has live streams, at any moment."""
        victim = await self._victim()
        await self._kill([victim], 1)
        self.sorts["random"] += 1

    async def two_at_once(self) -> None:
        """All shards, and nobody is left who could do anything in between."""
        pids = [int(shard["pid"]) for shard in await self.trial.shards()]
        await self._kill(pids, len(pids))
        self.sorts["two at once"] += 1

    async def in_adoption(self) -> None:
        """A shard, and its replacement as soon as that has begun."""
        victim = await self._victim()
        before = await self._restarts()
        self.load.kills_coming = 2
        _end(victim)
        begun = time.monotonic()
        while time.monotonic() < begun + SERVED_S:
            heirs = [
                shard for shard in await self.trial.shards() if shard["state"] == "adopting" and shard["pid"] != victim
            ]
            if heirs:
                _end(int(heirs[0]["pid"]))
                break
            if await self._restarts() > before and all(s["state"] == "serving" for s in await self.trial.shards()):
                self.load.note_kills(1)
                self.sorts["random"] += 1  # it was faster than our look
                return
        await self._wait_served(before + 2, begun)
        self.load.note_kills(2)
        self.sorts["in adoption"] += 2

    async def at_point(self, point: str) -> None:
        """Whichever process passes the point next; an adopter's points need a first kill.

        Mostly: a shard that serves already passes them, too, when it wakes a stream that ended before its time, and where that
        one is our victim there is one death and not two. So they are counted, and nothing waits for the second: an heir that
        is to die does not serve.
        """
        before = await self._restarts()
        self.load.kills_coming = 2 if point in ADOPTING else 1
        (self.trial.points / point).touch()
        if point in ADOPTING:
            _end(await self._victim())
        begun = time.monotonic()
        while (self.trial.points / point).exists():
            if time.monotonic() > begun + REACHED_S:
                raise AssertionError(f"nobody came by {point}")
            await asyncio.sleep(LOOK_S)
        await self._wait_served(before + 1, time.monotonic())
        deaths = await self._restarts() - before
        self.load.note_kills(deaths)
        self.sorts["at a point"] += deaths

    async def _victim(self) -> int:
        """A shard with live streams; it is waited for until there is one."""
        give_up = time.monotonic() + REACHED_S
        while time.monotonic() < give_up:
            shards = [s for s in await self.trial.shards() if s["state"] == "serving" and s["streams"] > 0]
            if shards:
                return int(self.rng.choice(shards)["pid"])
            await asyncio.sleep(LOOK_S)
        raise AssertionError("no shard has a live stream")

    async def _kill(self, pids: list[int], count: int) -> None:
        before, begun = await self._restarts(), time.monotonic()
        for pid in pids:
            _end(pid)
        self.load.note_kills(count)
        await self._wait_served(before + count, begun)

    async def _restarts(self) -> int:
        return sum(int(shard["restarts"]) for shard in await self.trial.shards())

    async def _wait_served(self, restarts: int, begun: float) -> None:
        async def is_served() -> bool:
            shards = await self.trial.shards()
            return sum(int(s["restarts"]) for s in shards) >= restarts and all(s["state"] == "serving" for s in shards)

        await self.trial.wait("a shard in every slot", is_served, SERVED_S)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
