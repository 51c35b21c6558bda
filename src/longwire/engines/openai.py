"""OpenAI-compatible engines: what their events say.

What lives here: the watch over chat and completion events, and the one for anything else that is relayed.
What must not: sockets, framing, what clients get (dialects).

Per event nothing is parsed: an ordinary delta is recognised by where ``finish_reason":null`` stands in its bytes. A quote inside a
JSON string is always escaped, so no model output can imitate that key. All else (the first deltas, a finish, usage, an error, the end
marker, engines that leave the key out) is parsed.
"""

from __future__ import annotations

import json
from typing import Any

from ..wire.sse import parse_event
from ..words.reasons import CloseReason
from .base import Verdict

_FINISH_KEY = b'finish_reason":'
_NULLS = (b"null", b" null")
_KEY_BYTES = len(_FINISH_KEY)
_DONE = b"[DONE]"
_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")
MAX_ERROR_TEXT_CHARS = 2000
"""An engine's words are passed on, within reason."""


class ChatWatch:
    """Watches ``/v1/chat/completions`` and ``/v1/completions`` streams.

    ``choices`` is how many finishes make the answer whole; ``hides_usage`` is set where the gateway asked for usage and the client did not.
    """

    __slots__ = (
        "_done", "_finished", "_saw_token", "choices", "error_message", "error_status", "hides_usage", "strips_fields",
        "tokenless", "usage",
    )  # fmt: skip

    def __init__(self, choices: int, hides_usage: bool) -> None:
        self.choices = choices
        self.hides_usage = hides_usage
        self.strips_fields = True
        self.usage: dict[str, Any] | None = None
        self.tokenless = 0
        self.error_message = ""
        self.error_status = 0
        self._finished: set[int] = set()
        self._saw_token = False
        self._done = False

    def is_plain(self, frame: bytes) -> bool:
        at = frame.find(_FINISH_KEY)
        return (
            at >= 0
            and self._saw_token
            and frame.startswith(_NULLS, at + _KEY_BYTES)
            and (self.choices == 1 or frame.find(_FINISH_KEY, at + _KEY_BYTES) < 0)
        )

    def saw_token(self) -> bool:
        return self._saw_token

    def read(self, block: bytes) -> Verdict:
        data = parse_event(block).data or b""
        if data.strip() == _DONE:
            self._done = True
            self.tokenless += 1
            return Verdict.END
        event = _parse_object(data)
        if event is None:
            return Verdict.PASS
        if "choices" not in event:
            return self._read_error(event)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = event["choices"]
        if not isinstance(choices, list):
            return Verdict.PASS
        if not choices:
            # Azure's first frame has empty choices too, but no usage.
            return Verdict.HIDE if self.hides_usage and isinstance(usage, dict) else Verdict.PASS
        saw_before, self._saw_token = self._saw_token, False
        for choice in choices:
            self._read_choice(choice)
        self.tokenless += not self._saw_token
        self._saw_token = self._saw_token or saw_before
        return Verdict.PASS

    def outcome(self, ended_cleanly: bool) -> tuple[CloseReason, bool]:
        if len(self._finished) >= self.choices:
            return CloseReason.COMPLETED, not self._done
        return (CloseReason.UPSTREAM_INCOMPLETE if ended_cleanly else CloseReason.UPSTREAM_RESET), False

    def _read_choice(self, choice: object) -> None:
        if not isinstance(choice, dict):
            return
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else choice
        if choice.get("text") or any(fields.get(name) for name in _TOKEN_FIELDS):
            self._saw_token = True
        if choice.get("finish_reason") is not None:
            index = choice.get("index", 0)
            self._finished.add(index if isinstance(index, int) else 0)

    def _read_error(self, event: dict[str, Any]) -> Verdict:
        """An error object has several shapes: OpenAI's ``{"error": …}``, vLLM's ``{"object": "error", …}``."""
        error = event.get("error")
        if error is None and event.get("object") != "error":
            return Verdict.PASS
        self.error_message, self.error_status = describe_error(event)
        return Verdict.ERROR


class RelayWatch:
    """Watches nothing: a relayed stream is whole if its HTTP body is."""

    __slots__ = ("_saw", "error_message", "error_status", "strips_fields", "tokenless", "usage")

    def __init__(self) -> None:
        self.strips_fields = False
        self.usage: dict[str, Any] | None = None
        self.tokenless = 0
        self.error_message = ""
        self.error_status = 0
        self._saw = False

    def is_plain(self, frame: bytes) -> bool:
        return self._saw

    def saw_token(self) -> bool:
        return self._saw

    def read(self, block: bytes) -> Verdict:
        self._saw = True
        return Verdict.PASS

    def outcome(self, ended_cleanly: bool) -> tuple[CloseReason, bool]:
        return (CloseReason.COMPLETED if ended_cleanly else CloseReason.UPSTREAM_RESET), False


def describe_error(event: dict[str, Any]) -> tuple[str, int]:
    """``(message, status)`` of an engine's error object; status 0 where it names none."""
    error = event.get("error", event)
    if isinstance(error, str):
        return error[:MAX_ERROR_TEXT_CHARS], 0
    if not isinstance(error, dict):
        return "The engine reported an error without words.", 0
    message = (
        error.get("message")
        or error.get("detail")
        or error.get("code")
        or "The engine reported an error without words."
    )
    code = error.get("code", error.get("status"))
    status = code if isinstance(code, int) and 400 <= code <= 599 else 0
    return str(message)[:MAX_ERROR_TEXT_CHARS], status


def usage_of_body(body: bytes) -> dict[str, Any] | None:
    """The ``usage`` object of a whole JSON answer, if it has one."""
    answer = _parse_object(body)
    usage = answer.get("usage") if answer else None
    return usage if isinstance(usage, dict) else None


def _parse_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object, or None: what an engine sends need not be JSON, and need not be small or shallow."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
