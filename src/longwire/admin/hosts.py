"""Who may be meant by a request: the guard against DNS rebinding.

What lives here: the check of the Host header, and the headers that every admin answer carries.
What must not: routes, identity (the admin port has none: whoever reaches it is the operator).

A page from anywhere can make an operator's browser connect to 127.0.0.1 under a name that the page's owner points there.
The browser then believes in one origin and lets the page read the answers; only the Host header tells. An address in it is
safe where a name is not: no one can rebind an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.utils import formatdate
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..words.errors import RefusedError
from .answers import error_response

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None  # a name; odd spellings of addresses (127.1, 0x7f000001) are names here, and so refused


class AllowedHosts:
    """Which Host headers are meant for us: loopback, the configured host, and names that the operator added."""

    def __init__(self, admin_host: str, names: Iterable[str] = ()) -> None:
        bound = _address(admin_host)
        # Bound to every address, we cannot tell which ones are ours; any address will do, see above.
        self._any_address = bound is not None and bound.is_unspecified
        self._addresses = set() if bound is None or self._any_address else {bound}
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        if bound is None:
            self._names.add(admin_host.lower().rstrip("."))

    def allows(self, host: str) -> bool:
        """Whether a Host header's value is one of ours."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["v6"] or match["name"]
        address = _address(name)
        if address is None:
            return match["v6"] is None and name.lower().rstrip(".") in self._names
        return self._any_address or address.is_loopback or address in self._addresses

    def __repr__(self) -> str:
        addresses = "any address" if self._any_address else sorted(map(str, self._addresses))
        return f"<AllowedHosts {sorted(self._names)} {addresses}>"


class HostCheck:
    """ASGI middleware: refuses foreign Host headers, and marks every answer as private and of fixed type."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["cache-control"] = "no-store"
                headers["x-content-type-options"] = "nosniff"
                headers["date"] = formatdate(usegmt=True)
            await send(message)

        app = self._app if self._is_ours(scope) else _REFUSAL
        await app(scope, receive, send_marked)

    def _is_ours(self, scope: Scope) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        return len(hosts) == 1 and self._hosts.allows(hosts[0].decode("latin-1"))


_REFUSAL: Final = error_response(RefusedError("The admin port answers only under its own address or a loopback name."))
