"""Stop strings: where an answer ends before its time, and what may be said while that is open.

What lives here: the search for stop strings, and the holding back of what may be the beginning of one.
What must not: tokens (answer.py), events (chat.py, typed.py).

As in real engines, only what *this* request generates is looked through: of a stop string that began in an earlier request's
text, the engine knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .reply import refusal

MAX_STOPS = 16
"""As many as engines commonly take (vLLM has no limit, OpenAI has 4)."""
MAX_SEARCHED_TOKENS = 65_536
"""Tokens looked through before an answer begins; its end must be known then, and a search of millions would stop the loop."""


class Told(NamedTuple):
    """How one choice ends."""

    tokens: int
    """Generated, the one in which a stop string was completed included."""
    length: int
    """Characters of it that are said."""
    stop: str | None = None
    """The string that has ended it."""


def read_stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    """``stop``, or what the messages API calls ``stop_sequences``: a string, or a list of them."""
    name = "stop" if body.get("stop") is not None else "stop_sequences"
    given = body.get(name)
    stops = [given] if isinstance(given, str) else given or []
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(each, str) and each for each in stops)
    ):
        raise refusal(400, f"{name} must be a string or a list of up to {MAX_STOPS}, none of them empty.", name)
    return tuple(stops)


def tell(lead: str, texts: Iterable[str], stops: Sequence[str]) -> Told:
    """Where the text of ``lead`` and the tokens' ``texts`` ends: before the first stop string, or with the last token."""
    window = max(map(len, stops)) - 1
    tail, passed, tokens = lead, 0, 0
    found = _find(tail, stops)
    for text in texts:
        if found is not None:
            break
        # Of what was looked through, only so much can be the beginning of a match.
        drop = max(0, len(tail) - window)
        tail, passed, tokens = tail[drop:] + text, passed + drop, tokens + 1
        found = _find(tail, stops)
    if found is None:
        return Told(tokens, passed + len(tail))
    return Told(tokens, passed + found[0], found[1])


def _find(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    return min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)


def release(texts: Sequence[str], told: Told, stops: Sequence[str], *, holds_back: bool) -> Iterator[str]:
    """What may be sent after each of ``texts``: nothing that may still become a stop string, unless it is not held back."""
    sent, held = 0, ""
    for number, text in enumerate(texts, 1):
        held += text
        if number == len(texts):
            ready = max(0, told.length - sent)
        elif holds_back:
            ready = len(held) - _beginning(held, stops)
        else:
            ready = len(held)
        yield held[:ready]
        sent, held = sent + ready, held[ready:]


def _beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a stop string."""
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)
