"""The PROXY protocol: how a TCP balancer says who connected to it.

What lives here: versions 1 (text) and 2 (binary) of the header, bytes in, value out
(https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).
What must not: whether the peer may send one at all (the server asks TrustedNetworks), sockets, timers.

The header comes before anything else on a connection and only where it is configured: it is never sniffed for, because a
client that could choose to send one could choose its own address. Nothing but BadHttp is raised, whatever the bytes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Literal, NamedTuple

from longwire.words.errors import BadHttp

from .forwarded import unmapped
from .http1 import NEED_DATA, NeedData

MAX_V1_BYTES = 107
"""The longest line that version 1 allows, CRLF included (section 2.1)."""

MAX_V2_PAYLOAD_BYTES = 4096
"""Addresses take 216 at most; the rest is for TLVs (certificate names, a cloud's endpoint ids): really under 1 KiB."""

_V1_START = b"PROXY "
_V2_START = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21

_ADDRESS_BYTES = {0x00: 0, 0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}
"""Family and transport → size of the addresses. All other values "must be rejected as invalid" (section 2.2)."""


class ProxyHeader(NamedTuple):
    """A complete header: how many bytes it took, and whom it names.

    ``source`` is None where the balancer speaks for itself (LOCAL, UNKNOWN, a health check) or the client has no IP address
    (a Unix socket): the connection's own peer stands.
    """

    length: int
    source: tuple[str, int] | None


HeaderOrNeed = ProxyHeader | Literal[NeedData.NEED_DATA]


def parse_proxy_header(data: bytes | bytearray | memoryview) -> HeaderOrNeed:
    """Read the header at the start of ``data``, which holds all bytes of the connection so far.

    Raises:
        BadHttp: at the first byte that cannot belong to a header. Whoever connected is not the balancer that we were told of.
    """
    head = bytes(data[: _V2_HEAD_BYTES + MAX_V2_PAYLOAD_BYTES])
    if head.startswith(_V2_START):
        return _parse_v2(head)
    if head.startswith(_V1_START):
        return _parse_v1(head)
    if _V2_START.startswith(head) or _V1_START.startswith(head):
        return NEED_DATA
    raise BadHttp("A PROXY protocol header was expected here; the balancer must send one, or proxy_protocol be off.")


# Version 1: PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n


def _parse_v1(head: bytes) -> HeaderOrNeed:
    end = head.find(b"\n", 0, MAX_V1_BYTES)
    if end < 0:
        # A CR may end what has come so far (its LF is on the way), and stand nowhere else.
        if len(head) >= MAX_V1_BYTES or b"\r" in head[:-1]:
            raise _bad_v1("it has no CRLF within 107 bytes")
        return NEED_DATA
    line = head[: end - 1]
    if head[end - 1] != 0x0D or b"\r" in line:
        raise _bad_v1("its line must end in one CRLF")
    # Whatever follows UNKNOWN is to be ignored (section 2.1).
    if line == b"PROXY UNKNOWN" or line.startswith(b"PROXY UNKNOWN "):
        return ProxyHeader(end + 1, None)
    return ProxyHeader(end + 1, _v1_source(line))


def _v1_source(line: bytes) -> tuple[str, int]:
    fields = line.split(b" ")
    if len(fields) != 6 or fields[1] not in (b"TCP4", b"TCP6"):
        raise _bad_v1("it needs TCP4, TCP6 or UNKNOWN, two addresses and two ports, each after one space")
    family, source, destination, source_port, destination_port = fields[1:]
    # The destination is of no use here, but a line that is wrong in one half is not to be believed in the other.
    _v1_address(family, destination)
    _v1_port(destination_port)
    return _v1_address(family, source), _v1_port(source_port)


def _v1_address(family: bytes, field: bytes) -> str:
    if b"%" in field or not field.isascii():
        raise _bad_v1("an address is malformed")
    text = field.decode("ascii")
    try:
        return str(IPv4Address(text)) if family == b"TCP4" else str(unmapped(IPv6Address(text)))
    except ValueError:
        raise _bad_v1("an address is malformed") from None


def _v1_port(field: bytes) -> int:
    # bytes.isdigit knows ASCII digits only. A leading zero is forbidden, because some would read an octal number.
    if not field.isdigit() or len(field) > 5 or (field[0] == 0x30 and len(field) > 1):
        raise _bad_v1("a port is malformed")
    port = int(field)
    if port > 65_535:
        raise _bad_v1("a port is malformed")
    return port


def _bad_v1(why: str) -> BadHttp:
    return BadHttp(f"The PROXY protocol header (version 1) is malformed: {why}.")


# Version 2: 12 signature bytes, version and command, family and transport, payload size (16 bits), addresses, TLVs.


def _parse_v2(head: bytes) -> HeaderOrNeed:
    # Each byte is judged as soon as it is here: a bad one is refused now, not after a payload that may never come.
    size = len(head)
    if size > 12 and head[12] not in (_LOCAL, _PROXY):
        raise _bad_v2("unknown version or command")
    # Family and addresses of LOCAL are to be ignored, whatever they are.
    address_bytes = _ADDRESS_BYTES.get(head[13]) if size > 13 and head[12] == _PROXY else 0
    if address_bytes is None:
        raise _bad_v2("unknown address family")
    if size < _V2_HEAD_BYTES:
        return NEED_DATA
    payload_bytes = int.from_bytes(head[14:16], "big")
    if payload_bytes > MAX_V2_PAYLOAD_BYTES:
        raise _bad_v2(f"it is larger than {MAX_V2_PAYLOAD_BYTES} bytes")
    if payload_bytes < address_bytes:
        raise _bad_v2("it is too short for its addresses")
    if size < _V2_HEAD_BYTES + payload_bytes:
        return NEED_DATA
    return ProxyHeader(_V2_HEAD_BYTES + payload_bytes, _v2_source(head, address_bytes))


def _v2_source(head: bytes, address_bytes: int) -> tuple[str, int] | None:
    """Source address, destination address, source port, destination port; TLVs after them are skipped."""
    if address_bytes == 12:
        return str(IPv4Address(head[16:20])), int.from_bytes(head[24:26], "big")
    if address_bytes == 36:
        return str(unmapped(IPv6Address(head[16:32]))), int.from_bytes(head[48:50], "big")
    return None


def _bad_v2(why: str) -> BadHttp:
    return BadHttp(f"The PROXY protocol header (version 2) is malformed: {why}.")
