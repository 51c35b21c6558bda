"""Asking an upstream whether it is there and which models it has.

What lives here: the probe of one upstream, and the loop that repeats it, beside that of its load.
What must not: how a question is asked (asking.py), what a failed probe means for requests (directory.py, breaker.py).
"""

from __future__ import annotations

import asyncio
import json
import logging

from ..observe.instruments import Instruments
from ..words.settings import Settings
from .asking import Question, wait_answer
from .dialing import ConnectFailed
from .exchange import Expect
from .load_probe import LoadProbe
from .pool import Upstream

log = logging.getLogger("longwire.probe")

MAX_MODEL_LIST_BYTES = 4 * 1024 * 1024
"""A hosted API lists hundreds of models in 100 KiB; more than this is no model list."""
EAGER_S, EAGER_LOOKS = 0.1, 50
"""An engine that starts together with the gateway is looked for often at first; then it is said to be missing."""
MAX_MODELS = 10_000
MAX_MODEL_NAME_CHARS = 256

_MODELS = Question(b"/v1/models", "its model list", MAX_MODEL_LIST_BYTES, Expect.JSON, b"application/json")


class Prober:
    """Probes one upstream every ``probe_s`` seconds for as long as the gateway runs."""

    def __init__(self, upstream: Upstream, settings: Settings, instruments: Instruments | None = None) -> None:
        self.upstream = upstream
        self._settings = settings
        self._instruments = instruments or Instruments()
        self._looks = 0
        self._was_up = upstream.is_up

    async def run(self) -> None:
        """Probe until cancelled. An engine that is not there is no error: it is asked again."""
        if not self._settings.load_probe_s or not self.upstream.abilities.metrics_path:
            await self._repeat()
            return
        async with asyncio.TaskGroup() as group:  # apart, so that slow metrics keep nobody waiting
            group.create_task(self._repeat())
            group.create_task(LoadProbe(self.upstream, self._settings).run())

    async def _repeat(self) -> None:
        while True:
            await self.probe()
            self.upstream.purge_nowait()
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Until the next look: sooner than usual where a rest will be over, since only a probe ends it."""
        if self._looks <= EAGER_LOOKS:
            return EAGER_S
        rest_s = self.upstream.breaker.rest_left_s(self.upstream.now())
        return min(rest_s, self._settings.probe_s) if rest_s else self._settings.probe_s

    async def probe(self) -> bool:
        """Ask once; update the upstream's facts; True if it is up."""
        upstream = self.upstream
        was_up, began = upstream.is_up, upstream.now()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s * 2):
                body = await self._get_models()
        except ConnectFailed as exc:
            upstream.is_up, upstream.problem = False, str(exc)
        except TimeoutError:
            upstream.is_up, upstream.problem = False, "it did not answer its model list in time"
        else:
            upstream.is_up, upstream.problem = True, ""
            upstream.warming.note_answer(upstream.now() - began)
            if not upstream.engine.models:
                upstream.models = read_models(body)
        self._was_up = self._was_up or upstream.is_up
        if self._was_up:  # one that was never there has not failed anybody
            self._tell_breaker()
        if upstream.is_up:
            upstream.top_up()
        upstream.was_asked.set()
        self._looks = EAGER_LOOKS + 1 if upstream.is_up else self._looks + 1
        if upstream.is_up != was_up or self._looks == EAGER_LOOKS:
            self._tell()
        return upstream.is_up

    def _tell_breaker(self) -> None:
        upstream = self.upstream
        if upstream.breaker.note_probe(upstream.now(), upstream.is_up):
            self._instruments.breakers_opened_total += 1
            fields = {"engine": upstream.name, "why": upstream.breaker.why}
            log.warning("breaker_opened", extra={"fields": fields})

    def _tell(self) -> None:
        """Log how it is now. One that was never there is told once the eager looks are over: it may never be up, and who
        runs the gateway must not have to ask why nothing is served."""
        upstream = self.upstream
        fields = {
            "engine": upstream.name,
            "up": upstream.is_up,
            "problem": upstream.problem,
            "models": len(upstream.models),
        }
        log.log(logging.INFO if upstream.is_up else logging.WARNING, "engine_state", extra={"fields": fields})

    async def _get_models(self) -> bytes:
        return await wait_answer(self.upstream, _MODELS)


def read_models(body: bytes) -> tuple[str, ...]:
    """The model names in a ``/v1/models`` answer; none where it is not of that shape."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return ()
    names = (entry.get("id") for entry in entries[:MAX_MODELS] if isinstance(entry, dict))
    return tuple(name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_MODEL_NAME_CHARS)
