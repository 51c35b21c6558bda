"""Clients of every kind. Each makes one connection, and checks every byte that comes.

What lives here: one coroutine per kind, from connecting to the last byte.
What must not: kills (killing.py), how many clients run (load.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .answers import Question
from .processes import RETENTION_S
from .wire import Wire

if TYPE_CHECKING:
    from .load import Load

SMALL_WINDOW = 32 * 1024
"""Much less than an answer. With a buffer of a few KiB Linux now and then opens the window by so little that the sender waits
for its persist timer each time (RFC 9293 3.8.6.2.1): 2 KB every 200 ms, whoever the sender is, and an answer takes a minute."""
LARGE_BODY = 300_000
"""Above the size that a shard reads in another process (256 KiB)."""


async def fast(load: Load, rng: random.Random) -> None:
    """The common case; others may read the same stream beside it."""
    wire, question = await load.connect(), load.ask(rng.randint(40, 160), rng.choice((5, 20)))
    wire.send(question.request())
    await _read(load, wire, question)


async def _read(load: Load, wire: Wire, question: Question) -> None:
    head = await wire.head()
    assert head[":status"] == "200", head
    with load.shown(head["x-stream-id"], question):
        question.check(await wire.blocks(question.received))


async def slow(load: Load, rng: random.Random) -> None:
    """A stream that is sealed long before this reader, or a second one of it, has read it."""
    wire, question = await load.connect(window=SMALL_WINDOW), load.ask(rng.randint(1500, 4000), 0)
    wire.send(question.request("Longwire-On-Disconnect: run"))
    await _read(load, wire, question)


async def second(load: Load, rng: random.Random) -> None:
    """Reads a stream of somebody else's by GET, from some cursor on."""
    found = load.pick(rng)
    if found is None:
        await asyncio.sleep(0.05)
        return
    _, question = found
    wire = await load.connect(window=rng.choice((0, 0, SMALL_WINDOW)))
    after = 0 if question.is_frail else rng.randint(0, min(20, question.events_received))
    ids = await _replay(load, wire, found, f"1-{after - 1}" if after else "")
    if question.is_frail and ids:  # only now are its epochs known
        await _replay(load, wire, found, rng.choice(ids))


async def _replay(load: Load, wire: Wire, found: tuple[str, Question], cursor: str) -> list[str]:
    """Read a stream from behind a cursor on; the ids that came."""
    stream_id, question = found
    after = int(cursor.partition("-")[2]) + 1 if cursor else 0
    line = f"Last-Event-ID: {cursor}\r\n" if cursor else ""
    lines = f"GET /v1/streams/{stream_id} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{line}\r\n"
    wire.send(lines.encode())
    head = await wire.head()
    if head[":status"] in ("404", "410") and question.may_be_forgotten(RETENTION_S):
        await wire.body(head)  # it came to its end and was evicted before a shard was there to hear of us
    elif head[":status"] == "204":
        assert after == len(question.blocks("")), "there was more behind the cursor"
    elif "retry" in (blocks := await _blocks_or_retry(wire, head)):
        load.asked_to_retry += 1
    elif head[":status"] == "200" and isinstance(blocks["blocks"], list):
        return question.check_numbered(blocks["blocks"], after)
    else:
        raise AssertionError(head)
    return []


async def _blocks_or_retry(wire: Wire, head: dict[str, str]) -> dict[str, object]:
    """An EventSource may be asked in its own words to come back, while the stream is taken over."""
    if head[":status"] == "200" and "content-length" in head:
        text = await wire.body(head)
        assert text.startswith(b"retry: "), text
        return {"retry": text}
    return {"blocks": await wire.blocks() if "transfer-encoding" in head else None}


async def failing(load: Load, rng: random.Random) -> None:
    """Answers whose engine fails, one after the other on one connection."""
    wire = await load.connect(window=rng.choice((0, 0, SMALL_WINDOW)))
    for _ in range(3):
        question = load.ask(rng.randint(30, 120), rng.choice((0, 5, 20)), is_frail=True)
        wire.send(question.request())
        await _read(load, wire, question)


async def failing_whole(load: Load, rng: random.Random) -> None:
    """The same in one piece: nothing of it has reached the client when its engine fails."""
    wire = await load.connect()
    for _ in range(3):
        question = load.ask(rng.randint(5, 100), 5, stream=False, is_frail=True)
        wire.send(question.request())
        head = await wire.head()
        assert head[":status"] == "200", head
        question.check_whole(await wire.body(head))
        question.kills_until = load.most_kills


