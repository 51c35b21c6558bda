"""What stands around a stream: memory, time, counters, and who hears of what becomes of it.

What lives here: the one object that the registry gives to every stream that it makes. What must not: any state of one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..observe.instruments import Instruments
from ..words.clock import Clock
from .arena import Arena
from .settling import Settling
from .tables import Table
from .terms import Tally

if TYPE_CHECKING:
    from .stream import Stream


@dataclass(frozen=True, slots=True)
class StreamShell:
    """What a stream needs from around it."""

    arena: Arena
    table: Table
    clock: Clock
    instruments: Instruments
    on_end: Callable[[Stream], None]
    on_idle: Callable[[Stream], None]
    on_full: Callable[[], None]
    on_change: Callable[[Stream], None]
    """The row must be written anew."""
    tally: Tally
    settling: Settling
