"""The keeper: the parent process. It starts the others, replaces those that die, and passes on what these leave behind.

What lives here: one loop over signals, deaths and messages, and what follows from each. What takes several steps has a file of
its own: filling.py, reload.py, reexec.py, ending.py.
What must not: a byte from outside (clients, engines, configuration: others read those), asyncio, anything that can wait.

Whatever may fail fails in a child. What the keeper has is numbers: descriptors that it never looks into, and process ids.
"""

from __future__ import annotations

import ctypes
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from .deed import Deed
from .ending import Ending
from .filling import Filling
from .hearing import Hearing
from .members import SIGNALS, Member, Orders, start_member
from .pace import START, Pace
from .reexec import Succession
from .reload import Reload
from .roll import Roll
from .slots import Slot, Slots
from .states import Event, State

log = logging.getLogger("longwire.keeper")

TICK_S = 1.0
"""How often hanging shards and failed starts are looked at."""
MAX_FIRST_FAILURES = 3
"""A gateway that has never served, and whose shards fail so often, will not mend itself."""
BAD_SETTINGS = 2
"""The exit code of what fails over its settings: these do not mend themselves at all."""
START_S = 60.0
"""For a process to make its imports: a second, on a machine that has other things to do ten. One that takes longer hangs."""
FOSTER_S = 30.0
"""For a shard to take over a slot besides its own: a hundred times what it should take. One that has not said by then that it
serves may have half of it, and only its end lets another one have all."""
RESTARTED = ("admin", "engines")
"""Kinds of which there is one for as long as the gateway runs."""
_PR_SET_CHILD_SUBREAPER = 36


