"""Building a log's index again from its bytes: the upstream's, read once more, merged with the gateway's records.

What lives here: the sink that such a reading writes into, and making a stream from its row.
What must not: reading itself (engines), sockets and counters (counters.py), connections.

The index is not in shared memory: it can be computed from what is. From a checkpoint on that costs no more than the
bytes behind it, however long the log is; what lies before is read only when somebody wants it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable

from .arena import Arena, BrokenChain, Chain, Use
from .log import Log, Recorded
from .stream import Facts
from .tables import COUNT_BITS, COUNT_MASK, StreamRow


class ReplayStore:
    """The upstream's chain while it is read again: bytes are there already, only the offset moves."""

    def __init__(self, chain: Chain, start: int) -> None:
        self.chain = chain
        self.end = start
        self.is_full = False
        self.rest = memoryview(b"")

    def filled(self, count: int) -> None:
        self.end += count

    def feed(self, receive: Callable[[memoryview, int], None], stop: int) -> None:
        """Give the bytes up to ``stop`` to ``receive`` as reads would have, a block at most at a time."""
        while self.end < stop:
            view = self.chain.slices(self.end, min(stop - self.end, 1 << 14))[0]
            receive(view, len(view))


class RebuildSink:
    """Takes the entries that a second reading finds, and puts the records back in their places among them.

    A record that holds one of the engine's own events is found again by the reading and used in its place; one that the gateway
    added goes in where it stood. A record that the reading needs and that is not there yet is written now.
    """

    def __init__(self, log: Log, start: int, on_entries: Callable[[], None]) -> None:
        self._log = log
        self._on_entries = on_entries
        self.chain = ReplayStore(log.upstream, start)
        self._left: list[Recorded] = [record for record in log.recorded() if record.place >= len(log.entries)]
        self._left.reverse()

    def splice(self) -> None:
        """A second reading has no reader."""

    def unsplice(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        self.insert_ours()
        self._log.append_framed(start, length)

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self.insert_ours()
        self._log.append_plain(start, length, silent)

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self.insert_ours()
        if self._left and self._left[-1].place == len(self._log.entries):
            self._log.append_recorded(self._left.pop())
            return
        self._log.append_record(block, silent, from_upstream=True)

    def insert_ours(self) -> None:
        """Put back the gateway's own records whose place is the next one."""
        while self._left and self._left[-1].place == len(self._log.entries) and not self._left[-1].from_upstream:
            self._log.append_recorded(self._left.pop())

    def publish(self, checkpoint: int) -> None:
        self.insert_ours()
        self._on_entries()

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...


def log_of_row(arena: Arena, row: StreamRow, words: tuple[int, int], upstream_bytes: int) -> Log:
    """The log as the row has it: both chains, and as many unknown entries as the checkpoint counts.

    ``words`` are the row's checkpoint and the length of its records.

    Raises:
        BrokenChain: the row cannot be true.
    """
    if words[0] & COUNT_MASK > checkpoint_offset(words[0]) + words[1]:
        raise BrokenChain("there are more entries than bytes")
    upstream = Chain(arena, Use.LOG, stored=(row.log_block, upstream_bytes))
    records = (
        Chain(arena, Use.RECORDS, stored=(row.records_block, words[1])) if row.records_block and words[1] else None
    )
    log = Log(arena, upstream=upstream, records=records)
    log.epoch = row.epoch
    log.known_from = words[0] & COUNT_MASK
    log.entries = array("Q", bytes(8 * log.known_from))
    return log


def checkpoint_offset(word: int) -> int:
    """The upstream offset of a checkpoint word: where reading can begin anew."""
    return word >> COUNT_BITS


def facts_of_row(row: StreamRow) -> Facts:
    """What the row says of the stream in words."""
    told = json.loads(row.facts or b"{}")
    prompt_tokens, context_tokens = told.get("tokens", (0, 0))
    return Facts(
        tenant=str(told.get("tenant", "")),
        tenant_index=row.tenant,
        route=str(told.get("route", "")),
        model=str(told.get("model", "")),
        engine=str(told.get("engine", "")),
        prompt_hash=row.prompt_hash,
        key_hash=row.key_hash if any(row.key_hash) else b"",
        body_hash=row.body_hash,
        asker=(row.asker, row.asked_at),
        request_id=str(told.get("request", "")),
        choices=int(told.get("n", 1)),
        hides_usage=bool(told.get("hide", False)),
        wants_stream=bool(told.get("stream", True)),
        prompt_tokens=prompt_tokens,
        context_tokens=context_tokens,
        usage=told.get("usage"),
        tokens_estimated=int(told.get("guess", 0)),
    )
