"""The end of a gateway: streams finish, the rest is told, and one process after the other goes.

What lives here: what follows from the wish to end, up to the last process. What must not: the wish itself (keeper.py).

A shard that dies while it drains is replaced as at any other time: its successor takes the streams over and drains them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .deed import shut_port
from .members import Member
from .states import Event, State

if TYPE_CHECKING:
    from .keeper import Keeper

PATIENCE_S = 10.0
"""After the drain deadline: for the last words of all shards. Then they are killed."""
MAX_LAST_FAILURES = 3
"""When so many processes in a row could not take over what must only be brought to an end, it is given up."""


class Ending:
    """From the wish to the exit."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._drained_by = time.monotonic() + keeper.orders.drain_s

    def begin(self) -> None:
        """Tell every shard, and let go what nobody will need."""
        keeper = self._keeper
        with suppress(OSError):  # whoever read it may be gone, which is no reason not to drain
            print(f"longwire: {farewell(keeper.slots.live_streams, keeper.orders.drain_s)}", flush=True)
        shut_port(keeper.deed.public)  # whoever comes now must not wait for somebody to accept
        keeper.pace.again.clear()
        keeper.pace.forgive("shard")
        if keeper.reload is not None:
            keeper.reload.give_up("the gateway is stopping")
        for slot in keeper.slots:
            if slot.member is not None:
                self.drain(slot.member)
        self.go_on()

    def drain(self, member: Member) -> None:
        """Also said to one that is still taking over: it hears it when it serves. One that leaves for a successor does so."""
        if member.state not in (State.ADOPTING, State.SERVING):
            return
        member.happens(Event.DRAINED)
        left_s = max(0.0, self._drained_by - time.monotonic())
        if not member.tell({"do": "drain", "drain_s": left_s}):
            member.kill()
        for slot in self._keeper.slots.served_by(member):
            self._keeper.slots.show(slot)

    def go_on(self) -> None:
        """Something has ended: see what is left to do. Once no shard is left, nobody needs the others."""
        keeper = self._keeper
        if not keeper.has_served or keeper.pace.failures("shard") >= MAX_LAST_FAILURES:
            for slot in keeper.slots:
                slot.release()
        if any(slot.member is not None or slot.orphans for slot in keeper.slots):
            keeper.filling.fill()
            return
        for member in keeper.members.values():
            if member.kind in ("admin", "engines"):
                member.retire()
            else:
                member.dismiss()

    def look(self, now: float) -> None:
        """Kill whoever has not ended when all should have."""
        if now > self._drained_by + PATIENCE_S:
            for slot in self._keeper.slots:
                slot.release()
            self.end_now()

    def end_now(self) -> None:
        """Not one more word."""
        for member in self._keeper.members.values():
            member.dismiss()


def farewell(live_count: int, drain_s: float) -> str:
    """What the first signal says: how long it may take, and how not to wait for that."""
    if not live_count or not drain_s:
        return "stopping"
    streams = "1 stream" if live_count == 1 else f"{live_count} streams"
    return f"stopping; {streams} may take up to {drain_s:g} s (drain_s); a second signal stops now"
