"""OpenAI-compatible engines: what their events say.

What lives here: the watch over chat and completion events, and the one for anything else that is relayed.
What must not: sockets, framing, what clients get (dialects).

Per event nothing is parsed: an ordinary delta is recognised by where ``"finish_reason":null`` stands in its bytes. A quote
inside a JSON string is always escaped, so no model output can imitate that key. All else (the first deltas, a finish, usage, an
error, the end marker, engines that leave the key out) is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set as AbstractSet
from typing import Any, Final

from ..wire.sse import parse_event
from ..words.reasons import CloseReason
from .base import Verdict

_FINISH_KEY = b'"finish_reason":'
_NULLS = (b"null", b" null")
_KEY_BYTES = len(_FINISH_KEY)
PLAIN_MARKS = (b'"finish_reason":null', b'"finish_reason": null')
DONE = b"[DONE]"
"""The data of the end marker."""
_ERROR_START = re.compile(rb'\s*\{\s*"(?:error"\s*:\s*["{]|object"\s*:\s*"error")')
_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")
MAX_USAGE_FIELDS = 32
MAX_USAGE_NAME_CHARS = 64
_SUMS = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
"""Of usage: what is added up, and so must be a number wherever it stands."""
MAX_COUNT = 1 << 53
"""Beyond it a JSON reader may not know the number any more (RFC 8259 section 6)."""
MAX_ERROR_TEXT_CHARS = 2000
"""An engine's words are passed on, within reason."""
_PROGRESS = "prompt_progress"
"""llama.cpp says how much of the prompt it has read, to clients that ask for it."""
NO_WORDS = "The engine reported an error without words."


_NOTHING: Final[frozenset[int]] = frozenset()
"""One for all: an empty set of its own would be 216 bytes of each answer."""


class ChatWatch:
    """Watches ``/v1/chat/completions`` and ``/v1/completions`` streams.

    ``choices`` is how many finishes make the answer whole; ``hides_usage`` is set where the gateway asked for usage and the
    client did not.
    """

    __slots__ = (
        "_done", "_finished", "_has_opened", "_mark", "_saw_token", "choices", "error_message", "error_status", "hides_usage",
        "strips_fields", "tokenless", "usage",
    )  # fmt: skip

    def __init__(self, choices: int, hides_usage: bool) -> None:
        self.choices = choices
        self.hides_usage = hides_usage
        self.strips_fields = True
        self.usage: dict[str, Any] | None = None
        self.tokenless = 0
        self.error_message = ""
        self.error_status = 0
        self._finished: AbstractSet[int] = _NOTHING
        self._mark: bytes | None = None
        self._saw_token = False
        self._has_opened = False
        self._done = False

    def is_plain(self, frame: bytes) -> bool:
        if not self._saw_token:
            return False
        if self.choices == 1:
            # The very test that the short way makes, so that no event ends differently by who happens to read it (law 2).
            mark = next((mark for mark in PLAIN_MARKS if mark in frame), None)
            self._mark = mark or self._mark
            return mark is not None
        at = frame.find(_FINISH_KEY)
        is_null = at >= 0 and frame.startswith(_NULLS, at + _KEY_BYTES)
        return is_null and frame.find(_FINISH_KEY, at + _KEY_BYTES) < 0

    def saw_token(self) -> bool:
        return self._saw_token

    def has_opened(self) -> bool:
        return self._has_opened

    @property
    def plain_mark(self) -> bytes | None:
        return self._mark if self.choices == 1 else None

    def is_fresh(self) -> bool:
        return self._saw_token and not self._finished

    def prime(self) -> None:
        self._saw_token = True

    def read(self, block: bytes) -> Verdict:
        fields = parse_event(block)
        data = (fields.data or b"").strip()
        if data == DONE:
            self._done = True
            self.tokenless += 1
            return Verdict.END
        event = parse_object(data)
        if event is None:
            # A ping that is no JSON object (``data: ""``) would crash clients and says nothing; half an object does.
            return Verdict.BROKEN if data.startswith(b"{") else Verdict.HIDE
        if fields.event == b"error" or is_error(event):
            self.error_message, self.error_status = describe_error(event)
            return Verdict.ERROR
        usage = read_usage(event.get("usage"))
        if usage is not None:
            self.usage = usage
        choices = event.get("choices")
        if choices == [] and self.hides_usage and isinstance(usage, dict):
            return Verdict.HIDE  # Azure's first frame has empty choices too, but no usage
        has_token = False
        for choice in choices if isinstance(choices, list) else ():
            has_token |= self._read_choice(choice)
        self.tokenless += not has_token
        self._saw_token |= has_token
        self._has_opened |= has_token or _PROGRESS in event
        return Verdict.PASS

    def is_whole(self, block: bytes) -> bool:
        return _is_whole(block)

    def is_whole_body(self, body: bytes) -> bool:
        return parse_object(body) is not None

    def begins_error(self, start: bytes) -> bool:
        return _ERROR_START.match(start) is not None

    def reads_error(self, body: bytes) -> bool:
        answer = parse_object(body)
        if answer is None or not is_error(answer):
            return False
        self.error_message, self.error_status = describe_error(answer)
        return True

    def is_finished(self) -> bool:
        return len(self._finished) >= self.choices

    def outcome(self, ended_cleanly: bool) -> tuple[CloseReason, bool]:
        if self.is_finished():
            return CloseReason.COMPLETED, not self._done
        return (CloseReason.UPSTREAM_INCOMPLETE if ended_cleanly else CloseReason.UPSTREAM_RESET), False

    def _read_choice(self, choice: object) -> bool:
        """Note a finish; say whether there is a token."""
        if not isinstance(choice, dict):
            return False
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else choice
        if choice.get("finish_reason"):  # some servers send "" where others send null
            index = choice.get("index", 0)
            self._note_finish(index if isinstance(index, int) else 0)
        return bool(choice.get("text")) or any(fields.get(name) for name in _TOKEN_FIELDS)

    def _note_finish(self, index: int) -> None:
        """No more of them than there are choices: an engine may name any number, and each would be kept."""
        if not self._finished:
            self._finished = {index}
        elif len(self._finished) < self.choices and isinstance(self._finished, set):
            self._finished.add(index)


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

    def has_opened(self) -> bool:
        return True

    @property
    def plain_mark(self) -> bytes | None:
        return b""

    def is_fresh(self) -> bool:
        return self._saw

    def prime(self) -> None:
        self._saw = True

    def read(self, block: bytes) -> Verdict:
        self._saw = True
        return Verdict.PASS

    def is_whole(self, block: bytes) -> bool:
        return _is_whole(block)

    def is_whole_body(self, body: bytes) -> bool:
        return True

    def begins_error(self, start: bytes) -> bool:
        return False

    def reads_error(self, body: bytes) -> bool:
        return False

    def is_finished(self) -> bool:
        return False

    def outcome(self, ended_cleanly: bool) -> tuple[CloseReason, bool]:
        return (CloseReason.COMPLETED if ended_cleanly else CloseReason.UPSTREAM_RESET), False


