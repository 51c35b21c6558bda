"""How long it is from one event to the next, measured on some streams.

What lives here: which streams, and the measuring where events go the short way. What must not: what is done with the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stream import Stream

SAMPLED = 32
"""Of one stream in so many each gap is measured: a look at the clock for each event of all would be felt."""


def is_sampled(id: bytes) -> bool:
    """By the stream's id, which is random: where few run at a time, the same rows are used again and again."""
    return id[0] % SAMPLED == 0


def measuring(stream: Stream, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``write``, for frames that go the short way, with a note of when each came."""
    return partial(_measure, stream, write)


def _measure(stream: Stream, write: Callable[[bytes], None], frame: bytes) -> None:
    stream.note_gap()
    write(frame)
