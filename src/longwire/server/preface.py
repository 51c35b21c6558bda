"""The PROXY header that a trusted proxy sends before its client's first request.

What lives here: collecting it, and whose address it names.
What must not: its syntax (wire.proxy), who is trusted (listener.py).
"""

from __future__ import annotations

from ..wire.proxy import ProxyHeader, parse_proxy_header


class Preface:
    """Collects one header. Its bytes are not kept for an adopter: a connection that loses its process in the middle of it is
    cut, and one that has sent nothing yet is expected to begin with it."""

    __slots__ = ("_bytes", "source")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.source: str | None = None
        """The client's address; None where the header names none."""

    def __repr__(self) -> str:
        return f"<Preface {len(self._bytes)} bytes, source {self.source}>"

    def take(self, data: bytes) -> memoryview | None:
        """What lies behind the header; None while it is not whole.

        Raises:
            BadHttp: it is malformed.
        """
        self._bytes += data
        header = parse_proxy_header(self._bytes)
        if not isinstance(header, ProxyHeader):
            return None
        if header.source is not None:
            self.source = header.source[0]
        return memoryview(bytes(self._bytes[header.length :]))
