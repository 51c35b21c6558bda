"""OpenAI's chat and text completions: reading requests, and words for bad endings.

What lives here: what the gateway must know of a request, and the one thing that it adds to it (usage in the stream).
What must not: engines, sockets, the log. Events need no code here: the engine speaks the same dialect, and identity is
the encoding.
"""

from __future__ import annotations

import json
from types import NoneType
from typing import Any

from ..words.errors import RemoteError
from ..words.reasons import CloseReason
from .base import (
    MAX_ANSWER_TOKENS,
    Ask,
    RelayWords,
    bound_of_answer,
    encode_json,
    error_object,
    estimate_tokens,
    read_strict_json,
)

MAX_CHOICES = 128
"""More answers to one prompt than any SDK's user wants; an unbounded n has taken engines down (vLLM CVE-2026-34756)."""

MAX_BEGINNING_MESSAGES = 4
MAX_BEGINNING_CHARS = 1024
"""Of each message before the first of the user, and of that: enough to tell conversations apart, and cheap for any length."""

_WITH_USAGE = b',"stream_options":{"include_usage":true}}'
"""In place of the last brace of a request that has no such options: ``stream`` is in it, so there is something before."""

DONE_BLOCK = b"data: [DONE]\n\n"


def read_request(body: bytes) -> Ask:
    """Read a ``/v1/chat/completions`` or ``/v1/completions`` request.

    Fields that the gateway does not know are passed on as they are. Where a stream is asked for without usage, usage is added.

    Raises:
        BadJson: the body is no strict JSON object.
        RemoteError: a field that the gateway must understand has the wrong type.
    """
    fields = read_strict_json(body)
    model = fields.get("model", "")
    if not isinstance(model, str):
        raise RemoteError("model must be a string.", param="model")
    wants_stream = fields.get("stream", False)
    if not isinstance(
        wants_stream, (bool, NoneType)
    ):  # 1 is no bool: one engine takes it for true, another for nothing
        raise RemoteError("stream must be true or false.", param="stream")
    choices = fields.get("n")
    if choices is None:
        choices = 1
    if not isinstance(choices, int) or isinstance(choices, bool) or not 1 <= choices <= MAX_CHOICES:
        raise RemoteError(f"n must be a whole number from 1 to {MAX_CHOICES}.", param="n")
    _check_bounds(fields)
    plain = encode_json(fields)
    finishes = _finishes(fields, choices)
    tokens = (estimate_tokens(plain), min(bound_of_answer(fields) * finishes, MAX_ANSWER_TOKENS), beginning_of(fields))
    if not wants_stream:
        return Ask(model, False, choices, plain, None, False, *tokens)
    if _asks_for_usage(fields):
        return Ask(model, True, finishes, plain, None, False, *tokens)
    if "stream_options" in fields:
        options = fields["stream_options"] or {}
        with_usage = encode_json({**fields, "stream_options": {**options, "include_usage": True}})
    else:  # the same, and a long prompt is not encoded twice
        with_usage = plain[:-1] + _WITH_USAGE
    return Ask(model, True, finishes, with_usage, plain, True, *tokens)


def beginning_of(fields: dict[str, Any]) -> bytes:
    """What all turns of a conversation have in common: the text up to the first thing that its user said. Of long texts the
    start and the length are enough."""
    told = []
    messages = fields.get("messages", fields.get("prompt"))
    for message in messages[:MAX_BEGINNING_MESSAGES] if isinstance(messages, list) else [messages]:
        content = message.get("content") if isinstance(message, dict) else message
        told.append(f"{content[:MAX_BEGINNING_CHARS]}{len(content)}" if isinstance(content, str) else "")
        if isinstance(message, dict) and message.get("role") == "user":
            break
    return "\0".join(told).encode("utf-8", "replace") if any(told) else b""


def _check_bounds(fields: dict[str, Any]) -> None:
    """Some engines read text as a number here: they would generate what we have not counted."""
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        if not isinstance(value, (int, float, NoneType)) or isinstance(value, bool):
            raise RemoteError(f"{name} must be a whole number.", param=name)


def _asks_for_usage(fields: dict[str, Any]) -> bool:
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise RemoteError("stream_options must be an object.", param="stream_options")
    return bool(options and options.get("include_usage"))


def _finishes(fields: dict[str, Any], choices: int) -> int:
    """How many finishes make the answer whole: a list of prompts is answered once each (times n)."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return choices * len(prompt)
    return choices


class OpenAiWords(RelayWords):
    """Words for OpenAI's streams: the error object as an event, then the end marker."""

    def error_blocks(self, reason: CloseReason, message: str, facts: dict[str, object]) -> list[bytes]:
        event = json.dumps({"error": error_object(reason, message, facts)}, separators=(",", ":")).encode()
        return [b"data: " + event + b"\n\n", DONE_BLOCK]
