"""The processes of a trial: engine stand-ins and a whole gateway, all real, and what can be seen of them from outside.

What lives here: starting and ending them, and looks at the admin port, at /proc and at the stand-ins' accounts.
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

SIM, FRAIL, TWIN = "sim", "frail", "twin"
"""The stand-ins. The model ``sim`` is served by the first, which never fails; the model ``frail`` by the second, which fails
in most answers, and where it has failed by the third, which does not."""
STAND_INS = {
    SIM: (("--port", "0"), 100),
    FRAIL: (("--port", "0", "--model", FRAIL, "--fault", "reset_after=20"), 100),
    TWIN: (("--port", "0", "--model", FRAIL), 0),
}
"""Their arguments and weights."""
PATIENCE = """
failover = "continue"
max_attempts = 16
breaker_faults = 10000
retry_budget_floor = 100000
"""
"""An engine that fails on purpose is asked again and again, and each kill in a second part takes two attempts more."""


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
    """Stand-ins, a gateway of two shards, and the folder in which points to die at are armed."""

    gateway: Process

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="longwire-survival-")
        self.folder = Path(self._folder.name)
        self.points = self.folder / "points"
        self.points.mkdir()
        self.port = self.admin_port = 0
        self.sims: dict[str, Process] = {}
        self.sim_ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        try:
            for name, (arguments, _) in STAND_INS.items():
                self.sims[name] = Process(name, ["longwire.sim", *arguments], self.folder)
            for name, sim in self.sims.items():
                self.sim_ports[name] = int(await sim.find(r"http://\S+?:(\d+)/v1"))
            (self.folder / "longwire.toml").write_text(self._config())
            flags = [part for name, value in FLAGS.items() for part in (f"--{name}", value)]
            command = ["longwire", "serve", "--config", "longwire.toml", *flags]
            self.gateway = Process("gateway", command, self.folder, LONGWIRE_DIE_AT=f"{self.points}/")
            self.port = int(await self.gateway.find(r"listening on http://\S+:(\d+)"))
            self.admin_port = int(await self.gateway.find(r"admin on http://\S+:(\d+)"))
            await self.wait("the engines to be up", self._is_ready)
        except BaseException:
            self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    def _config(self) -> str:
        engines = (
            f'[[engines]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\nkind = "sim"\nweight = {STAND_INS[name][1]}\n'
            for name, port in self.sim_ports.items()
        )
        return PATIENCE + "".join(engines)

    def _end_all(self) -> None:
        for process in (getattr(self, "gateway", None), *self.sims.values()):
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
            page = (await get(self.admin_port, "/metrics")).decode()
        except (AssertionError, OSError):
            return False
        return len(re.findall(r"^longwire_engine_up\{.*\} 1(?:\.0)?$", page, re.MULTILINE)) == len(STAND_INS)

    async def shards(self) -> list[dict[str, Any]]:
        """``GET /v1/shards``."""
        return json.loads(await get(self.admin_port, "/v1/shards"))

    async def engine(self, name: str = SIM) -> dict[str, int]:
        """A stand-in's account."""
        return json.loads(await get(self.sim_ports[name], "/health"))

    async def befall(self, faults: list[str]) -> None:
        """Faults for the next generations of the frail engine, one for each."""
        await send(self.sim_ports[FRAIL], "/sim/next", {"next": faults})

    async def bodies(self, name: str) -> list[str]:
        """Of the latest requests to a stand-in that brought one."""
        data = json.loads(await get(self.sim_ports[name], "/sim/requests"))["data"]
        return [seen["body"] for seen in data if seen["body"]]

    async def twice(self) -> list[dict[str, Any]]:
        """Of the latest requests to the engine that never fails, those that came more than once."""
        counts = Counter(await self.bodies(SIM))
        return [{**json.loads(body), "messages": len(body)} for body, count in counts.items() if count > 1]

    async def attempts(self) -> Counter[int]:
        """How often an answer was asked of the frail engine or of its twin lately, by the answer's seed."""
        bodies = [*await self.bodies(FRAIL), *await self.bodies(TWIN)]
        return Counter(json.loads(body)["sim"]["seed"] for body in bodies if body.startswith('{"model"'))

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
    return await _ask(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())


async def send(port: int, path: str, value: object) -> bytes:
    """The answer of 200 to this value as JSON."""
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return await _ask(port, head.encode() + body)


async def _ask(port: int, request: bytes) -> bytes:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
    assert b" 200 " in head.partition(b"\r\n")[0], head + body
    return body
