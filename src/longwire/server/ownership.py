"""Which slot a request belongs to.

What lives here: one pure function.
What must not: passing anything there (passing.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..admission.tenants import Tenant
from ..words.ids import Place, parse_stream_id, slot_of

if TYPE_CHECKING:
    from .handlers import Pending

OF_ONE_STREAM = frozenset({"stream_read", "stream_delete", "stream_continue"})
GENERATING = frozenset({"chat_completions", "completions", "relay", "stream_continue"})


def owner_of(
    pending: Pending,
    place: Place,
    home_of: Callable[[Tenant], int | None],
    hash_key: Callable[[Tenant, bytes, bytes], bytes],
) -> int:
    """The slot whose shard must answer this request; ``place.slot`` for what any shard can answer.

    A stream is where its id says. A tenant with a home generates there and nowhere else, with a key or without: its keys are
    then all in one place, too. Other keys are spread over the slots, so that one key is always looked up in one place.
    """
    if pending.route in OF_ONE_STREAM:
        raw = parse_stream_id(pending.match.argument)
        return slot_of(raw) if raw is not None and slot_of(raw) < place.slots else place.slot
    if pending.route not in GENERATING or pending.tenant is None:
        return place.slot
    home = home_of(pending.tenant)
    if home is not None and home < place.slots:
        return home
    key = pending.head.get(b"idempotency-key")
    if key:
        return int.from_bytes(hash_key(pending.tenant, pending.head.target, key), "little") % place.slots
    return place.slot
