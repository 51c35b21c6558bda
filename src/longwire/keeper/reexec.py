"""The keeper becomes its own successor: new code in the same process, with the same children.

What lives here: what is handed over, the trial of the new code, and the exec. What must not: anything that is done in between.

Only a parent is told of its children's deaths, so the keeper cannot be replaced by another process: it replaces its program
(exec). That cannot be taken back. So the new code is tried first, by a process that is given the same state and says whether
it can go on from there. If it cannot, or if there is no such program any more, the old one stays.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .channel import Channel
from .deed import store_text
from .members import SIGNALS, Member
from .slots import Orphan, Slot
from .states import State

if TYPE_CHECKING:
    from .keeper import Keeper

log = logging.getLogger("longwire.keeper")


class MemberState(NamedTuple):
    """One process, by numbers."""

    kind: str
    incarnation: int
    generation: int
    pid: int
    channel: int
    state: str
    slot: int | None
    guardian: int | None
    started: float
    begun_s: float
    is_unwanted: bool

    @classmethod
    def of(cls, member: Member) -> Self:
        guardian = member.guardian.fileno() if member.guardian is not None else None
        return cls(
            member.kind,
            member.incarnation,
            member.generation,
            member.pid,
            member.channel.fileno(),
            member.state.name,
            member.slot,
            guardian,
            member.started,
            member.begun_s,
            member.is_unwanted,
        )

    def revive(self) -> Member:
        """Inverse of ``of``, in the process whose descriptors these are."""
        channel = Channel(_socket(self.channel))
        guardian = _socket(self.guardian) if self.guardian is not None else None
        rest = (self.slot, guardian, self.started, self.begun_s, self.is_unwanted)
        return Member(self.kind, self.incarnation, self.generation, self.pid, channel, State[self.state], *rest)


class SlotState(NamedTuple):
    """One slot. Who serves it is said by that one's own line."""

    restarts: int
    orphans: list[list[int]]
    """Incarnation and descriptor of each, and whether it was a guest, and mixed."""
    foster: int = 0
    """The process that serves it besides its own."""
    is_being_adopted: bool = False

    @classmethod
    def of(cls, slot: Slot) -> Self:
        foster = slot.member.pid if slot.member is not None and slot.member.slot != slot.index else 0
        orphans = [[o.incarnation, o.guardian.fileno(), int(o.is_guest), int(o.is_mixed)] for o in slot.orphans]
        return cls(slot.restarts, orphans, foster, slot.is_being_adopted)


class Inheritance(NamedTuple):
    """All that a keeper knows. Another version writes another ``version``, and is not gone on from."""

    version: int
    deed: str
    orders: dict[str, Any]
    generation: int
    incarnations: int
    signals: list[int]
    """Heard of, and not acted on yet."""
    again: dict[str, float]
    members: list[MemberState]
    slots: list[SlotState]

    @classmethod
    def of(cls, keeper: Keeper) -> Self:
        """What this one knows now."""
        return cls(
            VERSION,
            str(keeper.deed),
            asdict(keeper.orders),
            keeper.generation,
            keeper.incarnations,
            list(keeper.signals),
            dict(keeper.pace.again),
            [MemberState.of(member) for member in keeper.members.values() if member.kind != "keeper"],
            [SlotState.of(slot) for slot in keeper.slots],
        )

    def store(self) -> int:
        """The descriptor of a memfd that holds it."""
        return store_text("keeper", json.dumps(self._asdict()).encode())

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Inverse of :meth:`store`.

        Raises:
            ValueError, TypeError, KeyError: it was written by a version whose state is another one.
        """
        told = json.loads(text)
        if told["version"] != VERSION:
            raise ValueError(f"the state of a keeper of version {told['version']} cannot be gone on from")
        told["members"] = [MemberState(*each) for each in told["members"]]
        told["slots"] = [SlotState(*each) for each in told["slots"]]
        return cls(**told)

    def descriptors(self) -> Iterator[int]:
        """What must stay open over the exec, besides the deed's, which every child inherits anyway."""
        for member in self.members:
            yield member.channel
            if member.guardian is not None:
                yield member.guardian
        for slot in self.slots:
            yield from (orphan[1] for orphan in slot.orphans)

    def fill(self, keeper: Keeper) -> None:
        """Let a new keeper know all of it, and listen to everyone."""
        keeper.generation, keeper.incarnations = self.generation, self.incarnations
        keeper.signals.extend(self.signals)
        keeper.pace.again.update(self.again)
        for slot, known in zip(keeper.slots, self.slots, strict=True):
            slot.restarts = known.restarts
            slot.orphans = [Orphan(number, _socket(fd), *map(bool, rest)) for number, fd, *rest in known.orphans]
        for line in self.members:
            member = line.revive()
            keeper.members[member.pid] = member
            keeper.hearing.begin(member)
            if member.slot is not None:
                keeper.slots[member.slot].member = member
        for slot, known in zip(keeper.slots, self.slots, strict=True):
            slot.member = keeper.members.get(known.foster, slot.member)
            slot.is_being_adopted = slot.member is not None and known.is_being_adopted
            slot.begun_s = time.monotonic()


VERSION = 1


def _socket(fd: int) -> socket.socket:
    """A descriptor that came over the exec, which the children must not have."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


class Succession:
    """One attempt."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.heir: Member | None = None

    def begin(self) -> None:
        """Have the new code tried."""
        self.heir = self._keeper.start("keeper")
        if self.heir is None:
            self.fail("the new keeper cannot be started")
            return
        state = Inheritance.of(self._keeper).store()
        if not self.heir.tell({"do": "try"}, [state]):
            self.heir.kill()
        os.close(state)

    def go_on(self) -> None:
        """It is able to: let it, if nothing else is under way by now."""
        keeper = self._keeper
        assert self.heir is not None
        self.heir.is_unwanted = True
        keeper.succession = None
        if keeper.reload is None and keeper.ending is None:
            self._replace()

    def fail(self, problem: str) -> None:
        """The old one stays."""
        self._keeper.succession = None
        log.error("keeper_stays", extra={"fields": {"problem": problem}})

    def _replace(self) -> None:
        """Returns only where it failed. From the blocking on every signal waits for whoever comes to unblock it; those that
        were heard of before are handed over."""
        keeper = self._keeper
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        inheritance = Inheritance.of(keeper)
        state = inheritance.store()
        kept = [state, *inheritance.descriptors()]
        for fd in kept:
            os.set_inheritable(fd, True)
        command = [*keeper.orders.keeper, str(state)]
        with suppress(OSError):
            sys.stdout.flush()
        try:
            os.execv(command[0], command)  # noqa: S606 - a list of our own
        except OSError as exc:
            self.fail(f"{command[0]}: {exc.strerror}")
        for fd in kept:
            os.set_inheritable(fd, False)
        os.close(state)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
