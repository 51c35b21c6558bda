"""Waiting for something that another task of the same scene does.

What lives here: one bell per scene; whoever changes something rings it. What must not: what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes all who wait, so that each looks again at what it waits for."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"Bell(waiting={len(self._waiting)})"

    def ring(self) -> None:
        """Something has changed."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait_until(self, what: Callable[[], object], limit_s: float) -> bool:
        """Whether it came to be in time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not what():
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            timer = loop.call_at(deadline_s, _expire, future)
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)
            if loop.time() >= deadline_s:
                return bool(what())
        return True


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
