"""The awaiting skin.

What lives here: doing what the reader decides, with an async client, on asyncio or trio.
What must not: rules (reader.py). sync.py is this file without ``await``; what is changed here is changed there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar, cast

import openai
from openai import AsyncStream

from .calls import Call
from .errors import error_of
from .parts import SpliceParts, StreamParts, note_post_error, note_resume_error
from .reader import Reader
from .table import Fail, Post, Read, Resume, Wait

T = TypeVar("T")


class AsyncResumableStream(StreamParts, AsyncStream[T], Generic[T]):
    """An openai stream that survives its own connection.

    ``response`` is the POST's; after a resume the events come from another.
    """

    def __init__(self, inner: AsyncStream[T], splice: AsyncSplice) -> None:
        # Not super().__init__(): it would start a second decoder. Everything that decodes is the inner stream's.
        self.response = inner.response
        self._inner = inner
        self._splice = splice
        self._reader = splice.reader
        inner.response = cast(Any, splice)

    async def __anext__(self) -> T:
        return await self._inner.__anext__()

    async def __aiter__(self) -> AsyncIterator[T]:
        async for item in self._inner:
            yield item

    async def close(self) -> None:
        """Leave the stream. Its generation goes on for the grace time, for it can still be resumed: see cancel()."""
        await self._splice.aclose()

    async def cancel(self) -> None:
        """Leave the stream and stop its generation now, for every reader."""
        await self.close()
        await self._splice.call.cancel(self.stream_id)


class AsyncSplice(SpliceParts):
    """What the inner stream takes for its response: one body, over as many responses as it needs."""

    def __init__(self, reader: Reader, response: Any, call: AsyncCall) -> None:
        super().__init__(reader, response)
        self.call = call

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Each event once, in order, one per item."""
        while True:
            match self.reader.decide():
                case Read():
                    async for block in self._read():
                        yield block
                case Wait(delay_s):
                    await self.call.settings.async_sleep(delay_s)
                    self.reader.receive_wakeup()
                case Resume() as resume:
                    await self._resume(resume)
                case Fail() as fail:
                    await self._raise(fail)
                case _:
                    return

    async def aclose(self) -> None:
        """Whatever the connection does from here on is no reason to resume."""
        self.reader.close()
        await self._response.aclose()

    async def _read(self) -> AsyncIterator[bytes]:
        reader = self.reader
        try:
            async for data in self._response.aiter_bytes():
                reader.receive_data(data)
                while (block := reader.next_block()) is not None:
                    yield block
                if not reader.is_reading:
                    return
        except self._broken as error:
            reader.receive_break(error)
        else:
            reader.receive_eof()

    async def _resume(self, resume: Resume) -> None:
        await self._response.aclose()
        try:
            self._response = response = await self.call.resume(resume)
        except (openai.APIStatusError, openai.APIConnectionError) as error:
            note_resume_error(self.reader, error)
        else:
            self.reader.receive_head(response.status_code, response.headers)

    async def _raise(self, fail: Fail) -> NoReturn:
        await self._response.aclose()
        raise error_of(fail, self.reader, self._request)


class AsyncCall(Call[openai.AsyncOpenAI]):
    """One call of ``create(stream=True)``."""

    async def open(self, create: Callable[..., Awaitable[Any]]) -> Any:
        """POST until there is a response, and wrap its stream."""
        reader = Reader(self.settings.backoff)
        while True:
            match reader.decide():
                case Post():
                    try:
                        return self._wrap(await create(**self.arguments), reader)
                    except openai.APIConnectionError as error:
                        note_post_error(reader, error)
                case Wait(delay_s):
                    await self.settings.async_sleep(delay_s)
                    reader.receive_wakeup()
                case Fail() as fail:
                    raise error_of(fail, reader, None)

    def _wrap(self, stream: Any, reader: Reader) -> Any:
        """The stream, resumable if it is one of a gateway's and not so already."""
        if not isinstance(stream, AsyncStream) or isinstance(stream, AsyncResumableStream):
            return stream
        response = stream.response
        reader.receive_head(response.status_code, response.headers)
        return AsyncResumableStream(stream, AsyncSplice(reader, response, self)) if reader.stream_id else stream

    async def resume(self, resume: Resume) -> Any:
        """The response of the GET, unread."""
        stream = await self.client.get(**self.resume_arguments(resume), stream=True, stream_cls=AsyncStream[object])
        return stream.response

    async def cancel(self, stream_id: str) -> None:
        """Stop the generation; a stream that is gone is stopped."""
        try:
            await self.client.delete(**self.cancel_arguments(stream_id))
        except openai.NotFoundError:
            return
