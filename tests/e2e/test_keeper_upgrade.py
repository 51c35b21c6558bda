"""The keeper of a real gateway replaces its own program after a reload, while streams run."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.gateways import hurry, own_sim_port

from longwire.sim.answer import answer_text

pytestmark = pytest.mark.e2e

SRC = Path(__file__).parents[2] / "src"
TIMEOUT_S = 40.0
TOKENS, EVERY_MS = 1000, 25
"""Long enough for a reload and more on a busy machine. What is left after that comes at once."""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"this never came true: {what}"
        select.select([], [], [], 0.05)


class Gateway:
    """One process tree, and where it listens."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        command = [sys.executable, "-P", "-m", "longwire", "serve", "--engine", "sim", "--shards", "2"]
        command += ["--port", "0", "--admin-port", "0", "--arena-bytes", "64MiB"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGWIRE_")}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=folder, env={**environment, "PYTHONPATH": str(SRC)}
            )
        places = re.compile(r"(?:listening|admin) on (http://\S+)\s")
        until(lambda: len(places.findall(self.out.read_text())) == 2, "it serves, and says where")
        self.url, self.admin = places.findall(self.out.read_text())
        until(self.is_ready, "every shard has reached the engine")

    @property
    def program(self) -> bytes:
        return Path(f"/proc/{self.process.pid}/cmdline").read_bytes()

    def is_ready(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.admin}/readyz", timeout=10).status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def shards(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.admin}/v1/shards", timeout=10) as response:
            found: list[dict[str, Any]] = json.load(response)
            return found

    def all_serve(self) -> bool:
        return [shard["state"] for shard in self.shards()] == ["serving"] * 2

    def reload(self) -> None:
        request = urllib.request.Request(f"{self.admin}/v1/reload", method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            assert json.load(response) == {"status": "reloaded"}

    def open_stream(self, seed: int) -> Any:
        sim = {"tokens": TOKENS, "itl_ms": EVERY_MS, "seed": seed}
        body = {"model": "sim", "stream": True, "messages": [{"role": "user", "content": "hi"}], "sim": sim}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path)
    yield gateway
    if gateway.process.poll() is None:
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGINT)
        try:
            gateway.process.wait(10)
        except subprocess.TimeoutExpired:
            gateway.process.kill()
            gateway.process.wait()


def text_of(stream: Any) -> str:
    """What the answer says, read to its end over the one connection."""
    text = ""
    for line in stream:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text


def test_a_stream_goes_through_a_keeper_that_replaces_itself(gateway: Gateway) -> None:
    before = gateway.program
    streams = {seed: gateway.open_stream(seed) for seed in range(3)}
    for stream in streams.values():
        stream.readline()
    gateway.reload()
    until(lambda: '"keeper_replaced"' in gateway.out.read_text(), "the keeper is of the new code")
    assert gateway.program != before and b"longwire.keeper" in gateway.program, "in the same process"
    until(gateway.all_serve, "every slot is served")
    until(lambda: any(shard["streams"] for shard in gateway.shards()), "the new shards have told what they have")
    victim = max(gateway.shards(), key=lambda shard: shard["streams"])
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: gateway.all_serve() and victim["pid"] not in [s["pid"] for s in gateway.shards()], "it is replaced")
    hurry(own_sim_port(gateway.process.pid))
    for seed, stream in streams.items():
        assert text_of(stream) == answer_text(seed, TOKENS)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(TIMEOUT_S) == 0
    assert "longwire: stopping" in gateway.out.read_text()
