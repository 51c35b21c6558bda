"""Faults by name: from ``stall_after=3`` to a reply that stalls.

What lives here: reading names and arguments, and putting the chosen faults around an ask and its reply.
What must not: the faults themselves (conditions.py, ask_faults.py, event_faults.py, wire_faults.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

from . import ask_faults, conditions, event_faults, wire_faults
from .ask import Ask
from .fault import FAULTS, Fault, FaultError, Stage
from .reply import Reply

__all__ = ["FAULTS", "Chosen", "Fault", "FaultError", "Turns", "change_ask", "change_reply", "choose"]

_TABLES = (conditions, ask_faults, event_faults, wire_faults)
"""Importing them has filled the table."""


class Chosen(NamedTuple):
    """A fault with its argument, for one request."""

    fault: Fault
    arg: int


def choose(texts: Iterable[str]) -> list[Chosen]:
    """Read ``NAME`` and ``NAME=ARG`` (also with dashes, also several with commas between); ``none`` is none.

    Raises:
        FaultError: with a sentence for whoever wrote it.
    """
    chosen = []
    for text in ",".join(texts).split(","):
        name, _, arg = text.partition("=")
        name = name.strip().replace("-", "_")
        if name in ("", "none"):
            continue
        fault = FAULTS.get(name)
        if fault is None:
            near = get_close_matches(name, FAULTS, 1)
            guess = f" (is it {near[0]}?)" if near else ""
            raise FaultError(f"There is no fault {name!r}{guess}; see `longwire sim --list-faults`.")
        chosen.append(Chosen(fault, fault.parse(arg.strip())))
    return sorted(chosen, key=lambda choice: choice.fault.stage)


MAX_COUNTED = 4096
"""Combinations with a condition that a server counts the requests of; a test has a few."""


class Turns:
    """Which request of its combination of faults each one is: ``first=2`` and its kin go by that."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Chosen, ...], int] = {}

    def __repr__(self) -> str:
        return f"<Turns of {len(self._counts)} combinations>"

    def befalling(self, chosen: list[Chosen]) -> list[Chosen]:
        """The faults that the next request with these has: all, where no condition is among them or all hold; else none."""
        if not chosen or chosen[0].fault.stage is not Stage.WHEN:
            return chosen
        key = tuple(chosen)
        number = self._counts.pop(key, 0)
        self._counts[key] = number + 1
        if len(self._counts) > MAX_COUNTED:
            del self._counts[next(iter(self._counts))]  # Whichever has not been asked for the longest.
        holds = all(fault.holds is None or fault.holds(number, arg) for fault, arg in chosen)
        return [choice for choice in chosen if choice.fault.holds is None] if holds else []


def change_ask(ask: Ask, chosen: Iterable[Chosen]) -> Ask:
    """What is asked, as the faults have it. May raise the answer to give instead."""
    for fault, arg in chosen:
        if fault.to_ask is not None:
            ask = fault.to_ask(ask, arg)
    return ask


def change_reply(reply: Reply, chosen: Iterable[Chosen]) -> None:
    """Put the faults around a reply."""
    for fault, arg in chosen:
        if fault.to_reply is not None:
            fault.to_reply(reply, arg)
