"""An engine stand-in: the OpenAI API, an answer that is known beforehand, and faults by name.

What lives here: the way in. ``run`` is what ``longwire sim`` calls; ``SimServer`` is for tests and benchmarks.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys

import uvloop

from longwire.words.settings import SimSettings

from .faults import FAULTS, FaultError
from .server import Seen, SimServer

__all__ = ["FAULTS", "FaultError", "Seen", "SimServer", "run"]


def run(settings: SimSettings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code."""
    try:
        server = SimServer(settings)
    except FaultError as exc:
        print(f"longwire sim: {exc}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(server))
    except OSError as exc:
        print(f"longwire sim: cannot listen on {settings.host}:{settings.port}: {_why_not(exc)}", file=sys.stderr)
        return 1
    return 0


def _why_not(error: OSError) -> str:
    """The kernel's own words, since the loop's have the address once more, and the flag that helps."""
    why = error.strerror if isinstance(error, socket.gaierror) or not error.errno else os.strerror(error.errno)
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return f"{why}; choose another port with --port (--port 0 takes a free one)."
    return f"{why or error}; choose another address with --host."


async def _serve(server: SimServer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    # No stream leaves a cycle behind, and thousands of live ones are long to walk over: the collector looks seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    print(f"longwire sim: listening on {server.url}/v1, model {server.settings.model}", flush=True)
    await stop.wait()
    await server.close()
