"""What is broken on purpose while something is measured.

What lives here: the names, reading their rates, and those that the parent does itself (kill-shard, stall-engine).
What must not: reset-clients, which is done where the connections are (sender.py).
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import random
import signal
import time
from typing import Any

from ..words.errors import SettingsError
from .endpoint import RunFailed, ask, parts_of
from .plan import base_url
from .schedule import Load, arrivals

RESET_CLIENTS, KILL_SHARD, STALL_ENGINE = "reset-clients", "kill-shard", "stall-engine"
KINDS = (RESET_CLIENTS, KILL_SHARD, STALL_ENGINE)
MAX_RATE = 10_000.0
LOOK_S = 0.02
"""Between two looks at the admin port after a kill: what the detection time is exact to."""
MAX_DETECTION_S = 30.0
"""Then a killed shard is taken for lost, and no time is noted."""
GRACE_S = 60
"""What is asked for with Longwire-On-Disconnect, so that a cut stream goes on until its client is back."""


def parse_chaos(texts: list[str]) -> dict[str, float]:
    """``NAME=RATE``, several also with commas between.

    Raises:
        SettingsError: a name or a rate that is none.
    """
    found: dict[str, float] = {}
    for text in ",".join(texts).split(","):
        name, _, rate = text.strip().partition("=")
        if not name:
            continue
        if name not in KINDS:
            raise SettingsError(f"There is no chaos {name!r}: there are {', '.join(KINDS)}.")
        try:
            found[name] = float(rate)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] <= MAX_RATE:
            raise SettingsError(f"{name} needs a rate a second, as in {name}=0.2.")
    return found


def check_reach(chaos: dict[str, float], admin: str, engine: str) -> None:
    """Each kind has what it needs.

    Raises:
        SettingsError: it has not.
    """
    if KILL_SHARD in chaos and not (admin and is_loopback(admin)):
        raise SettingsError("kill-shard needs --admin with the gateway's admin port on this machine (127.0.0.1).")
    if STALL_ENGINE in chaos and not engine:
        raise SettingsError("stall-engine needs --engine with the URL of the longwire sim behind the gateway.")
    for flag, url in (("--admin", admin), ("--engine", engine)):
        if url:
            base_url(url, flag)


def is_loopback(url: str) -> bool:
    """Whether it is this machine for sure: pids of another one would be those of strangers here."""
    try:
        host = parts_of(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Chaos:
    """What the parent breaks during one repeat."""

    def __init__(self, rates: dict[str, float], admin: str, engine: str, stall_ms: float) -> None:
        self._rates = rates
        self._admin = admin.rstrip("/")
        self._engine = engine.rstrip("/")
        self._stall_ms = stall_ms
        self.kills = 0
        self.stalls = 0
        self.detections_ms: list[float] = []
        self.problems: list[str] = []

    def __repr__(self) -> str:
        return f"<Chaos {self.kills} kills, {self.stalls} stalls>"

    async def run(self, start_ns: int, duration_s: float, seed: int) -> None:
        """Until the duration is over; the first thing that cannot be done ends its kind, and is told."""
        works = {KILL_SHARD: self._kill_one, STALL_ENGINE: self._stall}
        plans = [
            (kind, arrivals(Load(rate, rate, duration_s), seed)) for kind, rate in self._rates.items() if kind in works
        ]
        async with asyncio.TaskGroup() as group:
            for kind, due in plans:
                group.create_task(self._keep_to(due, start_ns, works[kind], random.Random(seed)))

    async def _keep_to(self, due: list[float], start_ns: int, work: Any, chance: random.Random) -> None:
        for at_s in due:
            await asyncio.sleep(max(0.0, start_ns / 1e9 + at_s - time.monotonic_ns() / 1e9))
            try:
                await work(chance)
            except (RunFailed, ProcessLookupError, PermissionError) as exc:
                self.problems.append(f"Chaos could not go on: {exc}")
                return

    async def _shards(self) -> list[dict[str, Any]]:
        answer = await asyncio.to_thread(ask, f"{self._admin}/v1/shards")
        if not isinstance(answer, list):
            raise RunFailed(f"{self._admin}/v1/shards names no shards.")
        return answer

    async def _kill_one(self, chance: random.Random) -> None:
        serving = [shard for shard in await self._shards() if shard["state"] == "serving" and shard["pid"]]
        if not serving:
            raise RunFailed("no shard serves.")
        victim = chance.choice(serving)
        os.kill(victim["pid"], signal.SIGKILL)
        self.kills += 1
        killed_s = time.monotonic()
        while time.monotonic() - killed_s < MAX_DETECTION_S:
            await asyncio.sleep(LOOK_S)
            for shard in await self._shards():
                if shard["index"] == victim["index"] and shard["pid"] != victim["pid"] and shard["state"] == "serving":
                    self.detections_ms.append((time.monotonic() - killed_s) * 1000)
                    return

    async def _stall(self, _: random.Random) -> None:
        await asyncio.to_thread(ask, f"{self._engine}/sim/preempt", {"ms": self._stall_ms})
        self.stalls += 1
