"""A gateway without a socket: what its routes answer, connection by connection, as a script says.

It sits under a real openai client as the transport of its HTTP library, whichever that is: openai 3 brings httpx2 and still
takes an httpx client, openai 2 brings httpx.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai

STREAM_ID = "lw_" + "ab" * 16
OPENAI_LIBRARY = "httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx"


def chat_events(words: Iterable[str]) -> list[bytes]:
    """The data of a chat answer's events, end marker included."""
    events = [
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
        }
        for word in words
    ]
    return [*(json.dumps(event).encode() for event in events), b"[DONE]"]


def text_events(words: Iterable[str]) -> list[bytes]:
    """The same for a text completion."""
    events = [
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "text": word, "logprobs": None, "finish_reason": None}],
        }
        for word in words
    ]
    return [*(json.dumps(event).encode() for event in events), b"[DONE]"]


# What one connection does.


@dataclass
class Deliver:
    """Send up to ``count`` events from the cursor on, then ``tail``, then end as ``then`` says."""

    count: int = 1_000_000
    tail: bytes = b""
    then: str = "eof"
    stream_id: str | None = STREAM_ID


@dataclass
class Lose:
    """Break before any header: after the request was taken, or because nobody listens."""

    error: str = "ReadError"


@dataclass
class Answer:
    """Answer with a status."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": {"message": "no", "type": "t", "param": null, "code": "c"}}'


@dataclass
class Defer:
    """Answer as a gateway that drains."""

    retry_ms: int = 1500


Turn = Deliver | Lose | Answer | Defer


class FakeGateway:
    """Answers each request by the next turn; when they are used up, in full."""

    def __init__(self, library: str, events: list[bytes], turns: Iterable[Turn] = ()) -> None:
        self.library: Any = importlib.import_module(library)
        self.events = events
        self.requests: list[Any] = []
        self._turns = iter(turns)

    def asked(self) -> list[str]:
        """What was asked for, in order: method, path and cursor."""
        return [
            f"{request.method} {request.url.path} {request.headers.get('last-event-id', '')}".rstrip()
            for request in self.requests
        ]

    def sync_client(self, **options: Any) -> openai.OpenAI:
        http_client = self.library.Client(transport=self.library.MockTransport(self._handle_sync))
        return openai.OpenAI(**self._options(options), http_client=http_client)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        http_client = self.library.AsyncClient(transport=self.library.MockTransport(self._handle_async))
        return openai.AsyncOpenAI(**self._options(options), http_client=http_client)

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": "http://gateway.test/v1", "api_key": "key-1", "max_retries": 0} | options

    def _handle_sync(self, request: Any) -> Any:
        status, headers, parts = self._answer(request)

        def body() -> Iterator[bytes]:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                yield part

        return self.library.Response(status, headers=headers, content=body())

    async def _handle_async(self, request: Any) -> Any:
        status, headers, parts = self._answer(request)

        async def body() -> AsyncIterator[bytes]:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                yield part

        return self.library.Response(status, headers=headers, content=body())

    def _answer(self, request: Any) -> tuple[int, dict[str, str], list[bytes | Exception]]:
        self.requests.append(request)
        if request.method == "DELETE":
            return 200, {"content-type": "application/json"}, [b"{}"]
        match next(self._turns, Deliver()):
            case Lose(error):
                raise getattr(self.library, error)("lost", request=request)
            case Answer(status, headers, body):
                return status, {"content-type": "application/json"} | headers, [body]
            case Defer(retry_ms):
                return 200, self._head(STREAM_ID), [b"retry: %d\n\n" % retry_ms]
            case Deliver() as deliver:
                return 200, self._head(deliver.stream_id), list(self._parts(request, deliver))

    def _head(self, stream_id: str | None) -> dict[str, str]:
        named = {} if stream_id is None else {"x-stream-id": stream_id, "location": f"/v1/streams/{stream_id}"}
        return {"content-type": "text/event-stream"} | named

    def _parts(self, request: Any, deliver: Deliver) -> Iterator[bytes | Exception]:
        resumes = request.method == "GET"
        first = int(request.headers.get("last-event-id", "0--1").split("-", 1)[1]) + 1
        yield b": ping\n\n"
        for seq in range(first, min(first + deliver.count, len(self.events))):
            yield (b"id: 1-%d\n" % seq if resumes else b"") + b"data: " + self.events[seq] + b"\n\n"
        yield deliver.tail
        if deliver.then == "hang":
            yield AssertionError("a client that reads on here would wait for ever")
        elif deliver.then != "eof":
            yield getattr(self.library, deliver.then)("broke", request=request)
