"""Asking an upstream whether it is there and which models it has.

What lives here: the probe of one upstream, and the loop that repeats it.
What must not: what a failed probe means for requests (directory.py).
"""

from __future__ import annotations

import asyncio
import json
import logging

from ..wire.http1 import encode_request_head
from ..words.reasons import CloseReason
from ..words.settings import Settings
from .base import Answer, Failure
from .exchange import Exchange, Expect
from .openai import ChatWatch
from .pool import ConnectFailed, Upstream

log = logging.getLogger("longwire.probe")

MAX_MODEL_LIST_BYTES = 4 * 1024 * 1024
"""A hosted API lists hundreds of models in 100 KiB; more than this is no model list."""
EAGER_S, EAGER_LOOKS = 0.1, 50
"""An engine that starts together with the gateway is looked for often at first; then it is said to be missing."""
MAX_MODELS = 10_000
MAX_MODEL_NAME_CHARS = 256


class _Collector:
    """A sink in ordinary memory, bounded, that is also the exchange's owner."""

    def __init__(self, done: asyncio.Future[bytes]) -> None:
        self._done = done
        self.rest = memoryview(bytearray(64 * 1024))
        self._bytes = bytearray()
        self._body = bytearray()
        self.end = 0
        self.is_full = False

    @property
    def chain(self) -> _Collector:
        return self

    def filled(self, count: int) -> None:
        self._bytes += self.rest[:count]
        self.end += count
        if self.end > MAX_MODEL_LIST_BYTES:
            self._fail("its model list is too large")

    def splice(self) -> None: ...

    def unsplice(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        self._fail("its model list is no JSON")

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self._body += self._bytes[start : start + length]

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self._fail("its model list is no JSON")

    def publish(self, checkpoint: int) -> None: ...

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...

    def began(self) -> None: ...

    def refusing(self) -> None: ...

    def answered(self, answer: Answer) -> None: ...

    def completed(self, reason: CloseReason, message: str) -> None:
        if reason.is_success and not self._done.done():
            self._done.set_result(bytes(self._body))
        else:
            self._fail(message)

    def failed(self, failure: Failure) -> None:
        self._fail(f"it answered {failure.status}" if failure.status else failure.message)

    def _fail(self, message: str) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectFailed(message))


class Prober:
    """Probes one upstream every ``probe_s`` seconds for as long as the gateway runs."""

    def __init__(self, upstream: Upstream, settings: Settings) -> None:
        self.upstream = upstream
        self._settings = settings
        self._looks = 0

    async def run(self) -> None:
        """Probe until cancelled. An engine that is not there is no error: it is asked again."""
        while True:
            await self.probe()
            self.upstream.purge_nowait()
            await asyncio.sleep(self._settings.probe_s if self._looks > EAGER_LOOKS else EAGER_S)

    async def probe(self) -> bool:
        """Ask once; update the upstream's facts; True if it is up."""
        upstream = self.upstream
        was_up = upstream.is_up
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s * 2):
                body = await self._get_models()
        except ConnectFailed as exc:
            upstream.is_up, upstream.problem = False, str(exc)
        except TimeoutError:
            upstream.is_up, upstream.problem = False, "it did not answer its model list in time"
        else:
            upstream.is_up, upstream.problem = True, ""
            if not upstream.engine.models:
                upstream.models = read_models(body)
        self._looks = EAGER_LOOKS + 1 if upstream.is_up else self._looks + 1
        if upstream.is_up != was_up or self._looks == EAGER_LOOKS:
            self._tell()
        return upstream.is_up

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
        upstream = self.upstream
        headers = [(b"host", upstream.host_header), (b"accept", b"application/json"), (b"accept-encoding", b"identity")]
        if upstream.engine.api_key:
            headers.append((b"authorization", b"Bearer " + upstream.engine.api_key.encode()))
        request = encode_request_head(b"GET", upstream.base_path.encode() + b"/v1/models", headers)
        # A connection of its own: a pooled one that the engine has just closed would make a healthy engine look down.
        connection = await upstream.wait_connection()
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        collector = _Collector(done)
        limits = (MAX_MODEL_LIST_BYTES, MAX_MODEL_LIST_BYTES)
        exchange = Exchange(collector, ChatWatch(1, False), collector, Expect.JSON, limits, connection)
        connection.send(exchange, request)
        try:
            return await done
        finally:
            exchange.abandon()


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
