"""An engine whose KV cache fills, and which takes its time to accept connections: for benchmarks of admission and warming.

What lives here: the scheduler of kv_batch.py behind HTTP: chat completions as a stream, the model list, vLLM's metrics.
What must not: measuring beyond what only the engine can see (when a request came and when its first token left).

``--connect-ms`` is how long a new connection is deaf: bytes that come before are read after it. That is what a slow handshake
is to whoever connects, and a connection that has been idle for so long has it behind it.

Orders on stdin (see control.py): begin → ok; end → what was seen since: requests, preemptions, TTFT at the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from array import array
from typing import Any, cast

import uvloop
from control import Orders, percentile, settle_down
from event import MODEL
from kv_batch import BLOCK_TOKENS, KvBatch, Sequence

BACKLOG = 4096
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"kv","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "},'
    b'"finish_reason":null}]}\n\n'
)
BYTES_PER_TOKEN = 4
PREFILL_TOKEN_S = 1e-5
"""What a step takes longer for each token of a prompt: 100,000 tokens a second are read besides generating."""


def http_chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class KvEngine:
    """All connections and the one scheduler."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch = KvBatch(options.kv_blocks, options.max_running)
        self.step_s = options.step_ms / 1000
        self.connect_s = options.connect_ms / 1000
        self.streams: dict[Sequence, Client] = {}
        self.orders = Orders()
        self.began: dict[Sequence, float] = {}
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self.ttft_us = array("q")
        self.requests = 0
        self.hit: set[Sequence] = set()
        self.preempted_before = self.batch.preemptions
        self.connections = 0

    async def run(self, port: int) -> None:
        """Serve until the parent is gone."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Client(self), "127.0.0.1", port, backlog=BACKLOG)
        self.orders.answer(port=server.sockets[0].getsockname()[1])
        loop.add_reader(0, self.obey)
        due = loop.time()
        while not self.orders.ended:
            self.step()
            due = max(due, loop.time() - self.step_s) + self.step_s + self.batch.computed_last * PREFILL_TOKEN_S
            await asyncio.sleep(max(0.0, due - loop.time()))

    def step(self) -> None:
        before = self.batch.preemptions
        moved = self.batch.step()
        if self.batch.preemptions != before:
            self.hit.update(each for each in self.batch.waiting if each.preempted)
        now = time.monotonic()
        for sequence in moved:
            client = self.streams.get(sequence)
            if client is None:
                continue
            if sequence.generated == 1:
                self.ttft_us.append(int((now - self.began[sequence]) * 1e6))
            client.write_token(sequence)

    def obey(self) -> None:
        for order in self.orders.take():
            if order["do"] == "end":
                self.orders.answer(**self.seen())
            else:
                self.begin()
                self.orders.answer(ok=True)

    def seen(self) -> dict[str, Any]:
        """What happened since the beginning."""
        ttft = sorted(self.ttft_us)
        return {
            "requests": self.requests,
            "preempted_requests": len(self.hit),
            "preemptions": self.batch.preemptions - self.preempted_before,
            "connections": self.connections,
            "ttft_p50_ms": percentile(ttft, 0.5) / 1e3,
            "ttft_p99_ms": percentile(ttft, 0.99) / 1e3,
        }

    def metrics(self) -> bytes:
        """As vLLM tells them."""
        batch = self.batch
        rows = {
            "num_requests_running": len(batch.running),
            "num_requests_waiting": len(batch.waiting),
            "kv_cache_usage_perc": batch.used_share,
            "num_preemptions_total": batch.preemptions,
            "generation_tokens_total": batch.generated,
        }
        lines = [f'vllm:{name}{{engine="0"}} {value}' for name, value in rows.items()]
        cache = f'block_size="{BLOCK_TOKENS}",engine="0",num_gpu_blocks="{batch.capacity_blocks}"'
        return (
            "\n".join(
                ["# TYPE vllm:num_requests_running gauge", *lines, f"vllm:cache_config_info{{{cache}}} 1"]
            ).encode()
            + b"\n"
        )


class Client(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, engine: KvEngine) -> None:
        self.engine = engine
        self.received = b""
        self.sequence: Sequence | None = None
        self.is_deaf = engine.connect_s > 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.engine.connections += 1
        if self.is_deaf:
            asyncio.get_running_loop().call_later(self.engine.connect_s, self.hear)

    def hear(self) -> None:
        self.is_deaf = False
        if self.transport is not None and self.received:
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.is_deaf:
            return
        head, mark, rest = self.received.partition(b"\r\n\r\n")
        if not mark:
            return
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if len(rest) < length:
            return
        self.received = rest[length:]
        target = head.split(b" ", 2)[1]
        if target.startswith(b"/metrics"):
            self.answer(self.engine.metrics(), b"text/plain; version=0.0.4")
        elif target.endswith(b"/models"):
            self.answer(
                json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode(), b"application/json"
            )
        else:
            self.generate(rest[:length])

    def answer(self, body: bytes, kind: bytes) -> None:
        assert self.transport is not None
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)
        )

    def generate(self, body: bytes) -> None:
        assert self.transport is not None
        engine = self.engine
        wanted = json.loads(body)
        self.sequence = Sequence(max(1, len(body) // BYTES_PER_TOKEN), int(wanted.get("max_tokens") or 128))
        engine.streams[self.sequence] = self
        engine.began[self.sequence] = time.monotonic()
        engine.requests += 1
        engine.batch.enter(self.sequence)
        self.transport.write(HEAD)

    def write_token(self, sequence: Sequence) -> None:
        assert self.transport is not None
        data = http_chunk(EVENT)
        if sequence.is_over:
            data += b"".join(map(http_chunk, LAST)) + b"0\r\n\r\n"
            self.forget()
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.sequence is not None:
            self.engine.batch.leave(self.sequence)
        self.forget()
        self.transport = None

    def forget(self) -> None:
        if self.sequence is not None:
            self.engine.streams.pop(self.sequence, None)
            self.engine.began.pop(self.sequence, None)
            self.sequence = None


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the first line on stdout names it")
    parser.add_argument("--kv-blocks", type=int, default=65_536, help="blocks of 16 tokens")
    parser.add_argument("--max-running", type=int, default=256, help="requests that run at once")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of one step: a token for each that runs")
    parser.add_argument("--connect-ms", type=float, default=0.0, help="how long a new connection is deaf")
    options = parser.parse_args()
    settle_down()
    uvloop.run(KvEngine(options).run(options.port))


if __name__ == "__main__":
    main()
