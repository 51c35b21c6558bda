"""A shard: the process that serves one slot, from its start as a spare to its end.

What lives here: the order of its life, and what the keeper may ask of it. What must not: rooms (lifecycle builds them).

Everything is imported before the process says that it is warm: nothing may be read from disk later, where a new version
may lie by then, and a pause must not contain the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from ..admission.matrix import WrongLayout
from ..adopt import Adopter, claim_rows
from ..groundwork import make_tls, raise_descriptor_limit, settle_garbage, shown, widen_descriptor_table
from ..keeper.channel import Channel
from ..keeper.deed import Deed
from ..keeper.guardian import Guarded
from ..lifecycle import House
from ..observe.counts import read_models, restore_counters
from ..observe.streamlog import configure_logging
from ..operation import write_counts
from ..server.passing import Neighbours
from ..streams.counters import counters_work
from ..streams.shared import LayoutMismatch
from ..words import faultpoint
from ..words.errors import SettingsError
from .bequest import fetch_all
from .estate import Estate

log = logging.getLogger("longwire.shard")

ORPHANED_S = 3600.0
"""Without a keeper: for the longest streams. Nobody waits for our end."""

WAKE_AT_ONCE = 64
"""Ended streams that are taken over between two turns of the loop: a few milliseconds."""
OTHER_VERSION = (LayoutMismatch, WrongLayout)
BEAT_S = 0.25
COUNT_S = 1.0
FIRST_LOOK_S = 0.5
"""A shard that nobody waits for accepts no connection before it has looked at its engines once, or for so long: what it cannot
know yet it would refuse."""


class Shard:
    """This process."""

    def __init__(self, channel: Channel, incarnation: int, deed: Deed) -> None:
        self.channel = channel
        self.incarnation = incarnation
        self.estate = Estate(deed)
        self.settings = self.estate.settings
        self.guarded = Guarded("lw-guardian")
        self.adopts = counters_work()
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
        told_s = time.monotonic()
        slot = int(orders["slot"])
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        memory = self.estate.memory(slot, self.incarnation)
        rows = claim_rows(memory)
        public = socket.socket(fileno=self.estate.deed.public)
        sockets, newcomers = fetch_all(rows, dict(zip(orders["owners"], ends, strict=True)), public)
        house = House(self.settings, memory, self.estate.matrix(), self.estate.blob.secret)
        counted = self.estate.counts.read(slot)
        restore_counters(house.instruments, counted)
        house.recall(read_models(counted))
        await house.begin()
        neighbours = Neighbours(house.listener, self.estate.inbox(slot), self.estate.inboxes)
        neighbours.is_served = lambda other: self.estate.shards.facts(other).pid != 0
        house.listener.neighbours = neighbours  # before it is started: what was being passed on is adopted, too
        house.know_others(self.estate.streams)
        house.others_are_ready = self.estate.shards.have_met_engines
        adopter = house.adopter()
        house.limiter.begin_recount()
        await adopter.adopt(rows, sockets)
        house.limiter.end_recount()
        gc.freeze()  # what was taken over may live long
        adopted_s = time.monotonic() - told_s
        if not (adopter.streams_adopted or adopter.connections_adopted):
            await house.wait_engines(FIRST_LOOK_S)
        public.setblocking(False)
        tls = make_tls(self.settings)
        for sock in newcomers:
            house.listener.welcome(sock, tls)
        self._beat(house, slot)  # before it can be asked for anything
        await house.listener.start(
            public,
            tls,
            is_shared=True,
            loads=self.estate.shards.loads if self.estate.slots > 1 else None,
        )
        neighbours.start()
        house.start_clockwork()
        house.keep_reading_process()
        with suppress(BrokenPipeError):  # the keeper is gone: that is heard next, and what was taken over goes on
            self.channel.send({"am": "serving", "streams": adopter.streams_adopted})
        self.channel.set_blocking(False)
        loop.add_reader(self.channel.fileno(), partial(self._hear, house))
        if self.guarded.lives:
            loop.add_reader(self.guarded.fileno(), self._guard_again)
        self._count(house, slot)
        loop.call_soon(self._wake_some, adopter)
        if adopter.streams_adopted or adopter.connections_adopted or adopter.faults:
            _note_adoption(adopter, house, slot, adopted_s)
        if slot == 0 and not orders["restarts"]:
            scheme = "https" if self.settings.tls_cert_file else "http"
            house.greet_soon(f"{scheme}://{shown(public)}")
        await self._stopping.wait()
        await house.close(self._drain_s)
        neighbours.close()
        write_counts(house.gauges(), self.estate.counts, slot)
        with suppress(OSError):
            self.channel.send({"am": "drained"})
        return 0

    def _wake_some(self, adopter: Adopter) -> None:
        if adopter.wake_some(WAKE_AT_ONCE):
            asyncio.get_running_loop().call_soon(self._wake_some, adopter)

    def _beat(self, house: House, slot: int) -> None:
        """Tell the shards table that the loop turns."""
        live, connections = house.registry.live_count, len(house.listener.connections)
        lag_us = int(house.lag_s * 1e6)
        met = house.has_met_engine
        self.estate.shards.beat(slot, house.clock.now(), live, connections, lag_us, has_met_engine=met)
        house.clock.call_later(BEAT_S, self._beat, house, slot)

    def _count(self, house: House, slot: int) -> None:
        """Let others see what was counted."""
        house.clock.call_later(COUNT_S, self._count, house, slot)
        write_counts(house.gauges(), self.estate.counts, slot)

    def _hear(self, house: House) -> None:
        try:
            received = self.channel.receive()
        except BlockingIOError:
            return
        match received:
            case None:
                self._outlive_keeper(house)
            case ({"do": "yield"}, _):
                self._yield_to_successor(house)
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

    def _outlive_keeper(self, house: House) -> None:
        """The keeper is gone: what runs goes on to its end, and nothing new begins."""
        log.error("keeper_lost", extra={"fields": {"streams": house.registry.live_count}})
        asyncio.get_running_loop().remove_reader(self.channel.fileno())
        self.estate.stop_listening()
        self._stop(max(self.settings.drain_s, ORPHANED_S))

    def _yield_to_successor(self, house: House) -> None:
        """Put every row in order and leave at once: the successor goes on from there, as if we had been killed."""
        for stream in house.registry.list_live():
            stream.unsplice()
            house.registry.store_row(stream)
        write_counts(house.gauges(), self.estate.counts, house.memory.place.slot)
        os._exit(0)

    def _guard_again(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.guarded.fileno())
        log.warning("guardian_lost")
        self._have_guarded()
        if self.guarded.lives:
            loop.add_reader(self.guarded.fileno(), self._guard_again)


def _note_adoption(adopter: Adopter, house: House, slot: int, adopted_s: float) -> None:
    """Count and log what was taken over."""
    house.instruments.streams_adopted_total += adopter.streams_adopted
    house.instruments.connections_adopted_total += adopter.connections_adopted
    house.instruments.adoption_pause.observe_s(adopted_s)
    fields = {
        "slot": slot,
        "streams": adopter.streams_adopted,
        "connections": adopter.connections_adopted,
        "faults": adopter.faults,
    }
    log.info("adopted", extra={"fields": fields})


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
