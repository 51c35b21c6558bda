"""A reload: the configuration is read anew, new processes warm up, and the slots move over one by one.

What lives here: the steps of one reload, and what ends it early. What must not: processes themselves (keeper.py, members.py).

Nothing changes for the running gateway until every new process is warm. From then on a slot moves like one whose shard was
killed, except that the old shard has put its rows in order before: it is one path, which is walked all the time. The first
slot that moves is the trial: where no new process can serve it, all goes back to the old configuration.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .deed import Deed
from .members import Member
from .states import State

if TYPE_CHECKING:
    from .keeper import Keeper

log = logging.getLogger("longwire.keeper")

READY_S = 45.0
"""For the configuration to be read and all new processes to be warm. Whoever asked waits for a minute."""
MAX_TRIALS = 3
"""New processes that may die over the first slot. A stream that kills who takes it over may do so twice."""


class Reload:
    """One attempt. ``reply`` is called once, with the problem or an empty string."""

    def __init__(self, keeper: Keeper, reply: Callable[[str], object]) -> None:
        self.keeper = keeper
        self.reader: Member | None = None
        self.generation = keeper.generation + 1
        self._reply = reply
        self._new: list[Member] = []
        self._old_deed, self._old_orders = keeper.deed, keeper.orders
        self._deed, self._orders = keeper.deed, keeper.orders
        self._ready_by = time.monotonic() + READY_S
        self._is_moving = False
        self._has_moved = False
        self._deaths = 0
        self._problem = "the new processes ended before they served; the log says more"

    def __repr__(self) -> str:
        return f"<Reload to generation {self.generation}{', moving' if self._is_moving else ''}>"

    # Until all are warm.

    def begin(self) -> None:
        """Have the configuration read, by a process that may fail over it."""
        self.reader = self.keeper.start("reader")
        if self.reader is None:
            self.fail("no process could be started to read the configuration")

    def take(self, message: dict[str, Any], fds: list[int]) -> None:
        """The reader has read it: start as many processes as there are slots, with the new settings. Descriptors that are
        used are taken out of ``fds``."""
        keeper = self.keeper
        match message:
            case {
                "problem": "",
                "drain_s": int() | float() as drain_s,
                "hang_kill_s": int() | float() as hang_kill_s,
            } if fds:
                self.reader = None
                self._orders = replace(keeper.orders, drain_s=float(drain_s), hang_kill_s=float(hang_kill_s))
                settings, matrix = fds[0], fds[1] if len(fds) > 1 else keeper.deed.matrix
                del fds[:2]
                self._deed = keeper.deed._replace(settings=settings, matrix=matrix)
                self._deed.let_inherit()
            case {"problem": str(problem)} if problem:
                self.fail(problem)
                return
            case _:
                self.fail("what has read the configuration does not fit to this keeper: restart the gateway")
                return
        started = [keeper.start("shard", self._deed, self.generation) for _ in keeper.slots]
        self._new = [member for member in started if member is not None]
        if len(self._new) < len(started):
            self.fail("not all of the new processes could be started")

    def warmed(self) -> None:
        """Once all new processes are warm the slots move."""
        if self._is_moving or not self._new or any(member.state is not State.WARM for member in self._new):
            return
        keeper = self.keeper
        self._is_moving = True
        keeper.deed, keeper.orders, keeper.generation = self._deed, self._orders, self.generation
        self._dismiss_idle()
        self.served()
        keeper.filling.fill()  # where a shard has died just now, a new one follows it

    # While they move.

    def served(self) -> None:
        """A slot is served. When all are, the next one moves that an old process serves; when there is none, it is done."""
        keeper = self.keeper
        if not self._is_moving or not keeper.slots.all_serve:
            return
        members = [slot.member for slot in keeper.slots if slot.member is not None]
        self._has_moved = any(member.generation == self.generation for member in members)
        old = next((member for member in members if member.generation != self.generation), None)
        if old is None:
            self._finish()
            return
        old.make_way()

    def died(self, member: Member, before: State) -> None:
        """A shard has ended. Before the move that of a new one ends the reload; after it, whoever is next takes its place."""
        if member.generation != self.generation or member.is_unwanted:
            return
        if not self._is_moving:
            self.fail("a new process ended before it was ready; its log says why")
        elif before is State.ADOPTING and not self._has_moved:
            self._deaths += 1
            if self._deaths >= MAX_TRIALS:
                self._go_back()

    def hear_failure(self, member: Member, why: str) -> None:
        """A new process says why it cannot serve."""
        if member.generation != self.generation:
            return
        self._problem = why
        if not self._is_moving:
            self.fail(why)

    def look(self, now: float) -> None:
        """Nothing may take for ever."""
        if not self._is_moving and now > self._ready_by:
            self.fail("the new processes were not ready in time")

    # The end of it.

    def fail(self, problem: str) -> None:
        """All stays as it was."""
        if self.reader is not None:
            self.reader.dismiss()
        for member in self._new:
            member.dismiss()
        self._end(problem, self._deed)

    def give_up(self, problem: str) -> None:
        """Something more important came. What has moved stays so, and what is on its way goes on."""
        if self._is_moving:
            self._end(problem, self._old_deed)
        else:
            self.fail(problem)

    def _go_back(self) -> None:
        """The old configuration is in force again, for new processes too: those that served under it and are gone."""
        keeper = self.keeper
        keeper.deed, keeper.orders, keeper.generation = self._old_deed, self._old_orders, self.generation + 1
        keeper.pace.forgive("shard")
        self._dismiss_idle()
        self._end(self._problem, self._deed)

    def _finish(self) -> None:
        keeper = self.keeper
        log.info("reloaded", extra={"fields": {"generation": keeper.generation}})
        self._end("", self._old_deed)
        for member in keeper.members.values():
            if member.kind == "admin":
                member.retire()  # the next one is of the new configuration
        keeper.succeed()

    def _dismiss_idle(self) -> None:
        """End whoever waits for a slot and is of another generation than the keeper's."""
        for member in self.keeper.members.values():
            if member.kind == "shard" and member.slot is None and member.generation != self.keeper.generation:
                member.dismiss()

    def _end(self, problem: str, unused: Deed) -> None:
        """Close what only ``unused`` has, and answer."""
        keeper = self.keeper
        if keeper.reload is not self:
            return
        keeper.reload = None
        for fd in {unused.settings, unused.matrix} - {keeper.deed.settings, keeper.deed.matrix}:
            os.close(fd)
        if problem:
            log.error("reload_failed", extra={"fields": {"problem": problem}})
        self._reply(problem)
