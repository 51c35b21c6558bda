"""Building the house, opening it, and closing it in order.

What lives here: every room is made here and nowhere else; signals; what runs by the clock.
What must not: any decision that belongs to a room.

Over 400 lines: it is the one place that sees all rooms, and their order at the start and at the end is to be read in one go.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp

from .admin.app import admin_app
from .admin.server import AdminServer
from .admission.keysfile import KeysFile
from .admission.limiter import Limiter
from .admission.matrix import Matrix
from .admission.tenants import Tenants, home_of
from .adopt import Adopter
from .engines.directory import Directory
from .engines.elastic import SAMPLE_S
from .engines.following import Following
from .engines.local import LocalEngine
from .engines.pool import Upstream
from .engines.probe import Prober
from .engines.reserve import renew_look_s
from .engines.simchild import SimChild
from .gateway import Gateway
from .generation import GenerationShell
from .groundwork import (
    CannotListen,
    arena_bytes,
    bind,
    greeting,
    load_secret,
    make_tls,
    package_version,
    settle_garbage,
    shown,
)
from .observe.instruments import Instruments
from .observe.metrics import Metrics
from .observe.streamlog import StreamLog
from .operation import DRAINING, Gauges, Operation, count_end, write_end
from .reading import ReadingProcess
from .server.handlers import Handlers
from .server.listener import SURPLUS_CONNECTIONS, Listener
from .streams.describe import read_states
from .streams.memory import Memory
from .streams.registry import Registry
from .streams.stream import Stream
from .streams.tables import Table
from .streams.terms import Slot
from .words.clock import Clock, LoopClock
from .words.errors import SettingsError
from .words.reasons import CloseReason
from .words.settings import Settings

log = logging.getLogger("longwire")

GC_S = 0.1
YOUNG_OBJECTS = 2000
"""The collector runs by our clock only. When so many containers are new, it looks at those (a fraction of a
millisecond), and what is left of them is taken out of its sight: the hot path makes no cycles, and walking over ten
thousand live streams would stop them all."""
IDLE_GC_S = 60.0
"""With no stream alive, everything is looked at, this often at most: cycles among long-lived objects are found then."""
LAG_PROBE_S = 0.25
TRIM_S = 0.5
"""Idle memory goes back at 4 MiB/s at most: a burst that is over within seconds finds it warm again."""
KEYS_POLL_S = 1.5
ENDPOINTS_POLL_S = 1.0
"""Between two looks at engines' files of URLs, and at whether a name is to be looked up."""
GREETING_POLL_S = 0.1
READING_POLL_S = 2.0
"""From when this process serves until it has another one for large bodies, and between two looks at whether that lives: whoever
takes over has more urgent things to do, and what cannot live must not be started all the time."""
FAREWELL_S = 0.1
"""For the last bytes to reach the kernel before connections are cut."""


