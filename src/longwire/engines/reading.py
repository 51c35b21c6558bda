"""How an answer is read, by the API that was asked.

What lives here: one function. What must not: reading (exchange.py), what events say (openai.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .base import Watch
from .openai import ChatWatch, RelayWatch
from .phases import Expect


def how_to_read(route: str, wants_stream: bool, choices: int, hides_usage: bool) -> tuple[Expect, Callable[[], Watch]]:
    """What answer is expected of an engine, and who watches it."""
    if route == "relay":
        return Expect.ANY, RelayWatch
    return Expect.EVENTS if wants_stream else Expect.JSON, partial(ChatWatch, choices, hides_usage)
