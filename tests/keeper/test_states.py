"""The table of a process's states, and what is shown of them."""

from __future__ import annotations

import pytest

from longwire.keeper.states import SHOWN, TRANSITIONS, Event, State, next_state
from longwire.words.shards import SHARD_STATES


def test_a_life_without_trouble() -> None:
    state = State.STARTING
    seen = []
    for event in (Event.WARMED, Event.CHOSEN, Event.ADOPTED, Event.REPLACED, Event.DIED):
        state = next_state(state, event)
        seen.append(state.name)
    assert seen == ["WARM", "ADOPTING", "SERVING", "YIELDING", "GONE"]


@pytest.mark.parametrize("state", State)
def test_every_state_can_end(state: State) -> None:
    assert next_state(state, Event.DIED) is State.GONE
    assert SHOWN[state] in SHARD_STATES


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.DRAINING, Event.ADOPTED),  # told to drain while it adopted: it drains
        (State.YIELDING, Event.DRAINED),  # its successor drains
        (State.WARM, Event.WARMED),
        (State.GONE, Event.WARMED),
        (State.ADOPTING, Event.REPLACED),
    ],
)
def test_what_comes_too_late_changes_nothing(state: State, event: Event) -> None:
    assert next_state(state, event) is state


def test_nothing_comes_back() -> None:
    assert {state for (state, _), after in TRANSITIONS.items() if state is State.GONE} == {State.GONE}
    assert all(after is State.GONE for (state, _), after in TRANSITIONS.items() if state is State.GONE)
