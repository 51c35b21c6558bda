"""An address as somebody writes it on a command line or into a file.

What lives here: splitting it, with all that can be wrong with its host and port found now.
What must not: which schemes and paths are wanted, which is for whoever asks.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def split_address(text: str) -> SplitResult:
    """A URL, of which ``http://`` goes without saying.

    Raises:
        ValueError: it has no host or port that anybody could connect to. urlsplit says so of a port only when that is read, and
            of a name only the resolver would: by then whoever has asked is waiting for an OSError.
    """
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.port == 0:
        raise ValueError("nothing can listen on port 0")
    (parts.hostname or "").encode("idna")
    return parts
