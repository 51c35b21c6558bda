"""One process of the gateway, as the keeper sees it.

What lives here: starting it, what is known of it, talking to it, and ending it.
What must not: when any of that is done (keeper.py).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .channel import Channel
from .deed import Deed
from .states import Event, State, next_state

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Those that the keeper acts on; its children begin without its way of doing that."""

YIELD_S = 5.0
"""For a shard to put its rows in order: milliseconds."""


@dataclass(frozen=True, slots=True)
class Orders:
    """How each kind of process is started, and how long things may take. ``engines`` is empty where none is ours to run,
    ``reader`` and ``keeper`` where there is no way to reload or to become another version."""

    shard: tuple[str, ...]
    admin: tuple[str, ...]
    engines: tuple[str, ...]
    reader: tuple[str, ...]
    drain_s: float
    hang_kill_s: float
    keeper: tuple[str, ...] = ()
    state_dir: str = ""


@dataclass(slots=True, eq=False)
class Member:
    """A process that the keeper has started. ``kind`` is shard, admin, engines, reader or keeper (one that tries to be it)."""

    kind: str
    incarnation: int
    generation: int
    pid: int
    channel: Channel
    state: State = State.STARTING
    slot: int | None = None
    guardian: socket.socket | None = None
    """The end at which its guardian will answer once it is dead."""
    started: float = field(default_factory=time.time)
    begun_s: float = field(default_factory=time.monotonic)
    yield_by_s: float = 0.0
    """Until when it may put its rows in order, once it was asked to."""
    is_unwanted: bool = False
    """It was told to end: that it does is no failure."""
    is_reaped: bool = False
    """Its number may be anybody's by now."""

    @property
    def is_spare(self) -> bool:
        """Whether it waits to be told what to serve, or soon will."""
        return self.kind == "shard" and self.slot is None and self.state in (State.STARTING, State.WARM)

    def happens(self, event: Event) -> None:
        self.state = next_state(self.state, event)

    def tell(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> bool:
        """Send it a message; whether it was sent. What follows from one that is dead follows from its end."""
        if self.is_reaped:
            return False
        try:
            self.channel.send(message, fds)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it now. It is ours and not reaped yet, so the number is its own."""
        if not self.is_reaped:
            os.kill(self.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """End it now, because nobody needs it."""
        self.is_unwanted = True
        self.kill()

    def make_way(self) -> None:
        """Have it leave everything to a successor. One that takes too long is killed, which costs nobody anything either."""
        self.happens(Event.REPLACED)
        self.yield_by_s = time.monotonic() + YIELD_S
        if not self.tell({"do": "yield"}):
            self.kill()

    def retire(self) -> None:
        """Ask it to end by itself."""
        self.is_unwanted = True
        self.tell({"do": "stop"})

    def take_guardian(self, end: socket.socket) -> None:
        """Note where its guardian will answer. A shard ends its old guardian before it clones another: that end is worth
        nothing any more."""
        self.close_guardian()
        self.guardian = end

    def close_guardian(self) -> None:
        """Nobody needs its sockets any more: its guardian may go."""
        if self.guardian is not None:
            self.guardian.close()
            self.guardian = None


def start_member(kind: str, command: Sequence[str], incarnation: int, generation: int, deed: Deed) -> Member:
    """Start a process of this gateway. It finds the deed and its end of the channel on its command line.

    In a process group of its own: a terminal's Ctrl-C is for the keeper alone to act on.

    Raises:
        OSError: the machine starts no more processes, or has no such program.
    """
    ours, its = Channel.pair()
    ours.set_blocking(False)
    os.set_inheritable(its.fileno(), True)
    arguments = [*command, str(its.fileno()), str(incarnation), str(deed)]
    try:
        pid = os.posix_spawn(command[0], arguments, os.environ, setpgroup=0, setsigmask=(), setsigdef=SIGNALS)
    except OSError:
        ours.close()
        raise
    finally:
        its.close()
    return Member(kind, incarnation, generation, pid, ours)
