"""The shards table: which process serves each slot, and how it fares.

What lives here: one row per slot, its payload written by the keeper and its words by the slot's shard; reading it.
What must not: starting or ending a process, what is done about one that hangs.

Anyone who has the memory may look, whatever state the shards are in: a shard that hangs cannot hide it, because the look
asks nothing of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..streams.tables import Table
from ..words.shards import MAX_COUNTS_BYTES, SHARD_STATES

SHARD_ROW_BYTES: Final = 256
"""Five small facts as JSON take half of it."""

HUNG_AFTER_S: Final = 3.0
"""A shard's loop beats four times a second. Twelve beats left out are no long step of a busy loop any more."""

_BEAT, _STREAMS, _CONNECTIONS, _LAG = range(4)
_HAS_MET_ENGINE: Final = 1 << 63
"""In the word of connections: an engine has been up, as this shard has seen for itself."""
_LOW: Final = (1 << 32) - 1
"""Of the word of the lag: microseconds. Above it is the load by which new clients are shared out, and 1; 0: none come here."""
_ABLE_TO_HANG: Final = frozenset({"serving", "adopting", "draining"})
"""A shard that is starting has no loop yet that could beat; one that is down has none any more."""


class ShardFacts(NamedTuple):
    """What the keeper says of a slot. ``pid`` 0: no process serves it."""

    pid: int = 0
    incarnation: int = 0
    state: str = "down"
    started: float = 0.0
    """Unix seconds."""
    restarts: int = 0


class Beat(NamedTuple):
    """What a slot's shard tells of it."""

    streams: int
    connections: int = 0
    lag_us: int = 0
    has_met_engine: bool = True


@dataclass(frozen=True, slots=True)
class ShardView:
    """One slot as whoever reads sees it."""

    index: int
    pid: int
    incarnation: int
    state: str
    started: float
    restarts: int
    streams: int
    connections: int
    loop_lag_ms: float
    silent_s: float
    """How long its loop has not been heard of."""

    def as_json(self) -> dict[str, object]:
        """An element of ``GET /v1/shards``."""
        return {
            "index": self.index,
            "pid": self.pid or None,
            "state": self.state,
            "streams": self.streams,
            "started": round(self.started, 3) or None,
            "restarts": self.restarts,
            "loop_lag_ms": self.loop_lag_ms,
            "connections": self.connections,
            "silent_s": round(self.silent_s, 3),
        }


