"""Tenants and the keys that name them.

What lives here: hashing a key, finding its tenant, taking a new set of keys.
What must not: reading files (keysfile.py), counting streams (limiter.py), HTTP beyond the value of two headers.

Keys are kept as SHA-256 only. They are long random strings, so a slow password hash would add nothing but a way to load the
gateway; a key that somebody could guess is not made safe by either. No key, no part of one, and no line of a keys file (where
someone may have pasted a key) ever stands in an error, a log or a repr.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator

from longwire.words.errors import SettingsError, Unauthenticated
from longwire.words.settings import TenantSettings

MAX_KEY_BYTES = 512
"""Keys have 32 to 200 bytes. Beyond this nothing is hashed, so that a header full of junk costs nothing."""

MAX_KEYS = 4096
"""Every lookup compares with every key: 0.05 µs each, so 0.2 ms at most."""

MAX_NAME_CHARS = 64
"""A tenant's name is a metric label and a field of each log line."""

ANONYMOUS = "anonymous"
"""The one tenant there is when none is configured."""

_HASH = re.compile(r"sha256:([0-9A-Fa-f]{64})\Z")
_KEY = re.compile(r"[\x21-\x7e]+\Z")


def hash_key(key: str) -> str:
    """A key as the settings keep it: ``sha256:`` and 64 hex digits.

    Raises:
        SettingsError: for a key that could never arrive in a header: empty, too long, with white space or non-ASCII text.
    """
    if len(key) > MAX_KEY_BYTES or not _KEY.match(key):
        raise SettingsError(f"A key must be 1 to {MAX_KEY_BYTES} visible ASCII characters without white space.")
    return "sha256:" + hashlib.sha256(key.encode("ascii")).hexdigest()


class Tenant:
    """Who a request belongs to. ``index`` is its row in the matrix, where all that it uses is counted."""

    __slots__ = ("_models", "index", "name", "settings")

    def __init__(self, settings: TenantSettings, index: int) -> None:
        self.name = settings.name
        self.index = index
        self.settings = settings
        self._models = frozenset(settings.models)

    def may_use(self, model: str) -> bool:
        """Whether the tenant may name this model in a request; no list of models means any."""
        return not self._models or model in self._models

    def statistics(self) -> dict[str, int]:
        return {"index": self.index, "max_streams": self.settings.max_streams}

    def __repr__(self) -> str:
        # Without the settings: they hold key hashes.
        return f"<Tenant {self.name!r} #{self.index} max_streams={self.settings.max_streams}>"


def home_of(tenant: Tenant, slots: int) -> int | None:
    """The slot that a tenant is pinned to, of so many; None where it may run on any.

    A home beyond the last slot is folded back: one configuration serves large machines and small ones, and every process
    comes to the same answer by itself.
    """
    home = tenant.settings.home
    return None if home < 0 else home % slots


