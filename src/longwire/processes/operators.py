"""The admin process: what an operator sees of all shards, from shared memory and by asking them.

What lives here: the admin port's source over the tables of every slot, and serving it.
What must not: HTTP (admin), making tables or processes (keeper), any object of a shard.

Lists, shards and metrics come from shared memory alone, so they are there whatever the shards do. One stream's state is asked
of its shard and shown from its row where that does not answer; tails and cancelling need the shard, or its successor.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ..admin.app import Keeper, admin_app
from ..admin.operator import Inbox, NoAnswer, Operator
from ..admin.server import AdminServer
from ..keeper.shards import ShardsTable, ShardView
from ..observe.counts import BadCounts, Counted, merge, unpack_counts
from ..observe.declarations import Look
from ..observe.metrics import Metrics
from ..observe.overview import overview
from ..observe.snapshot import ShardSnapshot, Snapshot
from ..streams.describe import read_state
from ..streams.tables import Table
from ..words.errors import NotFound
from ..words.ids import STREAM_ID_BYTES, parse_stream_id, slot_of
from ..words.settings import Settings

State = dict[str, object]

NO_SHARD: Final = "no shard serves yet"
"""Why a gateway is not ready whose shards have said nothing."""

ABLE: Final = frozenset({"serving", "adopting"})
"""States of a shard whose word on its readiness counts: the row of one that hangs or is down is old."""


class Estate(Protocol):
    """What the keeper has made and every process of the gateway may see (estate.py)."""

    @property
    def streams(self) -> Sequence[Table]:
        """A table of streams per slot."""

    @property
    def shards(self) -> ShardsTable: ...

    @property
    def counts(self) -> Table:
        """A row of counters per slot."""

    def open_inboxes(self) -> Sequence[Inbox]:
        """The write end of each slot's inbox. It must not block: a shard that hangs does not empty its own."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks, read together to tell unix times from the rows' monotonic ones."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    @property
    def boot_s(self) -> float:
        """The unix time at which the monotonic clock stood at 0; it moves when somebody sets the machine's clock."""
        return self.wall() - self.now()


class EstateSource:
    """The admin port's source. ``complete`` adds to a picture what is counted elsewhere than in the shards' rows (the tenants'
    matrix)."""

    def __init__(
        self,
        estate: Estate,
        settings: Settings,
        complete: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        clocks: Clocks = Clocks(),
    ) -> None:
        self._estate = estate
        self._complete = complete
        self._clocks = clocks
        self._limits = {tenant.name: tenant.max_streams for tenant in settings.tenants}
        self._operators = [Operator(inbox) for inbox in estate.open_inboxes()]

    def __repr__(self) -> str:
        return f"<EstateSource of {self._estate.shards!r}>"

    # Streams.

    def list_streams(self) -> Iterable[State]:
        """The streams of every slot by their rows. One that comes or goes meanwhile may be missing."""
        boot_s = self._clocks.boot_s
        for table in self._estate.streams:
            for row in range(table.rows_touched):
                state = read_state(table, row, boot_s)
                if state is not None:
                    yield state

    async def show_stream(self, id: str) -> State | None:
        """The shard's own word on the stream, or its row's where the shard does not answer."""
        slot = self._slot_of(id)
        if slot is None:
            return None
        try:
            return await self._operators[slot].show(id)
        except NoAnswer:
            return self._find_row(slot, id)

    async def cancel_stream(self, id: str) -> State | None:
        slot = self._slot_of(id)
        return None if slot is None else await self._operators[slot].cancel(id)

    async def tail(self, id: str, after: str | None) -> AsyncIterator[bytes] | None:
        """The stream from a cursor on, by its shard, and by the successor where that ends in the middle."""
        slot = self._slot_of(id)
        if slot is None:
            raise NotFound("No stream has this id.")
        return await self._operators[slot].tail(id, after)

    def _slot_of(self, id: str) -> int | None:
        raw = parse_stream_id(id)
        slot = len(self._operators) if raw is None else slot_of(raw)
        return slot if slot < len(self._operators) else None

    def _find_row(self, slot: int, id: str) -> State | None:
        raw, table = parse_stream_id(id), self._estate.streams[slot]
        for row in range(table.rows_touched):
            payload = table.read(row)
            if payload is not None and payload[:STREAM_ID_BYTES] == raw:
                return read_state(table, row, self._clocks.boot_s)
        return None

    # All of it.

    def ready(self) -> tuple[bool, str]:
        """Ready if any shard is."""
        now = self.look().now
        return now.is_ready, now.problem

    def list_shards(self) -> list[State]:
        return [view.as_json() for view in self._estate.shards.read()]

    def overview(self) -> State:
        return overview(self.look(), self.list_shards(), self._limits)

    def look(self) -> Look:
        """What all shards have counted, and what stands now."""
        views = self._estate.shards.read()
        counters, snapshot = merge(self._counted(views))
        tenants = dict.fromkeys(self._limits, 0) | dict(snapshot.tenant_streams)
        shards = [
            ShardSnapshot(index=view.index, state=view.state, restarts=view.restarts, silent_s=view.silent_s)
            for view in views
        ]
        problem = snapshot.problem or ("" if snapshot.is_ready else NO_SHARD)
        return Look(
            counters,
            self._complete(replace(snapshot, problem=problem, tenant_streams=tenants, shards=shards)),
        )

    def _counted(self, views: Iterable[ShardView]) -> Iterator[Counted]:
        """What each slot's row holds. Counters stay when a shard goes, for its successor counts on; its gauges do not, and what
        one says of itself that cannot speak any more does not count."""
        for view in views:
            try:
                counters, snapshot = unpack_counts(self._estate.counts.read(view.index) or b"")
            except BadCounts:
                continue
            if view.state == "down":
                snapshot = Snapshot(version=snapshot.version)
            elif view.state not in ABLE:
                snapshot = replace(snapshot, is_ready=False, problem=snapshot.problem or view.state)
            yield counters, snapshot


async def serve_admin(
    settings: Settings,
    estate: Estate,
    sock: socket.socket,
    complete: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    keeper: Keeper | None = None,
) -> AdminServer:
    """Serve the admin port on a bound socket, from now until the server that is returned is closed."""
    source = EstateSource(estate, settings, complete)
    names = settings.admin_names
    app = admin_app(source, Metrics(source.look), keeper, admin_host=settings.admin_host, admin_names=names)
    server = AdminServer(app, sock)
    await server.start()
    return server
