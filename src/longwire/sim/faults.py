"""What can go wrong, by name.

What lives here: the table of faults, and the small transforms that each is made of.
What must not: sockets, what an answer says.

A fault takes hold of a reply at one stage. Stages are gone through in order, so that faults can be combined and mean the same
whichever was named first: what is asked, which events there are, where they end, how they are written, how they are
cut into pieces, what frames them, and what happens to the bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar, cast

from .ask import Ask
from .reply import Ending, Event, Items, Kind, Reply, refusal


class Stage(IntEnum):
    """When a fault takes hold."""

    ASK = 0
    EVENTS = 1
    END = 2
    STYLE = 3
    PIECES = 4
    FRAMING = 5
    WIRE = 6


class FaultError(ValueError):
    """An unknown fault or a bad argument."""


ToReply = Callable[[Reply, int], None]
ToAsk = Callable[[Ask, int], Ask]
"""What a fault of the first stage is: it changes what is asked, or raises the answer to give instead."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the table."""

    help: str
    stage: Stage
    apply: ToReply | ToAsk
    default: int | None = None
    """The argument where none is given; None: it must be."""
    low: int = 0

    def __str__(self) -> str:
        return self.help

    def parse(self, name: str, arg: str) -> int:
        """The argument as a number."""
        if not arg and self.default is not None:
            return self.default
        if not arg.isdecimal() or int(arg) < self.low:
            raise FaultError(f"{name} needs a number of at least {self.low}, as in {name}={max(self.low, 3)}.")
        return int(arg)


F = TypeVar("F", ToReply, ToAsk)


class Chosen(NamedTuple):
    """A fault with its argument, for one request."""

    stage: Stage
    name: str
    fault: Fault
    arg: int


FAULTS: dict[str, Fault] = {}


def fault(stage: Stage, help: str, default: int | None = 0, low: int = 0) -> Callable[[F], F]:
    """Enter a function into the table under its name."""

    def enter(apply: F) -> F:
        FAULTS[apply.__name__] = Fault(help, stage, apply, default, low)
        return apply

    return enter


def choose(texts: Iterable[str]) -> list[Chosen]:
    """Read ``NAME`` and ``NAME=ARG`` (also with dashes, also several with commas between); ``none`` is none.

    Raises:
        FaultError: with a sentence for whoever wrote it.
    """
    chosen = []
    for text in ",".join(texts).split(","):
        name, _, arg = text.strip().partition("=")
        name = name.strip().replace("-", "_")
        if name in ("", "none"):
            continue
        entry = FAULTS.get(name)
        if entry is None:
            raise FaultError(f"There is no fault {name!r}; there are {', '.join(sorted(FAULTS))}.")
        chosen.append(Chosen(entry.stage, name, entry, entry.parse(name, arg.strip())))
    return sorted(chosen, key=lambda choice: choice.stage)


def change_ask(ask: Ask, chosen: Iterable[Chosen]) -> Ask:
    """What is asked, as the faults have it."""
    for choice in chosen:
        if choice.stage is Stage.ASK:
            ask = cast("ToAsk", choice.fault.apply)(ask, choice.arg)
    return ask


def change_reply(reply: Reply, chosen: Iterable[Chosen]) -> None:
    """Put the faults around a reply."""
    for choice in chosen:
        if choice.stage is not Stage.ASK:
            cast("ToReply", choice.fault.apply)(reply, choice.arg)


# Where it ends.


def _cut(reply: Reply, events: int, ending: Ending) -> None:
    """Let ``events`` events pass, then end so."""

    def cut(items: Items) -> Items:
        left = events
        for item in items:
            if isinstance(item, Event) and item.kind is not Kind.COMMENT:
                if not left:
                    break
                left -= 1
            yield item
        yield ending

    reply.items = cut(reply.items)


@fault(Stage.END, "silence for ever after N events", default=None)
def stall_after(reply: Reply, arg: int) -> None:
    _cut(reply, arg, Ending.STALL)


@fault(Stage.END, "the connection is reset (RST) after N events", default=None)
def reset_after(reply: Reply, arg: int) -> None:
    _cut(reply, arg, Ending.RESET)


@fault(Stage.END, "the connection is closed (FIN) after N events, without a terminator", default=None)
def close_after(reply: Reply, arg: int) -> None:
    _cut(reply, arg, Ending.CLOSE)


@fault(Stage.ASK, "an error with this status and an OpenAI body instead of an answer", default=None, low=400)
def status(_: Ask, arg: int) -> Ask:
    raise refusal(arg, f"The stand-in was asked to answer {arg}.", code=f"sim_{arg}")
