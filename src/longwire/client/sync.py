"""The blocking skin.

What lives here: doing what the reader decides, with a blocking client.
What must not: rules (reader.py). aio.py is this file with ``await``; what is changed here is changed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar, cast

import openai
from openai import Stream

from .calls import Call
from .errors import error_of
from .parts import SpliceParts, StreamParts, note_post_error, note_resume_error
from .reader import Reader
from .table import Fail, Post, Read, Resume, Wait

T = TypeVar("T")


class ResumableStream(StreamParts, Stream[T], Generic[T]):
    """An openai stream that survives its own connection.

    ``response`` is the POST's; after a resume the events come from another.
    """

    def __init__(self, inner: Stream[T], splice: Splice) -> None:
        # Not super().__init__(): it would start a second decoder. Everything that decodes is the inner stream's.
        self.response = inner.response
        self._inner = inner
        self._splice = splice
        self._reader = splice.reader
        inner.response = cast(Any, splice)

    def __next__(self) -> T:
        return self._inner.__next__()

    def __iter__(self) -> Iterator[T]:
        yield from self._inner

    def close(self) -> None:
        """Leave the stream. Its generation goes on for the grace time, for it can still be resumed: see cancel()."""
        self._splice.close()

    def cancel(self) -> None:
        """Leave the stream and stop its generation now, for every reader."""
        self.close()
        self._splice.call.cancel(self.stream_id)


class Splice(SpliceParts):
    """What the inner stream takes for its response: one body, over as many responses as it needs."""

    def __init__(self, reader: Reader, response: Any, call: SyncCall) -> None:
        super().__init__(reader, response)
        self.call = call

    def iter_bytes(self) -> Iterator[bytes]:
        """Each event once, in order, one per item."""
        while True:
            match self.reader.decide():
                case Read():
                    yield from self._read()
                case Wait(delay_s):
                    self.call.settings.sync_sleep(delay_s)
                    self.reader.receive_wakeup()
                case Resume() as resume:
                    self._resume(resume)
                case Fail() as fail:
                    self._raise(fail)
                case _:
                    return

    def close(self) -> None:
        """Whatever the connection does from here on is no reason to resume."""
        self.reader.close()
        self._response.close()

    def _read(self) -> Iterator[bytes]:
        reader = self.reader
        try:
            for data in self._response.iter_bytes():
                reader.receive_data(data)
                while (block := reader.next_block()) is not None:
                    yield block
                if not reader.is_reading:
                    return
        except self._broken as error:
            reader.receive_break(error)
        else:
            reader.receive_eof()

    def _resume(self, resume: Resume) -> None:
        self._response.close()
        try:
            self._response = response = self.call.resume(resume)
        except (openai.APIStatusError, openai.APIConnectionError) as error:
            note_resume_error(self.reader, error)
        else:
            self.reader.receive_head(response.status_code, response.headers)

    def _raise(self, fail: Fail) -> NoReturn:
        self._response.close()
        raise error_of(fail, self.reader, self._request)


class SyncCall(Call[openai.OpenAI]):
    """One call of ``create(stream=True)``."""

    def open(self, create: Callable[..., Any]) -> Any:
        """POST until there is a response, and wrap its stream."""
        reader = Reader(self.settings.backoff)
        while True:
            match reader.decide():
                case Post():
                    try:
                        return self._wrap(create(**self.arguments), reader)
                    except openai.APIConnectionError as error:
                        note_post_error(reader, error)
                case Wait(delay_s):
                    self.settings.sync_sleep(delay_s)
                    reader.receive_wakeup()
                case Fail() as fail:
                    raise error_of(fail, reader, None)

    def _wrap(self, stream: Any, reader: Reader) -> Any:
        """The stream, resumable if it is one of a gateway's and not so already."""
        if not isinstance(stream, Stream) or isinstance(stream, ResumableStream):
            return stream
        response = stream.response
        reader.receive_head(response.status_code, response.headers)
        return ResumableStream(stream, Splice(reader, response, self)) if reader.stream_id else stream

    def resume(self, resume: Resume) -> Any:
        """The response of the GET, unread."""
        stream = self.client.get(**self.resume_arguments(resume), stream=True, stream_cls=Stream[object])
        return stream.response

    def cancel(self, stream_id: str) -> None:
        """Stop the generation; a stream that is gone is stopped."""
        try:
            self.client.delete(**self.cancel_arguments(stream_id))
        except openai.NotFoundError:
            return
