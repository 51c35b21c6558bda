"""One upstream: its connections, what models it has, and whether it is up.

What lives here: connecting, keeping idle connections, and the upstream's facts as probes found them.
What must not: what goes over a connection (exchange.py), choosing between upstreams (directory.py).
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import SplitResult, urlsplit

from ..words.clock import Clock
from ..words.errors import SettingsError
from ..words.settings import EngineSettings, Settings
from .breaker import Breaker
from .load import Load
from .transport import UpstreamConnection

MAX_DRAIN_PURGES = 2
"""So many purges (one per probe) is the end of a body waited for behind its end marker; it usually takes microseconds."""


class ConnectFailed(Exception):
    """No connection: refused, unreachable, not in time, or a TLS failure."""


class Upstream:
    """One endpoint of one engine. Connections are taken last-in first-out, so that the surplus grows old and is closed."""

    def __init__(self, engine: EngineSettings, settings: Settings, clock: Clock) -> None:
        self.name = engine.name or urlsplit(engine.url).netloc or engine.url
        self.engine = engine
        self.models: tuple[str, ...] = tuple(engine.models)
        self.is_up = False
        self.problem = "not asked yet"
        self.refuses_stream_options = False
        self.breaker = Breaker(settings)
        self.load: Load | None = None
        self.moved_at: float | None = None
        """When the engine's own count of what it generates was last seen to move."""
        self.now = clock.now
        self._settings = settings
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._busy: set[UpstreamConnection] = set()
        self.connecting = 0
        self.set_url(engine.url)

    def __repr__(self) -> str:
        state = "up" if self.is_up else f"down: {self.problem}"
        return f"<Upstream {self.name} {state}, {len(self._busy)} busy, {len(self._idle)} idle>"

    def set_url(self, text: str) -> None:
        """Where the upstream is. An embedded engine's address is known only once it has started.

        Raises:
            SettingsError: its CA certificates cannot be loaded.
        """
        url: SplitResult = urlsplit(text)
        self.host = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.base_path = url.path.rstrip("/").removesuffix("/v1")
        self.host_header = url.netloc.rpartition("@")[2].encode("ascii" if url.netloc.isascii() else "idna")
        self._tls = self._make_tls() if url.scheme == "https" else None

    def _make_tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.engine.ca_file or None)
        except OSError as exc:  # ssl.SSLError is one, too
            detail = exc.strerror or str(exc)
            raise SettingsError(
                f"ca_file of engine {self.name} cannot be loaded: {detail}.", where=self.engine.ca_file
            ) from exc
        context.set_alpn_protocols(["http/1.1"])
        return context

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that is fresh enough, or None: then :meth:`wait_connection`."""
        oldest = self._clock.now() - self._settings.upstream_keep_alive_s
        while self._idle:
            connection = self._idle.pop()
            if connection.is_closed:
                continue
            if connection.idle_since >= oldest:
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    async def wait_connection(self) -> UpstreamConnection:
        """A new connection.

        Raises:
            ConnectFailed: with a sentence that names the upstream and the cause, but no address of it.
        """
        loop = asyncio.get_running_loop()
        self.connecting += 1
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self.freed, self.lost),
                    self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self.host if self._tls else None,
                )
        except TimeoutError as exc:
            raise ConnectFailed(f"engine {self.name} did not accept a connection in time") from exc
        except (OSError, ssl.SSLError, UnicodeError) as exc:
            raise ConnectFailed(f"engine {self.name} cannot be reached: {_words_of(exc)}") from exc
        finally:
            self.connecting -= 1
        self._busy.add(connection)
        return connection

    def take_over(self, connection: UpstreamConnection) -> None:
        """Count a connection that was made by a process that has died."""
        self._busy.add(connection)

    def purge_nowait(self) -> None:
        """Close idle connections that the engine may close any moment, and those whose answer's body never ends."""
        for connection in list(self._busy):
            if connection.drains_since_purge > MAX_DRAIN_PURGES:
                connection.close()
            elif connection.drains_since_purge:
                connection.drains_since_purge += 1
        oldest = self._clock.now() - self._settings.upstream_keep_alive_s
        for connection in self._idle:
            if connection.idle_since < oldest:
                connection.close()
        self._idle = [connection for connection in self._idle if not connection.is_closed]

    def close(self) -> None:
        """Close every connection."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    def statistics(self) -> dict[str, int]:
        """Connections by state."""
        return {"idle": len(self._idle), "busy": len(self._busy), "connecting": self.connecting}

    def freed(self, connection: UpstreamConnection, reusable: bool) -> None:
        """An exchange has let a connection go."""
        self._busy.discard(connection)
        if reusable and len(self._idle) < self._settings.max_upstream_idle and self._settings.upstream_keep_alive_s:
            connection.idle_since = self._clock.now()
            self._idle.append(connection)
        else:
            connection.close()

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection has closed."""
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def _words_of(error: OSError | UnicodeError) -> str:
    """Why there is no connection, for whoever asked: no address of the engine, no place in a library."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message.partition(', certificate is not valid')[0]})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({(error.reason or type(error).__name__).replace('_', ' ').lower()})"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
