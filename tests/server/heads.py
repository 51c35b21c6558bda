"""Request heads for tests that need no socket."""

from __future__ import annotations

from longwire.wire.http1 import RequestHead, parse_request_head


def request_head(method: str = "GET", target: str = "/", **fields: str) -> RequestHead:
    """A head with these fields (underscores in a name stand for hyphens)."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return parse_request_head(f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode("latin-1"))
