"""How a reader's cursor arrives in a request.

What lives here: where it may stand, and whether a stream has had it. What must not: its syntax (words.ids).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..streams.stream import Stream
from ..words.errors import BadCursor
from ..words.ids import Cursor, parse_cursor

if TYPE_CHECKING:
    from .handlers import Pending

CURSOR_NAMES = ("after", "last_event_id", "lastEventId", "lastEventID", "Last-Event-ID", "starting_after")
"""Spellings that clients in the field use: our own, Mercure's two generations, event-source-polyfill, OpenAI's."""


def cursor_of(pending: Pending) -> Cursor:
    """The reader's cursor: the header that an EventSource sends when it reconnects wins over what stands in its URL.

    Raises:
        BadCursor: malformed, or given twice.
    """
    headers = pending.head.get_all(b"last-event-id")
    if len(headers) > 1:
        raise BadCursor("Last-Event-ID was sent twice.", param="Last-Event-ID")
    if headers:
        return parse_cursor(headers[0].decode("latin-1"))
    given = [value for name, value in pending.match.query if name in CURSOR_NAMES]
    if len(given) > 1:
        raise BadCursor("The cursor was given twice.", param="after")
    return parse_cursor(given[0] if given else "")


def check_cursor(stream: Stream, cursor: Cursor) -> None:
    """A cursor from the future is an error: waiting for it in silence would hide that something was lost.

    Raises:
        BadCursor: beyond the last event, or of an epoch that this stream has not had.
    """
    last = stream.log.last_seq
    if cursor.seq > last:
        raise BadCursor(
            f"The cursor is beyond the end: the last event so far is {stream.log.epoch}-{last}.", param="after"
        )
    if cursor.epoch > stream.log.epoch:
        raise BadCursor(
            f"The stream is in epoch {stream.log.epoch}; it has had no epoch {cursor.epoch}.", param="after"
        )
