"""What the stand-in's tests share: replies played without a socket, and a transport that only remembers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from longwire.sim.connection import Connection
from longwire.sim.reply import Ending, Order
from longwire.sim.server import SimServer
from longwire.wire.chunked import ChunkedDecoder
from longwire.wire.http1 import RequestReader, ResponseHead, parse_response_head
from longwire.wire.sse import SseSplitter, parse_event
from longwire.words.clock import VirtualClock
from longwire.words.settings import SimSettings

MAX_STEPS = 100_000


def encode_request(
    body: object = None, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, method: str = "POST"
) -> bytes:
    """A request's bytes."""
    payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"host": "sim", "content-length": str(len(payload)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + payload


@dataclass
class Played:
    """A whole reply: what was written, how long it would have taken, how it ended."""

    writes: list[bytes] = field(default_factory=list)
    waited_s: float = 0.0
    ending: Ending | None = None
    pauses: list[float] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)

    @property
    def raw(self) -> bytes:
        return b"".join(self.writes)

    @property
    def head(self) -> ResponseHead:
        return parse_response_head(self.raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")

    @property
    def body(self) -> bytes:
        """The body with any chunked coding taken off; whatever follows it is not looked at."""
        rest = self.raw.partition(b"\r\n\r\n")[2]
        if not self.head.chunked:
            return rest
        return b"".join(rest[start:end] for start, end in ChunkedDecoder().feed(rest))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def blocks(self) -> list[bytes]:
        body = self.body
        ends = SseSplitter().feed(body)
        return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def data(self) -> list[bytes]:
        """Each event's data."""
        return [data for block in self.blocks if (data := parse_event(block).data) is not None]

    @property
    def frames(self) -> list[Any]:
        """Each event's JSON, the end marker left out."""
        return [json.loads(data) for data in self.data if data != b"[DONE]"]

    @property
    def text(self) -> str:
        """What a chat client reads."""
        deltas = [choice["delta"] for frame in self.frames for choice in frame.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)


def play(server: SimServer, request: bytes, most_steps: int = MAX_STEPS) -> Played:
    """Answer one request, all pauses skipped; where a reply has no end, its first ``most_steps`` steps."""
    reader = RequestReader(65_536, 1 << 26)
    reader.receive_data(request)
    head, body = reader.next_event(), reader.next_event()
    played = Played()
    for step in islice(server.answer(head, body).steps(), most_steps):  # type: ignore[arg-type]
        if isinstance(step, bytes):
            played.writes.append(step)
        elif isinstance(step, float):
            played.pauses.append(step)
            played.waited_s += max(0.0, step)
        elif isinstance(step, Ending):
            played.ending = step
            break
        else:
            played.orders.append(step)
    return played


class FakeTransport:
    """Remembers what is done to it. ``room`` is how many writes it takes before it pauses its protocol."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.half_closed = False
        self.room: int | None = None
        self.protocol: Connection | None = None

    @property
    def sent(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.aborted
        self.writes.append(data)
        if self.room is not None:
            self.room -= 1
            if self.room == 0 and self.protocol is not None:
                self.protocol.pause_writing()

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, _: str) -> None:
        return None

    def write_eof(self) -> None:
        self.half_closed = True

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0


class Line:
    """A connection of a server with a virtual clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.server = SimServer(SimSettings(**settings), clock=self.clock)
        self.transport, self.connection = self.connect()

    def connect(self) -> tuple[FakeTransport, Connection]:
        transport, connection = FakeTransport(), Connection(self.server)
        transport.protocol = connection
        connection.connection_made(transport)  # type: ignore[arg-type]
        return transport, connection

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.clock.advance(0)
