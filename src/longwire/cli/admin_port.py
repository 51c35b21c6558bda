"""The operator's side of a gateway: its admin port, from the command line.

What lives here: requests to the admin port with the standard library, and following a stream over cut connections.
What must not: printing (streams.py), or any import of the gateway's own rooms besides words.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from longwire.words.addresses import split_address, unknown_host

from .terminal import Failure

DEFAULT_URL = "http://127.0.0.1:8081"
TIMEOUT_S = 15.0
"""An admin port that says nothing for so long is stuck; a followed stream that is silent for so long is asked for again."""

MAX_FAILURES = 8
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
"""Eight tries with pauses of 0.2 s doubling to 5 s: about 20 s, the time of a restart. Each event starts the count anew."""

MAX_BODY_BYTES = 64 << 20
"""Of a JSON answer: a list of 20,000 streams has about 10 MB."""


class PublicPort(Failure):
    """The address is that of the port for clients."""


class AdminPort:
    """One gateway's admin API. A connection is made for each request: this is a tool for people."""

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = split_address(url)
            is_good = parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            is_good = False
        if not is_good:
            raise Failure(f"{url!r} is no address of an admin port: it looks like {DEFAULT_URL}.")
        assert parts.hostname is not None
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._timeout_s = timeout_s
        self._secure = parts.scheme == "https"
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")

    def __repr__(self) -> str:
        return f"AdminPort({self.url!r})"

    def fetch(self, path: str, method: str = "GET") -> Any:
        """A JSON answer; anything else becomes a Failure in the gateway's own words."""
        try:
            with self._send(method, path, "application/json") as response:
                body = response.read(MAX_BODY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from None
        return self._parse_answer(response.status, body)

    def open_events(self, stream_id: str, after: str) -> http.client.HTTPResponse | None:
        """The stream's blocks after a cursor; None where there are no more and will be none.

        Raises:
            OSError, http.client.HTTPException: no connection, or not for now; the same call may be made again.
            Failure: the gateway says no.
        """
        query = f"?after={quote(after)}" if after else ""
        try:
            response = self._send("GET", f"/v1/streams/{stream_id}{query}", "text/event-stream")
        except TimeoutError:  # only silence within a stream is no failure
            raise http.client.HTTPException("no answer") from None
        if response.status == 200:
            return response
        with response:
            if response.status in (429, 500, 502, 503, 504):
                raise http.client.HTTPException(f"HTTP {response.status}")
            if response.status != 204:
                self._parse_answer(response.status, response.read(MAX_BODY_BYTES))
            return None

    def unreachable(self, error: Exception) -> Failure:
        if isinstance(error, ConnectionRefusedError):
            return Failure(
                f"No gateway listens at {self.url}: start one with longwire serve, or name its admin port with --url."
            )
        if isinstance(error, socket.gaierror):
            return Failure(f"{self.url} cannot be asked: {unknown_host(self._host, error.strerror or 'no address')}")
        return Failure(f"The admin port at {self.url} does not answer as it should ({error or type(error).__name__}).")

    def _parse_answer(self, status: int, body: bytes) -> Any:
        try:
            return _parse_answer(status, body, self.url)
        except Failure:
            # Whoever has just read how clients reach the gateway names that port, and is told by it what helps no operator.
            if not self._is_public():
                raise
        raise PublicPort(
            f"{self.url} is the gateway's public port: name its admin port with --url ({DEFAULT_URL} unless it was set)."
        )

    def _is_public(self) -> bool:
        """Both ports have a /readyz that needs no key, and only the public one says ``ready`` there."""
        try:
            with self._send("GET", "/readyz", "application/json") as response:
                answer = json.loads(response.read(MAX_BODY_BYTES))
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and "ready" in answer

    def _send(self, method: str, path: str, accept: str) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._path + path, headers={"Accept": accept, "Connection": "close"})
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise


def _parse_answer(status: int, body: bytes, url: str) -> Any:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise Failure(f"{url} answered {status} without JSON: is this the admin port of a Longwire gateway?") from None
    if status < 400:
        return answer
    error = answer.get("error") if isinstance(answer, dict) else None
    raise Failure(
        str(error["message"]) if isinstance(error, dict) and "message" in error else f"{url} answered {status}."
    )


# Following a stream.


@dataclass(slots=True)
class Block:
    """One SSE block as it came: its lines, and what of it matters here."""

    lines: list[str] = field(default_factory=list)
    id: str | None = None
    data: str | None = None
    retry_ms: int | None = None

    def add(self, line: str) -> None:
        self.lines.append(line)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self.id = value
        elif name == "data":
            self.data = value if self.data is None else f"{self.data}\n{value}"
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n\n"


def read_blocks(lines: Iterator[bytes]) -> Iterator[Block]:
    """The whole blocks of a response; one that is cut off is not given, because it will come again."""
    block = Block()
    for raw in lines:
        if not raw.endswith(b"\n"):
            return
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line:
            block.add(line)
        elif block.lines:
            yield block
            block = Block()


class Lines(Protocol):
    """The lines of one response, as http.client gives them."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Interrupted(Exception):
    """The stream could not be followed any further; ``after`` is where to go on."""

    def __init__(self, after: str, cause: Exception | None) -> None:
        super().__init__(str(cause or "the connection closes without an event"))
        self.after = after
        self.cause = cause


@dataclass(slots=True)
class _Place:
    """Where a reader is in its stream, and how it has fared lately."""

    after: str
    reached: bool = False
    ended: bool = False
    failures: int = 0
    wait_s: float = 0.0

    def note(self, block: Block) -> None:
        if block.id is not None:
            self.after, self.failures = block.id, 0
        if block.retry_ms is not None:
            self.wait_s = block.retry_ms / 1000
        self.ended = block.data == "[DONE]"

    def pause_s(self) -> float:
        return min(MAX_PAUSE_S, max(self.wait_s, FIRST_PAUSE_S * 2.0 ** (self.failures - 1)))


def follow(
    open_events: Callable[[str], Lines | None], after: str, pause: Callable[[float], None] = time.sleep
) -> Iterator[Block]:
    """Every block after a cursor to the end of the stream, over as many connections as it takes.

    The end is the end marker or the gateway's 204; a connection that ends without either is resumed at the last id seen.

    Raises:
        Interrupted: MAX_FAILURES connections in a row brought nothing, or not even the first could be made.
    """
    place = _Place(after)
    while True:
        cause: Exception | None = None
        try:
            yield from _follow_once(open_events, place)
        except TimeoutError:
            continue  # silence is no failure: the engine may still read a long prompt
        except (OSError, http.client.HTTPException) as error:
            cause = error
        if place.ended:
            return
        place.failures += 1
        if place.failures >= MAX_FAILURES or not place.reached:
            raise Interrupted(place.after, cause)
        pause(place.pause_s())


def _follow_once(open_events: Callable[[str], Lines | None], place: _Place) -> Iterator[Block]:
    """The blocks of one connection."""
    lines = open_events(place.after)
    place.reached = True
    if lines is None:
        place.ended = True
        return
    try:
        for block in read_blocks(iter(lines)):
            place.note(block)
            yield block
            if place.ended:
                return
    finally:
        lines.close()
