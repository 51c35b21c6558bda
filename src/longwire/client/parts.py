"""What the two skins have in common and that neither waits for.

What lives here: the face of a resumable stream, the bookkeeping of a splice, and how openai's errors are told to the reader.
What must not: I/O, and rules (reader.py).
"""

from __future__ import annotations

from typing import Any

import openai

from ..words.ids import Cursor
from .http import broken_errors, was_never_sent
from .reader import Reader


class SpliceParts:
    """The state of what the inner stream takes for its response; anything else about it is the current response's."""

    def __init__(self, reader: Reader, response: Any) -> None:
        self.reader = reader
        self._request = response.request
        self._response = response
        self._broken = broken_errors(response)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


class StreamParts:
    """What a resumable stream has besides what any stream of openai's has."""

    _reader: Reader

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._reader!r}>"

    @property
    def stream_id(self) -> str:
        """The gateway's name of the stream: ``GET /v1/streams/{stream_id}`` reads it again, from any machine."""
        return self._reader.stream_id or ""

    @property
    def cursor(self) -> Cursor:
        """The last event that was handed on; as a string it is what ``Last-Event-ID`` takes."""
        return self._reader.cursor

    def statistics(self) -> dict[str, int]:
        """Events and connections so far."""
        return self._reader.statistics()


def note_post_error(reader: Reader, error: openai.APIConnectionError) -> None:
    """The POST found no answer, openai's own tries included: worth another, or the program's to see."""
    if isinstance(error, openai.APITimeoutError):
        raise error  # how long to wait for an answer is the program's own setting
    if was_never_sent(error) and not reader.statistics()["failures"]:
        raise error  # nobody listens there: a wrong address should be said at once
    reader.receive_break(error)


def note_resume_error(reader: Reader, error: openai.APIStatusError | openai.APIConnectionError) -> None:
    """The GET failed."""
    if isinstance(error, openai.APIStatusError):
        reader.receive_refusal(error.status_code, error.response.headers, error)
    else:
        reader.receive_break(error)
