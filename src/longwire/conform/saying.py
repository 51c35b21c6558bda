"""The words of the engine under which a gateway is tried: events and answers of both APIs, and how they are framed.

What lives here: builders of bytes, and the steps that a script consists of. What must not: sockets (engine.py), rows.

Every text names the request that it answers (``3f2a….4`` is its fourth word), so that a byte in the wrong answer shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple

from ..wire.chunked import LAST_CHUNK, encode_chunk
from .recording import Play

Api = Literal["chat", "text"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
WORDS = 5
MODEL = "conform"
STREAM = "text/event-stream"
JSON = "application/json"
DONE = b"data: [DONE]\n\n"


class Ask(NamedTuple):
    """A request as the engine understands it."""

    nonce: str
    api: Api
    streamed: bool


Script = Callable[[Ask], Play]


# Steps of a script. Bytes are written as they are.


class Pause(NamedTuple):
    """Wait, so that what was written travels by itself."""

    s: float = 0.02


class Gate(NamedTuple):
    """Go on once the client has this word; after a bounded wait the word is noted as missed."""

    word: str


class Last(Enum):
    """How a connection ends. Without any, the engine waits for the next request on it."""

    FIN = "closes"
    RESET = "resets"
    HOLD = "says nothing more until it is left"


# Events.


def words(ask: Ask, count: int = WORDS) -> list[str]:
    """The texts of an answer's events."""
    return [f"{ask.nonce}.{number} " for number in range(count)]


def payload(ask: Ask, text: str, finish: str | None = None, **more: Any) -> bytes:
    """One event's JSON. ``more`` goes into the delta of a chat, and into the choice of a text."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if ask.api == "chat":
        choice["delta"] = ({"content": text} if text or not finish else {}) | more
    else:
        choice |= {"text": text, "logprobs": None} | more
    return dump(_envelope(ask) | {"choices": [choice]})


def dump(value: object) -> bytes:
    """JSON as engines write it: code points as they are."""
    return json.dumps(value, ensure_ascii=False).encode()


def _envelope(ask: Ask, *, whole: bool = False) -> dict[str, Any]:
    kinds = {"chat": "chat.completion" if whole else "chat.completion.chunk", "text": "text_completion"}
    name = "chatcmpl" if ask.api == "chat" else "cmpl"
    return {"id": f"{name}-{ask.nonce}", "object": kinds[ask.api], "created": 1_700_000_000, "model": MODEL}


def event(data: bytes, line_end: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    """One event of one line."""
    return prefix + data + line_end * 2


def role(ask: Ask) -> list[bytes]:
    """The event that a chat begins with."""
    return [event(payload(ask, "", role="assistant"))] if ask.api == "chat" else []


def deltas(ask: Ask, texts: Iterable[str]) -> list[bytes]:
    """An event for each text."""
    return [event(payload(ask, text)) for text in texts]


def finish(ask: Ask, reason: str = "stop") -> bytes:
    """The event that says why the answer ends."""
    return event(payload(ask, "", reason))


def stream(ask: Ask, texts: Iterable[str]) -> list[bytes]:
    """All events of a whole answer."""
    return [*role(ask), *deltas(ask, texts), finish(ask), DONE]


# Framing.


def head(
    *fields: tuple[str, str], status: str = "200 OK", kind: str = STREAM, length: int | None = None, coded: bool = False
) -> bytes:
    """An answer's head. Neither ``length`` nor ``coded``: the body ends with the connection."""
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else [])]
    lines += [f"{name}: {value}" for name, value in fields]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    elif coded:
        lines.append("Transfer-Encoding: chunked")
    else:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


CODED = head(coded=True)


def coded(pieces: Sequence[bytes], *, last: bool = True) -> list[bytes]:
    """Each piece as a chunk of HTTP of its own."""
    return [encode_chunk(piece) for piece in pieces] + ([LAST_CHUNK] if last else [])


def sized(body: bytes, *fields: tuple[str, str], status: str = "200 OK", kind: str = JSON) -> bytes:
    """A whole answer with its length."""
    return head(*fields, status=status, kind=kind, length=len(body)) + body


def whole_json(ask: Ask, text: str) -> bytes:
    """The JSON of an answer that is not streamed."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if ask.api == "chat" else {"text": text}
    usage = {"prompt_tokens": 3, "completion_tokens": WORDS, "total_tokens": 3 + WORDS}
    return dump(_envelope(ask, whole=True) | {"choices": [choice], "usage": usage})


# Whole plays.


def well(ask: Ask, count: int = WORDS) -> Play:
    """Nothing is wrong."""
    texts = words(ask, count)
    text = "".join(texts)
    if not ask.streamed:
        return Play((sized(whole_json(ask, text)),), text)
    return Play((CODED, *coded(stream(ask, texts))), text)


def said(texts: Sequence[str], *steps: object) -> Play:
    """A play whose steps were made by hand, and that is to arrive as ``texts``."""
    return Play(steps, "".join(texts))


def spaced(writes: Iterable[bytes], pause_s: float = 0.02) -> list[object]:
    """Each write by itself."""
    return [step for write in writes for step in (write, Pause(pause_s))]


def refusal(status: str, message: str, *fields: tuple[str, str]) -> Script:
    """An error instead of an answer, whatever was asked."""
    code = int(status[:3])
    body = dump({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})
    return lambda _: Play((sized(body, *fields, status=status),))
