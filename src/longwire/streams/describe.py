"""A stream's state as JSON-ready facts, for its owner and for the operator.

What lives here: the state object, from the stream itself or from its row. What must not: prompts, keys, or anything of
another stream.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ..words.ids import format_stream_id
from ..words.reasons import CloseReason
from .stream import Kind, State, Stream
from .tables import (
    COUNT_BITS,
    COUNT_MASK,
    FIRST_TOKEN_WORD,
    RECORDS_MASK,
    RECORDS_WORD,
    WORDS,
    StreamRow,
    Table,
    unpack_stream,
)

_REASONS = list(CloseReason)


def describe(stream: Stream) -> dict[str, object]:
    """The state object of ``GET /v1/streams/{id}``; times are milliseconds since ``created_at`` (unix seconds)."""
    facts = stream.facts
    return {
        "id": stream.public_id,
        "object": "stream",
        "status": stream.state.name.lower(),
        "close_reason": str(stream.reason) if stream.reason else None,
        "tenant": facts.tenant,
        "model": facts.model,
        "engine": facts.engine.partition("@")[0],
        "route": facts.route,
        "epoch": stream.log.epoch,
        "seams": [stream.log.seq_at(position) for position in stream.log.seams],
        "events": stream.log.event_count,
        "bytes": stream.log.bytes_held,
        "last_seq": stream.log.last_seq,
        "readers": len(stream.subscribers),
        "readable": stream.refusal is None and stream.kind is Kind.EVENTS,
        "created_at": round(stream.created_wall, 3),
        "first_byte_ms": _since(stream, facts.first_byte_at),
        "first_token_ms": _since(stream, facts.first_token_at),
        "last_event_ms": _since(stream, stream.last_at) if stream.log.event_count else None,
        "ended_ms": _since(stream, stream.ended_at),
        "usage": facts.usage or _estimate(stream),
        "usage_estimated": facts.usage is None and stream.state is State.ENDED,
    }


def _since(stream: Stream, at: float | None) -> float | None:
    return None if at is None else round((at - stream.created_at) * 1000, 1)


def _estimate(stream: Stream) -> dict[str, object] | None:
    """Tokens counted from events, where the engine did not count: an event is at least one token, and may be more."""
    if stream.state is not State.ENDED:
        return None
    return {"completion_tokens": stream.facts.tokens_estimated}


# From shared memory alone.


def describe_row(row: StreamRow, words: Sequence[int], boot_s: float) -> dict[str, object]:
    """The state object of a stream of any shard, from its row and the row's words; what they do not tell is None.

    ``boot_s`` is the unix time at which the monotonic clock stood at 0. A live stream's ``events`` count its heartbeats too and
    lag behind by a block at most.

    Raises:
        ValueError: the row is none that this version could have written.
    """
    state = State(row.state)
    told = _told(row)
    offset, count = words[0] >> COUNT_BITS, words[0] & COUNT_MASK
    if state is State.OPENING and count:
        state = State.LIVE  # the row is written anew only later
    is_ended = state is State.ENDED
    events = told.get("events") if is_ended else count
    usage = told.get("usage") or ({"completion_tokens": told.get("guess")} if is_ended else None)
    first_token_us = words[FIRST_TOKEN_WORD]
    reason = _REASONS[row.reason - 1] if 0 < row.reason <= len(_REASONS) else None
    return {
        "id": format_stream_id(row.id),
        "object": "stream",
        "status": state.name.lower(),
        "close_reason": str(reason) if reason else None,
        "tenant": told.get("tenant"),
        "model": told.get("model"),
        "engine": str(told.get("engine") or "").partition("@")[0],
        "route": told.get("route"),
        "epoch": row.epoch,
        "seams": [] if row.epoch == 1 else None,
        "events": events,
        "bytes": told.get("bytes") if is_ended else offset + (words[RECORDS_WORD] & RECORDS_MASK),
        "last_seq": events - 1 if is_ended and isinstance(events, int) else None,
        "readers": None,
        "readable": Kind(row.kind) is Kind.EVENTS and (not is_ended or bool(events) or reason is CloseReason.COMPLETED),
        "created_at": round(boot_s + row.created_us / 1e6, 3),
        "first_byte_ms": None,
        "first_token_ms": _ms_between(row.created_us, first_token_us),
        "last_event_ms": None,
        "ended_ms": _ms_between(row.created_us, row.ended_us) if is_ended else None,
        "usage": usage,
        "usage_estimated": is_ended and not told.get("usage"),
    }


def _told(row: StreamRow) -> dict[str, Any]:
    told = json.loads(row.facts or b"{}")
    if not isinstance(told, dict):
        raise ValueError("the row's facts are no object")
    return told


def _ms_between(start_us: int, end_us: int) -> float | None:
    return round((end_us - start_us) / 1000, 1) if end_us else None


def read_state(table: Table, row: int, boot_s: float) -> dict[str, object] | None:
    """A stream's state by its row; None where the row is empty, or holds what this version does not understand.

    The words come after the row: where it is given to another stream in between, the first had ended, and of an ended stream
    the row tells all that matters.
    """
    payload = table.read(row)
    if payload is None:
        return None
    first = table.word_index(row)
    words = table.words[first : first + WORDS].tolist()
    try:
        return describe_row(unpack_stream(payload), words, boot_s)
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return None


def read_states(tables: Sequence[Table], boot_s: float, tenant: str | None) -> Iterator[dict[str, object] | None]:
    """The tenant's streams (all for the operator) in these tables, row by row; None for each row that is none of them, so that
    whoever takes them can make a pause after so many rows."""
    for table in tables:
        for row in range(table.rows_touched):
            state = read_state(table, row, boot_s)
            yield state if state is not None and tenant in (None, state["tenant"]) else None
