"""Whether an engine went on with a cut answer of its own: what its text says.

What lives here: where to cut, and the judgement of one seam and of all of them, over texts alone.
What must not: requests (asking.py), what else an engine can do (abilities.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from .abilities import NO, UNKNOWN, YES, Verdict

OPENING_CHARS = 12
"""So much of the answer's beginning, said again after a cut, is no chance: it has begun anew."""
AGREED_CHARS = 4
"""So much of the right text after a cut is no chance: it has gone on, even if other words follow."""
LEAST_SHARE = 0.75
"""Most cuts must be gone on with. One of eight may fall where two words are equally likely, and the other is a fair answer."""
COVERED = 0.8
"""An answer that its token limit ended may be a little shorter than the rest it is compared with: other tokens, same text."""


class Seam(Enum):
    """What came after one cut."""

    EXACT = "exact"
    GOES_ON = "goes on"
    """As the uncut answer at first, then in other words."""
    LOST_SPACE = "lost space"
    DOUBLED_SPACE = "doubled space"
    ANEW = "anew"
    """The answer from its beginning."""
    ELSEWHERE = "elsewhere"
    """Neither the rest nor the beginning."""
    SILENT = "silent"


class Whole(NamedTuple):
    """The uncut answer; ``is_open`` if its token limit ended it, so that it would have gone on."""

    text: str
    is_open: bool


# Where to cut.


def join(pieces: Sequence[str]) -> str:
    """One text; halves of a surrogate pair that came in two events become the character that they are."""
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def cut_places(pieces: Sequence[str], wanted: int) -> list[int]:
    """Up to ``wanted`` places, spread over the answer: where its events meet, as in a failover; else between its words.

    Always before white space: an engine that is given the space as well begins another token than it did by itself.
    """
    text = join(pieces)
    raw = list(accumulate(pieces, initial=""))
    meeting = [len(join([begun])) for begun in raw if not begun or not 0xD800 <= ord(begun[-1]) <= 0xDBFF]
    places = _before_space(text, meeting)
    if len(places) < wanted:
        places = _before_space(text, [*meeting, *(at for at, char in enumerate(text) if char.isspace())])
    if len(places) <= wanted:
        return places
    return [places[(2 * index + 1) * len(places) // (2 * wanted)] for index in range(wanted)]


def _before_space(text: str, places: Sequence[int]) -> list[int]:
    moved = {len(text[:at].rstrip()) for at in places}
    return sorted(at for at in moved if 0 < at < len(text.rstrip()))


# What came.


def judge_seam(whole: Whole, at: int, answer: str, *, is_open: bool) -> Seam:
    """The answer to ``whole`` cut at a place; ``is_open`` if the token limit ended this answer too."""
    rest = whole.text[at:]
    if not answer:
        return Seam.SILENT
    if _is_same(rest, answer, whole_is_open=whole.is_open, answer_is_open=is_open):
        return Seam.EXACT
    if (space := _judge_space(rest, answer)) is not None:
        return space
    agreed, begun = _agreeing(answer, rest), _agreeing(answer, whole.text)
    if begun > agreed and begun >= min(OPENING_CHARS, len(answer)):
        return Seam.ANEW
    if agreed >= min(AGREED_CHARS, len(rest)) and rest[:agreed].strip():
        return Seam.GOES_ON
    return Seam.ELSEWHERE


def _is_same(rest: str, answer: str, *, whole_is_open: bool, answer_is_open: bool) -> bool:
    if not whole_is_open:
        return answer == rest
    if answer.startswith(rest):
        return True
    return answer_is_open and rest.startswith(answer) and len(answer) >= COVERED * len(rest)


def _judge_space(rest: str, answer: str) -> Seam | None:
    """The right words after the wrong amount of white space."""
    words, right = answer.lstrip(), rest.lstrip()
    missing = (len(rest) - len(right)) - (len(answer) - len(words))
    if not missing or _agreeing(words, right) < min(OPENING_CHARS, len(right)):
        return None
    return Seam.LOST_SPACE if missing > 0 else Seam.DOUBLED_SPACE


def _agreeing(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# All of them.


def judge_seams(seams: Sequence[Seam], *, repeats: bool | None) -> tuple[Verdict, str]:
    """Whether one way of asking continues, and what was found. ``repeats``: whether uncut answers are the same each time."""
    count, of = Counter(seams), len(seams)
    if not seams:
        return UNKNOWN, "no cut could be tried"
    if count[Seam.EXACT] == of:
        return YES, f"exact: identical in {of} of {of} cuts"
    if spaced := count[Seam.LOST_SPACE] + count[Seam.DOUBLED_SPACE]:
        how = "lost" if count[Seam.LOST_SPACE] else "doubled"
        return NO, f"white space {how} in {spaced} of {of} cuts"
    going = count[Seam.EXACT] + count[Seam.GOES_ON]
    if going >= LEAST_SHARE * of and not count[Seam.ANEW]:
        blame = " (uncut answers differ too)" if repeats is False else ""
        return YES, f"keeps the prefix, identical in {count[Seam.EXACT]} of {of} cuts{blame}"
    if count[Seam.ANEW]:
        return NO, f"begins anew: in {count[Seam.ANEW]} of {of} cuts word for word"
    if count[Seam.SILENT] == of:
        return NO, f"says nothing more in {of} of {of} cuts"
    return NO, f"begins anew: goes on in {going} of {of} cuts"
