"""The built-in stand-in as a process of its own, for control runs and for trying the tool.

What lives here: starting it on a free port, and ending it. What must not: what it answers (the sim room).
"""

from __future__ import annotations

import asyncio
import re
import sys

from .children import end_child
from .endpoint import RunFailed

_ADDRESS = re.compile(rb"(http://[0-9.]+:[0-9]+)")
START_S = 30.0
"""A Python process with some imports; on a machine that has no time, half a minute."""


class StandIn:
    """One ``python -m longwire.sim``; it ends when its stdin does, so it cannot outlive us."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<StandIn pid={self._process.pid if self._process else None}>"

    async def start(self) -> str:
        """Its URL.

        Raises:
            RunFailed: it did not say where it listens.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "longwire.sim", "--port", "0", "--until-eof"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        match = _ADDRESS.search(line)
        if match is None:
            await self.close()
            raise RunFailed("The built-in stand-in could not be started.")
        return match[1].decode()

    async def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            await end_child(process)