class Keeper:
    """Runs until it was told to stop and all others are gone. ``announce`` is called once, when all slots are served."""

    def __init__(self, deed: Deed, orders: Orders, announce: Callable[[], None] | None) -> None:
        self.deed = deed
        self.orders = orders
        self.generation = 0
        self.incarnations = 0
        self.members: dict[int, Member] = {}
        self.slots = Slots(len(deed.slots), deed.shards)
        self.pace = Pace()
        self.roll = Roll(orders.state_dir)
        self.filling = Filling(self)
        self.reload: Reload | None = None
        self.succession: Succession | None = None
        self.ending: Ending | None = None
        self.signals: deque[int] = deque()
        self._announce = announce
        self._problem = ""
        self._stop_signals = 0
        self._exit_code = 0
        self._selector = selectors.DefaultSelector()
        self.hearing = Hearing(self, self._selector)

    def __repr__(self) -> str:
        return f"<Keeper of {len(self.members)} processes{', stopping' if self.ending else ''}>"

    @property
    def has_served(self) -> bool:
        return self._announce is None

    # The loop.

    def run(self) -> int:
        """Start everything. Returns the exit code: 0 when all has ended well, 130 after a second signal."""
        self.listen()
        self.deed.let_inherit()
        for kind in [*(["engines"] if self.orders.engines else []), *("shard" for _ in self.slots), "admin"]:
            if self.ending is None:
                self.start(kind)
        return self._keep()

    def resume(self) -> int:
        """Go on from where another one was: deaths that it was not told of first."""
        log.info("keeper_replaced", extra={"fields": {"processes": len(self.members), "generation": self.generation}})
        self.reap()
        self.filling.fill()
        return self._keep()

    def _keep(self) -> int:
        while self.members or self.ending is None:
            for key, _ in self._selector.select(self.pace.wait_s(time.monotonic(), TICK_S)):
                key.data()
            while self.signals:
                self._take_signal(self.signals.popleft())
            self._look_at_the_clock(time.monotonic())
        self.roll.remove()
        return self._exit_code

    def listen(self) -> None:
        """Every signal wakes the loop; orphans of our children become ours, so that nobody is left behind."""
        reads, writes = socket.socketpair()
        reads.setblocking(False)
        writes.setblocking(False)
        signal.set_wakeup_fd(writes.detach(), warn_on_full_buffer=False)
        self._selector.register(reads, selectors.EVENT_READ, partial(reads.recv, 4096))
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self.signals.append(number))
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self.reap()
        elif number == signal.SIGHUP:
            self.start_reload(_tell_nobody)
        elif self._stop_signals and self.ending is not None:
            self._exit_code = 130  # a second signal means now
            self.ending.end_now()
        else:
            self._stop_signals += 1
            self.stop()

    def _look_at_the_clock(self, now: float) -> None:
        for kind in self.pace.take_due(now):
            self.filling.try_again() if kind == "shard" else self.start(kind)
        if self.ending is not None:
            self.ending.look(now)
        if self.reload is not None:
            self.reload.look(now)
        for member in self.members.values():
            is_late = member.kind not in RESTARTED and member.state is State.STARTING and now - member.begun_s > START_S
            if is_late or (member.state is State.YIELDING and now > member.yield_by_s):
                member.kill()
        for member in set(self.slots.overdue(FOSTER_S)):
            log.error("foster_hangs", extra={"fields": {"pid": member.pid}})
            member.kill()
        if self.orders.hang_kill_s:
            for member, silent_s in self.slots.silent(self.orders.hang_kill_s):
                log.error("shard_hangs", extra={"fields": {"slot": member.slot, "silent_s": silent_s}})
                member.kill()

    # Processes.

    def start(self, kind: str, deed: Deed | None = None, generation: int | None = None) -> Member | None:
        """Start one; later, if the machine has no process left for us."""
        command, generation = getattr(self.orders, kind), self.generation if generation is None else generation
        self.incarnations += 1
        try:
            member = start_member(kind, command, self.incarnations, generation, deed or self.deed)
        except OSError as exc:
            fields = {"kind": kind, "program": command[0], "problem": exc.strerror}
            log.error("start_failed", extra={"fields": fields})
            self.pace.note_failure(START, time.monotonic())
            self._failed(kind, f"no process could be started: {command[0]}: {exc.strerror}")
            return None
        self.members[member.pid] = member
        self.hearing.begin(member)
        self._call_the_roll()
        return member

    def _call_the_roll(self) -> None:
        self.roll.write((member.kind, member.pid) for member in self.members.values())

    def _failed(self, kind: str, why: str) -> None:
        """One of a kind that must be there could not be had, or ended before it served: the next one comes after a pause."""
        if kind not in ("shard", *RESTARTED):
            return
        self.pace.note_failure(kind, time.monotonic())
        if self.ending is None or kind == "shard":
            self.pace.put_off(kind, time.monotonic())
        if kind == "shard" and not self.has_served and self.pace.failures(kind) >= MAX_FIRST_FAILURES:
            self._give_up(self._problem or why, self._exit_code or 1)

    def _give_up(self, problem: str, code: int) -> None:
        """It has never served, and will not."""
        if self.ending is None:
            print(f"longwire: {problem}", file=sys.stderr)
            self._exit_code = code
            self.stop()

    def reap(self) -> None:
        """Take note of the dead; guardians and grandchildren among them, who are nobody's any more."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            member = self.members.pop(pid, None)
            if member is not None:
                member.is_reaped = True
                self.hearing.end(member)
                self._bury(member, status)
                self._call_the_roll()

    def _bury(self, member: Member, status: int) -> None:
        before = member.state
        member.happens(Event.DIED)
        if member.kind == "shard":
            self._bury_shard(member, before, status)
        elif self.reload is not None and self.reload.reader is member:
            self.reload.fail("the process that read the configuration has ended")
        elif self.succession is not None and self.succession.heir is member:
            self.succession.fail("the new keeper has ended before it was one")
        elif self.ending is None and member.kind in RESTARTED:
            self.start(member.kind) if member.is_unwanted else self._failed(member.kind, "")

    def _bury_shard(self, member: Member, before: State, status: int) -> None:
        is_done = member.is_unwanted or (before is State.DRAINING and not status)
        is_fault = not is_done and before is not State.YIELDING
        if is_fault:
            fields = {"slot": member.slot, "pid": member.pid, "state": before.name.lower(), "status": _shown(status)}
            log.warning("shard_died", extra={"fields": fields})
        self.slots.vacate(member, leaves_streams=not is_done)
        is_ours = member.generation == self.generation
        if is_fault and is_ours and before is State.STARTING:
            self.pace.note_failure(START, time.monotonic())
        if self.reload is not None:
            self.reload.died(member, before)
        if is_fault and is_ours and (self.ending is not None or before is not State.SERVING):
            self._failed("shard", f"a shard has ended before it served ({_shown(status)}); its log says more")
        if self.ending is not None:
            self.ending.go_on()
        else:
            self.filling.fill()

    # What they say (hearing.py).

    def cannot_serve(self, member: Member, why: str, code: int) -> None:
        """It says so, and ends."""
        log.error("shard_failed", extra={"fields": {"pid": member.pid, "problem": why}})
        if not self.has_served:
            self._problem, self._exit_code = why, code
            if code == BAD_SETTINGS:
                self._give_up(why, code)
        if self.reload is not None:
            self.reload.hear_failure(member, why)

    def serves(self, member: Member, slot: Slot) -> None:
        """It has taken over what was left in this slot. Only one that was started for it shows that starting works again."""
        slot.release()
        if slot.index == member.slot:
            member.happens(Event.ADOPTED)
            self.pace.forgive("shard")
        self.slots.show(slot)
        if self._announce is not None and self.slots.all_serve:
            announce, self._announce, self._exit_code = self._announce, None, 0
            announce()
        if self.reload is not None:
            self.reload.served()
        self.filling.fill()

    # What is asked of it.

    def start_reload(self, reply: Callable[[str], object]) -> None:
        """Read the configuration anew and move everything to new processes. ``reply`` hears the problem; empty: it is done."""
        if self.ending is not None:
            reply("the gateway is stopping")
        elif self.reload is not None or not self.has_served:
            reply("it is starting or reloading already; try again")
        elif not self.orders.reader:
            reply("this gateway does not know how its configuration was given")
        else:
            self.reload = Reload(self, reply)
            self.reload.begin()

    def succeed(self) -> None:
        """Become the version of the keeper that lies on disk now."""
        if self.orders.keeper:
            self.succession = Succession(self)
            self.succession.begin()

    def stop(self) -> None:
        """Let streams finish, tell the rest, and end. Asked for again it changes nothing."""
        if self.ending is None:
            self.ending = Ending(self)
            self.ending.begin()


def _tell_nobody(problem: str) -> None:
    """A signal has no one to answer to; a problem stands in the log."""


def _shown(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit {os.waitstatus_to_exitcode(status)}"
