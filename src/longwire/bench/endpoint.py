"""Questions to an endpoint besides those that are measured: its models, its shards, a pause of the stand-in.

What lives here: small requests with the standard library, blocking. What must not: load.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult

from ..words.addresses import split_address

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class RunFailed(Exception):
    """There are no figures; the text says why, in a sentence."""


def parts_of(url: str) -> SplitResult:
    """A URL that plan.base_url has let through."""
    return split_address(url)


def port_of(parts: SplitResult) -> int:
    """The port that is named or goes without saying."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def ask(url: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None) -> Any:
    """GET, or with a body POST, and the JSON that comes back.

    Raises:
        RunFailed: nothing usable came.
    """
    parts = parts_of(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname, port_of(parts), timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, port_of(parts), timeout=TIMEOUT_S)
    try:
        connection.request(
            "GET" if body is None else "POST",
            parts.path or "/",
            None if body is None else json.dumps(body),
            {"Content-Type": "application/json", **(headers or {})},
        )
        response = connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        raise RunFailed(f"{url} does not answer: {exc or type(exc).__name__}.") from exc
    finally:
        connection.close()
    if response.status >= 300:
        raise RunFailed(f"{url} answered {response.status}: {answer[:200].decode('utf-8', 'replace')}")
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise RunFailed(f"{url} did not answer with JSON.") from None


def first_model(base: str, headers: Mapping[str, str]) -> str:
    """The model that an endpoint lists first.

    Raises:
        RunFailed: it lists none.
    """
    answer = ask(f"{base}/models", headers=headers)
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise RunFailed(f"{base}/models lists no model: name one with --model.")
    return str(models[0]["id"])
