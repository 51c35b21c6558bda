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


@dataclass(slots=True, eq=False)
class Member:
    """A process that the keeper has started. ``kind`` is shard, admin, engines or reader."""

    kind: str
    incarnation: int
    generation: int
    pid: int
    channel: Channel
    state: State = State.STARTING
    slot: int | None = None
    guardians: list[socket.socket] = field(default_factory=list)
    """Ends at which its guardian will answer once it is dead; one that was cloned anew has another."""
    started: float = field(default_factory=time.time)

    @property
    def is_spare(self) -> bool:
        """Whether it waits to be told what to serve, or soon will."""
        return self.kind == "shard" and self.slot is None and self.state in (State.STARTING, State.WARM)

    def happens(self, event: Event) -> None:
        self.state = next_state(self.state, event)

    def tell(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Send it a message. One that is dead or does not listen hears nothing: what follows from that follows from its end."""
        try:
            self.channel.send(message, fds)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    def kill(self) -> None:
        """End it now. It is ours and not reaped yet, so the number is its own."""
        if self.state is not State.GONE:
            os.kill(self.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """End one that has never served: nothing is lost by it, and it is chosen no more."""
        self.kill()
        self.happens(Event.DISMISSED)

    def close_guardians(self) -> None:
        """Nobody needs its sockets any more: its guardian may go."""
        for end in self.guardians:
            end.close()
        self.guardians.clear()


def start_member(kind: str, command: Sequence[str], incarnation: int, generation: int, deed: Deed) -> Member:
    """Start a process of this gateway. It finds the deed and its end of the channel on its command line.

    In a process group of its own: a terminal's Ctrl-C is for the keeper alone to act on.

    Raises:
        OSError: the machine starts no more processes.
    """
    ours, its = Channel.pair()
    ours.set_blocking(False)
    os.set_inheritable(its.fileno(), True)
    arguments = [*command, str(its.fileno()), str(incarnation), str(deed)]
    defaults = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    try:
        pid = os.posix_spawn(command[0], arguments, os.environ, setpgroup=0, setsigmask=(), setsigdef=defaults)
    except OSError:
        ours.close()
        raise
    finally:
        its.close()
    return Member(kind, incarnation, generation, pid, ours)
