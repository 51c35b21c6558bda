"""The one seam to the HTTP library under openai.

What lives here: which of that library's exceptions mean a broken connection.
What must not: an import of that library. openai 2 brings ``httpx``, openai 3 brings ``httpx2``, and either may be handed the
other's client; the response itself says whose it is.
"""

from __future__ import annotations

import ssl
import sys
from typing import Any

import anyio


def _library_of(thing: object) -> Any:
    """The top package among whose classes ``thing``'s class is, if it is an HTTP library."""
    for base in type(thing).__mro__:
        module = sys.modules[base.__module__.partition(".")[0]]
        if hasattr(module, "TransportError"):
            return module
    raise TypeError(f"{type(thing).__name__} is of no HTTP library that longwire.client knows")


def broken_errors(response: object) -> tuple[type[Exception], ...]:
    """What reading ``response`` may raise when its connection breaks.

    The last two come through undisguised from some TLS transports, as openai itself found.
    """
    return (_library_of(response).TransportError, ssl.SSLError, anyio.EndOfStream)


def was_never_sent(error: Exception) -> bool:
    """True where no connection could be made: the request cannot have started anything."""
    cause = error.__cause__
    return cause is not None and any(base.__name__ == "ConnectError" for base in type(cause).__mro__)
