"""What a program sees when a stream could not be resumed.

What lives here: the errors, as branches of openai's own tree, so that ``except openai.APIError`` goes on working.
What must not: when they are raised (reader.py decides).

* :exc:`openai.APIError`

  * :exc:`ResumeError`: the rest of the stream could not be had.

    * :exc:`StreamGone`: the gateway no longer has it (404, 410). What was delivered is all there is.
"""

from __future__ import annotations

from typing import Any

import openai

from ..words.ids import Cursor
from .reader import GONE, Reader
from .table import Fail


class ResumeError(openai.APIError):
    """The stream broke and the rest of it could not be had; everything before that has been delivered exactly once."""

    def __init__(self, message: str, request: Any, *, stream_id: str, cursor: Cursor) -> None:
        super().__init__(message, request, body=None)
        self.stream_id = stream_id
        self.cursor = cursor

    @property
    def events(self) -> int:
        """How many events were delivered before."""
        return self.cursor.seq + 1


class StreamGone(ResumeError):
    """The gateway does not know the stream, or has evicted it."""


def error_of(fail: Fail, reader: Reader, request: Any) -> Exception:
    """The exception for a reader's verdict."""
    if fail.why is None or reader.stream_id is None:
        assert fail.cause is not None, "without a stream there is always an error of openai's"
        return fail.cause
    kind = StreamGone if fail.status in GONE else ResumeError
    delivered = f"{reader.events} event{'' if reader.events == 1 else 's'} had been delivered"
    message = f"Stream {reader.stream_id} could not be resumed: {fail.why}; {delivered} (cursor {reader.cursor})."
    error = kind(message, request, stream_id=reader.stream_id, cursor=reader.cursor)
    error.__cause__ = fail.cause
    return error
