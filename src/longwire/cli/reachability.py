"""The checks of ``longwire check`` that speak HTTP: engines, and proxies that buffer.

What lives here: small blocking requests and what their answers mean. What must not: the gateway's own transport; a check
that used it would share its mistakes.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from longwire.words.engine_specs import normalise_url
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings

from .finding import FAIL, OK, WARN, Finding

TIMEOUT_S = 5.0
STREAM_TIMEOUT_S = 60.0
"""An engine may have a queue; a proxy that buffers sends nothing until the whole answer is there."""
MAX_BODY_BYTES = 4 << 20
MAX_EVENTS = 10_000

TOKENS = 48
"""Long enough that an engine takes some hundred milliseconds over it, short enough to cost nothing."""
LEAST_SPREAD_MS = 100.0
"""An answer that was made faster than this cannot show whether somebody held it back."""
LEAST_SHARE = 0.5
"""A stream that reaches us in less than half of the time in which it was made was held back."""

BUFFERING_ADVICE = (
    "Switch response buffering off for this route: nginx `proxy_buffering off`, Caddy `flush_interval -1`, and no "
    "compression of text/event-stream on the way."
)


class _Failed(Exception):
    """A request that gave no usable answer; the text says why."""


def check_engine(engine: EngineSettings) -> Finding:
    """Whether an engine lists its models."""
    name = f"engine {engine.name}"
    try:
        models = list_models(engine.url, engine.api_key, engine.ca_file)
    except _Failed as error:
        return Finding(
            name, FAIL, f"{engine.url}: {error}", "Start it, or mend its url or api_key; the gateway waits for it."
        )
    if not models:
        return Finding(name, WARN, f"{engine.url}: lists no models", "It will be given requests for any model.")
    return Finding(name, OK, f"{engine.url}: {', '.join(models[:3])}{', …' if len(models) > 3 else ''}", "")


def list_models(base: str, key: str, ca_file: str = "") -> list[str]:
    """The ids that ``GET /v1/models`` lists."""
    status, body = _fetch(base, "/v1/models", key, ca_file)
    if status != 200:
        raise _Failed(f"GET /v1/models answered {status}")
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _Failed("GET /v1/models answered no model list") from None


def check_buffering(url: str, key: str, clock: Callable[[], float] = time.monotonic) -> Finding:
    """Stream one short answer and compare when its events came with when the gateway had them."""
    name = "proxy in front"
    try:
        base = normalise_url(url, "--url")
        models = list_models(base, key)
        if not models:
            return Finding(
                name, WARN, f"{base}: lists no models", "A model is needed to try a stream; connect an engine."
            )
        seen = _stream_once(base, key, models[0], clock)
        made_ms = _spread_in_gateway(base, key, seen.stream_id)
    except (_Failed, SettingsError) as error:
        advice = "Give the gateway's public address, and a key in LONGWIRE_API_KEY if it asks for one."
        return Finding(name, FAIL, str(error), advice)
    return judge_buffering(seen.arrivals_ms, made_ms)


def judge_buffering(arrivals_ms: list[float], made_ms: float | None) -> Finding:
    """What the arrival times (since the request) of a stream's events say.

    ``made_ms`` is the time from the first token to the last event as the gateway logged it. Without it (another product, or a
    route that a proxy does not let through) the wait before the first event stands in: what was buffered came all at once
    after a long one.
    """
    name = "proxy in front"
    if len(arrivals_ms) < 3:
        return Finding(
            name, WARN, f"{len(arrivals_ms)} events came", "Too few to tell; try a model that answers at length."
        )
    spread_ms = arrivals_ms[-1] - arrivals_ms[0]
    reference_ms = made_ms if made_ms is not None else arrivals_ms[-1]
    found = f"{len(arrivals_ms)} events over {spread_ms:.0f} ms"
    found += f", made over {made_ms:.0f} ms" if made_ms is not None else f", the first after {arrivals_ms[0]:.0f} ms"
    if reference_ms < LEAST_SPREAD_MS:
        return Finding(name, WARN, found, "Too fast to tell; try a slower model or `longwire sim --itl-ms 20`.")
    if spread_ms >= reference_ms * LEAST_SHARE:
        return Finding(name, OK, found, "")
    if made_ms is None and spread_ms >= LEAST_SPREAD_MS:
        return Finding(name, OK, found, "")
    return Finding(name, FAIL, f"{found}: held back", BUFFERING_ADVICE)


# Requests.


@dataclass(slots=True)
class _Seen:
    """One streamed answer: its id and when each event was there."""

    stream_id: str
    arrivals_ms: list[float]


def _stream_once(base: str, key: str, model: str, clock: Callable[[], float]) -> _Seen:
    messages = [{"role": "user", "content": "Count slowly from one to forty."}]
    body = json.dumps({"model": model, "stream": True, "max_tokens": TOKENS, "messages": messages}).encode()
    started = clock()
    try:
        with _request(base, "/v1/chat/completions", key, body=body, timeout_s=STREAM_TIMEOUT_S) as response:
            if response.status != 200:
                raise _Failed(f"POST /v1/chat/completions answered {response.status}")
            arrivals_ms = [(clock() - started) * 1000 for line in _bounded(response) if _is_event(line)]
            return _Seen(response.headers.get("X-Stream-Id", ""), arrivals_ms)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_reason(error)) from None


def _is_event(line: bytes) -> bool:
    return line.startswith(b"data:") and b"[DONE]" not in line


def _bounded(response: http.client.HTTPResponse) -> Iterator[bytes]:
    for _ in range(2 * MAX_EVENTS):
        line = response.readline(MAX_BODY_BYTES)
        if not line:
            return
        yield line


def _spread_in_gateway(base: str, key: str, stream_id: str) -> float | None:
    """Time between the first token and the last event as the gateway's log has it."""
    if not stream_id:
        return None
    status, body = _fetch(base, f"/v1/streams/{stream_id}", key)
    try:
        state: Mapping[str, Any] = json.loads(body)
        return float(state["last_event_ms"]) - float(state["first_token_ms"]) if status == 200 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _fetch(base: str, path: str, key: str, ca_file: str = "") -> tuple[int, bytes]:
    try:
        with _request(base, path, key, ca_file=ca_file) as response:
            return response.status, response.read(MAX_BODY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_reason(error)) from None


def _request(
    base: str, path: str, key: str, *, body: bytes | None = None, ca_file: str = "", timeout_s: float = TIMEOUT_S
) -> http.client.HTTPResponse:
    parts = urlsplit(base)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file or None)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    headers = {"Accept": "application/json" if body is None else "text/event-stream", "Connection": "close"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request("GET" if body is None else "POST", parts.path + path, body=body, headers=headers)
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        connection.close()
        raise


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
