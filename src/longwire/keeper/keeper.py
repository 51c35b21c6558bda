"""The keeper: the parent process. It starts the others, replaces those that die, and passes on what these leave behind.

What lives here: one loop over signals, deaths and messages, and what follows from each.
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
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .deed import Deed
from .members import Member, start_member
from .reload import Reload
from .shards import ShardFacts, ShardsTable
from .states import SHOWN, Event, State

log = logging.getLogger("longwire.keeper")

TICK_S = 1.0
"""How often hanging shards and failed starts are looked at."""
MAX_PAUSE_S = 5.0
"""Longest wait before a process is started again whose predecessors failed one after the other."""
MAX_FIRST_FAILURES = 3
"""A gateway that has never served, and whose shards fail so often, will not mend itself."""
PATIENCE_S = 10.0
"""After the drain deadline: for the last words of all shards. Then they are killed."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Orders:
    """How each kind of process is started, and how long things may take. ``engines`` is empty where none is ours to run."""

    shard: tuple[str, ...]
    admin: tuple[str, ...]
    engines: tuple[str, ...]
    reader: tuple[str, ...]
    drain_s: float
    hang_kill_s: float


@dataclass(slots=True)
class Slot:
    """A place for a shard. ``orphans`` are its former shards whose guardians still hold what nobody has adopted."""

    index: int
    member: Member | None = None
    orphans: list[Member] = field(default_factory=list)
    restarts: int = -1


