"""The keeper as the first process of a container: nobody else is there to reap, and no signal has a default there."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from longwire.sim.answer import answer_text
from longwire.streams.counters import counters_work

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SRC = Path(__file__).parents[2] / "src"
WAIT_S = 30.0
TOKENS = 150


def _may_make_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None and not subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode
    )


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not _may_make_namespaces(), reason="whoever runs this may not make a PID namespace"),
    pytest.mark.skipif(not counters_work(), reason="this kernel does not count a connection's bytes"),
]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def shards_of(keeper: int) -> list[int]:
    return [pid for pid in children(keeper) if b"processes.shard" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def is_zombie(pid: int) -> bool:
    try:
        return "State:\tZ" in status(pid)
    except OSError:  # it was reaped just now
        return False


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, f"this never came true: {what}"
        time.sleep(0.02)


@contextmanager
def asked(port: int) -> Iterator[http.client.HTTPResponse]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    sim = {"tokens": TOKENS, "itl_ms": 10, "seed": 7}
    body = {"model": "sim", "stream": True, "sim": sim, "messages": [{"role": "user", "content": "hi"}]}
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    with closing(client), client.getresponse() as answer:
        yield answer


def is_ready(port: int) -> bool:
    """Every shard has met the engine, whichever the next request comes to."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
        client.request("GET", "/readyz")
        return client.getresponse().status == 200


def test_it_reaps_what_dies_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "longwire.toml").touch()
    command = [
        *NAMESPACE,
        sys.executable,
        "-P",
        "-m",
        "longwire",
        "serve",
        "--config",
        "longwire.toml",
        "--engine",
        "sim",
    ]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with (tmp_path / "log").open("wb") as log, (tmp_path / "out").open("wb") as out:
        options = ["--shards", "2", "--port", "0", "--admin-port", "0"]
        process = subprocess.Popen([*command, *options], cwd=tmp_path, stdout=out, stderr=log, env=environment)
    try:
        found = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
        until(lambda: found.search((tmp_path / "out").read_text()), "it listens")
        (keeper,) = children(process.pid)
        assert re.search(r"^NSpid:\s+\d+\s+1$", status(keeper), re.MULTILINE), "it is the first"
        match = found.search((tmp_path / "out").read_text())
        assert match is not None
        until(lambda: is_ready(int(match[1])), "the engine is up")
        with asked(int(match[1])) as answer:
            assert answer.status == 200, answer.read()
            received = [answer.readline() for _ in range(10)]
            until(lambda: len(shards_of(keeper)) == 3, "two shards and a spare are there")
            for pid in shards_of(keeper):  # three guardians lose their parents with them
                os.kill(pid, signal.SIGKILL)
            received += answer.readlines()
        frames = [line[6:] for line in received if line.startswith(b"data: ")]
        deltas = [json.loads(frame)["choices"] for frame in frames[:-1]]
        assert frames[-1].strip() == b"[DONE]"
        text = "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)
        assert text == answer_text(7, TOKENS), "its only connection went on"
        until(lambda: not any(is_zombie(pid) for pid in children(keeper)), "all dead are reaped")
        os.kill(keeper, signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
