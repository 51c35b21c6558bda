"""Killing and stalling, before a gateway that is played."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from longwire.bench.chaos import Chaos
from longwire.bench.endpoint import RunFailed, first_model


@contextmanager
def answering(*answers: Any, status: int = 200) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that gives one answer after the other, the last one for ever; its URL, and what it was asked."""
    left = list(answers)
    asked: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.rfile.read(int(self.headers.get("content-length", 0)))))
            answer = left.pop(0) if len(left) > 1 else left[0]
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shard(pid: int, state: str = "serving") -> dict[str, object]:
    return {"index": 0, "pid": pid, "state": state}


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


async def test_the_shard_that_is_named_is_killed_and_its_successor_waited_for(victim: subprocess.Popen[bytes]) -> None:
    pid = victim.pid
    down, other, back = [shard(0, "down")], [shard(pid + 1, "warm")], [shard(pid + 1)]
    with answering([shard(pid)], [shard(pid)], down, other, back) as (url, asked):
        chaos = Chaos({"kill-shard": 10.0}, url, "", 0)
        await chaos.run(time.monotonic_ns(), 0.1, 0)
    assert victim.wait(timeout=10) == -signal.SIGKILL
    assert chaos.kills == len(chaos.detections_ms) == 1 and chaos.problems == []
    assert chaos.detections_ms[0] >= 4 * 20, "four looks, 20 ms apart"
    assert {path for path, _ in asked} == {"/v1/shards"} and len(asked) == 5


async def test_the_engine_is_told_to_pause() -> None:
    with answering({"preempted_ms": 70}) as (url, asked):
        chaos = Chaos({"stall-engine": 20.0, "reset-clients": 5.0}, "", url, 70.0)
        await chaos.run(time.monotonic_ns(), 0.1, 0)
    assert chaos.stalls == 2 and asked == [("/sim/preempt", b'{"ms": 70.0}')] * 2


async def test_what_cannot_be_broken_is_said_and_tried_no_more() -> None:
    with answering([shard(0, "down")]) as (url, asked):
        chaos = Chaos({"kill-shard": 100.0}, url, "", 0)
        await chaos.run(time.monotonic_ns(), 0.1, 0)
    assert chaos.problems == ["Chaos could not go on: no shard serves."] and len(asked) == 1 and chaos.kills == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"error": {"message": "No key."}}', "answered 401: No key."),
        (b"<p>" + b"word " * 99, "word ..."),
        (b"[1]", "answered 401: [1]"),
    ],
)
def test_an_error_is_told_in_whole_words(answer: bytes, words: str) -> None:
    with answering(answer, status=401) as (url, _), pytest.raises(RunFailed) as failed:
        first_model(f"{url}/v1", {})
    assert str(failed.value).endswith(words)


def test_what_has_no_models_is_no_endpoint() -> None:
    admins = {"error": {"message": "There are: /metrics"}}
    with answering(admins, status=404) as (url, _), pytest.raises(RunFailed) as failed:
        first_model(f"{url}/v1", {})
    assert str(failed.value).startswith(
        f"{url}/v1 has no /models (404), so it is no OpenAI endpoint"
    ) and "/metrics" not in str(failed.value)


def test_a_host_that_nobody_knows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    with pytest.raises(
        RunFailed, match=r"no host 'gatewy' is known here \(Name or service not known\); check the address"
    ):
        first_model("http://gatewy/v1", {})


def test_the_model_is_the_first_that_is_listed() -> None:
    with answering({"data": [{"id": "a"}, {"id": "b"}]}) as (url, asked):
        assert first_model(f"{url}/v1", {}) == "a" and asked[0][0] == "/v1/models"
