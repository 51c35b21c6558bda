"""Questions to an endpoint besides those that are measured: its models, its shards, a pause of the stand-in.

What lives here: small requests with the standard library, blocking. What must not: load.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult

from ..words.addresses import split_address, unknown_host

TIMEOUT_S = 10.0
MAX_WORDS_CHARS = 200
"""Of an error that is not in OpenAI's shape: an HTML page helps nobody."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class RunFailed(Exception):
    """There are no figures; the text says why, in a sentence."""


class Refused(RunFailed):
    """It has answered with an error. ``status``: which one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


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
    except socket.gaierror as exc:
        why = unknown_host(parts.hostname, exc.strerror or "no address")
        raise RunFailed(f"{url} cannot be asked: {why}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise RunFailed(f"{url} does not answer: {exc or type(exc).__name__}.") from exc
    finally:
        connection.close()
    if response.status >= 300:
        raise Refused(f"{url} answered {response.status}: {_words_of(answer)}", response.status)
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise RunFailed(f"{url} did not answer with JSON.") from None


def _words_of(answer: bytes) -> str:
    """The message of an error in OpenAI's shape; of any other its beginning, which says that there is more."""
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        text = " ".join(answer[: 4 * MAX_WORDS_CHARS].decode("utf-8", "replace").split())
        return text if len(text) <= MAX_WORDS_CHARS else f"{text[:MAX_WORDS_CHARS].rpartition(' ')[0]} ..."


def first_model(base: str, headers: Mapping[str, str]) -> str:
    """The model that an endpoint lists first.

    Raises:
        RunFailed: it lists none.
    """
    try:
        answer = ask(f"{base}/models", headers=headers)
    except Refused as refused:
        if refused.status not in (404, 405):
            raise
        raise RunFailed(
            f"{base} has no /models ({refused.status}), so it is no OpenAI endpoint: name a gateway's public port or an "
            "engine; where it is one without that list, name the model with --model."
        ) from None
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise RunFailed(f"{base}/models lists no model: name one with --model.")
    return str(models[0]["id"])