class House:
    """All rooms of one process."""

    def __init__(
        self,
        settings: Settings,
        memory: Memory | None = None,
        matrix: Matrix | None = None,
        secret: bytes | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        """``memory``, ``matrix`` and ``secret`` are given where several processes share them; ``tenants`` where another house
        of this process keeps them up to date."""
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.clock: Clock = LoopClock(loop)
        self.instruments = Instruments()
        secret = secret or load_secret(settings.state_dir)
        self.streamlog = StreamLog(secret)
        self.memory = memory or make_memory(settings)
        self.arena, self.stream_table, self.connection_table, _ = self.memory
        self.tenants = tenants or Tenants(settings.tenants)
        has_keys = settings.keys_file and tenants is None
        self.keys = KeysFile(settings.keys_file, self.tenants, self._keys_problem) if has_keys else None
        self.registry = Registry(self.memory, settings, self.clock, self.instruments, self._stream_ended)
        if secret is not None:
            self.registry.use_secret(secret)
        self.followings = [Following(engine, settings, self.clock) for engine in settings.engines]
        live = [upstream for following in self.followings for upstream in following.live.values()]
        self.directory = Directory(live, settings, shards=self.memory.place.slots)
        self.limiter = Limiter(
            matrix or Matrix.create(len(self.tenants), 1),
            self.memory.place.slot,
            self.clock,
            settings.max_streams,
            self.tenants,
        )
        self.gateway = Gateway(
            settings,
            self.directory,
            self.limiter,
            self.registry,
            GenerationShell.make(settings, self.directory, self.registry, self.clock, self.instruments),
            user_agent=b"longwire/" + package_version().encode(),
        )
        self._executor = ReadingProcess(self.clock)
        self.handlers = handlers = Handlers(self.gateway, self.tenants, self._executor, self.is_ready)
        self.listener = Listener(self.memory, settings, self.clock, self.instruments, handlers)
        self.admin: AdminServer | None = None
        self.lag_s = 0.0
        """How late the loop was when it was looked at last."""
        self._drained = asyncio.Event()
        self._has_met_engine = False
        self.others_are_ready: Callable[[], bool] = lambda: True
        """Whether each other process that may be given a request of ours has met an engine, too."""
        self.live_elsewhere: Callable[[], int] = lambda: 0
        """Live streams of this process that are none of this house's."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._children: list[LocalEngine | SimChild] = []
        self._probes: dict[Upstream, asyncio.Task[None]] = {}

    def is_ready(self) -> tuple[bool, str]:
        """Whether new requests make sense here."""
        if self.gateway.is_draining:
            return False, DRAINING
        if not any(upstream.is_up for upstream in self.directory.upstreams):
            return False, self.directory.problems()
        if not self.others_are_ready():
            return False, "another shard has not seen an engine yet"
        return True, ""

    @property
    def has_met_engine(self) -> bool:
        """Whether an engine has been up: from then on a request may be served here."""
        self._has_met_engine = self._has_met_engine or any(upstream.is_up for upstream in self.directory.upstreams)
        return self._has_met_engine

    async def wait_engines(self, limit_s: float) -> None:
        """Until each engine was asked once and has its connections warmed, or so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(self._wait_engine(upstream) for upstream in self.directory.upstreams))

    @staticmethod
    async def _wait_engine(upstream: Upstream) -> None:
        await upstream.was_asked.wait()
        await upstream.wait_warm()

    # Opening.

    async def open(self) -> None:
        """Bind, start the engines' probes and children, accept.

        Raises:
            CannotListen: a port is taken, or an address is not this machine's.
            SettingsError: the keys file or the certificate is bad.
        """
        settings = self.settings
        self.load_keys()
        tls = make_tls(settings)  # before anything that would have to be taken down again
        public = bind(settings.host, settings.port)
        try:
            private = bind(settings.admin_host, settings.admin_port, "admin_port")
        except CannotListen:
            public.close()
            raise
        self.admin = AdminServer(self._admin_app(), private)
        await self._open_engines()
        await self.listener.start(public, tls)
        await self.admin.start()
        settle_garbage()
        self.start_clockwork()
        scheme = "https" if settings.tls_cert_file else "http"
        print(f"longwire: listening on {scheme}://{shown(public)}", flush=True)
        print(f"longwire: admin on http://{self.admin.address}", flush=True)
        self.greet_soon(f"{scheme}://{shown(public)}")

    def load_keys(self) -> None:
        """Read the keys file, if there is one. Raises SettingsError where it is bad."""
        if self.keys is not None:
            self.keys.load()

    async def begin(self) -> None:
        """Start everything but the ports: for a shard, whose listener comes when all is taken over. Raises as :meth:`open`."""
        self.load_keys()
        await self._open_engines()

    def recall(self, models: Mapping[str, tuple[str, ...]]) -> None:
        """Know of the upstreams what a process knew that has died: which addresses there are, and what each has."""
        for following in self.followings:
            following.recall(models, self.directory)
        self.directory.recall(models)

    def start_clockwork(self) -> None:
        """From now on look after everything that depends on time."""
        self.registry.start()
        self._every(LAG_PROBE_S, self._probe_lag())
        self._every(TRIM_S, self.arena.trim)
        self._every(SAMPLE_S, partial(self._each_upstream, Upstream.sample))
        self._every(renew_look_s(self.settings), partial(self._each_upstream, Upstream.top_up))
        if self.keys is not None:
            self._every(KEYS_POLL_S, self.keys.poll_nowait)
        if any(not following.is_static for following in self.followings):
            self._every(ENDPOINTS_POLL_S, self._follow)
        self._every(GC_S, self._collect_young)
        self._every(IDLE_GC_S, self._collect_idle)

    def keep_reading_process(self) -> None:
        """From now on have a process that reads large bodies before the first one comes."""
        self._every(READING_POLL_S, self._executor.prepare)

    def _each_upstream(self, call: Callable[[Upstream], None]) -> None:
        for upstream in self.directory.upstreams:
            call(upstream)

    def know_others(self, tables: Sequence[Table]) -> None:
        """There are several shards: know who is at home where, and list what the others keep."""
        place = self.memory.place
        self.handlers.home_of = lambda tenant: home_of(tenant, place.slots)
        others = [table for slot, table in enumerate(tables) if slot != place.slot]
        self.handlers.list_others = partial(self._list_rows, others)

    def _list_rows(self, tables: Sequence[Table], tenant: str | None) -> Iterator[dict[str, object] | None]:
        return read_states(tables, self.clock.wall() - self.clock.now(), tenant)

    def adopter(self) -> Adopter:
        """Whoever takes over into these rooms."""
        return Adopter(self.memory, self.registry, self.listener, self.gateway.generations, self._readmit)

    def _readmit(self, stream: Stream) -> Slot | None:
        tenant = self.tenants.by_name(stream.facts.tenant)
        return self.limiter.readmit(tenant, stream.facts.context_tokens) if tenant is not None else None

    def greet_soon(self, url: str) -> None:
        """Print what to try at this address, as soon as there is a model."""
        self._start_task(self._greet(url))

    async def _greet(self, url: str) -> None:
        """Show what to try, as soon as there is a model to try it with."""
        names: list[tuple[str, str]] = []
        while not names:
            await asyncio.sleep(GREETING_POLL_S)
            names = self.directory.models(lambda _: True) if self.is_ready()[0] else []
        print(greeting(url, names[0][0], with_key=not self.tenants.is_open), flush=True)

    def gauges(self) -> Gauges:
        """What there is to see."""
        return Gauges(
            self.registry,
            self.instruments,
            self.directory,
            self.tenants,
            self.limiter,
            lambda: len(self.listener.connections),
            package_version(),
            self.is_ready,
            lambda: self.gateway.generations.waiting.waiting,
        )

    def _admin_app(self) -> ASGIApp:
        gauges = self.gauges()
        operation = Operation(self.registry, gauges)
        settings = self.settings
        return admin_app(
            operation,
            Metrics(gauges.look),
            admin_host=settings.admin_host,
            admin_names=settings.admin_names,
        )

    async def _open_engines(self) -> None:
        """Begin to probe, start what is ours, and from now on look after whoever comes and goes."""
        for upstream in self.directory.upstreams:
            await self._open_engine(upstream)
        self.directory.on_added, self.directory.on_retired = self._probe, self._stop_probing
        self._follow()

    def _follow(self) -> None:
        for following in self.followings:
            following.tick(self.directory, self._start_task)
        self.directory.purge_nowait()

    def _probe(self, upstream: Upstream) -> None:
        if self.gateway.is_draining:
            upstream.stop_warming()
        self._probes[upstream] = self._start_task(Prober(upstream, self.settings, self.instruments).run())

    def _stop_probing(self, upstream: Upstream) -> None:
        if upstream in self._probes:
            self._probes.pop(upstream).cancel()

    async def _open_engine(self, upstream: Upstream) -> None:
        if upstream.engine.url not in ("local", "sim"):
            self._probe(upstream)
            return

        def ready(url: str) -> None:
            upstream.set_url(url)
            self._probe(upstream)

        def down() -> None:
            upstream.is_up, upstream.problem = False, "its process has ended"
            self._stop_probing(upstream)

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
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """These run for as long as the house stands: one that ends by itself is a fault, and must not be silent."""
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("task_fault", exc_info=fault)

    # By the clock.

    def _every(self, seconds: float, call: Callable[[], object]) -> None:
        def again() -> None:
            self.clock.call_later(seconds, again)  # first: one that fails is called again all the same
            call()

        self.clock.call_later(seconds, again)

    def _probe_lag(self) -> Callable[[], None]:
        """How late the loop calls what is due: the delay that every stream has at that moment."""
        due = self.clock.now() + LAG_PROBE_S

        def probe() -> None:
            nonlocal due
            now = self.clock.now()
            self.lag_s = max(0.0, now - due)
            self.instruments.loop_lag.observe_s(self.lag_s)
            due = now + LAG_PROBE_S

        return probe

    def _collect_young(self) -> None:
        if gc.get_count()[0] >= YOUNG_OBJECTS:
            gc.collect(0)
            gc.freeze()
            self.instruments.gc_runs_total += 1

    def _collect_idle(self) -> None:
        if not self.registry.live_count and not self.live_elsewhere():
            gc.unfreeze()
            settle_garbage()
            self.instruments.gc_runs_total += 1

    def _keys_problem(self, problem: SettingsError) -> None:
        log.error("keys_file", extra={"fields": {"problem": str(problem)}})

    # Closing.

    async def close(self, drain_s: float | None = None) -> None:
        """:meth:`drain`, and take everything down."""
        await self.drain(self.settings.drain_s if drain_s is None else drain_s)
        await self.tear_down()

    async def drain(self, drain_s: float) -> None:
        """Stop accepting, let streams finish for so long, and tell the rest. What is asked on connections that are there is
        still answered."""
        self.gateway.is_draining = True
        self._each_upstream(Upstream.stop_warming)
        self.listener.stop_accepting()
        deadline = self.clock.now() + drain_s
        if self.registry.live_count:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), drain_s)
        for stream in self.registry.list(None):
            stream.stop(CloseReason.SHUTDOWN, "")
        # Readers may be behind what has ended; when this process is gone nobody can resume.
        await self.listener.wait_quiet(max(FAREWELL_S, deadline - self.clock.now()))

    async def tear_down(self) -> None:
        """Cut what is left, and end what was started."""
        if self.admin is not None:
            await self.admin.close()
        await asyncio.sleep(FAREWELL_S)
        self.listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a fault of theirs was logged when it happened
        for child in self._children:
            await child.close()
        self.directory.close()
        self._executor.shutdown(cancel_futures=True)

    def _stream_ended(self, stream: Stream) -> None:
        count_end(self.instruments, stream)
        write_end(self.streamlog, stream)
        if self.gateway.is_draining and not self.registry.live_count:
            self._drained.set()


def make_memory(settings: Settings) -> Memory:
    """Memory of one's own."""
    connections = settings.max_connections + SURPLUS_CONNECTIONS
    return Memory.make(settings.arena_bytes or arena_bytes(), settings.max_streams, connections)
