"""What the demonstration does to the gateway: it kills the process that serves a stream.

What lives here: finding that process, killing it, and finding its successor; again by the standard library alone.
What must not: the terminal (story.py), the stream and its connection (wire.py).
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

from .wire import StreamClient, WireError

SUCCESSOR_LIMIT_S = 30.0
"""A successor is there within a tenth of a second; a machine that does much else may take longer."""
LOOK_S = 0.02


class Victim(NamedTuple):
    """The process of a slot."""

    slot: int
    pid: int


class Crash:
    """Kills shards of the gateway whose admin port is at ``admin_url``: one on this machine, and one's own."""

    def __init__(self, admin_url: str) -> None:
        self._admin = StreamClient(admin_url)

    def find(self, stream_id: str) -> Victim:
        """The process that has this stream: an id ends with the number of its slot."""
        slot = int(stream_id[-2:], 16)
        return Victim(slot, self._pid_of(slot))

    def kill(self, victim: Victim) -> None:
        """Now, and without a word before."""
        os.kill(victim.pid, signal.SIGKILL)

    def wait_successor(self, victim: Victim) -> int:
        """The pid of the process that serves the slot after the victim."""
        give_up = time.monotonic() + SUCCESSOR_LIMIT_S
        while (pid := self._pid_of(victim.slot)) in (0, victim.pid):
            if time.monotonic() > give_up:
                raise WireError(f"Slot {victim.slot} was not served again within {SUCCESSOR_LIMIT_S:.0f} s.")
            time.sleep(LOOK_S)
        return pid

    def _pid_of(self, slot: int) -> int:
        """0 while there is none that serves."""
        shards = [shard for shard in self._admin.shards() if shard["index"] == slot and shard["state"] == "serving"]
        return int(shards[0]["pid"] or 0) if shards else 0
