"""Whole responses as engines write them, in every style that the stand-in has, and playing them back in any pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.engines.fakes import Scene
from tests.sim.playing import encode_request, play

from longwire.engines.openai import ChatWatch
from longwire.sim import SimServer
from longwire.words.reasons import CloseReason
from longwire.words.settings import SimSettings

STYLES = (
    "lf", "crlf", "cr", "mixed", "bom", "ids", "no_space", "comments", "many_per_chunk=2", "many_per_chunk=3,crlf",
    "split_chunks=9", "split_chunks=40,mixed", "content_length", "close_delimited", "close_delimited,mixed", "upper_hex",
    "early_hints", "usage_in_choices", "no_done", "two_done", "after_done", "n=2", "reasoning",
)  # fmt: skip
"""Faults of the stand-in, and details of what is asked."""


@cache
def recorded(style: str) -> bytes:
    """The response's bytes. Two tokens of the answer have emoji and CJK in them."""
    server = SimServer(SimSettings(tokens=2, itl_ms=0, ttft_ms=0, seed=23))
    body: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    if style == "n=2":
        body["n"] = 2
    elif style == "reasoning":
        body["reasoning"] = True
    elif style != "lf":
        body["sim"] = {"fault": style}
    wire = play(server, encode_request(body)).raw
    assert not wire.isascii(), "the text must hold code points of several bytes"
    return wire


@dataclass
class Outcome:
    """What came of a response: all that must not depend on how it was cut."""

    blocks: list[bytes] = field(default_factory=list)
    silent: list[bool] = field(default_factory=list)
    reason: CloseReason | None = None
    message: str = ""
    usage: dict[str, Any] | None = None
    tokenless: int = 0
    first_token_at: bytes = b""


def play_back(style: str, pieces: list[bytes], *, hides_usage: bool = True) -> Outcome:
    """Receive a response in these pieces, then its connection's end."""
    scene = Scene(watch=ChatWatch(2 if style == "n=2" else 1, hides_usage))
    scene.feed(*pieces)
    if not scene.ended.released:
        scene.end()
    entries = scene.sink.entries[: scene.sink.published]
    first = scene.sink.first_token_at
    return Outcome(
        [entry.block for entry in entries],
        [entry.silent for entry in entries],
        scene.ended.reason,
        scene.ended.message,
        scene.watch.usage,
        scene.watch.tokenless,
        b"" if first is None else json.dumps(bool(first)).encode(),
    )
