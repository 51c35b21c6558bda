"""The slots: which process serves each, and what is left of those that did.

What lives here: giving a slot to a process, the ends of dead shards' guardians, and the slots' rows of the shards table.
What must not: when a slot is given, starting processes (keeper.py).
"""

from __future__ import annotations

import os
import socket
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


@dataclass(slots=True)
class Slot:
    """A place for a shard."""

    index: int
    member: Member | None = None
    orphans: list[Orphan] = field(default_factory=list)
    restarts: int = -1

    def release(self) -> None:
        """What its former shards have left is adopted, or given up."""
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
        return all(slot.member is not None and slot.member.state is State.SERVING for slot in self._slots)

    @property
    def are_adopting(self) -> bool:
        return any(slot.member is not None and slot.member.state is State.ADOPTING for slot in self._slots)

    @property
    def live_streams(self) -> int:
        """By the shards' own word."""
        return sum(view.streams for view in self._table.read())

    def give(self, slot: Slot, member: Member) -> None:
        """Let a warm process serve this slot, and take over what is left there. One that cannot be told so is killed, and
        takes the same way as one that dies of it."""
        slot.member, member.slot = member, slot.index
        slot.restarts += 1
        member.happens(Event.CHOSEN)
        owners = [orphan.incarnation for orphan in slot.orphans]
        message = {"do": "serve", "slot": slot.index, "restarts": slot.restarts, "owners": owners}
        if not member.tell(message, [orphan.guardian.fileno() for orphan in slot.orphans]):
            member.kill()
        self.show(slot)

    def vacate(self, member: Member, leaves_streams: bool) -> None:
        """A process is dead: its slot is free, and its guardian is kept for the next one."""
        slot = self._slots[member.slot] if member.slot is not None else None
        if slot is None or slot.member is not member:
            member.close_guardian()
            return
        slot.member = None
        if not leaves_streams:
            member.close_guardian()
            slot.release()
        elif member.guardian is not None:
            slot.orphans.append(Orphan(member.incarnation, member.guardian))
            member.guardian = None
        for orphan in slot.orphans[:-MAX_ORPHANS]:
            orphan.guardian.close()
        del slot.orphans[:-MAX_ORPHANS]
        self.show(slot)

    def show(self, slot: Slot) -> None:
        """Write the slot's row of the shards table."""
        member = slot.member
        facts = ShardFacts(restarts=max(0, slot.restarts))
        if member is not None:
            state = SHOWN[member.state]
            facts = facts._replace(pid=member.pid, incarnation=member.incarnation, state=state, started=member.started)
        self._table.tell(slot.index, facts)

    def silent(self, longer_than_s: float) -> Iterator[tuple[Member, float]]:
        """Who serves and whose loop was not heard of for so long."""
        for view in self._table.read():
            member = self._slots[view.index].member
            if member is not None and member.state is State.SERVING and view.silent_s > longer_than_s:
                yield member, view.silent_s

    def close(self) -> None:
        """Unmap the table; for tests and for one who only tries to be the keeper."""
        self._table.close()
