"""Making one connection to an upstream.

What lives here: name, TCP, TLS and socket options of one attempt, its time limit, and how its failure is told.
What must not: who gets the connection (pool.py), how many are made ahead of need (reserve.py).
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from ..sockets import set_peer_options
from ..words.settings import Settings
from .tls import EngineTls
from .transport import UpstreamConnection


class ConnectFailed(Exception):
    """No connection: refused, unreachable, not in time, or a TLS failure."""


class ConnectTimeout(ConnectFailed):
    """Not in time."""

    def __init__(self, public_name: str) -> None:
        super().__init__(f"engine {public_name} did not accept a connection in time")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream is. ``address`` is asked instead of the ``host``'s own, where it is given."""

    public_name: str
    host: str
    port: int
    address: str
    tls: EngineTls | None


async def dial(connection: UpstreamConnection, place: Place, settings: Settings) -> None:
    """Connect. Where it fails or is cancelled, nothing of it is left.

    Raises:
        ConnectTimeout: not within connect_timeout_s.
        ConnectFailed: with a sentence that names the upstream and the cause, but no address of it.
    """
    is_made = False
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: connection,
                place.address or place.host,
                place.port,
                ssl=place.tls,
                server_hostname=place.host if place.tls else None,
            )
        set_peer_options(transport.get_extra_info("socket"), settings.peer_timeout_s)
        is_made = not connection.is_closed
    except TimeoutError as exc:
        raise ConnectTimeout(place.public_name) from exc
    except (OSError, ssl.SSLError, UnicodeError) as exc:
        raise ConnectFailed(f"engine {place.public_name} cannot be reached: {_words_of(exc)}") from exc
    finally:
        if not is_made:
            connection.close()
    if not is_made:
        raise ConnectFailed(f"engine {place.public_name} cannot be reached: it closes new connections at once")


def _words_of(error: OSError | UnicodeError) -> str:
    """Why there is no connection, for whoever asked: no address of the engine, no place in a library."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message.partition(', certificate is not valid')[0]})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({(error.reason or type(error).__name__).replace('_', ' ').lower()})"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