def parse_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object, or None: what an engine sends need not be JSON, and need not be small or shallow."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_error(event: dict[str, Any]) -> bool:
    """Whether a JSON object is an engine's error: OpenAI's ``{"error": …}``, vLLM's ``{"object": "error", …}``.

    Beside choices it counts too (OpenRouter ends a broken stream so), but an empty or null ``error`` is none.
    """
    return bool(event.get("error")) or (event.get("object") == "error" and "choices" not in event)


def describe_error(event: dict[str, Any]) -> tuple[str, int]:
    """``(message, status)`` of an engine's error object; status 0 where it names none."""
    error = event.get("error") or event
    if isinstance(error, str):
        return error[:MAX_ERROR_TEXT_CHARS], 0
    if not isinstance(error, dict):
        return NO_WORDS, 0
    message = error.get("message") or error.get("detail") or error.get("code") or NO_WORDS
    code = error.get("code", error.get("status"))
    status = code if isinstance(code, int) and 400 <= code <= 599 else 0
    return str(message)[:MAX_ERROR_TEXT_CHARS], status


def words_of(body: bytes) -> str:
    """What an error body says, in one line: the message of its error object, or its text."""
    answer = parse_object(body)
    if answer is not None and (is_error(answer) or "message" in answer or "detail" in answer):
        return describe_error(answer)[0]
    return " ".join(body.decode("utf-8", "replace").split())[:MAX_ERROR_TEXT_CHARS] or "no words"


def read_usage(told: object) -> dict[str, Any] | None:
    """An engine's ``usage`` as far as it is one: counts by name, and named groups of counts.

    It is kept for the retention time and shown as JSON, so nothing else gets in: no text, no NaN, no depth, no bulk.
    """
    if not isinstance(told, dict):
        return None
    usage: dict[str, Any] = _counts(told)
    for name, group in list(told.items())[:MAX_USAGE_FIELDS]:
        if isinstance(group, dict) and len(name) <= MAX_USAGE_NAME_CHARS and name not in _SUMS:
            usage[name] = _counts(group)
    return usage


def _counts(told: dict[str, Any]) -> dict[str, int]:
    return {
        name: count
        for name, count in list(told.items())[:MAX_USAGE_FIELDS]
        if isinstance(count, int)
        and not isinstance(count, bool)
        and 0 <= count < MAX_COUNT
        and len(name) <= MAX_USAGE_NAME_CHARS
    }


def usage_of_body(body: bytes) -> dict[str, Any] | None:
    """The ``usage`` object of a whole JSON answer, if it has one."""
    answer = parse_object(body)
    return read_usage(answer.get("usage")) if answer else None


def usage_of_event(block: bytes) -> dict[str, Any] | None:
    """The ``usage`` object that an event carries, at its top or in the response or message that it tells of."""
    if b'"usage"' not in block:
        return None
    event = parse_object(parse_event(block).data or b"") or {}
    for holder in (event, event.get("response"), event.get("message")):
        usage = read_usage(holder.get("usage")) if isinstance(holder, dict) else None
        if usage is not None:
            return usage
    return None


def most_usage(told: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The latest of several ``usage`` objects of one answer: counts only grow. Of equal ones, the first."""
    return max((usage for usage in told if usage), key=completion_tokens, default=None)


def completion_tokens(usage: dict[str, Any]) -> int:
    """How many an answer has by its ``usage``, of either API; 0 where that does not say."""
    count = usage.get("completion_tokens", usage.get("output_tokens"))
    return count if isinstance(count, int) else 0


def _is_whole(block: bytes) -> bool:
    """Whether an event's data is the end marker or one JSON object to its last brace."""
    data = (parse_event(block).data or b"").strip()
    return data == DONE or parse_object(data) is not None
