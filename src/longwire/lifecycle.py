"""Building the house, opening it, and closing it in order.

What lives here: every room is made here and nowhere else; signals; what runs by the clock.
What must not: any decision that belongs to a room.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

import uvloop
from starlette.types import ASGIApp

from .admin.app import admin_app
from .admin.server import AdminServer
from .admission.keysfile import KeysFile
from .admission.limiter import Limiter
from .admission.tenants import Tenants
from .engines.call import CallShell
from .engines.directory import Directory
from .engines.local import LocalEngine, model_name
from .engines.pool import Upstream
from .engines.probe import Prober
from .engines.simchild import SimChild
from .gateway import Gateway
from .observe.instruments import Instruments
from .observe.metrics import Metrics
from .observe.streamlog import StreamLog, configure_logging
from .operation import Gauges, Operation, write_end
from .server.handlers import Handlers
from .server.listener import Listener
from .streams.arena import Arena
from .streams.registry import Registry
from .streams.tables import CONNECTION_ROW_BYTES, STREAM_ROW_BYTES, Table
from .words.clock import Clock, LoopClock
from .words.errors import SettingsError
from .words.reasons import CloseReason
from .words.settings import EngineSettings, Settings

log = logging.getLogger("longwire")

YOUNG_GC_S = 10.0
"""The collector runs by this clock only: the hot path makes no cycles, so there is little to find, and a collection at
the wrong moment is a delay for thousands of streams."""
LAG_PROBE_S = 0.25
KEYS_POLL_S = 1.5
DRAIN_POLL_S = 0.1


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code; prints where it listens."""
    configure_logging(settings.log_level)
    _raise_descriptor_limit()
    try:
        return uvloop.run(_serve(settings))
    except OSError as exc:
        print(
            f"longwire: cannot listen: {exc.strerror or exc}; is the port taken? (--port 0 takes a free one)",
            file=sys.stderr,
        )
        return 1
    except SettingsError as exc:
        print(f"longwire: {exc}", file=sys.stderr)
        return 2


