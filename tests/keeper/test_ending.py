"""What the first signal says. How a gateway ends is told in test_keeper.py."""

from __future__ import annotations

import pytest

from longwire.keeper.ending import farewell


@pytest.mark.parametrize(
    ("live_count", "drain_s", "words"),
    [
        (0, 30.0, "stopping"),
        (2, 0.0, "stopping"),
        (1, 30.0, "stopping; 1 stream may take up to 30 s (drain_s); a second signal stops now"),
        (2, 0.5, "stopping; 2 streams may take up to 0.5 s (drain_s); a second signal stops now"),
    ],
)
def test_a_farewell_says_how_long_it_may_take(live_count: int, drain_s: float, words: str) -> None:
    assert farewell(live_count, drain_s) == words