class Keeper:
    """Runs until it was told to stop and all others are gone."""

    def __init__(self, deed: Deed, orders: Orders, announce: Callable[[], None]) -> None:
        self.deed = deed
        self.orders = orders
        self.generation = 0
        self.slots = [Slot(index) for index in range(len(deed.slots))]
        self.members: dict[int, Member] = {}
        self.reload: Reload | None = None
        self.is_stopping = False
        self._announce: Callable[[], None] | None = announce
        self._incarnations = 0
        self._failures = 0
        self._start_again_at: dict[str, float] = {}
        self._stop_by = 0.0
        self._exit_code = 0
        self._shards = ShardsTable.attach(os.dup(deed.shards))
        self._selector = selectors.DefaultSelector()
        self._signals: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Keeper of {len(self.members)} processes{', stopping' if self.is_stopping else ''}>"

    # The loop.

    def run(self) -> int:
        """Returns the exit code: 0 when all has ended well, 130 after a second signal."""
        self._be_told_of_signals()
        self.deed.let_inherit()
        if self.orders.engines:
            self.start("engines")
        for _ in self.slots:
            self.start("shard")
        self.start("admin")
        while self.members or not self.is_stopping:
            for key, _ in self._selector.select(TICK_S):
                key.data()
            while self._signals:
                self._take_signal(self._signals.popleft())
            self._look_at_the_clock()
        return self._exit_code

    def _be_told_of_signals(self) -> None:
        """Every signal wakes the loop; orphans of our children become ours, so that nobody is left behind."""
        reads, writes = socket.socketpair()
        reads.setblocking(False)
        writes.setblocking(False)
        signal.set_wakeup_fd(writes.detach(), warn_on_full_buffer=False)
        self._selector.register(reads, selectors.EVENT_READ, partial(reads.recv, 4096))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signals.append(number))
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            self.start_reload(_tell_nobody)
        elif self.is_stopping:
            self._exit_code = 130  # a second signal means now
            self._kill_all()
        else:
            self.stop()

    # Processes.

    def start(self, kind: str) -> Member | None:
        """Start one; later, if the machine has no process left for us."""
        self._start_again_at.pop(kind, None)
        self._incarnations += 1
        try:
            member = start_member(kind, getattr(self.orders, kind), self._incarnations, self.generation, self.deed)
        except OSError as exc:
            log.error("start_failed", extra={"fields": {"kind": kind, "problem": exc.strerror}})
            self._start_later(kind)
            return None
        self.members[member.pid] = member
        self._selector.register(member.channel, selectors.EVENT_READ, partial(self._hear, member))
        return member

    def _start_later(self, kind: str) -> None:
        self._failures += 1
        pause_s = min(MAX_PAUSE_S, 0.05 * 2 ** min(self._failures, 10))
        self._start_again_at[kind] = time.monotonic() + pause_s

    def _reap(self) -> None:
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
                self._hear_all(member)
                self._bury(member, status)

    def _hear_all(self, member: Member) -> None:
        """What it said before it died: a guardian's end may be among it."""
        while self._hear(member):
            pass

    def _bury(self, member: Member, status: int) -> None:
        before = member.state
        member.happens(Event.DIED)
        self._selector.unregister(member.channel)
        member.channel.close()
        if member.kind == "shard":
            self._bury_shard(member, before, status)
        elif self.reload is not None and self.reload.reader is member:
            self.reload.fail("the process that read the configuration has ended")
        elif not self.is_stopping and member.kind != "reader":
            self._start_later(member.kind)

    def _bury_shard(self, member: Member, before: State, status: int) -> None:
        slot = self.slots[member.slot] if member.slot is not None else None
        is_expected = before in (State.YIELDING, State.DRAINING) or self.is_stopping
        if not is_expected:
            fields = {"slot": member.slot, "pid": member.pid, "state": before.name.lower(), "status": _shown(status)}
            log.warning("shard_died", extra={"fields": fields})
        if slot is not None and slot.member is member:
            slot.member = None
            slot.orphans.append(member)
            self._tell_of(slot)
        else:
            member.close_guardians()
        if self.reload is not None:
            self.reload.died(member)
        if self.is_stopping:
            self._release_all()
            return
        if before is State.STARTING:
            self._failures += 1
            if self._announce is not None and self._failures >= MAX_FIRST_FAILURES:
                self._exit_code = self._exit_code or 1
                self.stop()
                return
        self.fill_slots()

    def fill_slots(self) -> None:
        """Give every empty slot to a warm process, and see to it that there are enough of those."""
        for slot in self.slots:
            if slot.member is None and (member := self._find_warm()) is not None:
                self._give(slot, member)
        waiting = sum(m.kind == "shard" and m.slot is None for m in self.members.values())
        empty = sum(slot.member is None for slot in self.slots)
        is_adopting = any(slot.member is not None and slot.member.state is State.ADOPTING for slot in self.slots)
        # The spare starts when nothing is being adopted: its imports would take a core from what people wait for.
        wanted = empty or (0 if is_adopting or self._announce is not None else 1)
        if waiting < wanted and "shard" not in self._start_again_at:
            if self._failures:
                self._start_later("shard")
            else:
                for _ in range(wanted - waiting):
                    self.start("shard")

    def _find_warm(self) -> Member | None:
        usable = (m for m in self.members.values() if m.state is State.WARM and m.generation == self.generation)
        return next(usable, None)

    def _give(self, slot: Slot, member: Member) -> None:
        """Let a warm process serve this slot, and take over what is left there."""
        slot.member, member.slot = member, slot.index
        slot.restarts += 1
        member.happens(Event.CHOSEN)
        ends = [(orphan.incarnation, end.fileno()) for orphan in slot.orphans for end in orphan.guardians]
        owners = [owner for owner, _ in ends]
        message = {"do": "serve", "slot": slot.index, "restarts": slot.restarts, "owners": owners}
        member.tell(message, [fd for _, fd in ends])
        self._tell_of(slot)

    def _tell_of(self, slot: Slot) -> None:
        """Write the slot's row of the shards table."""
        member = slot.member
        facts = ShardFacts(restarts=max(0, slot.restarts))
        if member is not None:
            facts = facts._replace(
                pid=member.pid, incarnation=member.incarnation, state=SHOWN[member.state], started=member.started
            )
        self._shards.tell(slot.index, facts)

    # What they say.

    def _hear(self, member: Member) -> bool:
        """One message; whether there was one."""
        try:
            received = member.channel.receive()
        except (BlockingIOError, ConnectionResetError):
            return False
        if received is None:
            return False  # its death follows
        message, fds = received
        self._act(member, message, fds)
        return True

    def _act(self, member: Member, message: dict[str, Any], fds: list[int]) -> None:
        match message:
            case {"am": "guarded"}:
                member.guardians.append(socket.socket(fileno=fds.pop()))
            case {"am": "warm"}:
                self._failures = 0
                member.happens(Event.WARMED)
                if self.reload is not None and member.generation != self.generation:
                    self.reload.warmed()
                else:
                    self.fill_slots()
            case {"am": "serving"}:
                self._serves(member)
            case {"am": "failed", "why": str(why), "code": int(code)}:
                log.error("shard_failed", extra={"fields": {"pid": member.pid, "problem": why}})
                self._exit_code = code if self._announce is not None else self._exit_code
                if self.reload is not None:
                    self.reload.hear_failure(member, why)
            case {"am": "read"} if self.reload is not None:
                self.reload.take(message, fds)
                fds = []
            case {"ask": "reload"}:
                self.start_reload(lambda problem: member.tell({"told": "reload", "problem": problem}))
            case {"ask": "drain"}:
                self.stop()
            case {"am": "drained"}:
                pass  # its end says the same
            case _:
                log.error("strange_message", extra={"fields": {"pid": member.pid, "message": str(message)[:200]}})
        for fd in fds:
            os.close(fd)

    def _serves(self, member: Member) -> None:
        member.happens(Event.ADOPTED)
        assert member.slot is not None
        slot = self.slots[member.slot]
        for orphan in slot.orphans:
            orphan.close_guardians()
        slot.orphans.clear()
        self._tell_of(slot)
        if self._announce is not None and all(s.member and s.member.state is State.SERVING for s in self.slots):
            announce, self._announce = self._announce, None
            announce()
        if self.reload is not None:
            self.reload.moved(slot)
        self.fill_slots()

    # Reloading, in reload.py.

    def start_reload(self, reply: Callable[[str], None]) -> None:
        """Read the configuration anew and move everything to new processes. ``reply`` hears the problem; empty: it is done."""
        if self.is_stopping or self.reload is not None or self._announce is not None:
            reply("the gateway is stopping" if self.is_stopping else "it is starting or reloading already; try again")
            return
        self.reload = Reload(self, reply)
        self.reload.begin()

    # The clock, and the end.

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for kind, at in list(self._start_again_at.items()):
            if now >= at:
                self.start(kind)
        if self.is_stopping and now > self._stop_by:
            self._kill_all()
        if self.orders.hang_kill_s:
            self._kill_hanging()

    def _kill_hanging(self) -> None:
        for view in self._shards.read():
            member = self.slots[view.index].member
            is_old = member is not None and time.time() - member.started > self.orders.hang_kill_s
            if member is None or not is_old or member.state is not State.SERVING:
                continue
            if view.silent_s > self.orders.hang_kill_s:
                log.error("shard_hangs", extra={"fields": {"slot": view.index, "silent_s": view.silent_s}})
                member.kill()

    def stop(self) -> None:
        """Let streams finish, tell the rest, and end."""
        self.is_stopping = True
        self._stop_by = time.monotonic() + self.orders.drain_s + PATIENCE_S
        self._start_again_at.clear()
        for member in list(self.members.values()):
            if member.kind == "shard" and member.state in (State.ADOPTING, State.SERVING):
                member.happens(Event.DRAINED)
                member.tell({"do": "drain"})
            elif member.kind == "shard":
                member.kill()
        for slot in self.slots:
            self._tell_of(slot)
        self._release_all()

    def _release_all(self) -> None:
        """Once no shard is left, nobody needs the others."""
        for slot in self.slots:
            for orphan in slot.orphans:
                orphan.close_guardians()
            slot.orphans.clear()
        if not any(member.kind == "shard" for member in self.members.values()):
            for member in self.members.values():
                member.tell({"do": "stop"})

    def _kill_all(self) -> None:
        for member in self.members.values():
            member.kill()


def _tell_nobody(problem: str) -> None:
    """A signal has no one to answer to; a problem stands in the log."""


def _shown(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.waitstatus_to_exitcode(status)}"
