"""The server under the admin application: uvicorn inside the gateway's own loop.

What lives here: starting and stopping it.
What must not: routes, signal handling (lifecycle owns the signals; uvicorn's ``serve()`` would take them over, so it is
never called: its start-up alone does what is needed, and our close waits on tasks where uvicorn's polls).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import uvicorn
from starlette.types import ASGIApp

MAX_ADMIN_CONNECTIONS: Final = 128
"""Scrapers, probes, a few operators with a tail each. Beyond it uvicorn answers 503."""

KEEP_ALIVE_S: Final = 75
"""Longer than the usual scrape interval (15 to 60 s), so that a scraper keeps its connection."""

CLOSE_S: Final = 1.0
"""How long answers under way may take once the server closes; tails that still run are cut then."""


class AdminServer:
    """Serves an ASGI application on a bound socket until closed. The socket becomes the server's own."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        self._sock = sock
        self._address = _format_address(sock)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,  # lifecycle has configured logging
                access_log=False,
                server_header=False,
                date_header=False,  # uvicorn would renew it in its main loop, which does not run; HostCheck sets it
                proxy_headers=False,
                limit_concurrency=MAX_ADMIN_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._running = False

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        return self._address

    async def start(self) -> None:
        """Listen. Returns when connections are accepted."""
        assert not self._running
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._sock])
        self._running = True

    async def close(self, linger_s: float = 0.0) -> None:
        """Stop listening, let answers finish for CLOSE_S, cut what remains. Idempotent.

        ``linger_s``: another process listens on, so nobody should notice: who has connected just now may still ask.
        """
        if not self._running:
            self._sock.close()
            return
        self._running = False
        for server in self._server.servers:
            server.close()
        if linger_s:
            await asyncio.sleep(linger_s)
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        if not await self._wait_answers():
            # Ending the connection, not the task: the application then sees its reader leave, and cleans up as always.
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await self._wait_answers()
        self._sock.close()

    async def _wait_answers(self) -> bool:
        """Wait for the answers under way; False if CLOSE_S was not enough."""
        tasks = set(self._server.server_state.tasks)
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=CLOSE_S)
        return not pending

    def statistics(self) -> dict[str, int]:
        """Open connections, answers under way, answers given."""
        state = self._server.server_state
        return {"connections": len(state.connections), "answers": len(state.tasks), "answered": state.total_requests}

    def __repr__(self) -> str:
        return f"<AdminServer {self._address} {'running' if self._running else 'stopped'}>"


def _format_address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
