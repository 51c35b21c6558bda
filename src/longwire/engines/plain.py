"""Events that differ in one string only.

What lives here: telling that an event is the one before it with another text, without parsing it.
What must not: what events mean (said.py, seam.py).

Nearly all events of an answer are one frame around ever new text. Where the bytes before and after the text are those of a
frame that was parsed, and what stands between is the inside of exactly one JSON string, the event says what that frame said
and nothing else but the text.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..wire.sse import parse_event
from .openai import parse_object

MAX_FRAME_BYTES = 4096
"""Beyond it, to compare the frame costs what parsing it does."""

_scan = json.JSONDecoder().raw_decode
"""One JSON value from a place on, and where it ends."""

_MARK = "\ue000text\ue000"
"""Stands for the text where a frame is looked into."""


class PlainForm(NamedTuple):
    """The bytes around the text: up to its opening quote, and from its closing one on."""

    head: bytes
    tail: bytes

    def inner(self, block: bytes) -> bytes | None:
        """What stands between, undecoded; None where the frame is another one."""
        head, tail = self
        if len(block) >= len(head) + len(tail) and block.startswith(head) and block.endswith(tail):
            return block[len(head) : len(block) - len(tail)]
        return None

    def text(self, block: bytes) -> str | None:
        """The text of an event of this form; None for any other event."""
        inner = self.inner(block)
        if inner is None:
            return None
        try:
            quoted = f'"{inner.decode()}"'
            text, end = _scan(quoted)
        except ValueError:
            return None
        return str(text) if end == len(quoted) else None


def learn(block: bytes, event: dict[str, Any], key: str, text: str) -> PlainForm | None:
    """The form of an event that was parsed: ``text`` stands in it under ``key``, in its only choice.

    The place is found by its bytes and then proved: with another text there, the frame must say the same but for it.
    """
    if len(block) - len(text) > MAX_FRAME_BYTES:
        return None
    for opening in (f'"{key}":"'.encode(), f'"{key}": "'.encode()):
        at = block.find(opening)
        if at < 0:
            continue
        form = _around(block, at + len(opening))
        if form is not None and _proves(form, event, key, text):
            return form
    return None


def _around(block: bytes, start: int) -> PlainForm | None:
    try:
        # One character per byte, so that the end that is found counts bytes.
        _, end = _scan(block.decode("latin-1"), start - 1)
    except ValueError:
        return None
    return PlainForm(block[:start], block[end - 1 :])


def _proves(form: PlainForm, event: dict[str, Any], key: str, text: str) -> bool:
    """Whether the form's place is that of the text, and the block one line of data as it is most simply written."""
    other = form.head + _MARK.encode() + form.tail
    if not other.startswith(b"data: ") or other.find(b"\n") != len(other) - 2 or b"\r" in other:
        return False
    frame = parse_object(other[6:])
    holder = holder_of(frame)
    if holder is None or holder.get(key) != _MARK:
        return False
    holder[key] = text
    return bool(frame == event)


def holder_of(frame: object) -> dict[str, Any] | None:
    """Where the only choice of a frame has its text: in its delta, or in itself."""
    choices = frame.get("choices") if isinstance(frame, dict) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict):
        return None
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else choice


def read_fields(block: bytes) -> tuple[bytes | None, bytes]:
    """An event's name and data, white space around it left out. Blocks of one line are by far the most."""
    if block.startswith(b"data: ") and block.find(b"\n") == len(block) - 2 and b"\r" not in block:
        return None, block[6:].strip()
    fields = parse_event(block)
    return fields.event, (fields.data or b"").strip()
