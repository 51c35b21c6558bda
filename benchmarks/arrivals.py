"""Clients that ask for one answer each, and note what came and when.

What lives here: one request over one connection, a schedule of many, and clients that ask again and again.
What must not: starting processes, goals.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from random import Random

from control import percentile
from event import MODEL

ANSWER_WITHIN_S = 60.0
FIRST = b'"content":"word '
DONE = b"[DONE]"
REST_S = 0.2
"""What a client that is refused waits before it asks again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what came of it. Times are of the monotonic clock; ``status`` 0: no answer at all."""

    at: float
    status: int
    first_at: float
    ended_at: float
    tokens: int
    whole: bool

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.at

    @property
    def is_refused(self) -> bool:
        return self.status in {429, 503} and not self.tokens


def lengths(mean: int) -> list[int]:
    """Of answers, half as long to half as long again: all of one length would begin and end in waves, as none do."""
    dice = Random(1)
    return [dice.randint(mean // 2, mean * 3 // 2) for _ in range(997)]


class Asker:
    """Asks one gateway, for answers of these lengths in turn. ``headers`` go with each request."""

    def __init__(self, port: int, prompt_tokens: int, answers: Iterable[int], headers: Iterable[str] = ()) -> None:
        self.port = port
        lines = "".join(f"{header}\r\n" for header in headers).encode()
        self.requests = cycle([encode(prompt_tokens, tokens, lines) for tokens in answers])

    async def ask(self) -> Asked:
        """One request over a connection of its own."""
        at = time.monotonic()
        status, tokens, first_at, tail = 0, 0, 0.0, b""
        writer = None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(next(self.requests))
                while data := await reader.read(65536):
                    if not status:
                        status = int(data[9:12])
                    tokens += data.count(FIRST)
                    if tokens and not first_at:
                        first_at = time.monotonic()
                    tail = (tail + data)[-64:]
        except (OSError, TimeoutError, ValueError):
            pass  # what came until then is the answer
        finally:
            if writer is not None:
                writer.close()
        return Asked(at, status, first_at, time.monotonic(), tokens, status == 200 and DONE in tail)

    async def spread(self, count: int, over_s: float) -> list[Asked]:
        """So many requests, evenly over so long; all that came of them."""
        return await self.at_times([number * over_s / count for number in range(count)])

    async def at_times(self, times: Iterable[float]) -> list[Asked]:
        """A request at each of these times, counted in seconds from now, whatever has become of the others."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def one(at: float) -> Asked:
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            return await self.ask()

        return list(await asyncio.gather(*(one(at) for at in times)))

    async def keep_asking(self, clients: int, seconds: float, told: list[Asked], ramp_s: float = 0.0) -> None:
        """So many clients, each of which asks again when it has its answer, until so long is over. They begin one after the
        other, within ``ramp_s``."""
        ends = time.monotonic() + seconds

        async def client(number: int) -> None:
            await asyncio.sleep(number * ramp_s / clients)
            while time.monotonic() < ends:
                asked = await self.ask()
                told.append(asked)
                if not asked.whole:
                    await asyncio.sleep(REST_S)

        await asyncio.gather(*(client(number) for number in range(clients)))


def encode(prompt_tokens: int, answer_tokens: int, lines: bytes, *, keep: bool = False) -> bytes:
    """A request's bytes. ``keep``: its connection is for more than this one."""
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * max(1, (prompt_tokens * 4 - 100) // 5)}],
        "stream": True,
        "max_tokens": answer_tokens,
    }
    body = json.dumps(fields).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"connection: %b\r\ncontent-length: %d\r\n%b\r\n%b"
        % (b"keep-alive" if keep else b"close", len(body), lines, body)
    )


def ttft_ms(asked: Iterable[Asked], share: float) -> float:
    """A percentile of the time to the first token, of those that had one."""
    return percentile(sorted(int(each.ttft_s * 1e6) for each in asked if each.first_at), share) / 1e3
