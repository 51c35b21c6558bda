"""Building a log's index again from its bytes: the upstream's, read once more, merged with the gateway's records.

What lives here: the sink that such a reading writes into, and making a stream from its row.
What must not: reading itself (engines), sockets and counters (counters.py), connections.

The index is not in shared memory: it can be computed from what is. From a checkpoint on that costs no more than the
bytes behind it, however long the log is; what lies before is read only when somebody wants it.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable

from ..words.events import FRAME_END, FRAMED, SILENT, pack
from .arena import Arena, BrokenChain, Use
from .chain import Chain
from .late import LateEntries
from .log import Log, Recorded
from .stream import Facts
from .tables import COUNT_BITS, COUNT_MASK, HAS_COMMENTS, RECORDS_MASK, StreamRow

PIECE_BYTES = 1 << 16
"""Bytes that are read again at a time: some hundred events, which takes less than a millisecond."""
TAIL_BYTES = (1 << 14, 1 << 17)
"""How far back from a checkpoint the place of a reader is looked for: a reader at the tail is a few events behind it, and one
that was given as much as one turn allows (subscriber.MAX_WAKE_BYTES) is found with the second."""


_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,7})\r\n")


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
        """Give the bytes up to ``stop`` to ``receive`` as reads would have, piece by piece. A piece ends where a frame does, if
        it can: the first one of a piece that begins within one has to be read much more slowly."""
        while self.end < stop:
            piece = self.chain.read(self.end, min(stop - self.end, PIECE_BYTES))
            size = piece.rfind(FRAME_END) + len(FRAME_END) if self.end + len(piece) < stop else len(piece)
            if size < len(FRAME_END):
                size = len(piece)
            receive(memoryview(piece)[:size], size)


class RebuildSink:
    """Takes the entries that a second reading finds, and puts the records back in their places among them.

    A record that holds one of the engine's own events is found again by the reading and used in its place; one that the gateway
    added goes in where it stood. A record that the reading needs and that is not there yet is written now.
    """

    keeps_bytes = True

    def __init__(self, log: Log, start: int, on_entries: Callable[[], None]) -> None:
        self._log = log
        self._on_entries = on_entries
        self.has_comments = False
        self.chain = ReplayStore(log.upstream, start)
        self._left: list[Recorded] = [record for record in log.recorded() if record.place >= len(log.entries)]
        self._left.reverse()

    def splice(self) -> None:
        """A second reading has no reader."""

    def unsplice(self) -> None: ...

    def lose_reader(self, fault: Exception) -> None: ...

    def settle_soon(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        self.insert_ours()
        self._log.append_framed(start, length)

    def append_run(self, lengths: list[int]) -> None:
        """Frames one behind the other, from the chain's end on."""
        if self._left:
            for length in lengths:
                self.append_framed(self.chain.end, length)
                self.chain.filled(length)
            return
        self._log.append_run(self.chain.end, lengths)
        self.chain.filled(sum(lengths))

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self.insert_ours()
        self.has_comments = self.has_comments or silent
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

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        self.insert_ours()
        self._on_entries()

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...


class TailSink:
    """Takes the entries of a reading that begins somewhere in the middle, where nobody knows how many lie before."""

    keeps_bytes = True

    def __init__(self, log: Log, start: int) -> None:
        self.chain = ReplayStore(log.upstream, start)
        self.entries = array("Q")
        self.end = start
        self.is_plain = True
        """Nothing was found that stands among the records."""

    def splice(self) -> None:
        """A second reading has no reader."""

    def unsplice(self) -> None: ...

    def lose_reader(self, fault: Exception) -> None: ...

    def settle_soon(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        self.entries.append(pack(start, length, FRAMED))
        self.end = start + length

    def append_run(self, lengths: list[int]) -> None:
        """Frames one behind the other, from the chain's end on."""
        for length in lengths:
            self.append_framed(self.chain.end, length)
            self.chain.filled(length)

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self.entries.append(pack(start, length, SILENT if silent else 0))
        self.end = start + length + len(b"\r\n")

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self.is_plain = False

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None: ...

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...


def find_tail(log: Log, stop: int, count: int) -> int | None:
    """Where ``count`` frames before offset ``stop`` begin: a place between two HTTP chunks and two events; None: not in sight.

    What stands before it must be one canonical frame, to the byte: the end of a frame alone may also be seen where an engine
    sends a line's end in an HTTP chunk of its own.
    """
    for window in TAIL_BYTES:
        data = log.upstream.read(max(0, stop - window), min(stop, window))
        at = len(data)
        for _ in range(count):
            at = data.rfind(FRAME_END, 0, at - len(FRAME_END)) + len(FRAME_END)
            if at < len(FRAME_END):
                break
        before = data.rfind(FRAME_END, 0, max(0, at - len(FRAME_END))) + len(FRAME_END)
        if before >= len(FRAME_END) and _is_frame(data[before:at]):
            return stop - len(data) + at
    return None


def _is_frame(data: bytes) -> bool:
    """Whether bytes that end as a frame does are one HTTP chunk, which ends as an event does."""
    size = _SIZE_LINE.match(data)
    return size is not None and size.end() + int(size[1], 16) + 2 == len(data) > size.end() + len(FRAME_END)


def log_of_row(arena: Arena, row: StreamRow, words: tuple[int, int], upstream_bytes: int) -> Log:
    """The log as the row has it: both chains, and as many unknown entries as the checkpoint counts.

    ``words`` are the row's first two: the checkpoint, and the length of its records.

    Raises:
        BrokenChain: the row cannot be true.
    """
    count, records_bytes = words[0] & COUNT_MASK, words[1] & RECORDS_MASK
    if count > checkpoint_offset(words[0]) + records_bytes:
        raise BrokenChain("there are more entries than bytes")
    upstream = Chain(arena, Use.LOG, stored=(row.log_block, upstream_bytes))
    records = (
        Chain(arena, Use.RECORDS, stored=(row.records_block, records_bytes))
        if row.records_block and records_bytes
        else None
    )
    log = Log(arena, upstream=upstream, records=records)
    recorded = log.recorded()
    log.seams = [each.place for each in recorded if each.is_seam]
    log.known_from = log.missing_below = count
    log.entries = LateEntries(count) if count else log.entries
    if not words[1] & HAS_COMMENTS:
        log.knows_silent = True
        log.silent = array("Q", (each.place for each in recorded if each.kind & SILENT and each.place < count))
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
        can_be_continued=bool(told.get("part", False)),
        continues=bool(told.get("goes_on", False)),
        attempts=int(told.get("tries", 1)),
        timeouts={str(name): float(seconds) for name, seconds in told.get("wish", {}).items()},
    )
