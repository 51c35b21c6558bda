"""What is done per token: a hole filled in, and how long to wait then.

What lives here: encoded events with a hole for the text, and the pace of an answer.
What must not: which events an API has (chat.py, typed.py).

A frame that comes thousands of times is encoded once per stream with a mark in place of its text; per token its two halves are
put around the token's bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from math import ceil
from operator import length_hint
from typing import Any

from longwire.wire.sse import encode_event

from .answer import encode_json, mix
from .ask import Ask
from .reply import Event, Kind

MARK = "\ue000"
"""Stands for the text; a character of the private use area, which no frame holds otherwise."""
STAMP = "\ue001"
"""Stands for the time of making."""

FINEST_S = 0.001
"""The wheel's resolution: tokens that come faster come in groups, at the same pace on the whole."""
MAX_STEPS = 1 << 62
"""More tokens than any answer has; iterators that know their end say how far it is."""

_QUOTED_STAMP = encode_json(STAMP)


class Template:
    """An encoded event with a hole in it."""

    __slots__ = ("_after", "_before", "_stamped")

    def __init__(self, payload: dict[str, Any], name: bytes | None = None) -> None:
        self._before, _, self._after = encode_event(encode_json(payload), name).partition(MARK.encode())
        self._stamped = _QUOTED_STAMP in self._after

    def fill(self, inner: bytes) -> Event:
        """The event with ``inner`` (the inside of a JSON string) in the hole."""
        block = self._before + inner + self._after
        if self._stamped:
            block = block.replace(_QUOTED_STAMP, b"%d" % time.monotonic_ns())
        return Event(Kind.CONTENT, block)


class Pace:
    """What passes after each token: always the same, or varied by the seed.

    It also tells how many tokens there have been, without a count of its own: the iterator that is advanced with each knows.
    """

    __slots__ = ("_meter", "pauses")

    def __init__(self, ask: Ask) -> None:
        self._meter: Iterator[object]
        if ask.jitter:
            self._meter = steps = iter(range(MAX_STEPS))
            spread = (1 + ask.jitter * (mix(ask.seed ^ 0x5A5A5A5A, step) / 0x80000000 - 1) for step in steps)
            self.pauses: Iterator[float] = (ask.itl_s * share for share in spread)
        elif 0 < ask.itl_s < FINEST_S:
            self._meter = steps = iter(range(1, MAX_STEPS + 1))
            group = ceil(FINEST_S / ask.itl_s)
            self.pauses = (0.0 if step % group else ask.itl_s * group for step in steps)
        else:
            self._meter = self.pauses = repeat(ask.itl_s, MAX_STEPS)

    @property
    def taken(self) -> int:
        """How many pauses have been asked for."""
        return MAX_STEPS - length_hint(self._meter)
