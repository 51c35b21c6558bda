"""The program of a keeper that goes on from where another one was, or that tries whether it could.

What lives here: ``LEVEL STATE``, after an exec, and ``LEVEL CHANNEL INCARNATION DEED``, as a child of the keeper that is.
What must not: starting a gateway (processes/start.py).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from ..observe.jsonlog import configure_logging
from .channel import Channel
from .deed import Deed, read_text
from .keeper import Keeper
from .members import SIGNALS, Orders
from .reexec import Inheritance


def inherit(state: bytes) -> tuple[Keeper, Inheritance]:
    """A keeper by what another one has written. Raises whatever the difference of versions leads to."""
    known = Inheritance.parse(state)
    told: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in known.orders.items()}
    return Keeper(Deed.parse(known.deed), Orders(**told), None), known


def attempt(channel: Channel) -> int:
    """Say whether this could go on from the state that comes over the channel. What cannot ends in a traceback, in the log."""
    received = channel.receive()
    if received is None:
        return os.EX_NOINPUT
    keeper, _ = inherit(read_text(received[1][0]))
    keeper.slots.close()
    channel.send({"am": "able"})
    return os.EX_OK


def go_on(state: int) -> int:
    """Be the keeper. Signals were blocked before the exec, and wait until there is somebody to hear them."""
    os.set_inheritable(state, False)
    keeper, known = inherit(read_text(state))
    os.close(state)
    keeper.listen()
    known.fill(keeper)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return keeper.resume()


def main(arguments: Sequence[str]) -> int:
    """See above."""
    level, *rest = arguments
    configure_logging(level)
    if len(rest) == 1:
        return go_on(int(rest[0]))
    return attempt(Channel(socket.socket(fileno=int(rest[0]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
