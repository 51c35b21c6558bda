"""What one sending process has to do in one repeat.

What lives here: the order, as it goes to the process in one line of JSON. What must not: how it was come by (run.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .schedule import EVEN, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything is a value that JSON has."""

    host: str
    port: int
    tls: bool = False
    path: str = "/v1/chat/completions"
    model: str = "sim"
    tokens: int = 64
    extra: dict[str, Any] = field(default_factory=dict)
    headers: list[tuple[str, str]] = field(default_factory=list)
    door: str = "sse"
    verify: bool = False
    answer_seed: int = 0
    prompts: str = ""
    prompt_tokens: int = 32
    seed: int = 0

    rate: float = 1.0
    end_rate: float = 1.0
    arrivals: str = EVEN
    burst: int = 0
    burst_every_s: float = 0.0
    concurrency: int = 0
    warm_up_s: float = 0.0
    duration_s: float = 1.0
    drain_s: float = 30.0

    max_in_flight: int = 10_000
    sources: int = 1
    timeout_s: float = 60.0
    silence_s: float = 30.0
    resets_per_s: float = 0.0
    worker: int = 0
    workers: int = 1

    @property
    def load(self) -> Load:
        """The arrivals of all processes together."""
        return Load(
            self.rate, self.end_rate, self.warm_up_s + self.duration_s, self.arrivals, self.burst, self.burst_every_s
        )

    def encode(self) -> bytes:
        """As one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> Job:
        """The line's order."""
        return Job(**json.loads(line))
