"""The states of the processes that a keeper keeps, as a table.

What lives here: what follows from what happens to a process. What must not: processes, descriptors, time.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """Where a process is in its life."""

    STARTING = auto()
    """Its imports are being made."""
    WARM = auto()
    """It waits to be told what to serve."""
    ADOPTING = auto()
    """It takes over what its predecessor in the slot has left."""
    SERVING = auto()
    YIELDING = auto()
    """It was asked to leave everything to a successor."""
    DRAINING = auto()
    """It lets its streams finish."""
    GONE = auto()


class Event(Enum):
    """What happens to it."""

    WARMED = auto()
    CHOSEN = auto()
    ADOPTED = auto()
    REPLACED = auto()
    DRAINED = auto()
    DISMISSED = auto()
    DIED = auto()


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.STARTING, Event.WARMED): State.WARM,
    (State.WARM, Event.CHOSEN): State.ADOPTING,
    (State.ADOPTING, Event.ADOPTED): State.SERVING,
    (State.SERVING, Event.REPLACED): State.YIELDING,
    (State.STARTING, Event.DISMISSED): State.GONE,
    (State.WARM, Event.DISMISSED): State.GONE,
    (State.STARTING, Event.DRAINED): State.DRAINING,
    (State.WARM, Event.DRAINED): State.DRAINING,
    (State.ADOPTING, Event.DRAINED): State.DRAINING,
    (State.SERVING, Event.DRAINED): State.DRAINING,
    (State.YIELDING, Event.DRAINED): State.DRAINING,
    **{(state, Event.DIED): State.GONE for state in State},
}
"""A pair that is missing came too late, and changes nothing."""

SHOWN: dict[State, str] = {
    State.STARTING: "starting",
    State.WARM: "starting",
    State.ADOPTING: "adopting",
    State.SERVING: "serving",
    State.YIELDING: "serving",
    State.DRAINING: "draining",
    State.GONE: "down",
}
"""As the shards table says it."""


def next_state(state: State, event: Event) -> State:
    """Where a process is after an event."""
    return TRANSITIONS.get((state, event), state)