async def _serve(settings: Settings) -> int:
    house = House(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # a second signal means now
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await house.open()
    await stopping.wait()
    await house.close()
    return 0


class House:
    """All rooms of one process."""

    def __init__(self, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.clock: Clock = LoopClock(loop)
        self.instruments = Instruments()
        self.streamlog = StreamLog()
        self.arena = Arena(settings.arena_bytes or memory_limit_bytes() // 4)
        self.stream_table = Table("streams", settings.max_streams, STREAM_ROW_BYTES)
        self.connection_table = Table("connections", settings.max_connections + 256, CONNECTION_ROW_BYTES)
        self.tenants = Tenants(settings.tenants)
        self.keys = KeysFile(settings.keys_file, self.tenants, self._keys_problem) if settings.keys_file else None
        self.registry = Registry(
            self.arena,
            self.stream_table,
            settings,
            self.clock,
            self.instruments,
            lambda s: write_end(self.streamlog, s),
        )
        self.directory = Directory(Upstream(engine, settings, self.clock) for engine in settings.engines)
        self.gateway = Gateway(
            settings,
            self.directory,
            Limiter(settings.max_streams),
            self.registry,
            CallShell(settings, self.clock, self.instruments),
            user_agent=b"longwire/" + package_version().encode(),
        )
        # Spawned, not forked: a fork would carry every socket of this process along.
        self._executor = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        handlers = Handlers(self.gateway, self.tenants, self._executor, self.is_ready)
        self.listener = Listener(self.arena, self.connection_table, settings, self.clock, self.instruments, handlers)
        self.admin: AdminServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._children: list[LocalEngine | SimChild] = []
        self._greeted = False

    def is_ready(self) -> tuple[bool, str]:
        """Whether new requests make sense here."""
        if self.gateway.is_draining:
            return False, "draining"
        if not any(upstream.is_up for upstream in self.directory.upstreams):
            return False, "; ".join(f"{u.name}: {u.problem}" for u in self.directory.upstreams)
        return True, ""

    # Opening.

    async def open(self) -> None:
        """Bind, start the engines' probes and children, accept.

        Raises:
            OSError: a port is taken.
            SettingsError: the keys file or the certificate is bad.
        """
        settings = self.settings
        if self.keys is not None:
            self.keys.load()
        public = _bind(settings.host, settings.port)
        self.admin = AdminServer(self._admin_app(), _bind(settings.admin_host, settings.admin_port))
        for upstream in self.directory.upstreams:
            await self._open_engine(upstream)
        await self.listener.start(public, _make_tls(settings))
        await self.admin.start()
        self._every(self.registry.tick_s, self.registry.tick)
        self._every(LAG_PROBE_S, self._probe_lag())
        if self.keys is not None:
            self._every(KEYS_POLL_S, self.keys.poll_nowait)
        _settle_garbage()
        self._every(YOUNG_GC_S, self._collect_young)
        scheme = "https" if settings.tls_cert_file else "http"
        print(f"longwire: listening on {scheme}://{_shown(public)}", flush=True)
        print(f"longwire: admin on http://{self.admin.address}", flush=True)

    def _admin_app(self) -> ASGIApp:
        gauges = Gauges(
            self.registry,
            self.instruments,
            self.directory,
            self.tenants,
            lambda: len(self.listener.connections),
            package_version(),
        )
        operation = Operation(self.registry, self.is_ready)
        settings = self.settings
        return admin_app(
            operation,
            Metrics(self.instruments, gauges.snapshot),
            admin_host=settings.admin_host,
            admin_names=settings.admin_names,
        )

    async def _open_engine(self, upstream: Upstream) -> None:
        if upstream.engine.url not in ("local", "sim"):
            self._start_task(Prober(upstream, self.settings).run())
            return
        probe: list[asyncio.Task[None]] = []

        def ready(url: str) -> None:
            upstream.set_url(url)
            probe.append(self._start_task(Prober(upstream, self.settings).run()))

        def down() -> None:
            upstream.is_up, upstream.problem = False, "its process has ended and is started again"
            while probe:
                probe.pop().cancel()

        upstream.problem = "it is starting"
        child: LocalEngine | SimChild
        if upstream.engine.url == "local":
            child = LocalEngine(self.settings, self.clock, on_ready=ready, on_down=down)
        else:
            child = SimChild(ready, down)
        self._children.append(child)
        await child.start()

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    # By the clock.

    def _every(self, seconds: float, call: Callable[[], object]) -> None:
        def again() -> None:
            call()
            self.clock.call_later(seconds, again)

        self.clock.call_later(seconds, again)

    def _probe_lag(self) -> Callable[[], None]:
        """How late the loop calls what is due: the delay that every stream has at that moment."""
        due = self.clock.now() + LAG_PROBE_S

        def probe() -> None:
            nonlocal due
            now = self.clock.now()
            self.instruments.loop_lag.observe_s(max(0.0, now - due))
            due = now + LAG_PROBE_S

        return probe

    def _collect_young(self) -> None:
        gc.collect(0)
        self.instruments.gc_runs_total += 1

    def _keys_problem(self, problem: SettingsError) -> None:
        log.error("keys_file", extra={"fields": {"problem": str(problem)}})

    # Closing.

    async def close(self) -> None:
        """Stop accepting, let streams finish for ``drain_s``, tell the rest, and take everything down."""
        self.gateway.is_draining = True
        self.listener.stop_accepting()
        deadline = self.clock.now() + self.settings.drain_s
        while self.clock.now() < deadline and self._live_streams():
            await asyncio.sleep(DRAIN_POLL_S)
        for stream in self.registry.list(None):
            stream.stop(CloseReason.SHUTDOWN, "")
        await asyncio.sleep(0)
        if self.admin is not None:
            await self.admin.close()
        await asyncio.sleep(DRAIN_POLL_S)
        self.listener.close()
        for task in self._tasks:
            task.cancel()
        for child in self._children:
            await child.close()
        for upstream in self.directory.upstreams:
            upstream.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _live_streams(self) -> int:
        statistics = self.registry.statistics()
        return statistics["opening"] + statistics["live"]


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _make_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as exc:
        raise SettingsError(f"tls_cert_file and tls_key_file cannot be loaded: {exc}.") from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def _settle_garbage() -> None:
    """What lives from start to end is taken out of the collector's sight; from here on it runs by our clock."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # a container may forbid it; `longwire check` shows what is in force
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_limit_bytes() -> int:
    """The least of the machine's memory and the cgroup's limit (v2, then v1)."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def package_version() -> str:
    """The installed version, or 0 from a bare checkout."""
    try:
        return version("longwire")
    except PackageNotFoundError:
        return "0"


def with_local_names(settings: Settings) -> Settings:
    """Give the embedded engine its model's name before it has started, so that requests find it in the list."""
    engines = [
        replace(e, models=e.models or [model_name(settings)], name=e.name or "local") if e.url == "local" else e
        for e in settings.engines
    ]
    return replace(settings, engines=engines)


__all__ = ["EngineSettings", "House", "memory_limit_bytes", "package_version", "run", "with_local_names"]
