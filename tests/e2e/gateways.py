"""A gateway and an engine stand-in as real processes, and readers that hold every byte against the known answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

from tests.architecture.source import ROOT

from longwire.sim.answer import answer_text

START_S = 20.0
END_S = 20.0
POLL_S = 0.02

Json = Any


def environment(source: Path) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("LONGWIRE_")} | {
        "PYTHONPATH": str(source),
    }


def copy_of_source(folder: Path) -> Path:
    """The package's source where it can be changed."""
    target = folder / "src"
    shutil.copytree(
        ROOT / "src" / "longwire", target / "longwire"
    )  # with times, so what is compiled is of use there, too
    return target


def alter(source: Path, file: str, old: str, new: str) -> None:
    """Another version of one file of a copy. Its length changes, too, by which Python sees that what it has cached is old."""
    assert len(old) != len(new)
    path = source / "longwire" / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new))


def is_alive(pid: int) -> bool:
    """Whether a process runs; its remains do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what: Callable[[], object], why: str, seconds: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why}"
        time.sleep(POLL_S)


def fetch(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def hurry(port: int) -> None:
    """Let the stand-in at this port send what is left of all its answers at once: what had to happen meanwhile has happened."""
    status, body = fetch(port, "/sim/hurry", "POST", body=b"{}")
    assert status == 200, body


class Program:
    """One ``longwire`` process, its output in a file."""

    def __init__(self, folder: Path, source: Path, *arguments: str) -> None:
        self.source = source
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "longwire", *arguments],
                env=environment(source),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_said(self, pattern: str, seconds: float = START_S) -> str:
        until(lambda: re.search(pattern, self.said) or self.process.poll() is not None, pattern, seconds)
        match = re.search(pattern, self.said)
        assert match, f"it has ended instead:\n{self.said}"
        return match[1] if match.groups() else match[0]

    def wait_end(self, seconds: float = END_S) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        """By force, with all its children."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(END_S)


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


class Sim(Program):
    """The engine stand-in."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder, ROOT / "src", "sim", "--port", "0", *arguments)
        self.port = int(self.wait_said(r"http://127\.0\.0\.1:(\d+)"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def hurry(self) -> None:
        await asyncio.to_thread(hurry, self.port)

    def statistics(self) -> Json:
        return json.loads(fetch(self.port, "/health")[1])

    def generations(self) -> list[Json]:
        """The latest requests for an answer, as they arrived."""
        requests = json.loads(fetch(self.port, "/sim/requests")[1])["data"]
        return [seen for seen in requests if seen["method"] == "POST" and seen["target"].startswith("/v1/")]


class Gateway(Program):
    """``longwire serve`` with its keeper, shards and admin process."""

    def __init__(
        self, folder: Path, *arguments: str, source: Path = ROOT / "src", ports: Sequence[int] = (0, 0)
    ) -> None:
        places = [
            text for flag, port in zip(("--port", "--admin-port"), ports, strict=False) for text in (flag, str(port))
        ]
        super().__init__(folder, source, "serve", *places, *arguments)
        self.port = int(self.wait_said(r"listening on http://127\.0\.0\.1:(\d+)"))
        self.admin_port = int(self.wait_said(r"admin on http://127\.0\.0\.1:(\d+)"))
        until(lambda: fetch(self.admin_port, "/readyz")[0] == 200, "it is ready")

    def admin(self, path: str, method: str = "GET") -> Json:
        return json.loads(fetch(self.admin_port, path, method)[1])

    def shards(self) -> list[Json]:
        return list(self.admin("/v1/shards"))

    def pids(self) -> list[int]:
        """Of all processes but the keeper."""
        return descendants(self.process.pid)

    def metrics(self) -> dict[str, float]:
        lines = fetch(self.admin_port, "/metrics")[1].decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}

    def held_blocks(self) -> float:
        return sum(value for name, value in self.metrics().items() if name.startswith("longwire_arena_used_blocks"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 - names of links that may be gone already

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        """``longwire NAME --url ...`` with this gateway's admin port."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "longwire", name, "--url", f"http://127.0.0.1:{self.admin_port}"],
            env=environment(ROOT / "src"),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def has_settled(self) -> bool:
        """Every slot is served, and there is a spare (or none is coming)."""
        return all(shard["state"] == "serving" for shard in self.shards())


@contextmanager
def running(program: Program) -> Iterator[None]:
    try:
        yield
    finally:
        program.end()


def own_sim_port(keeper: int) -> int:
    """Of the stand-in that a gateway has started itself."""
    commands = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in descendants(keeper)]
    (command,) = [command for command in commands if "longwire.sim" in command]
    return int(command[command.index("--port") + 1])


# Clients.


def ask(seed: int, tokens: int, itl_ms: float = 20, headers: str = "") -> bytes:
    sim = {"tokens": tokens, "itl_ms": itl_ms, "ttft_ms": 5, "seed": seed}
    message = {"role": "user", "content": str(seed)}
    body = json.dumps({"model": "sim", "stream": True, "sim": sim, "messages": [message]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


_OPEN: list[asyncio.StreamWriter] = []


def play(test: Coroutine[Any, Any, None], seconds: float = 100) -> None:
    """Run the clients' side of a test, and close whatever it has opened."""

    async def bounded() -> None:
        try:
            await asyncio.wait_for(test, seconds)
        finally:
            for writer in _OPEN:
                writer.close()
            for writer in _OPEN:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            _OPEN.clear()

    asyncio.run(bounded())


class Reader:
    """One raw connection, on which nothing is ever tried again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        _OPEN.append(writer)
        self.place: tuple[str, int] = writer.get_extra_info("sockname")
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.ids: list[str] = []
        self.error: Json = None
        self.heartbeats = 0
        self.is_done = False

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def head(self) -> int:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return self.status

    async def body(self) -> bytes:
        """Of an answer that says how long it is."""
        return await self.reader.readexactly(int(self.headers["content-length"]))

    async def event(self) -> bytes:
        """The next HTTP chunk, which is one event; nothing at the end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        self._note(data[:-2])
        return data[:-2]

    def _note(self, block: bytes) -> None:
        for line in block.decode().split("\n"):
            if line.startswith("id: "):
                self.ids.append(line[4:])
            self.heartbeats += line.startswith(":")
            if line == "data: [DONE]":
                self.is_done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                self.error = event.get("error", self.error)
                for choice in event.get("choices", ()):
                    self.text += choice["delta"].get("content") or ""

    async def rest(self) -> None:
        while await self.event():
            pass

    async def generate(self, seed: int, tokens: int, itl_ms: float = 20, headers: str = "") -> Self:
        """Ask, and wait for the first event."""
        self.writer.write(ask(seed, tokens, itl_ms, headers))
        assert await self.head() == 200, (self.status, self.headers, await self.reader.read(1000))
        await self.event()
        return self

    def close(self) -> None:
        self.writer.close()


async def read_whole(port: int, seed: int, tokens: int, itl_ms: float = 20) -> tuple[str, int]:
    """One stream over one connection, exactly. Returns the place that it was read from."""
    reader = await Reader.connect(port)
    await reader.generate(seed, tokens, itl_ms)
    await reader.rest()
    assert reader.error is None, reader.error
    assert reader.is_done
    assert reader.text == answer_text(seed, tokens), f"stream {seed}: {len(reader.text)} characters"
    reader.close()
    return reader.place
