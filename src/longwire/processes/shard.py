"""A shard: the process that serves a slot, from its start as a spare to its end.

What lives here: the order of its life, and what the keeper may ask of it. What must not: what it takes to serve (serving.py).

Everything is imported before the process says that it is warm: nothing may be read from disk later, where a new version
may lie by then, and a pause must not contain the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from ..admission.matrix import WrongLayout
from ..groundwork import make_tls, raise_descriptor_limit, settle_garbage, widen_descriptor_table
from ..keeper.channel import Channel, close_all
from ..keeper.deed import Deed
from ..keeper.guardian import Guarded
from ..observe.streamlog import configure_logging
from ..streams.counters import counters_work
from ..streams.shared import LayoutMismatch
from ..words import faultpoint
from ..words.errors import SettingsError
from .estate import Estate
from .serving import CannotFoster, Entrance, Serving

log = logging.getLogger("longwire.shard")

ORPHANED_S = 3600.0
"""Without a keeper: for the longest streams. Nobody waits for our end."""

OTHER_VERSION = (LayoutMismatch, WrongLayout)


class Shard:
    """This process."""

    def __init__(self, channel: Channel, incarnation: int, deed: Deed) -> None:
        self.channel = channel
        self.incarnation = incarnation
        self.estate = Estate(deed)
        self.settings = self.estate.settings
        self.guarded = Guarded("lw-guardian")
        self.adopts = counters_work()
        self.servings: list[Serving] = []
        """Our own slot, and those that we foster."""
        self._entrance: Entrance
        self._fostering: asyncio.Task[Serving] | None = None
        self._stopping: asyncio.Event | None = None
        self._drain_s = 0.0

    def __repr__(self) -> str:
        return f"<Shard, incarnation {self.incarnation}>"

    def warm_up(self) -> None:
        """Have a guardian, and say that all is ready. What could not be gone on with here must show before anything is moved.

        Raises:
            LayoutMismatch, WrongLayout: what runs is of another version.
        """
        self.estate.check_layouts()
        if self.adopts:
            self._have_guarded()
        settle_garbage()  # before there are thousands of streams to look through, and in no pause
        self.channel.send({"am": "warm"})

    def _have_guarded(self) -> None:
        try:
            self.guarded.clone(lambda end: self.channel.send({"am": "guarded"}, [end]))
        except OSError as exc:
            log.error("no_guardian", extra={"fields": {"problem": str(exc)}})

    def wait_orders(self) -> tuple[dict[str, Any], list[int]] | None:
        """What to serve; None where the keeper is gone, or has no need of us."""
        received = self.channel.receive()
        if received is None or received[0].get("do") != "serve":
            return None
        return received

    # Serving.

    async def serve(self, orders: dict[str, Any], ends: list[int]) -> int:
        """Take over what was left in the slot, and serve it until the end."""
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        public = socket.socket(fileno=self.estate.deed.public)
        public.setblocking(False)
        self._entrance = Entrance(public, make_tls(self.settings))
        own = await self._take_on(orders, ends)
        self.channel.set_blocking(False)
        loop.add_reader(self.channel.fileno(), self._hear)
        if self.guarded.lives:
            loop.add_reader(self.guarded.fileno(), self._guard_again)
        if own.slot == 0 and not orders["restarts"]:
            own.greet_soon()
        await self._stopping.wait()
        if self._fostering is not None:  # what is half taken over has to be whole before it can be brought to an end
            await asyncio.wait([self._fostering])
        await asyncio.gather(*(serving.house.drain(self._drain_s) for serving in self.servings))
        await asyncio.gather(*(serving.close() for serving in self.servings))
        with suppress(OSError):
            self.channel.send({"am": "drained"})
        return 0

    async def _take_on(self, orders: dict[str, Any], ends: list[int]) -> Serving:
        """Serve this slot from now on: our own, or one besides. Clients come through our own."""
        own = self.servings[0] if self.servings else None
        try:
            serving = Serving(self.estate, int(orders["slot"]), self.incarnation, self._entrance, own)
        except (CannotFoster, OSError) as exc:
            if own is None:
                raise
            close_all(ends)  # or the guardians would hold what everybody else has closed
            raise CannotFoster(str(exc)) from exc
        adopter = await serving.begin(orders, ends)
        serving.house.live_elsewhere = partial(self._count_live, serving)
        serving.beat()  # before it can be asked for anything
        if own is None:
            await serving.open()
        self.servings.append(serving)
        serving.go_on(adopter)
        with suppress(BrokenPipeError):  # the keeper is gone: that is heard next, and what was taken over goes on
            self.channel.send({"am": "serving", "slot": serving.slot, "streams": adopter.streams_adopted})
        return serving

    def _count_live(self, but: Serving | None = None) -> int:
        """Live streams of all slots but one."""
        return sum(serving.house.registry.live_count for serving in self.servings if serving is not but)

    def _begin_to_foster(self, orders: dict[str, Any], ends: list[int]) -> None:
        """There is no process for this slot: serve it besides our own."""
        self._fostering = asyncio.get_running_loop().create_task(self._take_on(orders, ends))
        self._fostering.add_done_callback(self._note_fostered)

    def _note_fostered(self, task: asyncio.Task[Serving]) -> None:
        """Half of a slot cannot be served, and only our end lets another one have it: that is what a crash is for."""
        self._fostering = None
        fault = None if task.cancelled() else task.exception()
        if isinstance(fault, CannotFoster):
            self._decline(str(fault))
        elif fault is not None:
            log.critical("foster_fault", exc_info=fault)
            os._exit(1)

    def _decline(self, why: str) -> None:
        with suppress(BrokenPipeError):
            self.channel.send({"am": "unable", "why": why})

    # What the keeper says.

    def _hear(self) -> None:
        try:
            received = self.channel.receive()
        except BlockingIOError:
            return
        except (
            OSError,
            ValueError,
        ) as exc:  # no descriptors are left for those that came with it: only one message has any
            self._decline(str(exc))
            return
        match received:
            case None:
                self._outlive_keeper()
            case ({"do": "serve"} as orders, ends):
                self._begin_to_foster(orders, ends)
            case ({"do": "yield"}, _):
                self._yield_to_successor()
            case ({"do": "drain", "drain_s": drain_s}, _):
                self._stop(float(drain_s))
            case ({"do": "stop"}, _):
                self._stop()
            case _:
                log.error("strange_message")

    def _stop(self, drain_s: float = 0.0) -> None:
        assert self._stopping is not None
        self._drain_s = drain_s
        self._stopping.set()

    def _outlive_keeper(self) -> None:
        """The keeper is gone: what runs goes on to its end, and nothing new begins."""
        log.error("keeper_lost", extra={"fields": {"streams": self._count_live()}})
        asyncio.get_running_loop().remove_reader(self.channel.fileno())
        self.estate.stop_listening()
        self._stop(max(self.settings.drain_s, ORPHANED_S))

    def _yield_to_successor(self) -> None:
        """Put every row in order and leave at once: the successor goes on from there, as if we had been killed."""
        for serving in self.servings:
            serving.put_in_order()
        os._exit(0)

    def _guard_again(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.guarded.fileno())
        log.warning("guardian_lost")
        self._have_guarded()
        if self.guarded.lives:
            loop.add_reader(self.guarded.fileno(), self._guard_again)


def main(arguments: Sequence[str]) -> int:
    """``CHANNEL INCARNATION DEED``, as the keeper starts it."""
    channel_fd, incarnation, deed = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(channel_fd)))
    faultpoint.arm(os.environ.get("LONGWIRE_DIE_AT", ""), int(incarnation))
    faultpoint.take_away(os.environ.get("LONGWIRE_WITHOUT", ""))
    raise_descriptor_limit()
    widen_descriptor_table()  # before there is a guardian
    try:
        shard = Shard(channel, int(incarnation), Deed.parse(deed))
        configure_logging(shard.settings.log_level)
        shard.warm_up()
        received = shard.wait_orders()
        return uvloop.run(shard.serve(*received)) if received is not None else 0
    except (SettingsError, OSError, *OTHER_VERSION) as exc:
        why = f"this version cannot go on with what runs: {exc}" if isinstance(exc, OTHER_VERSION) else str(exc)
        code = 2 if isinstance(exc, SettingsError) else 1
        with suppress(OSError):
            channel.send({"am": "failed", "why": why, "code": code})
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
