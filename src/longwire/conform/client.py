"""A client of the gateway under test: one raw connection that takes its steps and notes every byte.

What lives here: sockets. What must not: what the steps are for (rows), what came of them (checks).

It has a socket of its own kind instead of a stream of asyncio's, because it must be able not to read, with a small window, and
to end a connection in each way that there is.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping

from .answers import AnswerReader, ConnectionEnd, Piece
from .bell import Bell
from .engine import RESET_NOW, Rehearsed
from .recording import Visit
from .stage import PATIENCE_S, Answers, Do, Follow, Freed, Has, Part, Reached, Sleep, Step, Target

Kill = Callable[[Iterable[tuple[str, int]]], str]
"""Ends the process that has a connection with one of these addresses; why not, else."""
READ_BYTES = 256 * 1024
BEGUN_S = 1.0
"""So long curl waits for a 100 before it sends a body all the same."""
SMALL_WINDOW_BYTES = 4096
"""The least that a kernel gives; a slow reader then holds up its sender after some kilobytes."""


def kill_nothing(_: Iterable[tuple[str, int]]) -> str:
    """Where the gateway was not started here."""
    return "there is nothing that may be killed"


class Client:
    """Plays one part."""

    def __init__(self, part: Part, bell: Bell, rehearsed: Mapping[str, Rehearsed], pace_s: float = 1.0) -> None:
        self.part = part
        self.kill: Kill = kill_nothing
        self._bell = bell
        self._rehearsed = rehearsed
        self._pace_s = pace_s
        self._patience_s = PATIENCE_S * pace_s
        self._reader = AnswerReader()
        self._pieces: list[Piece] = []
        self._end: ConnectionEnd = "open"
        self._ended_s = 0.0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._marks: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Client({self._reader!r}, {self._end})"

    def has(self, word: str) -> bool:
        """Whether this word has come."""
        needle = word.encode()
        return any(needle in answer.body for answer in self._reader.answers)

    async def run(self, target: Target) -> Visit:
        """Connect, take all steps, and say what came."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET)
        self._socket.setblocking(False)
        if self.part.has_small_window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW_BYTES)
        try:
            await asyncio.wait_for(self._loop.sock_connect(self._socket, (target.host, target.port)), self._patience_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reading = self._loop.create_task(self._read())
            for step in self.part.steps:
                made = step.make(self._reader.answers) if isinstance(step, Follow) else step
                if made is None:
                    break
                await self._take(made)
        except (OSError, TimeoutError) as error:
            self._mark(f"failed: {error or type(error).__name__}")
        finally:
            await self._close()
        nonces = tuple(request.nonce for request in self.part.requests)
        return Visit(nonces, tuple(self._pieces), self._end, self._ended_s, self._marks)

    async def _close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()  # before its descriptor's number can be another connection's
            await asyncio.wait([self._reading])
            self._reading = None
        self._socket.close()

    async def _read(self) -> None:
        while self._end == "open":
            await self._may_read.wait()
            try:
                data = await self._loop.sock_recv(self._socket, READ_BYTES)
            except OSError:
                self._over("reset")
                return
            now_s = self._loop.time()
            if not data:
                self._over("closed")
                return
            self._pieces.append(Piece(now_s, data))
            self._reader.feed(data, now_s)
            self._bell.ring()

    def _over(self, end: ConnectionEnd) -> None:
        if self._end == "open":
            self._end, self._ended_s = end, self._loop.time()
            self._reader.close(end, self._ended_s)
        self._bell.ring()

    def _mark(self, name: str) -> None:
        self._marks[name] = self._loop.time()

    async def _take(self, step: Step) -> None:
        match step:
            case bytes():
                await asyncio.wait_for(self._send(step), self._patience_s)
            case Sleep(s=s):
                await asyncio.sleep(s)
            case Do():
                await self._do(step)
            case _:
                await self._wait(self._wanted(step))

    async def _wait(self, what: Callable[[], object]) -> None:
        """Patience begins anew with every byte: what comes slowly comes."""
        had = -1
        while had < len(self._pieces):
            had = len(self._pieces)
            if await self._bell.wait_until(what, self._patience_s):
                return

    def _wanted(self, step: Step) -> Callable[[], object]:
        """What a step waits for."""
        match step:
            case Answers(n=n):
                return lambda: self._end != "open" or self._reader.whole >= n
            case Has(word=word):
                return lambda: self._end != "open" or self.has(word)
            case Reached(nonce=nonce):
                return lambda: self._rehearsed[nonce].asked
            case Freed(nonce=nonce):
                return lambda: not any(asked.is_open for asked in self._rehearsed[nonce].asked)
        raise TypeError(step)

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._socket, data)
        except (BrokenPipeError, ConnectionResetError):
            # It was refused before it was sent whole: what was answered is read, and that says more.
            self._mark("refused while sending")

    async def _do(self, what: Do) -> None:
        self._mark(what.name.lower())
        match what:
            case Do.BEGUN:
                await self._bell.wait_until(lambda: self._pieces or self._end != "open", BEGUN_S * self._pace_s)
                if self._pieces:
                    self._mark("came")
            case Do.STALL:
                self._may_read.clear()
            case Do.READ:
                self._may_read.set()
            case Do.HALF_CLOSE:
                self._socket.shutdown(socket.SHUT_WR)
            case Do.KILL:
                peers = {asked.peer for one in self.part.requests for asked in self._rehearsed[one.nonce].asked}
                self._mark(self.kill(peers) or "killed")
            case Do.LEAVE | Do.RESET:
                if what is Do.RESET:
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
                self._over("left")
                await self._close()
