"""What the demonstration does on the wire, and how it proves its claim.

What lives here: a plain HTTP client for one stream (ask, cut, resume, replay) and the comparison of what it received.
What must not: the terminal (story.py), and any of Longwire's own code: only the standard library, so that what it proves rests
on nothing that it is to prove.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from urllib.parse import urlsplit

SILENCE_LIMIT_S = 120.0
"""Longest wait for the next byte; far more than a small model on a busy machine takes."""

MAX_LINE_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
DONE = b"[DONE]"


class WireError(Exception):
    """The gateway's answer was not what the demonstration needs; the message says what it was."""


@dataclass(frozen=True, slots=True)
class Block:
    """One server-sent event as it came: its id line (empty on the OpenAI route) and its data."""

    id: str
    data: bytes

    @property
    def text(self) -> str:
        """The piece of the answer that it carries; empty for a role, a finish, a usage or the end marker."""
        if self.data == DONE:
            return ""
        choices = json.loads(self.data).get("choices") or [{}]
        return choices[0].get("delta", {}).get("content") or ""

    @property
    def error(self) -> str:
        """The message of an in-band error, or nothing."""
        if self.data == DONE:
            return ""
        error = json.loads(self.data).get("error")
        return f"{error.get('message')} ({error.get('code')})" if error else ""


class Reading:
    """One connection on which a stream is read."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        assert connection.sock is not None
        self._connection = connection
        self._response = response
        self._socket = connection.sock
        self.stream_id = response.headers.get("X-Stream-Id", "")

    def __iter__(self) -> Iterator[Block]:
        """The blocks as they arrive, until the end of the response."""
        event_id, data = "", []
        while line := self._response.readline(MAX_LINE_BYTES):
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"id:"):
                event_id = line[3:].strip().decode("ascii")
            elif not line and data:
                yield Block(event_id, b"\n".join(data))
                event_id, data = "", []

    @property
    def port(self) -> int:
        """Our own port: another connection would have another."""
        return int(self._socket.getsockname()[1])

    def cut(self) -> None:
        """Close with a TCP reset, as a network that fails in mid-answer does; what is still on its way is lost."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class StreamClient:
    """The four requests of the demonstration, to one gateway."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self._host, self._port = place_of(url)
        self._identity = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        try:
            connection, response = self._send("GET", "/readyz")
        except OSError:
            return False
        connection.close()
        return response.status == 200

    def first_model(self) -> str:
        models = self._json("/v1/models")["data"]
        if not models:
            raise WireError("The gateway lists no model: is an engine up? Its /readyz says why not.")
        return str(models[0]["id"])

    def ask(self, body: dict[str, Any]) -> Reading:
        """Start a generation that outlives its connection by 30 s."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Longwire-On-Disconnect": "grace=30",
        }
        return self._read("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)

    def resume(self, stream_id: str, cursor: str) -> Reading:
        """Read on behind the cursor."""
        return self._read("GET", f"/v1/streams/{stream_id}", None, {"Last-Event-ID": cursor})

    def replay(self, stream_id: str) -> list[Block]:
        """Everything from the first event on."""
        with closing(self._read("GET", f"/v1/streams/{stream_id}", None, {})) as reading:
            return list(reading)

    def state(self, stream_id: str) -> dict[str, Any]:
        state: dict[str, Any] = self._json(f"/v1/streams/{stream_id}")
        return state

    def shards(self) -> list[dict[str, Any]]:
        """The processes that serve, where the address is that of an admin port."""
        answer: list[dict[str, Any]] = self._json("/v1/shards")
        return answer

    def _read(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reading:
        connection, response = self._send(method, path, body, {"Accept": "text/event-stream", **headers})
        kind = response.headers.get_content_type()
        if response.status != 200 or kind != "text/event-stream":
            content = response.read(MAX_ERROR_BYTES)
            response.close()
            connection.close()
            raise WireError(refusal(method, path, response.status, content))
        return Reading(connection, response)

    def _json(self, path: str) -> Any:
        connection, response = self._send("GET", path, None, {"Accept": "application/json"})
        content = response.read()
        connection.close()
        if response.status != 200:
            raise WireError(refusal("GET", path, response.status, content))
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise WireError(f"GET {path} gave no JSON; is this a Longwire gateway?") from None

    def _send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=SILENCE_LIMIT_S)
        try:
            connection.request(method, path, body, {**self._identity, **(headers or {})})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise


def place_of(url: str) -> tuple[str, int]:
    """Host and port of a plain http:// address.

    Raises:
        WireError: it is none, or one that nobody could connect to.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 80
        (parts.hostname or "").encode("idna")  # as the resolver will, which raises no OSError where it cannot
    except ValueError:
        raise WireError(f"The demonstration cannot connect to {url}: its host or port is none.") from None
    if parts.scheme != "http" or not parts.hostname:
        raise WireError(f"The demonstration needs a plain http:// address, not {url}.")
    return parts.hostname, port


def refusal(method: str, path: str, status: int, content: bytes) -> str:
    """An answer that is not what was asked for, in a sentence: the gateway's own words, or what can be told without them."""
    try:
        words = str(json.loads(content)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        words = f"{method} {path} gave something else than the demonstration needs; is this a Longwire gateway?"
    advice = " Give its key in LONGWIRE_API_KEY." if status == 401 else ""
    return f"The gateway answered {status}: {words}{advice}"


# The proof.


def digest(blocks: Sequence[Block]) -> str:
    """SHA-256 of the data of all blocks, in order and with their ends, so that no two sequences look alike by joining."""
    total = hashlib.sha256()
    for block in blocks:
        total.update(b"data: " + block.data + b"\n\n")
    return total.hexdigest()


def seq_of(block: Block) -> int:
    """The number in its id, which reads ``<epoch>-<seq>``; -1 where there is none."""
    number = block.id.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def differences(before: Sequence[Block], after: Sequence[Block], replay: Sequence[Block]) -> list[str]:
    """What is wrong with a stream read in two parts, held against its replay; empty when nothing is."""
    found = []
    numbers = [seq_of(block) for block in after]
    expected = list(range(len(before), len(before) + len(after)))
    for number, right in zip(numbers, expected, strict=True):
        if number != right:
            found.append(f"after the cut, event {right} should have come, and {number} came")
            break
    received = [*before, *after]
    if len(received) != len(replay):
        found.append(f"{len(received)} events were received, and the replay has {len(replay)}")
    for place, (mine, theirs) in enumerate(zip_longest(received, replay)):
        if mine is None or theirs is None or mine.data != theirs.data:
            found.append(f"event {place} was received as {_shown(mine)}, and replayed as {_shown(theirs)}")
            break
    if not replay or replay[-1].data != DONE:
        found.append("the stream did not end with its end marker")
    found += [f"the stream reports an error: {block.error}" for block in replay if block.error]
    return found


def _shown(block: Block | None) -> str:
    return repr(block.data[:200]) if block else "nothing"
