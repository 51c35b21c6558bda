"""A reload: the configuration is read anew, new processes warm up, and the slots move over one by one.

What lives here: the steps of one reload, and what ends it early. What must not: processes themselves (keeper.py, members.py).

Nothing changes for the running gateway until every new process is warm. From then on a slot moves like one whose shard was
killed, except that the old shard has put its rows in order before: it is one path, which is walked all the time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .members import Member
from .states import Event, State

if TYPE_CHECKING:
    from .keeper import Keeper, Slot

log = logging.getLogger("longwire.keeper")

READY_S = 50.0
"""For the configuration to be read and all new processes to be warm. It takes a second or two; whoever asked waits a minute."""
YIELD_S = 5.0
"""For one shard to put its rows in order: milliseconds. One that needs longer hangs, and is killed."""


class Reload:
    """One attempt. ``reply`` is called once, with the problem or an empty string."""

    def __init__(self, keeper: Keeper, reply: Callable[[str], None]) -> None:
        self.keeper = keeper
        self.reader: Member | None = None
        self._reply = reply
        self._new: list[Member] = []
        self._old_deed = self._deed = keeper.deed
        self._give_up_at = time.monotonic() + READY_S
        self._old_orders = keeper.orders
        self._is_moving = False

    def begin(self) -> None:
        """Have the configuration read, by a process that may fail over it."""
        self.reader = self.keeper.start("reader")
        if self.reader is None:
            self.fail("no process could be started to read the configuration")

    def take(self, message: dict[str, Any], fds: list[int]) -> None:
        """The reader has read it: start as many processes as there are slots, with the new settings."""
        keeper = self.keeper
        if problem := str(message.get("problem", "")):
            for fd in fds:
                os.close(fd)
            self.fail(problem)
            return
        self.reader = None
        settings, matrix = fds[0], fds[1] if len(fds) > 1 else keeper.deed.matrix
        deed = keeper.deed._replace(settings=settings, matrix=matrix)
        deed.let_inherit()
        generation = keeper.generation
        keeper.deed, keeper.generation = deed, generation + 1
        started = [keeper.start("shard") for _ in keeper.slots]
        keeper.deed, keeper.generation = self._old_deed, generation
        self._new = [member for member in started if member is not None]
        self._deed, self._times = deed, (float(message["drain_s"]), float(message["hang_kill_s"]))
        if len(self._new) < len(keeper.slots):
            self.fail("not all of the new processes could be started")

    def warmed(self) -> None:
        """Once all new processes are warm, there is no way back: the slots move."""
        if self._is_moving or any(member.state is not State.WARM for member in self._new):
            return
        from dataclasses import replace

        keeper = self.keeper
        self._is_moving = True
        drain_s, hang_kill_s = self._times
        keeper.deed, keeper.generation = self._deed, keeper.generation + 1
        keeper.orders = replace(keeper.orders, drain_s=drain_s, hang_kill_s=hang_kill_s)
        for member in keeper.members.values():
            if member.is_spare and member.generation != keeper.generation:
                member.dismiss()
        for fd in {self._old_deed.settings, self._old_deed.matrix} - {self._deed.settings, self._deed.matrix}:
            os.close(fd)  # whoever still needs it has its own
        self._move_next()

    def moved(self, slot: Slot) -> None:
        """A slot is served, perhaps by a new process, perhaps once more by an old one."""
        if self._is_moving:
            self._move_next()

    def died(self, member: Member) -> None:
        """A shard has ended. Before the move that of a new one ends the reload; after it, whoever is next takes its place."""
        if not self._is_moving and member in self._new:
            self.fail("a new process ended before it was ready; its log says why")

    def hear_failure(self, member: Member, why: str) -> None:
        """A new process says why it cannot serve."""
        if not self._is_moving and member in self._new:
            self.fail(why)

    def fail(self, problem: str) -> None:
        """All stays as it was; or, where the slots move already and the gateway is stopping, as it is."""
        if self.keeper.reload is not self:
            return
        self.keeper.reload = None
        if not self._is_moving:
            for member in self._new:
                member.dismiss()
            for fd in {self._deed.settings, self._deed.matrix} - {self._old_deed.settings, self._old_deed.matrix}:
                os.close(fd)
        if self.reader is not None:
            self.reader.kill()
        log.error("reload_failed", extra={"fields": {"problem": problem}})
        self._reply(problem)

    def _move_next(self) -> None:
        """One slot at a time. One whose shard was killed meanwhile is waited for, and so is an old spare that adopts just now:
        it is moved when it serves."""
        keeper = self.keeper
        for slot in keeper.slots:
            member = slot.member
            if member is None or member.state is not State.SERVING:
                return
            if member.generation != keeper.generation:
                member.happens(Event.REPLACED)
                member.tell({"do": "yield"})
                self._give_up_at = time.monotonic() + YIELD_S
                return
        self._finish()

    def look(self, now: float) -> None:
        """By the clock: nothing may be waited for without an end."""
        if now < self._give_up_at:
            return
        if not self._is_moving:
            self.fail(f"the new processes were not ready within {READY_S:.0f} s")
            return
        for slot in self.keeper.slots:
            if slot.member is not None and slot.member.state is State.YIELDING:
                slot.member.kill()  # it hangs: it is taken over like any that is killed

    def _finish(self) -> None:
        keeper = self.keeper
        keeper.reload = None
        log.info("reloaded", extra={"fields": {"generation": keeper.generation}})
        self._reply("")
        for member in keeper.members.values():
            if member.kind == "admin":
                member.tell({"do": "stop"})
        keeper.start("admin")  # of the new configuration
        keeper.fill_slots()
