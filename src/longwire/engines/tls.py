"""TLS towards one engine: a context that goes on with its last session.

What lives here: the context, and how long a session is gone on with. What must not: connecting (dialing.py), which certificates
are trusted (settings).

asyncio has no argument for a session, and without one every connection of a pool begins with a whole handshake: the certificate
is sent and checked, and a key exchanged, for each (some milliseconds of processor on both sides). Both loops make their TLS
object by ``wrap_bio``, which takes a session: that is where it is given to them.

A resumed handshake shows no certificate (RFC 8446 2.2): what was checked once is believed until the session is too old.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, Self
from weakref import WeakSet

SESSION_S: Final = 3600.0
"""After so long a certificate is looked at again: one that has run out or was withdrawn is trusted for an hour at most."""


class EngineTls(ssl.SSLContext):
    """For connections to one host, and to no other: a session must not be shown to somebody else."""

    _now: Callable[[], float]
    _offers: WeakSet[ssl.SSLObject]
    """Connections that were begun with a session, until their first answer has come."""
    _session: ssl.SSLSession | None = None
    _session_at = 0.0

    @classmethod
    def make(cls, ca_file: str, now: Callable[[], float]) -> Self:
        """As strict as ``ssl.create_default_context`` makes one. ``ca_file``: what to trust instead of the system's; or "".

        Raises:
            OSError: they cannot be loaded.
        """
        usual = ssl.create_default_context(cafile=ca_file or None)
        context = cls(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
        context.verify_flags, context.options = usual.verify_flags, usual.options
        if ca_file:
            context.load_verify_locations(ca_file)
        else:
            context.load_default_certs()
        context.set_alpn_protocols(["http/1.1"])
        context._now = now
        context._offers = WeakSet()
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection, with the last session where it is young enough."""
        if self._session is not None and self._now() - self._session_at >= SESSION_S:
            self._session = None
        offered = session or self._session
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, offered)
        if offered is not None:
            self._offers.add(made)
        return made

    def keep_session(self, connection: ssl.SSLObject | None) -> None:
        """Go on with this connection's session from now on. It has had an answer: only then are TLS 1.3's tickets there."""
        if connection is None or connection.context is not self:
            return
        was_offered = connection in self._offers
        self._offers.discard(connection)
        session = None if connection.session_reused else connection.session
        if session is not None and (self._session is None or was_offered):  # the engine has forgotten the last one
            self._session, self._session_at = session, self._now()
