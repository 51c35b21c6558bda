"""Ending a child process that leaves when its stdin ends."""

from __future__ import annotations

import asyncio

LEAVE_S = 5.0
"""For a child to leave by itself; it has nothing to save."""


async def end_child(process: asyncio.subprocess.Process) -> None:
    """Let a child leave that does so when its stdin ends; one that does not is killed.

    Not by a signal at once: asking for that reaps a child that has just left, and asyncio then wonders who it was.
    """
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(LEAVE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
