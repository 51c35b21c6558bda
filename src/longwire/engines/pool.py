"""One upstream: its connections, what models it has and offers, and whether it is up.

What lives here: connecting, keeping idle connections, and the upstream's facts as probes found them.
What must not: what goes over a connection (exchange.py), choosing between upstreams (directory.py), which there are
(endpoints.py).
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import SplitResult, urlsplit

from ..sockets import set_peer_options
from ..words.clock import Clock
from ..words.errors import SettingsError
from ..words.settings import EngineSettings, Settings
from .breaker import Breaker
from .endpoints import Endpoint, own_endpoint
from .kinds import KINDS, kind_of
from .load import Load
from .occupancy import Occupancy
from .transport import UpstreamConnection

MAX_DRAIN_PURGES = 2
"""So many purges (one per probe) is the end of a body waited for behind its end marker; it usually takes microseconds."""


class ConnectFailed(Exception):
    """No connection: refused, unreachable, not in time, or a TLS failure."""


class ConnectTimeout(ConnectFailed):
    """Not in time."""


class Upstream:
    """One endpoint of one engine. Connections are taken last-in first-out, so that the surplus grows old and is closed."""

    def __init__(
        self, engine: EngineSettings, settings: Settings, clock: Clock, endpoint: Endpoint | None = None
    ) -> None:
        """Without an ``endpoint`` it is that of the engine's ``url``."""
        self.endpoint = endpoint or own_endpoint(engine)
        self.name = self.endpoint.name
        self.public_name = own_endpoint(engine).name
        """As clients may see it: the name of an endpoint holds an address."""
        self.engine = engine
        self.kind = kind_of(engine)
        self.abilities = KINDS[self.kind]
        self.weight = engine.weight
        self._offers = dict(alias.split("=", 1) for alias in engine.aliases)
        self.models = tuple(engine.models)
        self.is_up = False
        self.is_retired = False
        """It is no endpoint any more: what runs goes on to its end, and no connection is kept."""
        self.problem = "not asked yet"
        self.was_asked = asyncio.Event()
        """Set for good when a probe has come back for the first time, whatever it found."""
        self.refuses_stream_options = False
        self.in_flight = 0
        """Requests under way, for whoever chooses; whoever starts and ends a call counts."""
        self.breaker = Breaker(settings)
        self.load: Load | None = None
        self.occupancy = Occupancy()
        self.moved_at: float | None = None
        """When the engine's own count of what it generates was last seen to move."""
        self.now = clock.now
        self._settings = settings
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._busy: set[UpstreamConnection] = set()
        self.connecting = 0
        self.set_url(self.endpoint.url)

    def __repr__(self) -> str:
        state = "up" if self.is_up else f"down: {self.problem}"
        return f"<Upstream {self.name} {state}, {len(self._busy)} busy, {len(self._idle)} idle>"

    # Models.

    @property
    def models(self) -> tuple[str, ...]:
        """What the engine has, by its own names; none: it said nothing of them, and is given any."""
        return self._models

    @models.setter
    def models(self, names: tuple[str, ...]) -> None:
        self._models = names
        self._known = frozenset(names)
        aliases = [offered for offered, own in self._offers.items() if own in self._known]
        self.offered = tuple(dict.fromkeys((*aliases, *names)))

    def serves(self, model: str) -> bool:
        """Whether requests for this model can go here, as far as is known."""
        if not model or not self._known:
            return self.is_up
        return model in self._known or self._offers.get(model) in self._known

    def own_name(self, model: str) -> str:
        """The engine's own name of a model that is offered."""
        own = self._offers.get(model, model)
        return model if model in self._known and own not in self._known else own

    # Connections.

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
                f"ca_file of engine {self.public_name} cannot be loaded: {detail}.", where=self.engine.ca_file
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
            ConnectTimeout: there was none within connect_timeout_s.
            ConnectFailed: with a sentence that names the upstream and the cause, but no address of it.
        """
        loop = asyncio.get_running_loop()
        self.connecting += 1
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self.freed, self.lost),
                    self.endpoint.address or self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self.host if self._tls else None,
                )
        except TimeoutError as exc:
            raise ConnectTimeout(f"engine {self.public_name} did not accept a connection in time") from exc
        except (OSError, ssl.SSLError, UnicodeError) as exc:
            raise ConnectFailed(f"engine {self.public_name} cannot be reached: {_words_of(exc)}") from exc
        finally:
            self.connecting -= 1
        set_peer_options(transport.get_extra_info("socket"), self._settings.peer_timeout_s)
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

    def retire(self) -> None:
        """Nothing new is to begin here. What runs is not touched."""
        self.is_retired = True
        for connection in list(self._idle):
            connection.close()
        self._idle.clear()

    @property
    def is_over(self) -> bool:
        """Whether it is retired and nothing of it runs any more."""
        return self.is_retired and not (self._busy or self.connecting or self.in_flight)

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
        is_kept = reusable and not self.is_retired and self._settings.upstream_keep_alive_s
        if is_kept and len(self._idle) < self._settings.max_upstream_idle:
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
