"""The slots: which process serves each, and what is left of those that did.

What lives here: giving a slot to a process, the ends of dead shards' guardians, and the slots' rows of the shards table.
What must not: when a slot is given, starting processes (keeper.py).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .channel import MAX_DESCRIPTORS
from .members import Member
from .shards import ShardFacts, ShardsTable
from .states import SHOWN, Event, State

MAX_ORPHANS = MAX_DESCRIPTORS
"""Dead shards in a row whose sockets nobody has adopted: as many as one message can pass on. The oldest are let go."""


class Orphan(NamedTuple):
    """A dead shard whose guardian still holds its sockets."""

    incarnation: int
    guardian: socket.socket
    is_guest: bool = False
    """It was at home in another slot, and fostered this one besides."""
    is_mixed: bool = False
    """It was taking over another slot besides: it had clients of that one, too, which no row names as its own yet."""


@dataclass(slots=True)
class Slot:
    """A place for a shard."""

    index: int
    member: Member | None = None
    orphans: list[Orphan] = field(default_factory=list)
    restarts: int = -1
    is_being_adopted: bool = False
    """A process is on it, and has not said yet that it serves."""
    begun_s: float = 0.0
    """When that began."""
    lost_fosters: int = 0
    """Who fostered it in vain since a process of its own was on it: they died before they served it, or had no room."""

    @property
    def is_served(self) -> bool:
        """Whether there is somebody who has taken over all that was left here."""
        return self.member is not None and self.member.state is State.SERVING and not self.is_being_adopted

    def release(self) -> None:
        """What its former shards have left is adopted, or given up."""
        self.is_being_adopted = False
        for orphan in self.orphans:
            orphan.guardian.close()
        self.orphans.clear()


class Slots:
    """All of them, and the table that shows them to everybody."""

    def __init__(self, count: int, table_fd: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._table = ShardsTable.attach(os.dup(table_fd))

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def __repr__(self) -> str:
        return f"<Slots {' '.join(each.member.state.name if each.member else '-' for each in self)}>"

    @property
    def all_serve(self) -> bool:
        return all(slot.is_served for slot in self._slots)

    @property
    def are_adopting(self) -> bool:
        return any(slot.is_being_adopted for slot in self._slots)

    @property
    def live_streams(self) -> int:
        """By the shards' own word."""
        return sum(view.streams for view in self._table.read())

    def give(self, slot: Slot, member: Member) -> None:
        """Let a warm process serve this slot, and take over what is left there. One that cannot be told so is killed, and
        takes the same way as one that dies of it."""
        slot.lost_fosters = 0
        member.slot = slot.index
        member.happens(Event.CHOSEN)
        if not self._tell(slot, member):
            member.kill()
        self._place(slot, member)

    def entrust(self, slot: Slot, member: Member) -> bool:
        """Let one that serves its own slot foster this one, too: take over what is left there. Whether it was told so."""
        if not self._tell(slot, member):
            return False
        self._place(slot, member)
        return True

    def _place(self, slot: Slot, member: Member) -> None:
        slot.member = member
        slot.is_being_adopted, slot.begun_s = True, time.monotonic()
        slot.restarts += 1
        self.show(slot)

    def decline(self, member: Member) -> None:
        """It cannot take what it was entrusted with, and has begun nothing."""
        for slot in self.served_by(member):
            if slot.index != member.slot and slot.is_being_adopted:
                slot.member, slot.is_being_adopted = None, False
                slot.lost_fosters += 1
                self.show(slot)

    def _tell(self, slot: Slot, member: Member) -> bool:
        """``mixed``: whose newcomers are not to be looked for here. ``shared``: who leaves other slots as well."""
        elsewhere = {orphan.incarnation for other in self._slots if other is not slot for orphan in other.orphans}
        message = {
            "do": "serve",
            "slot": slot.index,
            "restarts": slot.restarts + 1,
            "owners": [orphan.incarnation for orphan in slot.orphans],
            "mixed": [orphan.incarnation for orphan in slot.orphans if orphan.is_guest or orphan.is_mixed],
            "shared": [orphan.incarnation for orphan in slot.orphans if orphan.incarnation in elsewhere],
        }
        return member.tell(message, [orphan.guardian.fileno() for orphan in slot.orphans])

    def served_by(self, member: Member) -> list[Slot]:
        """All slots that a process serves; its own first."""
        return sorted(
            (slot for slot in self._slots if slot.member is member), key=lambda slot: slot.index != member.slot
        )

    def has_to_wait(self, slot: Slot) -> bool:
        """Whether an empty slot cannot be taken over yet, because of a dead shard that leaves another slot as well.

        Its guardian answers one at a time. And its own slot comes first: there the clients are looked for that it had accepted
        and named in no row yet, and those that rows of the other slot name must still be told from them.
        """
        return any(
            mine.incarnation == its.incarnation and (other.is_being_adopted or mine.is_guest > its.is_guest)
            for other in self._slots
            if other is not slot
            for its in other.orphans
            for mine in slot.orphans
        )

    def vacate(self, member: Member, leaves_streams: bool) -> None:
        """A process is dead: its slots are free, and its guardian is kept for whoever comes next."""
        slots = self.served_by(member)
        is_mixed = any(slot.is_being_adopted for slot in slots[1:])
        for slot in reversed(slots):  # its own last, which gets the end itself
            is_guest = slot.index != member.slot
            slot.lost_fosters += is_guest and slot.is_being_adopted
            slot.member, slot.is_being_adopted = None, False
            if not leaves_streams:
                slot.release()
            elif member.guardian is not None:
                end = member.guardian.dup() if is_guest else member.guardian
                slot.orphans.append(Orphan(member.incarnation, end, is_guest, is_mixed))
                if not is_guest:
                    member.guardian = None
            for orphan in slot.orphans[:-MAX_ORPHANS]:
                orphan.guardian.close()
            del slot.orphans[:-MAX_ORPHANS]
            self.show(slot)
        member.close_guardian()

    def show(self, slot: Slot) -> None:
        """Write the slot's row of the shards table."""
        member = slot.member
        facts = ShardFacts(restarts=max(0, slot.restarts))
        if member is not None:
            is_fostering = member.state is State.SERVING and slot.is_being_adopted
            state = SHOWN[State.ADOPTING if is_fostering else member.state]
            facts = facts._replace(pid=member.pid, incarnation=member.incarnation, state=state, started=member.started)
        self._table.tell(slot.index, facts)

    def silent(self, longer_than_s: float) -> Iterator[tuple[Member, float]]:
        """Who serves and whose loop was not heard of for so long: by its own slot, and not while it takes over another one."""
        for view in self._table.read():
            slot = self._slots[view.index]
            if slot.member is None or slot.member.slot != view.index or not slot.is_served:
                continue
            is_busy = any(each.is_being_adopted for each in self.served_by(slot.member))
            if view.silent_s > longer_than_s and not is_busy:
                yield slot.member, view.silent_s

    def overdue(self, longer_than_s: float) -> Iterator[Member]:
        """Who was entrusted with a slot so long ago, and has never said that it serves it."""
        latest_s = time.monotonic() - longer_than_s
        for slot in self._slots:
            if (
                slot.is_being_adopted
                and slot.member is not None
                and slot.member.slot != slot.index
                and slot.begun_s < latest_s
            ):
                yield slot.member

    def close(self) -> None:
        """Unmap the table; for tests and for one who only tries to be the keeper."""
        self._table.close()
