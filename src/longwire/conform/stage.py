"""What a row's clients do, as values: requests, steps and parts.

What lives here: the making of requests for a gateway under test, and the steps that a client can take.
What must not: sockets (client.py), and what the engine does (saying.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from .answers import Answer
from .saying import MODEL, PATHS, Api, Script, dump, well

PATIENCE_S = 3.0
"""How long a client waits for any one thing. What is right comes in milliseconds."""


@dataclass(frozen=True)
class Target:
    """The gateway under test. ``fields`` go with every request."""

    host: str
    port: int
    prefix: str = ""
    model: str = MODEL
    fields: tuple[tuple[str, str], ...] = ()


class Request(NamedTuple):
    """One request, ready to be sent. ``head_bytes``: where its body begins."""

    nonce: str
    script: Script
    data: bytes
    head_bytes: int = 0


# A client's steps. Bytes are sent as they are.


class Answers(NamedTuple):
    """Wait until so many answers are whole, or the connection is over."""

    n: int = 1


class Has(NamedTuple):
    """Wait until this word is there."""

    word: str


class Reached(NamedTuple):
    """Wait until the engine has this request."""

    nonce: str


class Freed(NamedTuple):
    """Wait until the engine is left by whoever sent it this request."""

    nonce: str


class Follow(NamedTuple):
    """Send what is made from the answers so far; None ends the part, because there is nothing to follow."""

    make: Callable[[Sequence[Answer]], bytes | None]


class Sleep(NamedTuple):
    """Do nothing for a while."""

    s: float


class Do(Enum):
    """What a client can do at once."""

    BEGUN = "waits until anything has come"
    STALL = "stops reading"
    READ = "reads on"
    HALF_CLOSE = "closes its sending side"
    LEAVE = "closes"
    RESET = "resets"
    KILL = "kills the gateway's process that talks to the engine"


Step = bytes | Answers | Has | Reached | Freed | Follow | Sleep | Do


class Part(NamedTuple):
    """One client: its connection, its requests, its steps."""

    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    has_small_window: bool = False


@dataclass(frozen=True)
class Stage:
    """What a scene is made for: one gateway, one API, streamed or not."""

    target: Target
    api: Api
    streamed: bool

    def request(self, script: Script = well, **more: Any) -> Request:
        """A request for an answer. ``fields``: more of the head; ``changes``: to the JSON; ``body``: instead of it;
        ``words``: behind the mark in the prompt; ``version``: of HTTP; ``framing``: instead of Content-Length."""
        nonce = secrets.token_hex(6)
        body = self._body(nonce, more.get("words", "")) | more.get("changes", {})
        raw: bytes = more["body"](nonce, body) if "body" in more else dump(body)
        fields = (*self.target.fields, *more.get("fields", ()))
        framing = more.get("framing", (("Content-Length", str(len(raw))),))
        method = more.get("method", "POST")
        head = self.head(method, more.get("path", PATHS[self.api]), fields, framing, more.get("version", "1.1"))
        return Request(nonce, script, head + raw, len(head))

    def head(
        self,
        method: str,
        path: str,
        fields: Sequence[tuple[str, str]] = (),
        framing: Sequence[tuple[str, str]] = (),
        version: str = "1.1",
    ) -> bytes:
        """A request's head."""
        lines = [
            f"{method} {self.target.prefix}{path} HTTP/{version}",
            f"Host: {self.target.host}:{self.target.port}",
            *(["Content-Type: application/json"] if framing else []),
            *[f"{name}: {value}" for name, value in (*fields, *framing)],
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def _body(self, nonce: str, words: str) -> dict[str, Any]:
        prompt = f"conform:{nonce} {words}".strip()
        asked: dict[str, Any] = {"model": self.target.model, "max_tokens": 64, "stream": self.streamed}
        if self.api == "chat":
            return asked | {"messages": [{"role": "user", "content": prompt}]}
        return asked | {"prompt": prompt}


Scene = Callable[[Stage], Sequence[Part]]


def plain(script: Script = well, **more: Any) -> Scene:
    """One client that asks once and reads to the end."""

    def scene(stage: Stage) -> Sequence[Part]:
        request = stage.request(script, **more)
        return (Part((request,), (request.data, Answers())),)

    return scene
