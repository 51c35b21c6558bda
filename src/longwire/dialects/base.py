"""What a dialect gives to the gateway: a request it has read, and the words for a bad ending.

What lives here: the shape of a read request, strict JSON, and the words for routes that are only relayed. What must
not: engines, sockets, the log.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ..words.errors import BadJson
from ..words.reasons import CloseReason

LARGE_BODY_BYTES = 256 * 1024
"""From here on a body is parsed in another process: below it takes less than the hand-over does (about 2 ms)."""


BYTES_PER_TOKEN = 4
"""Of English text in common vocabularies; code and other scripts have fewer. An estimate that costs nothing: the engine says at
the end what it was."""

MEDIA_TOKENS = 1024
"""Of an image or a piece of sound. By its bytes one megabyte would be a quarter of a million tokens, for which no engine would
ever have room; engines make some hundreds to some thousands of it."""

_MEDIA_MARKS = (b";base64,", b'"input_audio"')
_MEDIA = re.compile(rb'(?:;base64,|"data":")[A-Za-z0-9+/=]{4096,}')
"""What is shorter is not much more than it is counted."""

MAX_ANSWER_TOKENS = (1 << 32) - 1
"""Beyond what any counter of tokens holds; so a number with a thousand digits is no burden to those behind."""

_ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""What OpenAI's APIs have called the most that an answer may have."""


class Ask(NamedTuple):
    """A client's request, read and encoded anew. Picklable: large ones are read in another process.

    ``body`` is what the engine gets. ``plain_body`` is the same without what the gateway added (None: nothing was added).
    """

    model: str
    wants_stream: bool
    choices: int
    body: bytes
    plain_body: bytes | None
    hides_usage: bool
    prompt_tokens: int = 0
    """An estimate; 0 for a body that is no text."""
    answer_tokens: int = 0
    """The most that all its answers together may have, where the request says so; else 0."""
    beginning: bytes = b""
    """What every turn of the same conversation begins with, as far as that is short; empty for what is none."""


def read_strict_json(body: bytes) -> dict[str, Any]:
    """Parse one JSON object so strictly that no second parser can read it differently.

    Raises:
        BadJson: for anything but one object in UTF-8 without duplicate keys, NaN or Infinity, saying where.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadJson(f"The body is not UTF-8 (byte {exc.start}).") from exc
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as exc:
        raise BadJson(f"The body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}.") from exc
    except RecursionError as exc:
        raise BadJson("The body is nested too deeply.") from exc
    except _NotStrict as exc:
        raise BadJson(f"The body is not acceptable JSON: {exc}.") from exc
    except ValueError as exc:  # Python's own bound on integers, in words that speak of Python
        raise BadJson("The body is not acceptable JSON: a number has too many digits.") from exc
    if not isinstance(value, dict):
        raise BadJson("The body must be a JSON object.")
    return value


def read_relayed(body: bytes) -> Ask:
    """Read what must be known of a JSON request that is relayed as it is: its model.

    Raises:
        BadJson: the body is no strict JSON object, or its model no string.
    """
    fields = read_strict_json(body)
    model = fields.get("model", "")
    if not isinstance(model, str):
        raise BadJson("model must be a string.", param="model")
    return Ask(model, False, 1, body, None, False, estimate_tokens(body), bound_of_answer(fields))


def estimate_tokens(body: bytes) -> int:
    """About how many tokens a request's prompt has, from its length alone; encoded media count by the piece."""
    if not any(mark in body for mark in _MEDIA_MARKS):
        return -(-len(body) // BYTES_PER_TOKEN)
    pieces = [len(found[0]) for found in _MEDIA.finditer(body)]
    return -(-(len(body) - sum(pieces)) // BYTES_PER_TOKEN) + MEDIA_TOKENS * len(pieces)


def bound_of_answer(fields: dict[str, Any]) -> int:
    """The most tokens that one answer may have; 0 where the request sets no bound, or none that is a positive number."""
    given = (fields.get(name) for name in _ANSWER_BOUNDS)
    numbers = (value for value in given if isinstance(value, (int, float)) and not isinstance(value, bool))
    return int(min(max((0, *numbers)), MAX_ANSWER_TOKENS))


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_json(value: dict[str, Any]) -> bytes:
    """The canonical encoding that goes on to engines.

    Raises:
        BadJson: the value holds a lone surrogate, which no UTF-8 can carry.
    """
    try:
        return _encode(value).encode("utf-8")
    except UnicodeEncodeError as exc:
        raise BadJson("A string in the body holds half of a surrogate pair.") from exc
    except RecursionError as exc:
        raise BadJson("The body is nested too deeply.") from exc


class _NotStrict(ValueError):
    """JSON by the letter, but parsers differ on it."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _NotStrict(f"the key {twice[:64]!r} stands twice in one object")
    return value


def _no_constant(name: str) -> float:
    raise _NotStrict(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _NotStrict("a number is out of range")
    return value


def error_object(reason: CloseReason, message: str, facts: dict[str, object] | None = None) -> dict[str, object]:
    """The one error object: OpenAI's shape, the close reason as its code, and what a client needs to go on."""
    kind = (
        "invalid_request_error"
        if 400 <= reason.status < 500 and reason is CloseReason.UPSTREAM_REFUSED
        else "api_error"
    )
    return {"message": message, "type": kind, "param": None, "code": str(reason), **(facts or {})}


class RelayWords:
    """Words for routes that are relayed as they are: a typed error event, and no end marker that the API may not have."""

    def error_blocks(self, reason: CloseReason, message: str, facts: dict[str, object]) -> list[bytes]:
        event = {"type": "error", "error": error_object(reason, message, facts)}
        return [b"event: error\ndata: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"]

    def error_body(self, reason: CloseReason, message: str) -> bytes:
        return json.dumps({"error": error_object(reason, message)}).encode()
