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

from .processes import FRAIL, SIM

HEARTBEAT = b": longwire\n\n"
_seeds = itertools.count(1)


class Question:
    """One generation: its request and, once the engine's id for it is known, every byte of its answer."""

    def __init__(
        self,
        tokens: int,
        itl_ms: float,
        *,
        stream: bool = True,
        padding: int = 0,
        ttft_ms: float = 5,
        is_frail: bool = False,
    ) -> None:
        self.seed = next(_seeds)
        self.is_frail = is_frail
        """Its engine fails in the middle of it, most likely, and another one goes on."""
        sim = {"seed": self.seed, "tokens": tokens, "itl_ms": itl_ms, "ttft_ms": ttft_ms}
        self.kills_before = 0
        self.kills_until: int | None = None
        """How many kills there had been when it was asked for, and when it was read."""
        words = "word " * (padding // 5)
        self.received: list[bytes] = []
        self._asked_s = time.monotonic()
        self._takes_s = (ttft_ms + tokens * itl_ms) / 1000
        self.body: dict[str, Any] = {
            "model": FRAIL if is_frail else SIM,
            "stream": stream,
            "sim": sim,
            "messages": [{"role": "user", "content": f"{self.seed} {words}".strip()}],
        }

    def most_requests(self, kills: int) -> int:
        """How many requests for it engines may have seen: one, one more where the first engine closes without a word a
        connection that was used before, and one where it fails. Where a process dies with the socket of a second part, the
        rest is asked for in the same way again."""
        lived_through = (kills if self.kills_until is None else self.kills_until) - self.kills_before
        return 3 * (1 + lived_through)

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

    def check_numbered(self, received: list[bytes], first: int) -> list[str]:
        """The same through a door with ids, from seq ``first`` on; returns the ids. The epoch rises where another engine goes
        on, and nowhere else."""
        events = []
        numbers = []
        for block in received:
            if block == HEARTBEAT:
                continue
            head, _, event = block.partition(b"\n")
            numbers.append(head.decode())
            events.append(event)
        told = [re.fullmatch(r"id: (\d+)-(\d+)", number) for number in numbers]
        places = [(int(match[1]), int(match[2])) for match in told if match]
        assert [seq for _, seq in places] == list(range(first, first + len(numbers))), numbers
        epochs = [epoch for epoch, _ in places]
        assert epochs == sorted(epochs) and (self.is_frail or set(epochs) <= {1}), numbers
        match = re.search(rb'"id":"([^"]+)"', events[0]) if events else None
        if match is not None:
            self.compare(events, self.blocks(match[1].decode())[first:])
        return [number.removeprefix("id: ") for number in numbers]

    def check_whole(self, answer: bytes) -> None:
        """An answer in one piece."""
        told = json.loads(answer)
        ask = read_ask(self.body, SimSettings(), id=told["id"], created=CREATED)
        right = {**whole_chat(ask), "sim_echo": {}}
        assert told == right, f"seed {self.seed}: {told} is not {right}"
