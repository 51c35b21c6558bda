"""Who the client is when proxies stand in front: X-Forwarded-For, believed only as far as it can be.

What lives here: networks that are trusted, and the walk over the header's entries.
What must not: the PROXY protocol's bytes (proxy.py), the peer's socket, what is done with an address.

Each proxy appends the address that it saw, so the rightmost entry was written by our own peer and everything to the left is
as trustworthy as the hop that passed it on. A client can send any header it likes; the walk from the right ends at the
first address that is not one of our proxies, and nothing left of it is ever looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from longwire.words.errors import SettingsError

MAX_HOPS = 32
"""Entries that are looked at. Real chains have two to five; a request head could hold thousands of trusted-looking ones."""

MAX_ADDRESS_CHARS = 45
"""An IPv6 address with an IPv4 tail, whole. What is longer is none, and is not kept as a key, which a client chooses."""

MAX_ENTRY_BYTES = 64
"""A bracketed IPv6 address with a port takes 53 at most (an IPv4 tail included)."""

_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?\Z")
_DOTTED = re.compile(r"([0-9.]+)(?::([0-9]{1,5}))?\Z")
_COLONS = re.compile(r"([0-9A-Fa-f:.]+)\Z")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def unmapped(address: Address) -> Address:
    """``::ffff:192.0.2.1`` as ``192.0.2.1``: a dual-stack socket shows IPv4 peers so, and no rule should see two spellings."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_address(text: str) -> Address | None:
    """One bare IP address, or None. Zones (``%eth0``) mean something on one host only and are no addresses here."""
    return None if "%" in text or len(text) > MAX_ADDRESS_CHARS else _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Address | None:
    """Kept, for most requests name the same few."""
    try:
        return unmapped(ip_address(text))
    except ValueError:
        return None


def parse_entry(entry: bytes) -> Address | None:
    """One entry of X-Forwarded-For: an address, with port and brackets as some proxies write it; None for anything else."""
    if len(entry) > MAX_ENTRY_BYTES or not entry.isascii():
        return None
    text = entry.decode("ascii")
    if match := _BRACKETED.match(text):
        address = parse_address(match[1])
        # Brackets are IPv6's; around an IPv4 address they are somebody's mistake, and a mistake ends trust.
        if ":" not in match[1]:
            return None
    elif match := _DOTTED.match(text):
        address = parse_address(match[1])
    elif match := _COLONS.match(text):
        return parse_address(match[1])
    else:
        return None
    return address if match[2] is None or int(match[2]) <= 65_535 else None


class TrustedNetworks:
    """The networks that our own proxies speak from. Immutable."""

    __slots__ = ("_v4", "_v6")

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        found = list(networks)
        self._v4 = tuple(network for network in found if isinstance(network, IPv4Network))
        self._v6 = tuple(network for network in found if isinstance(network, IPv6Network))

    @classmethod
    def parse(cls, texts: list[str]) -> TrustedNetworks:
        """Read addresses (``10.0.0.7``) and networks (``10.0.0.0/8``).

        Raises:
            SettingsError: for the first one that is neither, or whose host bits are set: ``10.1.2.3/8`` is a slip, and
                guessing which half was meant would widen trust silently.
        """
        return cls([_parse_network(text) for text in texts])

    def __contains__(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and self.covers(parsed)

    def covers(self, address: Address) -> bool:
        """Whether one of the networks holds this (unmapped) address."""
        if isinstance(address, IPv4Address):
            return any(address in network for network in self._v4)
        return any(address in network for network in self._v6)

    def __len__(self) -> int:
        return len(self._v4) + len(self._v6)

    def __repr__(self) -> str:
        return f"<TrustedNetworks {', '.join(map(str, self._v4 + self._v6)) or 'none'}>"


def _parse_network(text: str) -> Network:
    try:
        network = ip_network(text.strip())
    except ValueError:
        raise SettingsError(
            f"trusted_proxies: {text!r} is no network; write an address (10.0.0.7) or a network without host bits (10.0.0.0/8)."
        ) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None and network.prefixlen >= 96:
        # Peers are compared unmapped, so the mapped spelling of a network must be too, or it would never match.
        return IPv4Network((network.network_address.ipv4_mapped, network.prefixlen - 96))
    return network


def client_address(peer: str, forwarded_for: Sequence[bytes], trusted: TrustedNetworks) -> str:
    """The client's address: the peer's own, or the first untrusted one from the right where trusted proxies vouch for it.

    Args:
        peer: the address that the connection comes from (after a PROXY header, the one it names).
        forwarded_for: the values of all X-Forwarded-For lines, in order.
        trusted: the proxies' networks.

    An entry that is no address ends the walk at the hop that sent it: guessing past it would let a client choose its name.
    """
    address = parse_address(peer)
    if address is None:
        return peer
    for entry in _from_the_right(forwarded_for):
        if not trusted.covers(address):
            break
        hop = parse_entry(entry.strip(b" \t"))
        if hop is None:
            break
        address = hop
    return str(address)


def _from_the_right(values: Sequence[bytes]) -> list[bytes]:
    """The last MAX_HOPS entries, rightmost first. Several header lines are one list (RFC 9110 5.3)."""
    if not values:
        return []
    # One entry more is split off and dropped: what is left of the bound comes unsplit.
    entries = b",".join(values).rsplit(b",", MAX_HOPS)
    return entries[: -MAX_HOPS - 1 : -1]
