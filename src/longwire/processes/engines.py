"""The process that runs the engines that are ours: the embedded model and the stand-in.

What lives here: starting them on their fixed ports, and ending them with the gateway. What must not: requests to them.

They outlive every shard, and a crash in native code or in a supervisor takes no stream's process with it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence

from ..engines.local import LocalEngine
from ..engines.simchild import SimChild
from ..keeper.channel import Channel
from ..keeper.deed import Deed
from ..observe.streamlog import configure_logging
from ..words.clock import LoopClock
from .estate import Blob


async def serve(blob: Blob, channel: Channel) -> None:
    """Run them until the keeper wants no more of it, or is gone, or the stand-in has ended."""
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
    for child in children:
        await child.close()


def _note(url: str) -> None:
    """The shards find out by themselves: they look for it all the time."""


def _nothing() -> None:
    """It is started again by its own supervision."""


def main(arguments: Sequence[str]) -> int:
    """``CHANNEL INCARNATION DEED``, as the keeper starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    blob = Blob.read(Deed.parse(arguments[2]).settings)
    configure_logging(blob.settings.log_level)
    asyncio.run(serve(blob, channel))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
