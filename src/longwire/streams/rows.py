"""A stream's row: what another process must know of it, taken from the living stream.

What lives here: the packing of what is in words.
What must not: fields (tables.py), making a stream of a row (rebuild.py).
"""

from __future__ import annotations

import json

from ..words.ids import Place
from ..words.reasons import CloseReason
from .stream import State, Stream
from .tables import MAX_FACTS_BYTES, StreamRow, pack_word

MAX_MODEL_CHARS_IN_ROW = 128
"""The row's facts must fit whatever a client calls its model: it is only shown from there."""

USAGE_IN_ROW = frozenset({"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"})
"""What of an engine's usage stands in the row of an ended stream: the sums, and not what they consist of."""

_REASONS = list(CloseReason)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def row_of(stream: Stream, place: Place) -> StreamRow:
    """The row as it must stand in the table now."""
    facts = stream.facts
    described: dict[str, object] = {
        "tenant": facts.tenant,
        "route": facts.route,
        "model": facts.model[:MAX_MODEL_CHARS_IN_ROW],
        "engine": facts.engine,
        "n": facts.choices,
        "hide": facts.hides_usage,
        "stream": facts.wants_stream,
        "request": facts.request_id,
        "tokens": [facts.prompt_tokens, facts.context_tokens],
    }
    if stream.state is State.ENDED:
        described |= _at_the_end(stream)
    if facts.attempts > 1:
        described["tries"] = facts.attempts
    if facts.can_be_continued:
        described["part"] = True
    if facts.continues:
        described["goes_on"] = True
    if facts.timeouts:
        described["wish"] = dict(facts.timeouts)
    text = _encode(described).encode()
    if len(text) > MAX_FACTS_BYTES:  # a client may name a model at any length; the owner must not be lost for it
        text = json.dumps({**described, "model": "", "request": ""}).encode()
    records = stream.log.records
    return StreamRow(
        id=stream.id,
        owner=place.incarnation,
        epoch=stream.log.epoch,
        tenant=facts.tenant_index,
        state=stream.state,
        kind=stream.kind,
        reason=_REASONS.index(stream.reason) + 1 if stream.reason else 0,
        fd=stream.link.fd,
        read_base=stream.link.read_base,
        written_base=stream.link.written_base,
        log_block=stream.log.upstream.first,
        end=pack_word(stream.log.upstream.end, len(stream.log.entries)) if stream.state is State.ENDED else 0,
        records_block=records.first if records else 0,
        records_bytes=records.end if records and stream.state is State.ENDED else 0,
        request_block=stream.request.first if stream.request else 0,
        request_bytes=stream.request.end if stream.request else 0,
        created_us=int(stream.created_at * 1e6),
        prompt_hash=facts.prompt_hash or bytes(16),
        key_hash=facts.key_hash or bytes(16),
        body_hash=facts.body_hash or bytes(16),
        asker=facts.asker[0],
        asked_at=facts.asker[1],
        ended_us=int((stream.ended_at or 0) * 1e6),
        on_disconnect=stream.on_disconnect,
        grace_ms=int(stream.grace_s * 1000),
        facts=text if len(text) <= MAX_FACTS_BYTES else b"{}",
    )


def _at_the_end(stream: Stream) -> dict[str, object]:
    """What the row of an ended stream tells besides: nobody finds it in the checkpoint any more."""
    usage = {name: count for name, count in (stream.facts.usage or {}).items() if name in USAGE_IN_ROW}
    return {
        "events": stream.log.event_count,
        "bytes": stream.log.bytes_held,
        "guess": stream.facts.tokens_estimated,
        "usage": {name: count for name, count in usage.items() if isinstance(count, int)} or None,
    }
