"""Which process is given which slot, and how many wait for one.

What lives here: filling empty slots, starting what is missing, and who fosters a slot for which no process can be had.
What must not: what follows from a death (keeper.py), the giving itself (slots.py).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from .members import Member
from .pace import START
from .slots import Slot
from .states import State

if TYPE_CHECKING:
    from .keeper import Keeper

log = logging.getLogger("longwire.keeper")

FOSTER_AFTER = 2
"""Processes in a row that could not be started: the first one may have met a moment without memory, and a second one follows it
after a tenth of a second. Then streams have waited long enough for a process of their own."""

MAX_LOST_FOSTERS = 3
"""What kills whoever takes it over may do so twice: a third one seals it. Where that dies as well no other one is tried."""


class Filling:
    """Of one keeper's slots."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def fill(self) -> None:
        """Give every empty slot to a warm process, and see to it that there are enough of those."""
        keeper = self._keeper
        for slot in self._empty():
            member = self._warm()
            if member is None:
                break
            if keeper.slots.has_to_wait(slot):
                continue
            keeper.slots.give(slot, member)
            if keeper.ending is not None:
                keeper.ending.drain(member)
        self._foster()
        self._relieve()
        if not keeper.pace.failures("shard"):
            self.start_missing()
        elif self._missing():
            keeper.pace.put_off("shard", time.monotonic())

    def try_again(self) -> None:
        """The pause after a failure is over: start one, and see to what must not wait for it any longer."""
        self.start_missing()
        self._foster()

    def start_missing(self) -> None:
        """All of them; only one where the last ones failed, to see how that fares."""
        most = 1 if self._keeper.pace.failures("shard") else self._missing()
        for _ in range(min(most, self._missing())):
            if self._keeper.start("shard") is None:
                return

    def _foster(self) -> None:
        """Where the machine has no process left for us, streams need not wait until it has: a shard that serves takes them.

        Only then. A process of their own takes less time for it, and an adoption that can kill is tried on one that has
        nothing to lose.
        """
        keeper = self._keeper
        if keeper.pace.failures(START) < FOSTER_AFTER or keeper.ending is not None or not keeper.has_served:
            return
        for slot in self._empty():
            fosters = [each for each in self._serving() if all(its.is_served for its in self._of(each))]
            if slot.lost_fosters >= MAX_LOST_FOSTERS or keeper.slots.has_to_wait(slot) or not fosters:
                continue
            foster = min(fosters, key=lambda each: (each.generation != keeper.generation, len(self._of(each))))
            if keeper.slots.entrust(slot, foster):
                log.warning("slot_fostered", extra={"fields": {"slot": slot.index, "pid": foster.pid}})

    def _relieve(self) -> None:
        """Once there are processes for all of its slots, one that fosters leaves them all, as in a reload."""
        keeper = self._keeper
        waiting = sum(member.state is State.WARM for member in self._waiting())
        if keeper.ending is not None or keeper.reload is not None or self._empty():
            return
        for member in self._serving():
            slots = self._of(member)
            if 1 < len(slots) <= waiting and all(slot.is_served for slot in slots):
                log.info(
                    "foster_relieved", extra={"fields": {"slots": [slot.index for slot in slots], "pid": member.pid}}
                )
                member.make_way()
                return

    def _of(self, member: Member) -> list[Slot]:
        return self._keeper.slots.served_by(member)

    def _serving(self) -> list[Member]:
        """Of whatever generation: where a reload has gone back, those that serve are of an older one."""
        return [member for member in self._keeper.members.values() if member.state is State.SERVING]

    def _empty(self) -> list[Slot]:
        """At the end only a slot in which something is left needs somebody."""
        is_ending = self._keeper.ending is not None
        return [slot for slot in self._keeper.slots if slot.member is None and (slot.orphans or not is_ending)]

    def _warm(self) -> Member | None:
        return next((each for each in self._waiting() if each.state is State.WARM), None)

    def _waiting(self) -> list[Member]:
        """Who could be given a slot, now or when it is warm."""
        keeper = self._keeper
        shards = [member for member in keeper.members.values() if member.kind == "shard" and member.slot is None]
        return [each for each in shards if each.generation == keeper.generation and not each.is_unwanted]

    def _missing(self) -> int:
        keeper = self._keeper
        # The spare starts when nothing is being adopted: its imports would take a core from what people wait for.
        may_have_spare = keeper.has_served and keeper.ending is None and not keeper.slots.are_adopting
        spares = max([1, *(len(self._of(member)) for member in self._serving())])
        return max(0, (len(self._empty()) or spares * may_have_spare) - len(self._waiting()))
