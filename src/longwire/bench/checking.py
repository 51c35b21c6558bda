"""Whether an answer is the one that the stand-in gave: each token once, in order, to the letter.

What lives here: comparing texts with the known answer (sim/answer.py). What must not: finding them in bytes (reading.py).
"""

from __future__ import annotations

import json
import re

from ..sim.answer import token_table, token_text
from .records import Record

_TOKEN = re.compile(r" [^0-9]*([0-9]+)")
_STRING = re.compile(rb'(?:[^"\\]|\\.)*')


class Checker:
    """Counts what is wrong with one stream's tokens into its record."""

    __slots__ = ("_inner", "_missing", "_next", "_record", "_seed", "_tokens")

    def __init__(self, record: Record, seed: int, tokens: int) -> None:
        self._record = record
        self._seed = seed
        self._tokens = tokens
        self._next = 0
        self._missing: set[int] = set()
        self._inner = token_table(seed).inner
        record.verified = 1

    def __repr__(self) -> str:
        return f"<Checker next={self._next} missing={len(self._missing)}>"

    def take(self, block: bytes, at: int) -> None:
        """The text that begins at ``at`` in an event, behind its opening quote."""
        if block.startswith(self._inner(self._next) + b'"', at):
            self._next += 1
            return
        match = _STRING.match(block, at)
        assert match is not None, "the pattern matches nothing too"
        try:
            text = json.loads(b'"' + match[0] + b'"')
        except ValueError:
            self._record.wrong += 1
            return
        self._take_text(text)

    def _take_text(self, text: str) -> None:
        """Tokens that were written in another way, put together, or are not those that are due."""
        while text:
            match = _TOKEN.match(text)
            index = int(match[1]) if match and len(match[1]) < 10 else self._tokens
            token = token_text(self._seed, index) if index < self._tokens else ""
            if not token or not text.startswith(token):
                self._record.wrong += 1
                return
            self._take_index(index)
            text = text[len(token) :]

    def _take_index(self, index: int) -> None:
        if index >= self._next:
            self._missing.update(range(self._next, index))
            self._next = index + 1
        elif index in self._missing:
            self._missing.discard(index)
            self._record.disorders += 1
        else:
            self._record.duplicates += 1

    def finish(self) -> None:
        """The end marker has come: what is not there by now is lost."""
        self._record.lost = len(self._missing) + max(0, self._tokens - self._next)