class Tenants:
    """All tenants and every key hash known now: those of the settings, and those of the keys file as last taken."""

    __slots__ = ("_anonymous", "_by_name", "_from_file", "_from_settings", "_keys", "_refused")

    def __init__(self, settings: Iterable[TenantSettings]) -> None:
        """Raises SettingsError for a bad or repeated name, a malformed hash, or a key that two tenants share."""
        self._by_name: dict[str, Tenant] = {}
        self._from_settings: dict[bytes, Tenant] = {}
        self._from_file: dict[bytes, Tenant] = {}
        self._refused = 0
        for index, one in enumerate(settings):
            self._add(Tenant(one, index), where=f"tenants[{index}]")
        self._anonymous = None if self._by_name else _make_anonymous()
        self._keys = self._join(self._from_file, where="tenants")

    def _add(self, tenant: Tenant, where: str) -> None:
        _check_name(tenant.name, where)
        if tenant.name in self._by_name:
            raise SettingsError(f"Two tenants are named {tenant.name!r}; give each its own name.", where=where)
        self._by_name[tenant.name] = tenant
        for text in tenant.settings.key_hashes:
            _put(self._from_settings, _parse_hash(text, where), tenant, where)

    def _join(self, from_file: dict[bytes, Tenant], where: str) -> tuple[tuple[bytes, Tenant], ...]:
        """Settings and file as one sequence; it replaces the old one in a single assignment, or not at all."""
        joined = dict(self._from_settings)
        for digest, tenant in from_file.items():
            _put(joined, digest, tenant, where)
        if len(joined) > MAX_KEYS:
            raise SettingsError(f"There are {len(joined)} keys; {MAX_KEYS} is the most.", where=where)
        return tuple(joined.items())

    @property
    def is_open(self) -> bool:
        """True when no tenant is configured: whoever can connect may come in."""
        return self._anonymous is not None

    def identify(self, authorization: bytes | None, api_key: bytes | None = None) -> Tenant:
        """Whose request this is, from the values of its Authorization and x-api-key headers.

        Both headers lead to the same tenant with the same limits. A request that presents two different keys is refused,
        since whichever we picked, something in front of us may have checked the other.

        Raises:
            Unauthenticated: no key, or none of a tenant's. It never says which part was wrong.
        """
        if self._anonymous is not None:
            return self._anonymous
        bearer = _bearer_key(authorization)
        presented = api_key.strip(b" \t") if api_key is not None else None
        if bearer and presented and bearer != presented:
            raise self._refuse("Authorization and x-api-key carry different keys; send one of them.")
        key = bearer or presented
        if not key:
            raise self._refuse("No API key was sent; send it as `Authorization: Bearer KEY`.")
        tenant = self._find(key) if len(key) <= MAX_KEY_BYTES else None
        if tenant is None:
            raise self._refuse("This API key is not known here; check it, or ask the operator for a new one.")
        return tenant

    def _find(self, key: bytes) -> Tenant | None:
        """Compare with every known hash, each in constant time, and never stop early.

        A lookup that ends at the first difference tells by its duration how many bytes of the presented key's hash agree
        with a known one. The sender can compute that hash itself, so it would learn a known hash's prefix, and could then
        test guesses without asking us. Going on after a match hides in the same way where in the list a key stands.
        """
        digest = hashlib.sha256(key).digest()
        found = None
        for known, tenant in self._keys:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def _refuse(self, message: str) -> Unauthenticated:
        self._refused += 1
        return Unauthenticated(message)

    def load_keys(self, text: str, where: str = "keys_file") -> int:
        """Take the keys of a file of ``tenant key-hash`` lines (``#`` comments and blank lines aside); returns their number.

        They replace those of the last file and stand beside those of the settings. What counts is the next request: a
        stream that already runs goes on, but with a removed key it can be neither read again nor stopped.

        Raises:
            SettingsError: naming the line (and never quoting it); the last good set stays in force, whole.
        """
        from_file: dict[bytes, Tenant] = {}
        # Not splitlines(), which also splits at characters that no editor counts as a line.
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
            words = line.split()
            if words and not words[0].startswith("#"):
                digest, tenant = self._parse_line(words, f"{where}:{number}")
                _put(from_file, digest, tenant, f"{where}:{number}", also=self._from_settings)
        self._keys = self._join(from_file, where)
        self._from_file = from_file
        return len(from_file)

    def _parse_line(self, words: list[str], where: str) -> tuple[bytes, Tenant]:
        if len(words) != 2:
            raise SettingsError("A line must be `tenant key-hash`, with one space between.", where=where)
        name, text = words
        digest = _parse_hash(text, where)
        tenant = self._by_name.get(name)
        if tenant is None:
            raise SettingsError("The line names a tenant that is not configured; add it as [[tenants]].", where=where)
        return digest, tenant

    def by_name(self, name: str) -> Tenant | None:
        """The tenant of this name (the anonymous one, too, when there is no other)."""
        if self._anonymous is not None and name == ANONYMOUS:
            return self._anonymous
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Tenant]:
        """All tenants by index; the anonymous one when there is no other."""
        return iter([self._anonymous] if self._anonymous is not None else list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name) or 1

    def statistics(self) -> dict[str, int]:
        return {
            "tenants": len(self._by_name),
            "keys_of_settings": len(self._from_settings),
            "keys_of_file": len(self._from_file),
            "refused": self._refused,
        }

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"{len(self._by_name)} with {len(self._keys)} keys"
        return f"<Tenants {state} refused={self._refused}>"


def _make_anonymous() -> Tenant:
    # Its own limit is out of the way: with a single tenant, the limiter's bound on all streams is the one that counts.
    return Tenant(TenantSettings(name=ANONYMOUS, max_streams=1_000_000), index=0)


def _bearer_key(authorization: bytes | None) -> bytes | None:
    """The key of ``Bearer KEY`` (scheme in any case, RFC 9110 11.1); None for another scheme, which is no key of ours."""
    if authorization is None:
        return None
    scheme, _, rest = authorization.strip(b" \t").partition(b" ")
    return rest.strip(b" \t") if scheme.lower() == b"bearer" else None


def _check_name(name: str, where: str) -> None:
    """Names go into log lines, metric labels and keys files: one printable word."""
    one_word = name.isprintable() and name.split() == [name] and not name.startswith("#")
    if not one_word or len(name) > MAX_NAME_CHARS:
        raise SettingsError(
            f"A tenant's name must be one printable word of at most {MAX_NAME_CHARS} characters.", where=f"{where}.name"
        )
    if name == ANONYMOUS:
        raise SettingsError(
            f"The name {ANONYMOUS!r} is taken by requests without a tenant; choose another.", where=f"{where}.name"
        )


def _parse_hash(text: str, where: str) -> bytes:
    match = _HASH.match(text)
    if match is None:
        # Not quoted: it may be a key in the clear, which is the most likely mistake.
        raise SettingsError(
            "A key hash must be sha256: and 64 hex digits, as printed by `longwire tenants hash`.", where=where
        )
    return bytes.fromhex(match[1])


def _put(
    keys: dict[bytes, Tenant], digest: bytes, tenant: Tenant, where: str, also: dict[bytes, Tenant] | None = None
) -> None:
    """Add a key; the same one again for its own tenant is harmless, for another it would make the owner a matter of order."""
    owner = keys.get(digest) or (also or {}).get(digest)
    if owner is not None and owner is not tenant:
        raise SettingsError(f"The tenants {owner.name!r} and {tenant.name!r} have the same key.", where=where)
    keys[digest] = tenant
