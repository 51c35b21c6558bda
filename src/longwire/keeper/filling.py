"""Which process is given which slot, and how many wait for one.

What lives here: filling empty slots, and starting what is missing. What must not: what follows from a death (keeper.py), the
giving itself (slots.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .members import Member
from .slots import Slot
from .states import State

if TYPE_CHECKING:
    from .keeper import Keeper


class Filling:
    """Of one keeper's slots."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def fill(self) -> None:
        """Give every empty slot to a warm process, and see to it that there are enough of those."""
        keeper = self._keeper
        for slot in self._empty():
            member = next((each for each in self._waiting() if each.state is State.WARM), None)
            if member is None:
                break
            keeper.slots.give(slot, member)
            if keeper.ending is not None:
                keeper.ending.drain(member)
        if not keeper.pace.failures("shard"):
            self.start_missing()
        elif self._missing():
            keeper.pace.put_off("shard", time.monotonic())

    def start_missing(self) -> None:
        """All of them; only one where the last ones failed, to see how that fares."""
        most = 1 if self._keeper.pace.failures("shard") else self._missing()
        for _ in range(min(most, self._missing())):
            if self._keeper.start("shard") is None:
                return

    def _empty(self) -> list[Slot]:
        """At the end only a slot in which something is left needs somebody."""
        is_ending = self._keeper.ending is not None
        return [slot for slot in self._keeper.slots if slot.member is None and (slot.orphans or not is_ending)]

    def _waiting(self) -> list[Member]:
        """Who could be given a slot, now or when it is warm."""
        keeper = self._keeper
        shards = [member for member in keeper.members.values() if member.kind == "shard" and member.slot is None]
        return [each for each in shards if each.generation == keeper.generation and not each.is_unwanted]

    def _missing(self) -> int:
        keeper = self._keeper
        # The spare starts when nothing is being adopted: its imports would take a core from what people wait for.
        may_have_spare = keeper.has_served and keeper.ending is None and not keeper.slots.are_adopting
        return max(0, (len(self._empty()) or int(may_have_spare)) - len(self._waiting()))
