"""What a fault is, and the table of them.

What lives here: the stages, one entry's type, and the decorators that put small functions into the table.
What must not: the faults themselves (event_faults.py, wire_faults.py).

A fault takes hold of a reply at one stage. Stages are gone through in order, so that faults can be combined and mean the same
whichever was named first: whether they befall this request at all, what is asked, which events there are, where they end, how
they are written, how they are cut into pieces, what frames them, and what happens to the bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from .ask import Ask
from .reply import Event, Items, Kind, Reply, Steps


class Stage(IntEnum):
    """When a fault takes hold."""

    WHEN = -1
    """No fault by itself: which of a server's requests the others befall."""
    ASK = 0
    EVENTS = 1
    END = 2
    STYLE = 3
    PIECES = 4
    FRAMING = 5
    WIRE = 6


ToAsk = Callable[[Ask, int], Ask]
"""A fault of the first stage changes what is asked, or raises the answer to give instead."""
ToReply = Callable[[Reply, int], None]
"""Any other changes the reply."""
Holds = Callable[[int, int], bool]
"""A condition, of how many requests there were before and of its argument."""
ToItems = Callable[[Items, int], Items]
ToBlock = Callable[[bytes, int, int], bytes]
ToSteps = Callable[[Steps, int], Steps]


class FaultError(ValueError):
    """An unknown fault or a bad argument."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the table. ``str()`` is its help."""

    name: str
    help: str
    stage: Stage
    to_ask: ToAsk | None = None
    to_reply: ToReply | None = None
    holds: Holds | None = None
    default: int | None = None
    """The argument where none is given; None: it must be."""
    low: int = 0

    def __str__(self) -> str:
        return self.help

    def parse(self, arg: str) -> int:
        """The argument as a number.

        Raises:
            FaultError: with a sentence for whoever wrote it.
        """
        if not arg and self.default is not None:
            return self.default
        if not arg.isdecimal() or int(arg) < self.low:
            raise FaultError(
                f"{self.name} needs a number of at least {self.low}, as in {self.name}={max(self.low, 3)}."
            )
        return int(arg)


FAULTS: dict[str, Fault] = {}


def when(help: str, low: int = 1) -> Callable[[Holds], Holds]:
    """A condition for the faults beside it."""

    def enter(holds: Holds) -> Holds:
        name = holds.__name__
        FAULTS[name] = Fault(name, help, Stage.WHEN, holds=holds, low=low)
        return holds

    return enter


def asks(help: str, default: int | None = 0, low: int = 0) -> Callable[[ToAsk], ToAsk]:
    """A fault in what is asked."""

    def enter(change: ToAsk) -> ToAsk:
        name = change.__name__
        FAULTS[name] = Fault(name, help, Stage.ASK, to_ask=change, default=default, low=low)
        return change

    return enter


def replies(stage: Stage, help: str, default: int | None = 0, low: int = 0) -> Callable[[ToReply], ToReply]:
    """A fault that changes the reply itself."""

    def enter(change: ToReply) -> ToReply:
        name = change.__name__
        FAULTS[name] = Fault(name, help, stage, to_reply=change, default=default, low=low)
        return change

    return enter


def items(stage: Stage, help: str, default: int | None = 0, low: int = 0) -> Callable[[ToItems], ToItems]:
    """A fault that is a generator of items from items."""

    def enter(change: ToItems) -> ToItems:
        def apply(reply: Reply, arg: int) -> None:
            reply.items = change(reply.items, arg)

        apply.__name__ = change.__name__
        replies(stage, help, default, low)(apply)
        return change

    return enter


def writes(help: str) -> Callable[[ToBlock], ToBlock]:
    """A fault in how an event is written: a function of its bytes and its number. Whole bodies are left alone."""

    def enter(change: ToBlock) -> ToBlock:
        def rewrite(events: Items, arg: int) -> Items:
            number = 0
            for item in events:
                if isinstance(item, Event) and item.kind is not Kind.BODY:
                    yield Event(item.kind, change(item.block, number, arg))
                    number += 1
                else:
                    yield item

        rewrite.__name__ = change.__name__
        items(Stage.STYLE, help)(rewrite)
        return change

    return enter


def steps(help: str, default: int | None = 0, low: int = 0) -> Callable[[ToSteps], ToSteps]:
    """A fault of the wire: a generator of steps from steps, head included."""

    def enter(change: ToSteps) -> ToSteps:
        def apply(reply: Reply, arg: int) -> None:
            reply.around.append(lambda wire: change(wire, arg))

        apply.__name__ = change.__name__
        replies(Stage.WIRE, help, default, low)(apply)
        return change

    return enter