async def pipelining(load: Load, rng: random.Random) -> None:
    """Two requests at once; the first answer may be read slowly, so that the second waits behind it."""
    wire = await load.connect(window=rng.choice((0, SMALL_WINDOW)))
    questions = [load.ask(rng.randint(20, 60), 10), load.ask(rng.randint(20, 60), 5)]
    wire.send(b"".join(question.request() for question in questions))
    for question in questions:
        await _read(load, wire, question)


async def halves(load: Load, rng: random.Random) -> None:
    """Half a request before a kill, and the rest after it; the cut lies in the head or in the body."""
    wire, question = await load.connect(), load.ask(30, 5, padding=rng.choice((0, 40_000)))
    request = question.request()
    body_at = request.index(b"\r\n\r\n") + 4
    cut = rng.choice((rng.randint(1, body_at - 1), rng.randint(body_at, len(request) - 1)))
    wire.send(request[:cut])
    await load.wait_kill()
    wire.send(request[cut:])
    await _read(load, wire, question)


async def expecting(load: Load, rng: random.Random) -> None:
    """Sends its body once it was told to; two of them on one connection."""
    wire = await load.connect()
    for _ in range(2):
        question = load.ask(20, 5)
        head, _, body = question.request("Expect: 100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        await wire.wait_continue()
        await load.wait_kill()
        wire.send(body)
        await _read(load, wire, question)
    assert wire.interim == 2, f"{wire.interim} responses of 100 to two requests"


async def closing(load: Load, rng: random.Random) -> None:
    """Asks for the connection to be closed behind the answer."""
    wire, question = await load.connect(), load.ask(rng.randint(20, 80), 10)
    wire.send(question.request("Connection: close"))
    await _read(load, wire, question)
    await wire.end()


async def silent(load: Load, rng: random.Random) -> None:
    """An engine that thinks: heartbeats come in between."""
    wire, question = await load.connect(), load.ask(4, 700, ttft_ms=700)
    wire.send(question.request())
    await _read(load, wire, question)


async def whole(load: Load, rng: random.Random) -> None:
    """Answers in one piece, one after the other on one connection."""
    wire = await load.connect()
    for _ in range(3):
        question = load.ask(rng.randint(5, 400), 1, stream=False)
        wire.send(question.request())
        head = await wire.head()
        assert head[":status"] == "200", head
        question.check_whole(await wire.body(head))


async def passed(load: Load, rng: random.Random) -> None:
    """Requests that belong here and there: the connection moves between shards."""
    wire = await load.connect()
    for turn in range(4):
        question = load.ask(rng.randint(5, 40), 5)
        key = f"Idempotency-Key: {question.seed}-{turn}" if rng.random() < 0.8 else "Accept: */*"
        wire.send(question.request(key))
        await _read(load, wire, question)


async def large(load: Load, rng: random.Random) -> None:
    """A body that is read in another process."""
    wire, question = await load.connect(), load.ask(20, 10, padding=LARGE_BODY)
    wire.send(question.request())
    await _read(load, wire, question)


async def asking(load: Load, rng: random.Random) -> None:
    """Answers that read no stream; a list is longer than what a row can hold."""
    wire = await load.connect()
    for _ in range(10):
        wire.send(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % rng.choice((b"/v1/models", b"/v1/streams")))
        head = await wire.head()
        assert head[":status"] == "200", head
        assert json.loads(await wire.body(head))["object"] == "list"


async def curl(load: Load, rng: random.Random) -> None:
    """The tool; it says itself how often it has connected."""
    question = load.ask(rng.randint(40, 120), 10)
    process = await asyncio.create_subprocess_exec(
        "curl", "-sSN", "--max-time", "60", "-H", "Content-Type: application/json", "--data-binary", "@-",
        "-w", "%{stderr}%{http_code} %{num_connects}", f"http://127.0.0.1:{load.trial.port}/v1/chat/completions",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, told = await process.communicate(json.dumps(question.body).encode())
    assert told == b"200 1" and process.returncode == 0, told
    load.connections += 1
    load.clients += 1
    question.check([block + b"\n\n" for block in output.split(b"\n\n")[:-1]])


Kind = Callable[["Load", random.Random], Awaitable[None]]

KINDS: dict[Kind, int] = {
    fast: 7, failing: 3, slow: 2, second: 4, pipelining: 3, halves: 3, expecting: 2, closing: 2, silent: 3, whole: 2,
    failing_whole: 1, passed: 3, large: 1, asking: 1, **({curl: 1} if shutil.which("curl") else {}),
}  # fmt: skip
"""How many clients of each kind there are at any time; those of the openai package are in sdk.py."""
