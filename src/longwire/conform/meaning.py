"""What an answer says to a client of the OpenAI API: its text, its finish, its errors.

What lives here: the reading of events and of whole answers, of both APIs. What must not: whether that is right (checks.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .answers import Answer

DONE = b"[DONE]"
GZIP_WINDOW = 31
"""zlib's number for a gzip wrapper."""


@dataclass
class Meaning:
    """``stray``: data that is no JSON object and no end marker. ``objects``: everything that is one."""

    text: str = ""
    finish: str = ""
    dones: int = 0
    errors: list[Any] = field(default_factory=list)
    stray: list[bytes] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)
    after_done: int = 0

    def claims_success(self) -> bool:
        """A client would take it for an answer that came to its end."""
        return not self.errors and bool(self.dones or self.finish)


def read_meaning(answer: Answer) -> Meaning:
    """The meaning of an answer, streamed or whole."""
    meaning = Meaning()
    coding = answer.get("content-encoding").lower()
    if coding == "gzip":
        answer = _unpacked(answer)
    if not answer.is_stream:
        _take_object(meaning, _load(bytes(answer.body)), bytes(answer.body))
        return meaning
    for event in answer.events:
        meaning.after_done += bool(meaning.dones)
        if event.data.strip() == DONE:
            meaning.dones += 1
            continue
        value = _load(event.data)
        if event.name == "error":
            meaning.errors.append(value if value is not None else event.data.decode(errors="replace"))
        _take_object(meaning, value, event.data)
    return meaning


def _unpacked(answer: Answer) -> Answer:
    """The same answer without its gzip coding, as far as that can be undone."""
    plain = Answer()
    plain.status, plain.end, plain.fields = answer.status, answer.end, answer.fields
    try:
        plain.add_body(zlib.decompressobj(GZIP_WINDOW).decompress(bytes(answer.body)), answer.ended_s)
    except zlib.error as error:
        plain.add_body(f"no gzip: {error}".encode(), answer.ended_s)
    return plain


def _load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _take_object(meaning: Meaning, value: Any, data: bytes) -> None:
    if not isinstance(value, dict):
        if data.strip():
            meaning.stray.append(data)
        return
    meaning.objects.append(value)
    if value.get("error"):
        meaning.errors.append(value["error"])
    elif value.get("object") == "error":
        meaning.errors.append(value)
    for choice in _choices(value):
        meaning.text += _text_of(choice)
        finish = choice.get("finish_reason")
        meaning.finish = finish if isinstance(finish, str) and finish else meaning.finish


def _choices(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            yield choice


def _text_of(choice: dict[str, Any]) -> str:
    holders = [each for each in (choice.get("delta"), choice.get("message"), choice) if isinstance(each, dict)]
    texts = [holder.get(name) for holder in holders for name in ("content", "text")]
    return next((text for text in texts if isinstance(text, str)), "")
