"""What the engine stand-in says: a text that anyone can foretell who knows the seed.

What lives here: the tokens, as a pure function of seed and index.
What must not: how they are put into events (chat.py, typed.py), time, sockets.

Each token ends in its index (`` stone41``), so that a lost, repeated or swapped one is seen by eye, and a client can check each
event by itself. Some hold CJK, emoji (also joined ones), quotes and line ends, because these are what gateways break.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

WORDS = (
    "stone", "river", "light", "cloud", "north", "paper", "glass", "amber", "field", "ocean", "tower", "maple",
    "signal", "harbor", "meadow", "copper", "garden", "window", "thread", "silver", "lantern", "compass",
    "光", "水の音", "流れ", "你好", "世界", "안녕", "né", "Ωmega", "мир", "🚀", "👩‍🚀", "🇯🇵", "e\u0301",
    '"quoted"', "back\\slash", "line\n",
)  # fmt: skip
"""About a third is not plain ASCII."""

REASONING_SEED = 1_000_003
"""Added to the seed for the reasoning, so that it differs from the answer."""
MAX_REASONING_TOKENS = 16
ID_SALT = 0x1D5
"""Mixed into the seed for token ids, so that they have nothing to do with the choice of words."""
VOCABULARY = 1 << 17
"""Token ids lie below; about as many as today's models have."""

CACHED_SEEDS = 64
"""Seeds whose tokens are kept ready. A load test has one, a test that tells its streams apart a few."""
CACHED_TOKENS = 4096
"""Tokens kept per seed; beyond, they are made as they are needed (2 µs instead of 0.05)."""


def mix(seed: int, index: int) -> int:
    """32 well-mixed bits of two integers; the same on every machine and version."""
    x = (seed * 0x9E3779B1 + index * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    x = ((x ^ x >> 12) * 0x297A2D39) & 0xFFFFFFFF
    return x ^ x >> 15


def token_text(seed: int, index: int) -> str:
    """The content of token ``index``."""
    return f" {WORDS[mix(seed, index) % len(WORDS)]}{index}"


def answer_text(seed: int, tokens: int, start: int = 0) -> str:
    """The whole answer of ``tokens`` tokens, from token ``start`` on."""
    return "".join(token_text(seed, index) for index in range(start, start + tokens))


def token_id(seed: int, index: int) -> int:
    """The id of token ``index``: any number that seed and index determine does, for nobody here has a vocabulary."""
    return mix(seed ^ ID_SALT, index) % VOCABULARY


def token_ids(seed: int, tokens: int, start: int = 0) -> list[int]:
    """The ids of ``tokens`` tokens, from token ``start`` on."""
    return [token_id(seed, index) for index in range(start, start + tokens)]


def expected_text(seed: int, tokens: int, stop: str | Sequence[str] = ()) -> str:
    """The whole answer up to the first stop string in it: what a client must have read, however it came about."""
    text = answer_text(seed, tokens)
    stops = (stop,) if isinstance(stop, str) else stop
    return text[: min((at for each in stops if (at := text.find(each)) >= 0), default=len(text))]


def expected_reasoning(seed: int, tokens: int) -> str:
    """What is thought before an answer of ``tokens`` tokens, where reasoning is asked for."""
    return answer_text(seed + REASONING_SEED, min(tokens, MAX_REASONING_TOKENS))


def encode_json(value: object) -> bytes:
    """JSON as engines write it: compact and in UTF-8. Half a surrogate pair, which UTF-8 has no form for, stays escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def encode_inner(text: str) -> bytes:
    """The inside of a JSON string."""
    return encode_json(text)[1:-1]


class TokenTable:
    """One seed's tokens as the inside of a JSON string, ready to be put between a frame's two halves."""

    __slots__ = ("_ready", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._ready: list[bytes] = []

    def inner(self, index: int) -> bytes:
        """Token ``index`` in UTF-8 with JSON's escapes and without its quotes."""
        ready = self._ready
        if index < len(ready):
            return ready[index]
        if index >= CACHED_TOKENS:
            return encode_inner(token_text(self.seed, index))
        for missing in range(len(ready), index + 1):
            ready.append(encode_inner(token_text(self.seed, missing)))
        return ready[index]


@lru_cache(maxsize=CACHED_SEEDS)
def token_table(seed: int) -> TokenTable:
    """The table of a seed, shared by all of its streams."""
    return TokenTable(seed)


def position_after(seed: int, prefix: str) -> tuple[int, str]:
    """Where an answer goes on that was cut after ``prefix``: the next whole token, and the missing rest of a cut one.

    A prefix that is not this seed's answer starts a new one: there is nothing else that an answer known beforehand could do.
    """
    index = 0
    at = 0
    while at < len(prefix):
        token = token_text(seed, index)
        piece = prefix[at : at + len(token)]
        if not token.startswith(piece):
            return 0, ""
        at += len(piece)
        index += 1
        if piece != token:
            return index, token[len(piece) :]
    return index, ""


def count_tokens(text: str) -> int:
    """A token is a word; what the stand-in bills."""
    return len(text.split())
