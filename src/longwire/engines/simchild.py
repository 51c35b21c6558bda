"""The engine stand-in as a child process, for ``--engine sim``.

What lives here: starting it, learning its address, ending it.
What must not: what it answers (sim, which nothing but the command line imports).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import suppress

_ADDRESS = re.compile(rb"(http://[0-9.]+:[0-9]+)")


class SimChild:
    """One ``python -m longwire.sim`` on a free port or the one given. It is for trials: it is not started again."""

    def __init__(self, on_ready: Callable[[str], None], on_down: Callable[[], None], port: int = 0) -> None:
        self._port = port
        self._on_ready = on_ready
        self._on_down = on_down
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SimChild pid={self._process.pid if self._process else None}>"

    async def start(self) -> None:
        """Start it; ``on_ready`` follows."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "longwire.sim",
            "--port",
            str(self._port),
            "--until-eof",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._watch = asyncio.get_running_loop().create_task(self._follow(self._process))

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if match := _ADDRESS.search(line):
                self._on_ready(match[1].decode())
        await process.wait()
        self._on_down()

    async def close(self) -> None:
        """End it and wait until it is gone."""
        if self._process is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        with suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
