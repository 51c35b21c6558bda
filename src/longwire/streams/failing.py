"""How a stream tells that its answer is not whole: as what, and in which words.

What lives here: the choice between an error response, an event in the stream and a cut connection.
What must not: the words themselves (dialects), when a stream has failed (stream.py and whoever produces it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..words.reasons import CloseReason
from .arena import ArenaFull
from .terms import Kind, Refusal, State, is_part

if TYPE_CHECKING:
    from .stream import Stream


def tell_failure(stream: Stream, reason: CloseReason, message: str, refusal: Refusal | None) -> None:
    """Before the first content it becomes an ordinary error response; after it, an event in the stream, or a cut where nothing
    more can be said: readers see the connection break, which is no false success."""
    message = message or reason.help
    if stream.state is State.OPENING:
        stream.refusal = refusal or Refusal(reason.status or 500, stream.ending.error_body(reason, message))
        return
    if stream.kind is Kind.BODY:
        stream.is_cut = True
        return
    facts = {"stream_id": stream.public_id, "last_seq": stream.log.seq_at(len(stream.log.entries)) - 1}
    continuable = is_part(stream.facts, stream.kind, reason, stream.request)
    hopes = {"resumable": reason.resumable, "continuable": continuable}
    try:
        for block in stream.ending.error_blocks(reason, message, facts | hopes):
            stream.log.append_record(block)  # the row tells of it, together with the end
    except ArenaFull:
        stream.is_cut = True
