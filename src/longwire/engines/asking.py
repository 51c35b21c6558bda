"""Asking an upstream one small question over a connection of its own.

What lives here: sending a GET and collecting its answer in ordinary memory, bounded.
What must not: what is asked and what follows from the answer (probe.py, load_probe.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..wire.http1 import encode_request_head
from ..words.reasons import CloseReason
from .base import Answer, Failure
from .dialing import ConnectFailed
from .exchange import Exchange, Expect
from .openai import ChatWatch
from .pool import Upstream

READ_BYTES = 64 * 1024
"""What one read may bring: as much as a model list or a page of metrics mostly is."""


class Refused(ConnectFailed):
    """It answered, with an error of this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Question:
    """``what`` names the answer in error messages ("its model list"). ``is_only_one`` asks the engine to close behind it:
    llama.cpp keeps a thread for each idle connection."""

    target: bytes
    what: str
    max_bytes: int
    expect: Expect
    accept: bytes
    is_only_one: bool = False


class _Collector:
    """A sink in ordinary memory, bounded, that is also the exchange's owner."""

    keeps_bytes = True

    def __init__(self, question: Question, done: asyncio.Future[bytes]) -> None:
        self._question = question
        self._done = done
        self.rest = memoryview(bytearray(READ_BYTES))
        self._bytes = bytearray()
        self._body = bytearray()
        self.end = 0
        self.is_full = False

    @property
    def chain(self) -> _Collector:
        return self

    def filled(self, count: int) -> None:
        self._bytes += self.rest[:count]
        self.end += count
        if self.end > self._question.max_bytes:
            self._fail(ConnectFailed(f"{self._question.what} is too large"))

    def splice(self) -> None: ...

    def unsplice(self) -> None: ...

    def lose_reader(self, fault: Exception) -> None: ...

    def settle_soon(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        self._fail(ConnectFailed(f"{self._question.what} is a stream of events"))

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self._body += self._bytes[start : start + length]

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self._fail(ConnectFailed(f"{self._question.what} is a stream of events"))

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None: ...

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...

    def began(self) -> None: ...

    def refusing(self) -> None: ...

    def answered(self, answer: Answer) -> None: ...

    def completed(self, reason: CloseReason, message: str) -> None:
        if reason.is_success and not self._done.done():
            self._done.set_result(bytes(self._body))
        else:
            self._fail(ConnectFailed(message))

    def failed(self, failure: Failure) -> None:
        self._fail(Refused(failure.status) if failure.status else ConnectFailed(failure.message))

    def _fail(self, problem: ConnectFailed) -> None:
        if not self._done.done():
            self._done.set_exception(problem)


async def wait_answer(upstream: Upstream, question: Question) -> bytes:
    """The body of the answer. Whoever asks sets the time limit; when it is left, nothing of it goes on.

    Raises:
        Refused: it answered with an error.
        ConnectFailed: there is no answer, or none of the kind that was asked for.
    """
    headers = [(b"host", upstream.host_header), (b"accept", question.accept), (b"accept-encoding", b"identity")]
    if question.is_only_one:
        headers.append((b"connection", b"close"))
    if upstream.engine.api_key:
        headers.append((b"authorization", b"Bearer " + upstream.engine.api_key.encode()))
    request = encode_request_head(b"GET", upstream.base_path.encode() + question.target, headers)
    # A connection of its own: a pooled one that the engine has just closed would make a healthy engine look down.
    connection = await upstream.wait_new()
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    collector = _Collector(question, done)
    limits = (question.max_bytes, question.max_bytes)
    exchange = Exchange(collector, ChatWatch(1, False), collector, question.expect, limits, connection)
    connection.send(exchange, request)
    try:
        return await done
    finally:
        exchange.abandon()
