"""The process that runs the engines that are ours: the embedded model and the stand-in.

What lives here: starting them on their fixed ports, and ending them with the gateway. What must not: requests to them.

They outlive every shard, and a crash in native code or in a supervisor takes no stream's process with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from ..engines.local import LocalEngine
from ..engines.simchild import SimChild
from ..keeper.channel import Channel
from ..keeper.deed import Deed
from ..keeper.shards import ShardsTable
from ..observe.streamlog import configure_logging
from ..words.clock import LoopClock
from .estate import Blob

FAREWELL_S = 10.0
"""After the drain deadline: for the last words of shards whose keeper is gone."""


async def serve(blob: Blob, channel: Channel, shards: int) -> None:
    """Run them until the keeper wants no more of it, or the stand-in has ended. Where the keeper is gone, its shards still
    finish their streams, which are ours to feed; ``shards`` is the table that says who they are."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    channel.set_blocking(False)
    loop.add_reader(channel.fileno(), over.set)
    children: list[LocalEngine | SimChild] = []
    for kind, port in blob.ours.items():
        address = ("127.0.0.1", port)
        if kind == "local":
            clock = LoopClock(loop)
            children.append(LocalEngine(blob.settings, clock, on_ready=_note, on_down=_nothing, address=address))
        else:
            children.append(SimChild(_note, over.set, port))
    for child in children:
        await child.start()
    await over.wait()
    if _is_alone(channel):
        await wait_shards(ShardsTable.attach(shards), blob.settings.drain_s + FAREWELL_S)
    for child in children:
        await child.close()


def _is_alone(channel: Channel) -> bool:
    """Whether the keeper is gone, and not merely done with us."""
    try:
        return channel.receive() is None
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def wait_shards(table: ShardsTable, seconds: float) -> None:
    """Wait until the processes that serve have ended, but no longer than that. They are not our children: a pidfd tells."""
    loop = asyncio.get_running_loop()
    alive: set[int] = set()
    over = asyncio.Event()

    def ended(fd: int) -> None:
        loop.remove_reader(fd)
        os.close(fd)
        alive.discard(fd)
        if not alive:
            over.set()

    for view in table.read():
        if view.pid:
            with suppress(OSError):
                fd = os.pidfd_open(view.pid)
                alive.add(fd)
                loop.add_reader(fd, ended, fd)
    if alive:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)


def _note(url: str) -> None:
    """The shards find out by themselves: they look for it all the time."""


def _nothing() -> None:
    """It is started again by its own supervision."""


def main(arguments: Sequence[str]) -> int:
    """``CHANNEL INCARNATION DEED``, as the keeper starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    deed = Deed.parse(arguments[2])
    blob = Blob.read(deed.settings)
    configure_logging(blob.settings.log_level)
    asyncio.run(serve(blob, channel, deed.shards))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