class ShardsTable:
    """A row per slot. ``now`` is the machine's monotonic clock, which all processes share."""

    def __init__(
        self, table: Table, now: Callable[[], float] = time.monotonic, hung_after_s: float = HUNG_AFTER_S
    ) -> None:
        self._table = table
        self._now = now
        self._hung_after_s = hung_after_s

    @classmethod
    def make(cls, slots: int, now: Callable[[], float] = time.monotonic) -> ShardsTable:
        """Fresh memory, with every slot down. For the keeper."""
        table = Table("shards", slots, SHARD_ROW_BYTES)
        made = cls(table, now)
        for _ in range(slots):
            slot = table.take()
            assert slot is not None
            made.tell(slot, ShardFacts())
        return made

    @classmethod
    def attach(
        cls, fd: int, now: Callable[[], float] = time.monotonic, hung_after_s: float = HUNG_AFTER_S
    ) -> ShardsTable:
        """The table that the keeper has made.

        Raises:
            LayoutMismatch: it was laid out by another version.
        """
        return cls(Table.attach("shards", fd, SHARD_ROW_BYTES), now, hung_after_s)

    def __repr__(self) -> str:
        return f"<ShardsTable {' '.join(view.state for view in self.read())}>"

    @property
    def fd(self) -> int:
        """The memory's descriptor."""
        return self._table.fd

    @property
    def slots(self) -> int:
        return self._table.rows

    # Writing.

    def tell(self, slot: int, facts: ShardFacts) -> None:
        """Say what is known of a slot. For the keeper alone."""
        told = {**facts._asdict(), "told_s": round(self._now(), 3)}
        self._table.write(slot, json.dumps(told, separators=(",", ":")).encode())

    def beat(self, slot: int, now_s: float, beat: Beat, load: int | None = None) -> None:
        """The slot's loop turns. For its shard alone, a few times a second; four stores, the beat last. ``load``: the live
        streams of a process that accepts new clients in this slot; None where nobody does."""
        words, first = self._table.words, self._table.word_index(slot)
        words[first + _STREAMS] = beat.streams
        words[first + _CONNECTIONS] = beat.connections | (_HAS_MET_ENGINE if beat.has_met_engine else 0)
        words[first + _LAG] = min(beat.lag_us, _LOW) | (0 if load is None else load + 1) << 32
        words[first + _BEAT] = int(now_s * 1000)

    # Reading.

    def read(self) -> list[ShardView]:
        """Every slot. A row that cannot be read shows as down."""
        now = self._now()
        return [self._view(slot, now) for slot in range(self._table.rows)]

    def loads(self) -> list[int]:
        """Live streams of each process that accepts and was heard of lately: by words alone, as it is asked at every accept."""
        words, table = self._table.words, self._table
        oldest_ms = int((self._now() - self._hung_after_s) * 1000)
        firsts = [table.word_index(slot) for slot in range(table.rows)]
        heard = (words[first + _LAG] >> 32 for first in firsts if words[first + _BEAT] >= oldest_ms)
        return [load - 1 for load in heard if load]

    def have_met_engines(self) -> bool:
        """Whether each shard whose loop was heard of lately has seen an engine up: any of them may get the next request."""
        words, table = self._table.words, self._table
        oldest_ms = int((self._now() - self._hung_after_s) * 1000)
        firsts = [table.word_index(slot) for slot in range(table.rows)]
        return all(
            words[first + _CONNECTIONS] & _HAS_MET_ENGINE
            for first in firsts
            if words[first + _BEAT] >= max(1, oldest_ms)
        )

    def facts(self, slot: int) -> ShardFacts:
        """What the keeper has told last."""
        return _facts_of(self._told(slot))

    def _told(self, slot: int) -> dict[str, Any]:
        try:
            told = json.loads(self._table.read(slot) or b"{}")
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}

    def _view(self, slot: int, now: float) -> ShardView:
        told = self._told(slot)
        facts = _facts_of(told)
        words, first = self._table.words, self._table.word_index(slot)
        # What the slot's former shard has beaten says nothing about the one that came after it.
        heard_s = max(words[first + _BEAT] / 1000, _number(told.get("told_s")))
        silent_s = max(0.0, now - heard_s)
        is_hung = facts.pid and facts.state in _ABLE_TO_HANG and silent_s > self._hung_after_s
        is_down = not facts.pid
        return ShardView(
            index=slot,
            pid=facts.pid,
            incarnation=facts.incarnation,
            state="hung" if is_hung else facts.state,
            started=facts.started,
            restarts=facts.restarts,
            streams=0 if is_down else words[first + _STREAMS],
            connections=0 if is_down else words[first + _CONNECTIONS] & ~_HAS_MET_ENGINE,
            loop_lag_ms=0.0 if is_down else (words[first + _LAG] & _LOW) / 1000,
            silent_s=0.0 if is_down else silent_s,
        )

    def statistics(self) -> dict[str, int]:
        """How many slots are in which state."""
        views = self.read()
        return {state: sum(view.state == state for view in views) for state in SHARD_STATES}

    def close(self) -> None:
        """Unmap; for tests and the end of the process."""
        self._table.close()


def make_counts(slots: int) -> Table:
    """Fresh memory for the counters of so many slots: a row each, taken already. A slot's shard writes its own row."""
    table = Table("counts", slots, MAX_COUNTS_BYTES)
    for _ in range(slots):
        table.take()
    return table


def attach_counts(fd: int) -> Table:
    """The counts that the keeper's table has.

    Raises:
        LayoutMismatch: it was laid out by another version.
    """
    return Table.attach("counts", fd, MAX_COUNTS_BYTES)


def _facts_of(told: dict[str, Any]) -> ShardFacts:
    state = told.get("state")
    return ShardFacts(
        pid=int(_number(told.get("pid"))),
        incarnation=int(_number(told.get("incarnation"))),
        state=state if state in SHARD_STATES else "down",
        started=_number(told.get("started")),
        restarts=int(_number(told.get("restarts"))),
    )


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and 0 <= value < 1 << 53 else 0
