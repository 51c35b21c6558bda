"""A gateway as the admin port sees it, without one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from longwire.admin.app import State
from longwire.words.errors import BadCursor, Gone, LongwireError
from longwire.words.ids import parse_cursor


class FakeGateway:
    """Streams by id, each a list of blocks. A stream in ``endless`` waits at its end until its reader leaves."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[bytes]] = {}
        self.evicted: set[str] = set()
        self.cancelled: list[str] = []
        self.readiness = (True, "")
        self.asked: list[tuple[str, str | None]] = []
        self.broken_after: LongwireError | None = None
        self.closed_tails = 0

    def add(self, id: str, events: int) -> None:
        self.blocks[id] = [b"id: 1-%d\ndata: {}\n\n" % seq for seq in range(events)]

    # What the admin port asks.

    def list_streams(self) -> Iterable[State]:
        return [self.state(id) for id in self.blocks]

    async def show_stream(self, id: str) -> State | None:
        return self.state(id) if id in self.blocks else None

    async def cancel_stream(self, id: str) -> State | None:
        if id not in self.blocks:
            return None
        self.cancelled.append(id)
        return self.state(id) | {"close_reason": "cancelled"}

    def list_shards(self) -> list[State]:
        return [{"index": 0, "state": "serving"}]

    def overview(self) -> State:
        return {"object": "overview"}

    def ready(self) -> tuple[bool, str]:
        return self.readiness

    async def tail(self, id: str, after: str | None) -> AsyncGenerator[bytes, None] | None:
        self.asked.append((id, after))
        if id in self.evicted:
            raise Gone("This stream was evicted.")
        cursor = parse_cursor(after or "")
        blocks = self.blocks[id]
        if cursor.seq >= len(blocks):
            raise BadCursor("The cursor is beyond the end.", param="after")
        if cursor.seq == len(blocks) - 1:
            return None
        return self._read(blocks[cursor.seq + 1 :])

    async def _read(self, blocks: list[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            for block in blocks:
                yield block
            if self.broken_after is not None:
                raise self.broken_after
        finally:
            self.closed_tails += 1

    def state(self, id: str) -> State:
        return {"id": id, "object": "stream", "status": "live", "events": len(self.blocks[id]), "model": "\ud800"}


class FakeMetrics:
    """A scrape page that tells what it was asked for."""

    def render(self, accept: str = "") -> tuple[bytes, str]:
        return b"accept " + accept.encode(), "text/plain; version=0.0.4; charset=utf-8"


class FakeKeeper:
    """Notes what it was asked for, and answers a reload with a problem."""

    def __init__(self, problem: str = "") -> None:
        self.asked: list[str] = []
        self._problem = problem

    async def reload(self) -> str:
        self.asked.append("reload")
        return self._problem

    def drain(self) -> None:
        self.asked.append("drain")
