"""The processes of a trial: an engine stand-in and a whole gateway, both real, and what can be seen of them from outside.

What lives here: starting and ending them, and looks at the admin port, at /proc and at the stand-in's account.
What must not: clients (readers.py), when something is killed (killing.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SRC = Path(__file__).parents[2] / "src"
START_S = 30.0
"""A start takes two seconds; it is this long on a machine that does much else."""
STOP_S = 20.0
LOOK_S = 0.01
"""Between two looks at what another process does."""
RETENTION_S = 2.0

FLAGS = {
    "shards": "2",
    "port": "0",
    "admin-port": "0",
    "retention-s": f"{RETENTION_S:g}",
    "heartbeat-s": "0.3",
    "arena-bytes": str(1 << 30),
    "log-level": "warning",
    "drain-s": "10",
}
"""Streams are evicted and silences are filled while all else goes on."""


class Process:
    """One process of ours and its output; the addresses are read from its first lines."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self.errors = folder / f"{name}.err"
        self.output = folder / f"{name}.out"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LONGWIRE_")}
        with self.errors.open("wb") as errors, self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**kept, "PYTHONPATH": str(SRC), **environment},
            )

    async def find(self, pattern: str) -> str:
        """What the output says, as soon as it says it."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self.process.poll() is None:
            if match := re.search(pattern, self.output.read_text()):
                return match[1]
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"it did not start: {self.errors.read_text()[-2000:]}")

    def end(self) -> int:
        """Ask it to end, and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Trial:
    """A stand-in, a gateway of two shards, and the folder in which points to die at are armed."""

    sim: Process
    gateway: Process

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="longwire-survival-")
        self.folder = Path(self._folder.name)
        self.points = self.folder / "points"
        self.points.mkdir()
        self.port = self.admin_port = self.sim_port = 0

    async def __aenter__(self) -> Self:
        self.sim = Process("sim", ["longwire.sim", "--port", "0"], self.folder)
        try:
            self.sim_port = int(await self.sim.find(r"http://\S+?:(\d+)/v1"))
            (self.folder / "longwire.toml").touch()
            flags = [part for name, value in FLAGS.items() for part in (f"--{name}", value)]
            engine = f"http://127.0.0.1:{self.sim_port}"
            command = ["longwire", "serve", "--engine", engine, "--config", "longwire.toml", *flags]
            self.gateway = Process("gateway", command, self.folder, LONGWIRE_DIE_AT=f"{self.points}/")
            self.port = int(await self.gateway.find(r"listening on http://\S+:(\d+)"))
            self.admin_port = int(await self.gateway.find(r"admin on http://\S+:(\d+)"))
            await self.wait("the engine to be up", self._is_ready)
        except BaseException:
            self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    def _end_all(self) -> None:
        for process in (getattr(self, "gateway", None), getattr(self, "sim", None)):
            if process is not None and process.process.poll() is None:
                process.process.terminate()
                try:
                    process.process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.process.kill()
                    process.process.wait()
        self._folder.cleanup()

    # Looks.

    async def wait(self, what: str, is_true: Any, seconds: float = START_S) -> None:
        """Look until it is so, or fail."""
        give_up = time.monotonic() + seconds
        while not await is_true():
            if time.monotonic() > give_up:
                raise AssertionError(f"{what} did not come: {await self.shards()} {self.log()[-3000:]}")
            await asyncio.sleep(LOOK_S)

    async def _is_ready(self) -> bool:
        try:
            await get(self.admin_port, "/readyz")
        except (AssertionError, OSError):
            return False
        return True

    async def shards(self) -> list[dict[str, Any]]:
        """``GET /v1/shards``."""
        return json.loads(await get(self.admin_port, "/v1/shards"))

    async def engine(self) -> dict[str, int]:
        """The stand-in's account."""
        return json.loads(await get(self.sim_port, "/health"))

    async def twice(self) -> list[dict[str, Any]]:
        """Of the latest requests to the engine, the bodies of those that came more than once."""
        bodies = [
            seen["body"] for seen in json.loads(await get(self.sim_port, "/sim/requests"))["data"] if seen["body"]
        ]
        return [{**json.loads(body), "messages": len(body)} for body, count in Counter(bodies).items() if count > 1]

    async def used_blocks(self) -> float:
        """Blocks of all arenas that something holds."""
        page = (await get(self.admin_port, "/metrics")).decode()
        return sum(
            float(value) for value in re.findall(r"^longwire_arena_used_blocks\{.*\} (\S+)$", page, re.MULTILINE)
        )

    def log(self) -> str:
        """What the gateway's processes have said."""
        return self.gateway.errors.read_text(errors="replace")

    def deaths(self) -> Counter[str]:
        """How often a process was killed at each point."""
        return Counter(re.findall(r"longwire: killed at (\w+)", self.log()))

    def family(self) -> set[int]:
        """The gateway's process ids: the keeper and all below it. Whoever loses its parent becomes the keeper's child."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
        found, size = {self.gateway.process.pid}, 0
        while len(found) > size:
            size = len(found)
            found |= {pid for pid, parent in parents.items() if parent in found}
        return found

    def guardians(self) -> int:
        """How many of them are guardians."""
        return sum(_name(pid) == "lw-guardian" for pid in self.family())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def still_there(pids: set[int]) -> list[int]:
    """Those of these processes that have not ended."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def descriptors(pid: int) -> int:
    """How many descriptors a process has."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def get(port: int, path: str) -> bytes:
    """A small answer of 200."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
    assert b" 200 " in head.partition(b"\r\n")[0], head + body
    return body
