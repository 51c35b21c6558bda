"""Requests to an engine under examination: each bounded in time, all bounded in number, and what came as plain values.

What lives here: sending, and reading an answer into a :class:`Reply`. What must not: what an answer means (abilities.py,
seams.py, gauges.py), and the gateway's own transport; a check that used it would share its mistakes.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from longwire.words.settings import EngineSettings

from .admin_port import read_blocks

REQUEST_LIMIT_S = 30.0
"""48 tokens at two a second and a queue before them; an engine slower than that cannot be examined in a sitting."""
WHOLE_LIMIT_S = 240.0
"""Forty answers of 48 tokens at ten a second."""
MAX_REQUESTS = 64
"""Forty-odd answers and the looks at metrics. A bound on what an examination may cost, whatever the engine answers."""
MAX_BODY_BYTES = 4 << 20
"""Model lists and metrics of large engines are some 100 KiB."""
MAX_EVENTS = 4096
"""Four times the longest answer that is asked for."""
MAX_LINE_BYTES = 1 << 20
SHOWN_CHARS = 120
"""Of an engine's own words: a row of a table."""

Clock = Callable[[], float]


class OutOfBudget(Exception):
    """The examination has used its time or its requests; the text says which."""


class Got(NamedTuple):
    """A whole answer to a GET; status 0 and the reason as error where there was none."""

    status: int
    body: bytes
    server: str
    error: str


class Piece(NamedTuple):
    """One event's text, the ids of its tokens where the engine gives them, and when it came."""

    text: str
    ids: tuple[int, ...]
    at_s: float


@dataclass(slots=True)
class Reply:
    """One answer as it came."""

    status: int = 0
    error: str = ""
    """Why there is none, or no more: the engine's own words or the network's."""
    content_type: str = ""
    pieces: list[Piece] = field(default_factory=list)
    events: int = 0
    usages: int = 0
    completion_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()
    finish: str = ""
    reasons: bool = False
    is_ended: bool = False

    @property
    def is_good(self) -> bool:
        """It came to its end without an error."""
        return self.status == 200 and not self.error

    @property
    def is_refused(self) -> bool:
        """The engine understood and said no; anything else may be chance."""
        return self.status in (400, 404, 405, 415, 422, 501)

    @property
    def texts(self) -> list[str]:
        return [piece.text for piece in self.pieces]


class Asker:
    """The requests of one examination."""

    def __init__(self, engine: EngineSettings, clock: Clock = time.monotonic, limit_s: float = REQUEST_LIMIT_S) -> None:
        self._engine = engine
        self._clock = clock
        self._limit_s = limit_s
        self._end_s = clock() + WHOLE_LIMIT_S
        self.sent = 0

    def __repr__(self) -> str:
        return f"Asker({self._engine.url!r}, sent={self.sent})"

    def get(self, path: str) -> Got:
        """A whole answer.

        Raises:
            OutOfBudget: no more may be asked.
        """
        try:
            with self._sent("GET", path, None) as response:
                return Got(response.status, response.read(MAX_BODY_BYTES), response.headers.get("Server", ""), "")
        except (OSError, http.client.HTTPException) as error:
            return Got(0, b"", "", reason(error))

    def ask(
        self, path: str, body: Mapping[str, Any], leave_after: int = 0, before_leaving: Callable[[], None] | None = None
    ) -> Reply:
        """A generation, read to its end, or left by closing its connection after some pieces of text.

        Raises:
            OutOfBudget: no more may be asked.
        """
        reply = Reply()
        try:
            with self._sent("POST", path, body) as response:
                reply.status = response.status
                reply.content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                self._read(response, reply, leave_after)
                if leave_after and len(reply.pieces) >= leave_after and before_leaving:
                    before_leaving()
        except (OSError, http.client.HTTPException) as error:
            reply.error = reason(error)
        return reply

    def _read(self, response: http.client.HTTPResponse, reply: Reply, leave_after: int) -> None:
        """Note event after event, to the end or to the place where it is left."""
        if response.status != 200 or reply.content_type != "text/event-stream":
            note_whole(reply, response.read(MAX_BODY_BYTES), self._clock())
            return
        for block in read_blocks(_bounded(response)):
            if block.data is not None:
                note_event(reply, block.data, self._clock())
            if reply.is_ended or reply.error or (leave_after and len(reply.pieces) >= leave_after):
                return

    @contextmanager
    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """One request, ended by closing its connection on every path, at the latest when its time is over."""
        limit_s = min(self._limit_s, self._end_s - self._clock())
        if limit_s <= 0:
            raise OutOfBudget(f"the {WHOLE_LIMIT_S:.0f} s for the whole examination were over")
        if self.sent >= MAX_REQUESTS:
            raise OutOfBudget(f"the {MAX_REQUESTS} requests for the whole examination were used")
        self.sent += 1
        connection, target = connect(self._engine, path, limit_s)
        cut = threading.Event()
        timer = threading.Timer(limit_s, _cut, (connection.sock, cut))
        timer.daemon = True
        timer.start()
        try:
            encoded = None if body is None else json.dumps(body).encode()
            connection.request(method, target, body=encoded, headers=_headers(self._engine.api_key, encoded))
            with connection.getresponse() as response:
                yield response
            if cut.is_set():  # what was cut looks like an end to whoever reads
                raise TimeoutError
        except (OSError, http.client.HTTPException):
            if cut.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            connection.close()


