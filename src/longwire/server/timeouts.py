"""Longwire-Timeouts: what a request wishes for the clocks of its own generation, and what its answer says of them.

What lives here: the header's syntax. What must not: which clocks there are (words/wishes.py), what becomes of a wish
(engines/clocks.py): one beyond the operator's bounds is cut down there, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..wire.http1 import RequestHead
from ..words.errors import RefusedError, RemoteError
from ..words.settings import Settings
from ..words.wishes import MIN_RATE, NO_WISHES, WISHES

HEADER: Final = "Longwire-Timeouts"
MAX_TEXT_BYTES: Final = 256
"""All names with the longest numbers that there may be, and room for spaces."""

_FORM: Final = f"NAME=NUMBER, ..., and the names are {', '.join(WISHES)}"
_NUMBER: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?", re.ASCII)


def read_timeouts(head: RequestHead, settings: Settings) -> Mapping[str, float]:
    """The wishes by their names; none where the header is absent.

    Raises:
        RemoteError: it is malformed or names nothing, names what there is not, or names something twice.
        RefusedError: the operator has switched it off.
    """
    lines = head.get_all(HEADER.lower().encode())
    if not lines:
        return NO_WISHES
    raw = b",".join(lines)  # RFC 9110 5.3: a list may come in several lines
    if settings.max_request_timeout_s <= 0:
        raise RefusedError("This gateway lets no request set timeouts of its own.", param=HEADER)
    if len(raw) > MAX_TEXT_BYTES:
        raise RemoteError(f"The header is over {MAX_TEXT_BYTES} bytes.", param=HEADER)
    wishes: dict[str, float] = {}
    for part in raw.decode("latin-1").split(","):
        if not (part := part.strip(" \t")):
            continue  # RFC 9110 5.6.1.2: empty elements are to be ignored
        name, number = _read_wish(part)
        if name in wishes:
            raise RemoteError(f"{name} was named twice.", param=HEADER)
        wishes[name] = number
    # Whoever sent it means something: taken for no wish, a template that was filled with nothing would go unnoticed.
    if not wishes:
        raise RemoteError(f"It is empty: it must be {_FORM}, or be left out.", param=HEADER)
    return wishes


def write_timeouts(clocks: Mapping[str, float]) -> bytes:
    """The clocks that hold, in the header's own form. 0: it never runs out."""
    return ", ".join(f"{name}={_shown(clocks[name])}" for name in WISHES).encode()


def _shown(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _read_wish(part: str) -> tuple[str, float]:
    name, equals, number = part.partition("=")
    if not equals:
        raise RemoteError(f"It must be {_FORM}.", param=HEADER)
    if name not in WISHES:
        raise RemoteError(f"There is no clock {name!r}: the names are {', '.join(WISHES)}.", param=HEADER)
    if not _NUMBER.fullmatch(number):
        what = "tokens per second" if name == MIN_RATE else "seconds"
        raise RemoteError(
            f"{name} must be a number of {what} with at most three decimals, below 10,000,000, such as {name}=20 or "
            f"{name}=0.5.",
            param=HEADER,
        )
    return name, float(number)
