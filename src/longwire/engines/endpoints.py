"""Which endpoints an ``[[engines]]`` entry stands for, and what each is called.

What lives here: the grammar of a file of URLs, and the endpoints that follow from settings, such a file, and addresses.
What must not: reading files, asking DNS, upstreams (following.py).

A name is a function of its endpoint alone: every shard, its successor and the next scrape call the same endpoint the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from ..words.engine_specs import MAX_ENDPOINTS, normalise_url
from ..words.errors import SettingsError
from ..words.settings import EngineSettings

MAX_FILE_BYTES = 256 * 1024
"""As many lines as there may be endpoints, with a comment of a kilobyte each."""
MAX_NAME_CHARS = 128
"""A label of metrics and a field of every stream's row; longer ones are cut and told apart by a hash."""
_HASH_CHARS = 8

Addresses = Mapping[str, tuple[str, ...]]
"""What is known of host names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place to send requests to. ``address`` is where to connect instead of looking the URL's host up; Host field and TLS
    name stay the URL's."""

    name: str
    url: str
    address: str = ""


def own_endpoint(engine: EngineSettings) -> Endpoint:
    """That of the engine's ``url``, which has the engine's name."""
    return Endpoint(engine.name or urlsplit(engine.url).netloc or engine.url, engine.url)


def endpoints_of(
    engine: EngineSettings, listed: Sequence[str] = (), addresses: Addresses | None = None
) -> list[Endpoint]:
    """All of them, each name once: that of ``url``, of ``urls``, and of the lines of a file; with ``addresses``, of every
    address of a host instead, where it is known."""
    own = own_endpoint(engine)
    known = addresses or {}
    found: dict[str, Endpoint] = {}
    for url in (engine.url, *engine.urls, *listed):
        parts = urlsplit(url)
        if parts.netloc == urlsplit(own.url).netloc and url != own.url:
            continue  # the file lists the engine's own, too
        name = own.name if url == own.url else name_of(own.name, parts.netloc)
        of_host = known.get(parts.hostname or "", ())
        places = [Endpoint(name_of(own.name, _netloc(a, port_of(parts))), url, a) for a in of_host]
        for endpoint in places or [Endpoint(name, url)]:
            found.setdefault(endpoint.name, endpoint)
    return list(found.values())[:MAX_ENDPOINTS]


def name_of(engine: str, netloc: str) -> str:
    """What an endpoint besides the engine's own is called."""
    name = f"{engine}@{netloc}"
    if len(name) <= MAX_NAME_CHARS:
        return name
    told = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_HASH_CHARS // 2).hexdigest()
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}~{told}"


def read_urls(text: str, where: str) -> tuple[str, ...]:
    """The URLs of a file, one a line; blank lines and what follows a ``#`` are nothing.

    Raises:
        SettingsError: a line is no URL, or an endpoint that is listed already, or one too many.
    """
    urls: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        at = f"{where}:{number}"
        url = normalise_url(word, at)
        netloc = urlsplit(url).netloc
        if netloc in urls:
            raise SettingsError("This endpoint is listed twice: give each a line of its own.", where=at)
        if len(urls) >= MAX_ENDPOINTS:
            raise SettingsError(f"An engine has at most {MAX_ENDPOINTS} endpoints.", where=at)
        urls[netloc] = url
    return tuple(urls.values())


# Host names.


def hosts_of(engine: EngineSettings, listed: Sequence[str] = ()) -> dict[str, int]:
    """The host names that are to be looked up, each with a port; addresses need not be."""
    parts = [urlsplit(url) for url in (engine.url, *engine.urls, *listed)] if engine.resolve_s else []
    return {each.hostname: port_of(each) for each in parts if each.hostname and not is_address(each.hostname)}


def remembered(engine: EngineSettings, listed: Sequence[str], names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The addresses that somebody knew who called his upstreams so: a successor begins with them, whether DNS answers or not.
    Only where it is plain whose they are."""
    hosts = hosts_of(engine, listed)
    if len(hosts) != 1:
        return {}
    ((host, port),) = hosts.items()
    others = {endpoint.name for endpoint in endpoints_of(engine, listed)}
    known = tuple(sorted(_addresses_in(own_endpoint(engine).name, port, set(names) - others)))
    return {host: known} if known else {}


def _addresses_in(engine: str, port: int, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        base, at, netloc = name.rpartition("@")
        host, _, shown_port = netloc.rpartition(":")
        if at and base == engine and shown_port == str(port) and is_address(host.strip("[]")):
            yield host.strip("[]")


def is_address(host: str) -> bool:
    """Whether it is an address already, and no name for any."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def port_of(parts: SplitResult) -> int:
    """The URL's port, or its scheme's."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def _netloc(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
