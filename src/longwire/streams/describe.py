"""A stream's state as JSON-ready facts, for its owner and for the operator.

What lives here: one function. What must not: prompts, keys, or anything of another stream.
"""

from __future__ import annotations

from .stream import Kind, State, Stream


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
        "engine": facts.engine,
        "route": facts.route,
        "epoch": stream.log.epoch,
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
