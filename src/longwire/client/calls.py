"""What is sent: the headers of a resumable POST, and the GET and DELETE that belong to it.

What lives here: the values that both skins send, derived from one ``create()`` call.
What must not: sending them (the skins), deciding when (reader.py).
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio

from .backoff import Backoff
from .table import Resume

ClientT = TypeVar("ClientT")

RAW_RESPONSE = "x-stainless-raw-response"
"""With it openai hands out the response itself and not a stream: nothing to resume."""

POST_ONLY = frozenset({"idempotency-key", "longwire-on-disconnect", "accept"})


@dataclass(frozen=True, slots=True)
class Settings:
    """How one resumable client behaves."""

    grace_s: float | None = 30.0
    """How long the gateway keeps generating while no connection is there, in whole seconds; None: as it does by itself."""
    backoff: Backoff = field(default_factory=Backoff)
    sync_sleep: Callable[[float], object] = time.sleep
    async_sleep: Callable[[float], Awaitable[object]] = anyio.sleep


def wants_resumption(arguments: Mapping[str, Any]) -> bool:
    """True for a call that streams and hands out the stream itself."""
    return arguments.get("stream") is True and not any(
        name.lower() == RAW_RESPONSE for name in arguments.get("extra_headers") or {}
    )


class Call(Generic[ClientT]):
    """One call of ``create(stream=True)`` and the requests that follow from it."""

    def __init__(self, client: ClientT, settings: Settings, arguments: dict[str, Any]) -> None:
        self.client = client
        self.settings = settings
        own = dict(arguments.get("extra_headers") or {})
        given = {name.lower() for name in own}
        # One key for every try of this call: a response that was lost on its way does not generate twice.
        added = {"Idempotency-Key": f"lwc-{uuid.uuid4().hex}"}
        if settings.grace_s is not None:
            added["Longwire-On-Disconnect"] = f"grace={math.ceil(settings.grace_s)}"
        headers = own | {name: value for name, value in added.items() if name.lower() not in given}
        self.arguments = {**arguments, "extra_headers": headers}
        self._own = {name: value for name, value in own.items() if name.lower() not in POST_ONLY}

    def resume_arguments(self, resume: Resume) -> dict[str, Any]:
        """Arguments of ``client.get``: through the same client, so with its auth, proxies, TLS and queries.

        openai's own retries are off: each try must be the reader's, for it counts them.
        """
        options = self._options() | {"headers": {**self._own, **resume.headers}, "max_retries": 0}
        return {"path": f"/streams/{resume.stream_id}", "cast_to": object, "options": options}

    def cancel_arguments(self, stream_id: str) -> dict[str, Any]:
        """Arguments of ``client.delete``."""
        return {
            "path": f"/streams/{stream_id}",
            "cast_to": object,
            "options": self._options() | {"headers": self._own},
        }

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "timeout" in self.arguments:
            options["timeout"] = self.arguments["timeout"]
        if query := self.arguments.get("extra_query"):
            options["params"] = query
        return options
