"""An address as somebody writes it on a command line or into a file.

What lives here: splitting it, with all that can be wrong with its host and port found now, and the words for a host
that nobody knows.
What must not: which schemes and paths are wanted, which is for whoever asks.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_HOST = re.compile(r"[^\s\x00-\x1f\x7f]*")
_VISIBLE = re.compile(r"[\x21-\x7e]*")


def split_address(text: str) -> SplitResult:
    """A URL, of which ``http://`` goes without saying.

    Raises:
        ValueError: it has no host or port that anybody could connect to, or a path that no request line can hold. urlsplit says
            so of a port only when that is read, of a name only the resolver would, and of a path nobody until it is sent: by
            then whoever has asked is waiting for an OSError.
    """
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if not _HOST.fullmatch(parts.netloc):
        raise ValueError("a host has no white space")
    if not _VISIBLE.fullmatch(parts.path + parts.query):
        raise ValueError("a path is made of visible ASCII characters; write others as %XX")
    if parts.port == 0:
        raise ValueError("nothing can listen on port 0")
    (parts.hostname or "").encode("idna")
    return parts


def unknown_host(host: str, why: str) -> str:
    """What to say where a name could not be looked up; ``why``: the resolver's words, which name no address."""
    return f"no host {host!r} is known here ({why}); check the address."
