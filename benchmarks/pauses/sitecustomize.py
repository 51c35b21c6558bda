"""How long the event loop of a shard was held up at a time, seen from inside it.

What lives here: wrappers around what the loop calls, put there as the process starts: Python imports a module of this name.
What must not: anything that the gateway is to know of; benchmarks/inside.py alone puts this folder on a path.

SIGUSR2 writes what was longest since the last one to ``$LOOP_PAUSES.PID``, by the clock on the wall and by the processor
time of the thread. The difference is time in which somebody else had the core.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PROTOCOLS = {"longwire.engines.transport": "UpstreamConnection", "longwire.server.connection": "ClientConnection"}
CALLBACKS = ("buffer_updated", "connection_made", "connection_lost", "eof_received", "resume_writing")
CLOCK = "longwire.words.clock"


class Longest:
    """The longest call of each kind: ``[wall_s, processor_s]``."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}
        self._collecting_since = (0.0, 0.0)

    def measured(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        wall, processor = time.perf_counter, time.thread_time

        def timed(*arguments: Any) -> Any:
            began, used = wall(), processor()
            try:
                return call(*arguments)
            finally:
                self.note(name, wall() - began, processor() - used)

        return timed

    def note(self, name: str, wall_s: float, processor_s: float) -> None:
        most = self.of.setdefault(name, [0.0, 0.0])
        if wall_s > most[0]:
            most[0] = wall_s
        if processor_s > most[1]:
            most[1] = processor_s

    def collect(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.perf_counter(), time.thread_time()
        else:
            began, used = self._collecting_since
            self.note("garbage collection", time.perf_counter() - began, time.thread_time() - used)

    def tell(self, *_: object) -> None:
        Path(f"{os.environ['LOOP_PAUSES']}.{os.getpid()}").write_text(json.dumps(self.of))
        self.of.clear()


class Finder(importlib.abc.MetaPathFinder):
    """Imports the modules that are wrapped."""

    def __init__(self, longest: Longest) -> None:
        self._longest = longest

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != CLOCK and fullname not in PROTOCOLS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        sys.meta_path.insert(0, self)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_wrap(module: ModuleType) -> None:
            load(module)
            self._wrap(fullname, module)

        spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec

    def _wrap(self, fullname: str, module: ModuleType) -> None:
        if fullname == CLOCK:
            clock, measured = module.LoopClock, self._longest.measured
            call_later = clock.call_later
            clock.call_later = lambda self, delay_s, call, *arguments: call_later(
                self, delay_s, measured(call, "timers"), *arguments
            )
            return
        protocol = getattr(module, PROTOCOLS[fullname])
        for name in CALLBACKS:
            if name in vars(protocol):
                setattr(protocol, name, self._longest.measured(vars(protocol)[name], f"{PROTOCOLS[fullname]}.{name}"))


if os.environ.get("LOOP_PAUSES"):
    _longest = Longest()
    sys.meta_path.insert(0, Finder(_longest))
    gc.callbacks.append(_longest.collect)
    signal.signal(signal.SIGUSR2, _longest.tell)
