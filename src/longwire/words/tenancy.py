"""What must hold of tenants' tables beyond the bounds of each setting.

What lives here: the rules of one table, and those between tables and the gateway's settings, each with what to do about it.
What must not: reading settings or saying where they stood (config.py), what a limit does (admission).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from .settings import TenantSettings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_KEY_HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")


def find_bad_words(tenant: TenantSettings) -> str:
    """What is wrong with a tenant's name or keys; empty where nothing is."""
    if not NAME.match(tenant.name):
        return "A tenant needs a name of up to 64 letters, digits, dots, dashes and underscores."
    if not all(_KEY_HASH.match(key_hash) for key_hash in tenant.key_hashes):
        # The wrong value may be a raw key, so it is not repeated.
        return f"The key_hashes of tenant {tenant.name} must be as longwire tenants hash prints them."
    return ""


def find_bad_homes(tenants: Sequence[TenantSettings], max_streams: int) -> Iterator[tuple[int, str, str]]:
    """What is wrong with homes and what is reserved there: the tenant's index, the setting, and a sentence.

    ``max_streams`` is the gateway's, which holds for each shard.
    """
    kept: Counter[int] = Counter()
    for index, tenant in enumerate(tenants):
        reserved = tenant.reserved_slots
        if reserved and tenant.home < 0:
            message = f"Tenant {tenant.name} has reserved_slots and no home: add home = 0 (or another shard's slot)."
            yield index, "reserved_slots", message
        elif tenant.slot_tokens and not reserved:
            message = (
                f"Tenant {tenant.name} has slot_tokens and no reserved_slots: say how many slots have that reserve."
            )
            yield index, "slot_tokens", message
        elif reserved > tenant.max_streams:
            message = (
                f"Tenant {tenant.name} may have {tenant.max_streams} streams (max_streams) and could never use its "
                f"{reserved} reserved_slots: raise the one or lower the other."
            )
            yield index, "reserved_slots", message
        kept[tenant.home] += reserved
        if kept[tenant.home] > max_streams:
            message = (
                f"{kept[tenant.home]} reserved_slots at home {tenant.home} are more than the {max_streams} streams that "
                "a shard holds: raise max_streams, lower reserved_slots, or give a tenant another home."
            )
            yield index, "reserved_slots", message
