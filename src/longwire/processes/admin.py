"""The admin process's entry: attaching to the estate, serving the admin port, and speaking with the keeper.

What lives here: the order of its life, and what it may ask of the keeper. What must not: what operators see (operators.py).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..admission.matrix import Matrix
from ..admission.tenants import Tenants
from ..keeper.channel import Channel
from ..keeper.deed import Deed
from ..observe.snapshot import Snapshot
from ..observe.streamlog import configure_logging
from .estate import Estate
from .operators import serve_admin

RELOAD_S = 60.0
"""For the configuration to be read and all slots to move: a few seconds. Whoever asked hears no more of it after that."""


LINGER_S = 0.2
"""From a connection to its request. It matters after a reload, whose new admin process takes all who come from then on."""


class Asks:
    """What may be asked of the keeper over the channel."""

    def __init__(self, channel: Channel, on_over: Callable[[], None]) -> None:
        self._channel = channel
        self._on_over = on_over
        self._reloads: list[asyncio.Future[str]] = []
        self._is_over = False
        self.is_alone = False
        """The keeper is gone."""

    def __repr__(self) -> str:
        return f"<Asks, {len(self._reloads)} reloads awaited>"

    async def reload(self) -> str:
        """Have it reload; the problem, or an empty string."""
        if self._is_over:
            return "it has been reloaded or stopped just now; try again"
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reloads.append(done)
        self._channel.send({"ask": "reload"})
        try:
            async with asyncio.timeout(RELOAD_S):
                return await done
        except TimeoutError:
            return "it has not come to an end yet; the log will say how it ends"

    def drain(self) -> None:
        """Have it drain: this process ends with all others."""
        self._channel.send({"ask": "drain"})

    def hear(self) -> None:
        """A message from the keeper, or the end of it."""
        try:
            received = self._channel.receive()
        except BlockingIOError:
            return
        if received is None:
            self.is_alone = True
        if received is None or received[0].get("do") == "stop":
            self._be_over()
            return
        if received[0].get("told") == "reload" and self._reloads:
            problem = str(received[0].get("problem", ""))
            if not problem:
                self._be_over()  # first: whoever hears of it and comes again is to find our successor
            done = self._reloads.pop(0)
            if not done.done():
                done.set_result(problem)

    def _be_over(self) -> None:
        self._is_over = True
        self._on_over()


def with_tenants(snapshot: Snapshot, matrix: Matrix, tenants: Tenants) -> Snapshot:
    """The picture with what tenants use, which stands in the matrix for all shards together."""
    now = time.monotonic()
    uses = {tenant.name: matrix.use(tenant.index, now) for tenant in tenants}
    return replace(
        snapshot,
        tenant_streams={name: use.live_streams for name, use in uses.items()},
        tenant_held_tokens={name: use.held_tokens for name, use in uses.items()},
        tenant_reserved_tokens={name: use.reserved_tokens for name, use in uses.items()},
    )


async def serve(estate: Estate, channel: Channel, sock: socket.socket) -> None:
    """Serve until the keeper wants no more of it, or is gone."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    asks = Asks(channel, over.set)
    complete = partial(with_tenants, matrix=estate.matrix(), tenants=Tenants(estate.settings.tenants))
    server = await serve_admin(estate.settings, estate, sock, complete, asks)
    loop.add_reader(channel.fileno(), asks.hear)
    await over.wait()
    loop.remove_reader(channel.fileno())
    if asks.is_alone:
        estate.stop_listening()
    await asyncio.sleep(0)  # whoever asked for the reload that ends us is being answered
    await server.close(0.0 if asks.is_alone else LINGER_S)


def main(arguments: Sequence[str]) -> int:
    """``CHANNEL INCARNATION DEED``, as the keeper starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    channel.set_blocking(False)
    estate = Estate(Deed.parse(arguments[2]))
    configure_logging(estate.settings.log_level)
    sock = socket.socket(fileno=estate.deed.admin)
    sock.setblocking(False)
    asyncio.run(serve(estate, channel, sock))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
