"""What can be told of a log that must not be read again by what reads engines: that has ended one process after the other.

What lives here: finding events that are whole HTTP chunks of their own, by searches and nothing else.
What must not: any parser, anything that follows from what an event says.

Most engines send nothing else between their answer's head and its end. Where something else stands, what lies behind it is
lost: whoever asks for it is cut, for a byte that is only guessed would be worse.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from ..words.events import FRAME_END, FRAMED, KIND_BITS, SILENT, START_SHIFT
from .late import LateEntries
from .log import Log

MAX_HEAD_BYTES = 64 * 1024
"""An engine's response head that is longer was never accepted."""
MAX_SIZE_DIGITS = 7
"""An event is at most 32 MiB long."""


def salvage(log: Log, start: int, marks: Sequence[bytes]) -> None:
    """Find the entries that the checkpoint at offset ``start`` counted, or mark them as lost; then add those that lie whole
    behind it, as long as each holds one of ``marks``, as an ordinary delta does."""
    log.missing = None
    data = log.upstream.read(0, log.upstream.end)
    if log.known_from:
        _find_counted(log, data[:start])
    for at, length in _frames(data, start):
        if not any(mark in data[at : at + length] for mark in marks):
            break
        log.append_framed(at, length)


def _find_counted(log: Log, data: bytes) -> None:
    """The first :attr:`Log.known_from` entries: all of them, or none."""
    count = log.known_from
    records = {record.place: record for record in log.recorded() if record.place < count}
    log.silent = array("Q", sorted(place for place, record in records.items() if record.kind & SILENT))
    found = array("Q")
    head_end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    frames = _frames(data, head_end + 4) if head_end > 0 else iter(())
    while len(found) < count:
        record = records.get(len(found))
        if record is not None:
            found.append(record.start << START_SHIFT | record.length << KIND_BITS | record.kind)
            continue
        at, length = next(frames, (0, 0))
        if not length:
            break
        found.append(at << START_SHIFT | length << KIND_BITS | FRAMED)
    is_told = not any(record.from_upstream for record in records.values())
    if is_told and len(found) == count and next(frames, None) is None:
        assert isinstance(log.entries, LateEntries)
        log.entries = log.entries.completed(found)
        log.known_from = 0
    else:
        log.is_lost = True


def _frames(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Where canonical frames of one data line each lie, one behind the other, up to the first thing that is none."""
    while True:
        line_end = data.find(b"\r\n", at, at + MAX_SIZE_DIGITS + 2)
        digits = data[at : max(at, line_end)]
        try:
            size = int(digits, 16)
        except ValueError:
            return
        body = line_end + 2
        length = body + size + 2 - at
        is_canonical = (
            digits == b"%x" % size
            and data.startswith(b"data:", body)
            and data.find(b"\n", body) == body + size - 2
            and data.find(b"\r", body) == body + size
            and data.startswith(FRAME_END, body + size - 2)
        )
        if not is_canonical:
            return
        yield at, length
        at += length
