"""What the stand-in must have said, and whether a client has received exactly that.

What lives here: requests, and the known answer to each. What must not: connections (wire.py).
"""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import Any

from longwire.sim.ask import read_ask
from longwire.sim.chat import chat_events, whole_chat
from longwire.sim.reply import Event
from longwire.sim.server import CREATED
from longwire.words.settings import SimSettings

HEARTBEAT = b": longwire\n\n"
_seeds = itertools.count(1)


class Question:
    """One generation: its request and, once the engine's id for it is known, every byte of its answer."""

    def __init__(
        self, tokens: int, itl_ms: float, *, stream: bool = True, padding: int = 0, ttft_ms: float = 5
    ) -> None:
        self.seed = next(_seeds)
        sim = {"seed": self.seed, "tokens": tokens, "itl_ms": itl_ms, "ttft_ms": ttft_ms}
        words = "word " * (padding // 5)
        self.received: list[bytes] = []
        self._asked_s = time.monotonic()
        self._takes_s = (ttft_ms + tokens * itl_ms) / 1000
        self.body: dict[str, Any] = {
            "model": "sim",
            "stream": stream,
            "sim": sim,
            "messages": [{"role": "user", "content": f"{self.seed} {words}".strip()}],
        }

    @property
    def events_received(self) -> int:
        """So far, by whoever has asked."""
        return len(self.received) - self.received.count(HEARTBEAT)

    def may_be_forgotten(self, retention_s: float) -> bool:
        """Whether its stream can have been evicted: its end is so long ago, if it came as soon as it could. A reader whose
        window is small may be reading then, out of the buffers of the kernel."""
        return time.monotonic() > self._asked_s + self._takes_s + retention_s

    def request(self, *headers: str, body: bytes | None = None) -> bytes:
        """All of it as HTTP."""
        data = json.dumps(self.body).encode() if body is None else body
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    def blocks(self, id: str) -> list[bytes]:
        """The events of the answer, as the engine numbered ``id`` has sent them."""
        ask = read_ask(self.body, SimSettings(), id=id, created=CREATED)
        return [item.block for item in chat_events(ask) if isinstance(item, Event)]

    def check(self, received: list[bytes]) -> None:
        """Every event of the answer, each once and in order, and nothing else but heartbeats."""
        events = [block for block in received if block != HEARTBEAT]
        match = re.search(rb'"id":"([^"]+)"', events[0] if events else b"")
        assert match, f"no event has an id: {events[:2]}"
        self.compare(events, self.blocks(match[1].decode()))

    def compare(self, events: list[bytes], right: list[bytes]) -> None:
        """Fail at the first event that differs."""
        for place, (mine, known) in enumerate(itertools.zip_longest(events, right)):
            assert mine == known, (
                f"seed {self.seed}: event {place} of {len(right)} came as {mine!r}, right is {known!r}"
            )

    def check_numbered(self, received: list[bytes], first: int) -> None:
        """The same through a door with ids, from seq ``first`` on."""
        events = []
        numbers = []
        for block in received:
            if block == HEARTBEAT:
                continue
            head, _, event = block.partition(b"\n")
            numbers.append(head)
            events.append(event)
        assert numbers == [b"id: 1-%d" % seq for seq in range(first, first + len(numbers))], numbers[:3]
        match = re.search(rb'"id":"([^"]+)"', events[0]) if events else None
        if match is not None:
            self.compare(events, self.blocks(match[1].decode())[first:])

    def check_whole(self, answer: bytes) -> None:
        """An answer in one piece."""
        told = json.loads(answer)
        ask = read_ask(self.body, SimSettings(), id=told["id"], created=CREATED)
        right = {**whole_chat(ask), "sim_echo": {}}
        assert told == right, f"seed {self.seed}: {told} is not {right}"
