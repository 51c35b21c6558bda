"""One upstream: what models it has and offers, whether it is up, and where its connections go.

What lives here: the upstream's facts as probes found them.
What must not: its connections (connections.py), choosing between upstreams (directory.py), which there are (endpoints.py).
"""

from __future__ import annotations

import asyncio
from urllib.parse import SplitResult, urlsplit

from ..words.clock import Clock
from ..words.errors import SettingsError
from ..words.settings import EngineSettings, Settings
from .breaker import Breaker, BreakerState
from .connections import Connections
from .dialing import Place
from .endpoints import Endpoint, own_endpoint, port_of
from .kinds import KINDS, kind_of
from .load import Load
from .occupancy import Occupancy
from .reserve import span_of
from .tls import EngineTls


class Upstream(Connections):
    """One endpoint of one engine."""

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
        super().__init__(settings, clock, span_of(settings, self.kind))
        self.abilities = KINDS[self.kind]
        self.weight = engine.weight
        self._offers = dict(alias.split("=", 1) for alias in engine.aliases)
        self.models = tuple(engine.models)
        self.is_up = False
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
        self.port = port_of(url)
        self.base_path = url.path.rstrip("/").removesuffix("/v1")
        self.host_header = url.netloc.rpartition("@")[2].encode("ascii" if url.netloc.isascii() else "idna")
        self._tls = self._make_tls() if url.scheme == "https" else None
        self._place = Place(self.public_name, self.host, self.port, self.endpoint.address, self._tls)

    def _make_tls(self) -> EngineTls:
        try:
            return EngineTls.make(self.engine.ca_file, self._clock.now)
        except OSError as exc:  # ssl.SSLError is one, too
            detail = exc.strerror or str(exc)
            raise SettingsError(
                f"ca_file of engine {self.public_name} cannot be loaded: {detail}.", where=self.engine.ca_file
            ) from exc

    def _may_warm(self) -> bool:
        """Not one that is down, or that has shown faults: what it needs least is more connections."""
        return self.is_up and self.breaker.state is BreakerState.CLOSED and super()._may_warm()

    @property
    def is_over(self) -> bool:
        """Whether it is retired and nothing of it runs any more."""
        return self.is_retired and not (self._busy or self.connecting or self.in_flight)
