"""The estate: what all processes of one gateway share, made once and attached to by each.

What lives here: sizes, making it, and attaching to it by the deed.
What must not: processes (keeper), what is done with any of it (rooms).
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from typing import Any, NamedTuple, Self

from ..admission.matrix import Matrix
from ..groundwork import arena_bytes
from ..keeper.channel import Channel
from ..keeper.deed import Deed, SlotDeed, read_text, shut_port, store_text
from ..keeper.shards import ShardsTable, attach_counts, make_counts
from ..server.listener import SURPLUS_CONNECTIONS
from ..streams.arena import Arena
from ..streams.memory import Memory
from ..streams.tables import CONNECTION_ROW_BYTES, STREAM_ROW_BYTES, Table
from ..words.ids import Place
from ..words.settings import EngineSettings, ModelSettings, Settings, TenantSettings


def shards_of(settings: Settings) -> int:
    """How many processes serve."""
    return settings.shards or len(os.sched_getaffinity(0))


def make_deed(blob: Blob, public: socket.socket, admin: socket.socket) -> Deed:
    """Make everything that is shared. The sockets become the deed's."""
    settings = blob.settings
    slots = shards_of(settings)
    return Deed(
        settings=blob.store(),
        public=public.detach(),
        admin=admin.detach(),
        matrix=make_matrix(settings),
        shards=ShardsTable.make(slots).fd,
        counts=make_counts(slots).fd,
        slots=tuple(_make_slot(settings, slots) for _ in range(slots)),
    )


def make_matrix(settings: Settings) -> int:
    """The descriptor of counters for these tenants."""
    return os.dup(Matrix.create(max(1, len(settings.tenants)), shards_of(settings)).fd)


def _make_slot(settings: Settings, slots: int) -> SlotDeed:
    """One slot's memory. All arenas together are as large as a single one would be."""
    size = (settings.arena_bytes or arena_bytes()) // slots
    memory = Memory.make(size, settings.max_streams, settings.max_connections + SURPLUS_CONNECTIONS)
    inbox, inbox_in = Channel.pair()
    return SlotDeed(*memory.fds, os.dup(inbox.fileno()), os.dup(inbox_in.fileno()))


class Estate:
    """What a process has of the whole: every slot's rows to read, and the inboxes to write to."""

    def __init__(self, deed: Deed) -> None:
        self.deed = deed
        self.blob = Blob.read(deed.settings)
        self.settings = self.blob.settings
        self.slots = len(deed.slots)
        self.matrix_fd = deed.matrix
        self.streams = [Table.attach("streams", slot.streams, STREAM_ROW_BYTES) for slot in deed.slots]
        self.connections = [Table.attach("connections", slot.connections, CONNECTION_ROW_BYTES) for slot in deed.slots]
        self.arena_fds = [slot.arena for slot in deed.slots]
        self.shards = ShardsTable.attach(deed.shards)
        self.counts = attach_counts(deed.counts)

    def __repr__(self) -> str:
        return f"<Estate of {self.slots} slots>"

    def check_layouts(self) -> None:
        """Find out whether this version can go on with all that it may have to take over; nothing of it is touched. The tables
        were looked at when they were attached.

        Raises:
            LayoutMismatch, WrongLayout: another version has made it.
        """
        for slot in self.deed.slots:
            Arena.check(slot.arena)
        self.matrix()

    def stop_listening(self) -> None:
        """End both ports for every process that has them, when the keeper is gone: nobody waits for an answer that does not
        come, and a new gateway can have the ports while streams of this one still finish."""
        for fd in (self.deed.public, self.deed.admin):
            shut_port(fd)

    def memory(self, slot: int, incarnation: int) -> Memory:
        """The memory of one slot, for the process that is to serve it."""
        place = Place(slot, self.slots, incarnation)
        return Memory.attach([self.deed.slots[slot].arena, *self.deed.slots[slot][1:3]], place)

    def matrix(self) -> Matrix:
        """The tenants' counters."""
        return Matrix.attach(self.matrix_fd)

    def open_inboxes(self) -> list[Channel]:
        """The ends that messages are put in at, by slot; each caller's are its own, to wait at."""
        inboxes = [Channel(socket.socket(fileno=os.dup(slot.inbox_in))) for slot in self.deed.slots]
        for inbox in inboxes:
            inbox.set_blocking(False)
        return inboxes

    def inbox(self, slot: int) -> Channel:
        """The end that the slot's shard reads."""
        channel = Channel(socket.socket(fileno=self.deed.slots[slot].inbox))
        channel.set_blocking(False)
        return channel


# The configuration, from process to process.


class Blob(NamedTuple):
    """What all processes are told, on no command line: engines' keys are in it. ``ours`` are the ports of the engines that
    we run ourselves, by kind."""

    settings: Settings
    secret: bytes
    ours: dict[str, int]

    def store(self) -> int:
        """The descriptor of a memfd that holds it."""
        told = {"settings": asdict(self.settings), "secret": self.secret.hex(), "ours": self.ours}
        return store_text("settings", json.dumps(told).encode())

    @classmethod
    def read(cls, fd: int) -> Self:
        """Inverse of :meth:`store`. The settings were checked when they were read from where people wrote them."""
        told: dict[str, Any] = json.loads(read_text(fd))
        settings = told["settings"]
        engines = [EngineSettings(**engine) for engine in settings.pop("engines")]
        models = [ModelSettings(**model) for model in settings.pop("models")]
        tenants = [TenantSettings(**tenant) for tenant in settings.pop("tenants")]
        whole = Settings(**settings, engines=engines, models=models, tenants=tenants)
        return cls(whole, bytes.fromhex(told["secret"]), told["ours"])
