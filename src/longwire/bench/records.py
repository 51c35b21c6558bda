"""What is kept of one request, and how it gets from a sending process to the one that reports.

What lives here: the record, and its packing into one JSON line and one run of 8-byte integers.
What must not: measuring (reading.py, sender.py), figures (figures.py).

All times are CLOCK_MONOTONIC in nanoseconds, which the processes of one machine share; 0 where it did not happen.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from .outcomes import BY_WORD, CAUSE_BY_WORD, Cause, Outcome

TIME = "q"
"""The type of all arrays of times."""


class Gap(NamedTuple):
    """A silence of over 500 ms before the content event number ``event``."""

    event: int
    cause: Cause


class Cut(NamedTuple):
    """A connection that was cut on purpose."""

    event: int
    """Content events before it."""
    at_ns: int
    back_ns: int
    """When the next event came; 0: it did not."""


class Record:
    """One request and its answer."""

    __slots__ = (
        "body_ns", "cuts", "disorders", "duplicates", "end_ns", "events", "gaps", "head_ns", "lost", "number", "outcome",
        "ready_ns", "scheduled_ns", "sent_ns", "status", "times", "told_tokens", "verified", "wrong",
    )  # fmt: skip

    SCALARS = (
        "number", "scheduled_ns", "sent_ns", "ready_ns", "head_ns", "body_ns", "end_ns", "status", "events", "told_tokens",
        "verified", "duplicates", "disorders", "lost", "wrong",
    )  # fmt: skip

    def __init__(self, number: int, scheduled_ns: int) -> None:
        self.number = number
        self.scheduled_ns = scheduled_ns
        self.sent_ns = 0
        """When the sender turned to it: connecting, if that was needed, comes after."""
        self.ready_ns = 0
        """When the request was handed to a connection."""
        self.head_ns = self.body_ns = self.end_ns = 0
        self.status = 0
        self.outcome = Outcome.UNFINISHED
        self.events = 0
        """Events of any kind: the cursor for resuming."""
        self.times = array(TIME)
        """When each content event arrived; those of one read have the same time."""
        self.told_tokens = -1
        """``completion_tokens`` of the endpoint's usage; -1: it told none."""
        self.verified = self.duplicates = self.disorders = self.lost = self.wrong = 0
        self.gaps: list[Gap] = []
        self.cuts: list[Cut] = []

    def __repr__(self) -> str:
        return f"<Record {self.number} {self.outcome.word} {len(self.times)} content events>"

    @property
    def tokens(self) -> int:
        """What the endpoint counted, or else one per content event."""
        return self.told_tokens if self.told_tokens >= 0 else len(self.times)

    @property
    def has_begun(self) -> bool:
        """A stream came, whatever became of it."""
        return self.outcome is Outcome.COMPLETE or self.outcome.breaks or bool(self.times)

    @property
    def is_interrupted(self) -> bool:
        """It ended without its end marker, or had a gap."""
        return self.outcome.breaks or bool(self.gaps)


def pack(records: Iterable[Record]) -> tuple[bytes, bytes]:
    """Records as a JSON line and the times that it counts."""
    rows: list[list[Any]] = []
    times = array(TIME)
    for record in records:
        row: list[Any] = [getattr(record, name) for name in Record.SCALARS]
        row += [
            record.outcome.word,
            len(record.times),
            [[gap.event, gap.cause.word] for gap in record.gaps],
            [list(cut) for cut in record.cuts],
        ]
        rows.append(row)
        times += record.times
    return json.dumps(rows, separators=(",", ":")).encode(), times.tobytes()


def unpack(line: bytes, blob: bytes) -> list[Record]:
    """What ``pack`` has packed."""
    times = array(TIME)
    times.frombytes(blob)
    records: list[Record] = []
    at = 0
    for row in json.loads(line):
        record = Record(0, 0)
        for name, value in zip(Record.SCALARS, row, strict=False):
            setattr(record, name, value)
        outcome, count, gaps, cuts = row[len(Record.SCALARS) :]
        record.outcome = BY_WORD[outcome]
        record.times = times[at : at + count]
        record.gaps = [Gap(event, CAUSE_BY_WORD[cause]) for event, cause in gaps]
        record.cuts = [Cut(*cut) for cut in cuts]
        at += count
        records.append(record)
    return records
