"""When the embedded engine's process is started, killed, waited for: the decisions, as a table.

What lives here: states, signals, effects, and what follows from what.
What must not: processes, clocks, callbacks (local.py acts).

:data:`TRANSITIONS` says for each state and signal what comes next and what is to be done. Each state has at most one timer.
A pair that the table lacks is a signal that came too late, and changes nothing.
"""

from __future__ import annotations

from enum import Enum, auto

START_LIMIT_S = 120.0
"""A load takes half a second with the bundled model; a large GGUF from a cold disk takes a minute."""

SETTLED_S = 60.0
"""So long in good health makes the next death a first one again."""

KILL_LIMIT_S = 5.0
"""SIGKILL takes milliseconds, unless the process hangs in the kernel; closing does not wait for that."""

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


class State(Enum):
    """What the child is to us."""

    STOPPED = auto()
    STARTING = auto()
    READY = auto()
    KILLING = auto()  # it took too long to start
    WAITING = auto()  # dead, to be started again
    STOPPING = auto()


class Signal(Enum):
    """What can happen."""

    START = auto()
    REPORTED = auto()
    EXITED = auto()
    LATE = auto()
    SETTLED = auto()
    DUE = auto()
    CLOSE = auto()


class Effect(Enum):
    """What is to be done about it."""

    SPAWN = auto()
    KILL = auto()
    TELL_READY = auto()
    TELL_DOWN = auto()
    FORGET_FAILURES = auto()


Transition = tuple[State, tuple[Effect, ...]]

TRANSITIONS: dict[tuple[State, Signal], Transition] = {
    (State.STOPPED, Signal.START): (State.STARTING, (Effect.FORGET_FAILURES, Effect.SPAWN)),
    (State.STARTING, Signal.REPORTED): (State.READY, (Effect.TELL_READY,)),
    (State.STARTING, Signal.EXITED): (State.WAITING, (Effect.TELL_DOWN,)),
    (State.STARTING, Signal.LATE): (State.KILLING, (Effect.KILL,)),
    (State.STARTING, Signal.CLOSE): (State.STOPPING, (Effect.KILL,)),
    (State.READY, Signal.SETTLED): (State.READY, (Effect.FORGET_FAILURES,)),
    (State.READY, Signal.EXITED): (State.WAITING, (Effect.TELL_DOWN,)),
    (State.READY, Signal.CLOSE): (State.STOPPING, (Effect.KILL,)),
    (State.KILLING, Signal.EXITED): (State.WAITING, (Effect.TELL_DOWN,)),
    (State.KILLING, Signal.CLOSE): (State.STOPPING, ()),
    (State.WAITING, Signal.DUE): (State.STARTING, (Effect.SPAWN,)),
    (State.WAITING, Signal.CLOSE): (State.STOPPED, ()),
    (State.STOPPING, Signal.EXITED): (State.STOPPED, ()),
    (State.STOPPING, Signal.LATE): (State.STOPPED, ()),
}

TIMERS: dict[State, tuple[Signal, float]] = {
    State.STARTING: (Signal.LATE, START_LIMIT_S),
    State.READY: (Signal.SETTLED, SETTLED_S),
    State.STOPPING: (Signal.LATE, KILL_LIMIT_S),
}
"""The one timer of a state, set when it is entered. WAITING has one too: :func:`restart_delay_s`."""


def next_state(state: State, happened: Signal) -> Transition:
    """What comes next; unchanged and nothing to do where the signal came too late."""
    return TRANSITIONS.get((state, happened), (state, ()))


def restart_delay_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 0.5, 1, 2, … 30 seconds."""
    doublings = min(failures - 1, 10)  # 2^10 is far beyond the longest delay
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0**doublings)
