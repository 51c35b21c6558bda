"""One slot, as a shard serves it: from what is left there to the end of its last stream.

What lives here: the order in which a slot is taken over, opened and closed. What must not: what the keeper asks for (shard.py),
rooms (lifecycle builds them).

A shard has one of these for its own slot, and one more for each slot that it fosters: all in one loop, each with rooms, memory
and an inbox of its own, as if it were another process. New clients come through its own slot alone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..adopt import Adopter, claim_rows
from ..groundwork import shown
from ..keeper.shards import Beat
from ..lifecycle import House
from ..observe.counts import read_models, restore_counters
from ..operation import write_counts
from ..server.accepting import descriptor_ceiling
from ..server.passing import Neighbours
from ..streams.claim import Socket
from ..streams.tables import unpack_connection
from .bequest import Bequest
from .estate import Estate

log = logging.getLogger("longwire.shard")

WAKE_AT_ONCE = 64
"""Ended streams that are taken over between two turns of the loop: a few milliseconds."""
BEAT_S = 0.25
COUNT_S = 1.0
FIRST_LOOK_S = 0.5
"""A shard that nobody waits for accepts no connection before it has looked at its engines once, or for so long: what it cannot
know yet it would refuse."""
DESCRIPTORS_PER_SLOT = 16
"""Of a slot that is fostered, besides its connections and the inboxes: three memories, mapped; its own inbox; the counters; the
pipes of its reading process, and some to spare."""


class CannotFoster(Exception):
    """This process has no room for another slot. Nothing of it was touched."""


class Entrance(NamedTuple):
    """How clients come in: the listening socket of all shards, and TLS of our own."""

    sock: socket.socket
    tls: ssl.SSLContext | None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{shown(self.sock)}"


class Serving:
    """One slot. ``own`` is that of this process, for one that is fostered besides.

    Raises:
        CannotFoster: there is no room for it.
    """

    def __init__(
        self, estate: Estate, slot: int, incarnation: int, entrance: Entrance, own: Serving | None = None
    ) -> None:
        self.estate = estate
        self.slot = slot
        self.is_own = own is None
        self._entrance = entrance
        if own is not None:
            _check_room(estate.slots + DESCRIPTORS_PER_SLOT)
        memory = estate.memory(slot, incarnation)
        self._rows = claim_rows(memory)
        if own is not None:  # before anything is made that would have to be taken down
            _check_room(estate.slots + DESCRIPTORS_PER_SLOT + len(self._rows.sockets))
        # Nothing is read from disk anew for a slot that is fostered: its keys are those of our own, which are watched.
        tenants = own.house.tenants if own is not None else None
        self.house: House = House(estate.settings, memory, estate.matrix(), estate.blob.secret, tenants)
        self._neighbours = Neighbours(self.house.listener, estate.inbox(slot), estate.open_inboxes())

    def __repr__(self) -> str:
        return f"<Serving slot {self.slot}, {self.house.registry.live_count} live streams>"

    async def begin(self, orders: dict[str, Any], ends: list[int]) -> Adopter:
        """Take over what was left in the slot. ``ends`` are those of the guardians of its ``owners``, in that order.

        Raises:
            SettingsError: the keys file is bad.
        """
        told_s = time.monotonic()
        house = self.house
        bequest = Bequest(
            dict(zip(orders["owners"], ends, strict=True)), orders.get("mixed", ()), orders.get("shared", ())
        )
        sockets, newcomers = bequest.fetch(self._rows, self._entrance.sock, self._named_elsewhere)
        counted = self.estate.counts.read(self.slot)
        restore_counters(house.instruments, counted)
        house.recall(read_models(counted))
        await house.begin()
        self._meet_others()
        adopter = house.adopter()
        house.limiter.begin_recount()
        await adopter.adopt(self._rows, sockets)
        house.limiter.end_recount()
        del self._rows
        gc.freeze()  # what was taken over may live long
        adopted_s = time.monotonic() - told_s
        if not (adopter.streams_adopted or adopter.connections_adopted):
            await house.wait_engines(FIRST_LOOK_S)
        for sock in newcomers:
            house.listener.welcome(sock, self._entrance.tls)
        if adopter.streams_adopted or adopter.connections_adopted or adopter.faults:
            self._note_adoption(adopter, adopted_s)
        return adopter

    def _meet_others(self) -> None:
        house, shards = self.house, self.estate.shards
        self._neighbours.is_served = lambda other: shards.facts(other).pid != 0
        house.listener.neighbours = self._neighbours  # before it is started: what was being passed on is adopted, too
        house.know_others(self.estate.streams)
        house.others_are_ready = shards.have_met_engines

    def _named_elsewhere(self) -> Iterator[Socket]:
        """The clients' sockets that rows of other slots name: whoever has died may have fostered one of these."""
        for slot, table in enumerate(self.estate.connections):
            for index in range(table.rows_touched if slot != self.slot else 0):
                if (payload := table.read(index)) is not None:
                    row = unpack_connection(payload)
                    yield row.owner, row.fd

    async def open(self) -> None:
        """Accept new clients from now on."""
        loads = self.estate.shards.loads if self.estate.slots > 1 else None
        await self.house.listener.start(self._entrance.sock, self._entrance.tls, is_shared=True, loads=loads)

    def go_on(self, adopter: Adopter) -> None:
        """Look after what is here: from now on all goes by itself."""
        self._neighbours.start()
        self.house.listener.look_after()
        self.house.start_clockwork()
        self.house.keep_reading_process()
        self._count()
        asyncio.get_running_loop().call_soon(self._wake_some, adopter)

    def greet_soon(self) -> None:
        """Print what to try, once there is a model."""
        self.house.greet_soon(self._entrance.url)

    def _wake_some(self, adopter: Adopter) -> None:
        if adopter.wake_some(WAKE_AT_ONCE):
            asyncio.get_running_loop().call_soon(self._wake_some, adopter)

    def beat(self) -> None:
        """Tell the shards table that the loop turns, from now on. New clients are shared out by what the whole process does."""
        house = self.house
        live, connections = house.registry.live_count, len(house.listener.connections)
        beat = Beat(live, connections, int(house.lag_s * 1e6), house.has_met_engine)
        load = live + house.live_elsewhere() if self.is_own else None
        self.estate.shards.beat(self.slot, house.clock.now(), beat, load)
        house.clock.call_later(BEAT_S, self.beat)

    def _count(self) -> None:
        """Let others see what was counted."""
        self.house.clock.call_later(COUNT_S, self._count)
        write_counts(self.house.gauges(), self.estate.counts, self.slot)

    def _note_adoption(self, adopter: Adopter, adopted_s: float) -> None:
        instruments = self.house.instruments
        instruments.streams_adopted_total += adopter.streams_adopted
        instruments.connections_adopted_total += adopter.connections_adopted
        instruments.adoption_pause.observe_s(adopted_s)
        fields = {
            "slot": self.slot,
            "streams": adopter.streams_adopted,
            "connections": adopter.connections_adopted,
            "faults": adopter.faults,
        }
        log.info("adopted", extra={"fields": fields})

    # The end.

    def put_in_order(self) -> None:
        """Store every row as it is now: a successor goes on from there."""
        for stream in self.house.registry.list_live():
            stream.unsplice()
            self.house.registry.store_row(stream)
        write_counts(self.house.gauges(), self.estate.counts, self.slot)

    async def close(self) -> None:
        """Streams have finished, here and in the other slots: take everything down."""
        await self.house.tear_down()
        self._neighbours.close()
        write_counts(self.house.gauges(), self.estate.counts, self.slot)


def _check_room(sockets: int) -> None:
    """Whether so many more can be had without taking the reserve. Descriptors are given out from the lowest number on, so the
    next one tells how many there are. Where they do not fit they stay with their guardian, which loses none.

    Raises:
        CannotFoster: they do not.
    """
    lowest = os.dup(0)
    os.close(lowest)
    if lowest + sockets > descriptor_ceiling():
        raise CannotFoster(f"{sockets} sockets do not fit below descriptor {descriptor_ceiling()}")