def connect(engine: EngineSettings, path: str, limit_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection that stands, and the request's target on it."""
    parts = urlsplit(engine.url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=engine.ca_file or None)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=limit_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=limit_s)
    try:
        connection.connect()
    except OSError:
        connection.close()
        raise
    return connection, parts.path + path


def _headers(key: str, body: bytes | None) -> dict[str, str]:
    headers = {"Accept": "*/*" if body is None else "text/event-stream", "Connection": "close"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    return headers


def _cut(connection: socket.socket, cut: threading.Event) -> None:
    """Wake whoever reads. A socket's own timeout is no bound: an engine that sends a byte now and then never meets it."""
    cut.set()
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _bounded(response: http.client.HTTPResponse) -> Iterator[bytes]:
    for _ in range(4 * MAX_EVENTS):
        line = response.readline(MAX_LINE_BYTES)
        if not line:
            return
        yield line


def reason(error: Exception) -> str:
    """A network's failure in a few words."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


# Reading what came.


def note_event(reply: Reply, data: str, now_s: float) -> None:
    """One event of a stream."""
    if data == "[DONE]":
        reply.is_ended = True
        return
    reply.events += 1
    try:
        note(reply, json.loads(data), now_s)
    except (ValueError, RecursionError):
        reply.error = "an event is no JSON"


def note_whole(reply: Reply, body: bytes, now_s: float) -> None:
    """An answer in one piece, or an error."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if reply.status == 200 and isinstance(content, dict):
        note(reply, content, now_s)
        return
    words = _words(content) or " ".join(body[: 4 * SHOWN_CHARS].decode("utf-8", "replace").split())
    shown = words if len(words) <= SHOWN_CHARS else words[:SHOWN_CHARS] + "…"
    reply.error = f"{reply.status} {shown}".strip()


def _words(content: object) -> str:
    """What an error object says, in any of the shapes that engines have for it."""
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and content.get(name):
            content = content[name]
    return " ".join(str(content).split()) if content is not None else ""


def note(reply: Reply, content: object, now_s: float) -> None:
    """One JSON object: of a stream or whole, of chats or completions."""
    if not isinstance(content, dict):
        return
    if content.get("error"):
        reply.error = _words(content)[:SHOWN_CHARS]
    usage = content.get("usage")
    if isinstance(usage, dict):
        reply.usages += 1
        reply.completion_tokens = _count(usage.get("completion_tokens")) or reply.completion_tokens
    choices = content.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    reply.prompt_ids = reply.prompt_ids or _ids(content, "prompt_token_ids") or _ids(choice, "prompt_token_ids")
    reply.finish = str(choice.get("finish_reason") or reply.finish)
    said = choice.get("delta") or choice.get("message") or choice
    if not isinstance(said, dict):
        return
    reply.reasons = reply.reasons or any(bool(said.get(name)) for name in ("reasoning_content", "reasoning"))
    text = said.get("content", said.get("text"))
    ids = _ids(choice, "token_ids") or _ids(content, "token_ids")
    if (isinstance(text, str) and text) or ids:
        reply.pieces.append(Piece(text if isinstance(text, str) else "", ids, now_s))


def _ids(where: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = where.get(name)
    return tuple(found) if isinstance(found, list) and all(type(each) is int for each in found) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
