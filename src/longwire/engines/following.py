"""Keeps one engine's upstreams as its endpoints are: those of a watched file, and of addresses that are looked up again.

What lives here: reading the file, asking DNS, and who comes and goes in the directory for it.
What must not: which endpoints follow from that (endpoints.py), probes (whoever listens to the directory starts and stops them).

Where a file or DNS fails, what was known stays, and the problem is told once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from ..words.clock import Clock
from ..words.errors import SettingsError
from ..words.settings import EngineSettings, Settings
from ..words.watchedfile import WatchedFile
from .directory import Directory
from .endpoints import (
    MAX_FILE_BYTES,
    Endpoint,
    endpoints_of,
    hosts_of,
    own_endpoint,
    read_urls,
    remembered,
)
from .pool import Upstream

log = logging.getLogger("longwire.endpoints")

HAND_OVER_S = 10.0
"""So long one that is no endpoint any more still serves where none of the new ones is up yet: two looks of a probe."""
MAX_ADDRESSES = 256
"""Of one host name: more than an answer over UDP can hold."""

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""The addresses of a host, or OSError."""


async def ask_system(host: str, port: int) -> Iterable[str]:
    """As the system looks names up, in a thread of the loop's."""
    loop = asyncio.get_running_loop()
    return (str(told[4][0]) for told in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class Following:
    """One ``[[engines]]`` entry and its upstreams."""

    def __init__(self, engine: EngineSettings, settings: Settings, clock: Clock, resolve: Resolve = ask_system) -> None:
        """Raises SettingsError where its file or its CA certificates cannot be read: nobody should start like that."""
        self.engine = engine
        self._settings = settings
        self._clock = clock
        self._resolve = resolve
        self._file = urls_file(engine) if engine.urls_file else None
        self._listed = read_urls_file(self._file) if self._file else ()
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._problems: dict[str, str] = {}
        self._is_asking = False
        self._asks_at = clock.now()
        self._leaving: dict[str, float] = {}
        self.live = {each.name: self._make(each) for each in self._wanted()}
        """By their names; those that are to go while others are not there yet included."""

    def __repr__(self) -> str:
        return f"<Following {own_endpoint(self.engine).name}: {len(self.live)}, {len(self._leaving)} leaving>"

    @property
    def is_static(self) -> bool:
        """Whether nothing can ever change."""
        return self._file is None and not self.engine.resolve_s

    def statistics(self) -> dict[str, int]:
        """Upstreams, and how many things are wrong."""
        return {"live": len(self.live), "leaving": len(self._leaving), "problems": len(self._problems)}

    def recall(self, names: Iterable[str], directory: Directory) -> None:
        """Begin with the addresses that a process knew which has died and called its upstreams so."""
        if known := remembered(self.engine, self._listed, names):
            self._addresses = known
            self._apply(directory)

    def tick(self, directory: Directory, start: Callable[[Coroutine[None, None, None]], object]) -> None:
        """Look at the file, and have names looked up when it is time; ``start`` starts a task. About once a second."""
        if self._file is not None and self._poll(self._file):
            self._apply(directory)
        if self.engine.resolve_s and not self._is_asking and self._clock.now() >= self._asks_at:
            self._is_asking = True
            start(self.look_up(directory))
        self._let_go(directory)

    async def look_up(self, directory: Directory) -> None:
        """Ask for the addresses of all its host names, at once."""
        self._is_asking = True
        try:
            hosts = hosts_of(self.engine, self._listed)
            found = await asyncio.gather(*(self._wait_addresses(host, port) for host, port in hosts.items()))
        finally:
            self._is_asking = False
            self._asks_at = self._clock.now() + self.engine.resolve_s
        news = dict(zip(hosts, found, strict=True))
        self._addresses = {host: news[host] or self._addresses.get(host, ()) for host in hosts}
        self._apply(directory)

    async def _wait_addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Nothing where they cannot be had now."""
        try:
            addresses = tuple(sorted(set(await self._resolve(host, port)))[:MAX_ADDRESSES])
        except (OSError, UnicodeError) as error:  # the latter: no name that could be asked for
            self._note(host, (error.strerror if isinstance(error, OSError) else None) or type(error).__name__)
            return ()
        self._note(host, "" if addresses else "it has no address")
        return addresses

    def _poll(self, file: WatchedFile) -> bool:
        """Whether the file says something new."""
        try:
            if not file.may_differ():
                return False
            listed = read_urls_file(file)
        except SettingsError as problem:
            self._note(str(file.path), str(problem))
            return False
        self._note(str(file.path), "")
        was, self._listed = self._listed, listed
        return was != listed

    def _note(self, of: str, problem: str) -> None:
        """Tell of a problem when it appears or becomes another one."""
        was = self._problems.pop(of, "")
        if problem:
            self._problems[of] = problem
        if was != problem:
            fields = {"engine": own_endpoint(self.engine).name, "of": of, "problem": problem}
            log.log(logging.WARNING if problem else logging.INFO, "endpoints", extra={"fields": fields})

    # Coming and going.

    def _wanted(self) -> list[Endpoint]:
        return endpoints_of(self.engine, self._listed, self._addresses)

    def _make(self, endpoint: Endpoint) -> Upstream:
        return Upstream(self.engine, self._settings, self._clock, endpoint)

    def _apply(self, directory: Directory) -> None:
        wanted = {endpoint.name: endpoint for endpoint in self._wanted()}
        for name, endpoint in wanted.items():
            if name in self.live and self.live[name].endpoint != endpoint:
                self._retire(name, directory)  # another path or scheme at the same place
            if name not in self.live:
                self.live[name] = self._make(endpoint)
                directory.add(self.live[name])
                log.info("upstream_added", extra={"fields": {"engine": name}})
        now = self._clock.now()
        self._leaving = {name: self._leaving.get(name, now) for name in self.live if name not in wanted}
        self._let_go(directory)

    def _let_go(self, directory: Directory) -> None:
        """Retire what is no endpoint any more: as soon as there is somebody to take its place, or it is of no use itself."""
        if not self._leaving:
            return
        is_replaced = any(upstream.is_up for name, upstream in self.live.items() if name not in self._leaving)
        latest = self._clock.now() - HAND_OVER_S
        for name, since in list(self._leaving.items()):
            if is_replaced or since <= latest or not self.live[name].is_up:
                self._retire(name, directory)

    def _retire(self, name: str, directory: Directory) -> None:
        self._leaving.pop(name, None)
        directory.retire(self.live.pop(name))
        log.info("upstream_retired", extra={"fields": {"engine": name}})


def urls_file(engine: EngineSettings) -> WatchedFile:
    """The file of an engine that has one."""
    return WatchedFile(engine.urls_file, "The urls_file", MAX_FILE_BYTES)


def read_urls_file(file: WatchedFile) -> tuple[str, ...]:
    """What it lists. Raises SettingsError, which names the file and the line."""
    return read_urls(file.decode(file.read()), str(file.path))
