"""A gateway of real processes that bad things are done to, and clients that know what they must receive.

What lives here: starting and ending it, looking at it through its admin port, naming its processes, asking for streams.
What must not: expectations about any one misfortune.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from tests.house import CHAT, Answer, Client

from longwire.sim import SimServer
from longwire.sim.answer import answer_text
from longwire.words.settings import SimSettings

SRC = Path(__file__).parents[2] / "src"
START_S = 30.0
WAIT_S = 20.0
POLL_S = 0.03
CLOSE_S = 8.0


class Gateway:
    """A running `longwire serve`, seen from outside."""

    def __init__(self, process: asyncio.subprocess.Process, sim: SimServer) -> None:
        self.process = process
        self.sim = sim
        self.url = self.admin = ""
        self.lines: list[str] = []
        self.clients: list[Client] = []
        self.http = httpx.AsyncClient(timeout=5.0, verify=False)
        self.pids: set[int] = {process.pid}
        self.is_guarded = True
        self._reading = [asyncio.create_task(self._read(pipe)) for pipe in (process.stdout, process.stderr) if pipe]

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        while line := await pipe.readline():
            text = line.decode("utf-8", "replace").rstrip()
            self.lines.append(text)
            if found := re.match(r"longwire: listening on (\S+)", text):
                self.url = found[1]
            if found := re.match(r"longwire: admin on (\S+)", text):
                self.admin = found[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    # Looking.

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of this kind."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [each for each in found if each["event"] == name]

    @property
    def upstream_requests(self) -> int:
        """Generations that the stand-in was asked for."""
        return sum(seen["method"] == "POST" for seen in self.sim.seen_requests())

    async def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = (await self.http.get(f"{self.admin}/v1/shards")).json()
        return shards

    async def pid_of(self, slot: int) -> int:
        return int((await self.shards())[slot]["pid"])

    async def metric(self, name: str) -> float:
        """The sum over a metric's labels; a part of the labels may stand behind the name."""
        text = (await self.http.get(f"{self.admin}/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def children(self, pid: int | None = None) -> dict[int, str]:
        """Command lines of a process's children, by pid; of the keeper's where none is named."""
        return {child: _command(child) for child in _children(pid or self.process.pid)}

    def pids_of(self, kind: str) -> list[int]:
        """Processes of a kind: shard (spares too), admin, engines."""
        found = self.children()
        self.pids |= found.keys()
        return sorted(pid for pid, command in found.items() if f"longwire.processes.{kind}" in command)

    def guardian_of(self, pid: int) -> int | None:
        """The guardian of a shard: its child that runs the same program."""
        return next((child for child, command in self.children(pid).items() if "processes.shard" in command), None)

    async def spares(self) -> list[int]:
        serving = {shard["pid"] for shard in await self.shards()}
        alone = [pid for pid in self.pids_of("shard") if pid not in serving]
        return [pid for pid in alone if _parent(pid) == self.process.pid and _leader(pid) == pid]

    async def has_spare(self) -> bool:
        """Whether there is one that is warm, or nearly: it has its guardian then, unless there are none."""
        return any(not self.is_guarded or self.guardian_of(pid) for pid in await self.spares())

    # Waiting.

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Until a condition holds, which may be a coroutine's; what it returned."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while asyncio.get_running_loop().time() < deadline:
            with suppress(httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
                holds = condition()
                holds = await asyncio.wait_for(holds, WAIT_S) if asyncio.iscoroutine(holds) else holds
                if holds:
                    return holds
            assert self.process.returncode is None, f"the keeper has ended: {self.lines[-5:]}"
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"this never came true: {what}; {self.lines[-8:]}")

    async def settled(self, *gone: int) -> None:
        """All slots are served, none of them by these processes, and a spare is warm again."""

        async def is_so() -> bool:
            shards = await self.shards()
            is_served = all(shard["state"] == "serving" and shard["pid"] not in gone for shard in shards)
            return is_served and await self.has_spare()

        await self.until(is_so, "all slots are served again")

    # Asking.

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def stream(self, seed: int, tokens: int, itl_ms: float = 10, **more: Any) -> Stream:
        """A stream under way: its response head has come."""
        headers = more.pop("headers", None)
        client = more.pop("client", None) or await self.connect()
        client.post(ask(seed, tokens, itl_ms, **more), headers)
        answer = await client.head()
        assert answer.status == 200, (answer.status, await client.rest())
        return Stream(client, answer, seed, tokens)

    async def streams_on_all(self, slots: int, each: int, tokens: int, itl_ms: float = 10) -> dict[int, list[Stream]]:
        """So many streams at least on every slot, by slot."""
        found: dict[int, list[Stream]] = {slot: [] for slot in range(slots)}
        for seed in range(1, 60 * slots):
            if all(len(streams) >= each for streams in found.values()):
                return found
            stream = await self.stream(seed, tokens, itl_ms)
            found[stream.slot].append(stream)
        raise AssertionError(f"connections do not reach all shards: { {k: len(v) for k, v in found.items()} }")

    async def close(self) -> None:
        self.note_family()
        for client in self.clients:
            client.writer.transport.abort()
        await self.http.aclose()
        self.sim.hurry()  # a gateway that drains waits for what is left
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), CLOSE_S)
        self.note_family()
        for pid in self.pids:
            if "longwire" in _command(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for task in self._reading:
            task.cancel()
        await asyncio.wait_for(self.process.wait(), CLOSE_S)

    def note_family(self) -> None:
        """Remember who must not outlive the test."""
        waiting = list(self.pids)
        while waiting:
            new = [child for child in _children(waiting.pop()) if child not in self.pids]
            self.pids.update(new)
            waiting += new


async def come_back(gateway: Gateway, stream: Stream) -> Answer:
    """The connection was cut: read on by the cursor, from the event behind the last one that came whole."""
    before = await stream.client.rest()
    assert not before.is_whole, f"the end of a cut answer is not made up: {before.body[-200:]!r}"
    client = await gateway.connect()
    path, headers = resume_request(stream.id, f"1-{len(before.frames) - 1}" if before.frames else "")
    client.get(path, headers)
    after = await client.answer()
    assert after.status == 200, (len(before.frames), after.status, after.body)
    assert answer_text(stream.seed, stream.tokens).startswith(before.text + after.text)
    return after


class Stream:
    """A client's view of one stream with a known answer."""

    def __init__(self, client: Client, answer: Answer, seed: int, tokens: int) -> None:
        self.client, self.answer, self.seed, self.tokens = client, answer, seed, tokens
        self.id = answer.stream_id

    @property
    def slot(self) -> int:
        return int(self.id[-2:], 16)

    async def check(self) -> Answer:
        """Read it to its end: every byte of the known answer, each once, over this very connection."""
        answer = await self.client.rest()
        assert answer.is_whole and answer.is_marked_done and answer.in_band_error is None, answer.body[-300:]
        assert answer.text == answer_text(self.seed, self.tokens)
        return answer


async def check_all(streams: Iterable[Stream]) -> None:
    """All of them, side by side."""
    await asyncio.gather(*(stream.check() for stream in streams))


def ask(seed: int, tokens: int, itl_ms: float = 10, **more: Any) -> dict[str, Any]:
    """A request for a known answer."""
    sim = {"seed": seed, "tokens": tokens, "itl_ms": itl_ms, "ttft_ms": 1}
    messages = [{"role": "user", "content": str(seed)}]
    return {"model": "sim", "stream": True, "messages": messages, "sim": sim, **more}


def resume_request(stream_id: str, cursor: str = "") -> tuple[str, dict[str, str]]:
    """Path and headers of a reader that comes back."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": cursor} if cursor else {})
    return f"/v1/streams/{stream_id}", headers


@asynccontextmanager
async def running(
    shards: int = 2,
    *,
    config: str = "",
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    engine: str = "",
    path: Path | None = None,
    python: str = sys.executable,
    **settings: object,
) -> AsyncIterator[Gateway]:
    """A gateway before a stand-in that runs in this loop (or before ``engine``). ``settings`` become flags, ``config`` is TOML
    beside them (its file goes to ``path``; ``ENGINE`` in it stands for the stand-in's address), ``prefix`` comes before the
    command, ``python`` runs all of it."""
    sim = SimServer(SimSettings(port=0))
    host, port = await sim.start()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    if config:
        assert path is not None
        (path / "longwire.toml").write_text(config.replace("ENGINE", f"http://{host}:{port}"))
        flags.append(f"--config={path / 'longwire.toml'}")
    if "arena_bytes" not in settings:
        flags.append("--arena-bytes=96MiB")
    if "[[engines]]" not in config:
        flags.append(f"--engine={engine or f'sim=http://{host}:{port}'}")
    command = [*prefix, python, "-m", "longwire", "serve"]
    process = await asyncio.create_subprocess_exec(
        *command, "--port=0", "--admin-port=0", f"--shards={shards}", "--probe-s=1", *flags,
        env={**os.environ, "PYTHONPATH": str(SRC), **(env or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, limit=1 << 20,
    )  # fmt: skip
    gateway = Gateway(process, sim)
    gateway.is_guarded = "LONGWIRE_WITHOUT" not in (env or {})
    try:
        async with asyncio.timeout(START_S):
            while not (gateway.url and gateway.admin):
                assert process.returncode is None, gateway.lines
                await asyncio.sleep(POLL_S)
        await gateway.until(lambda: _is_ready(gateway), "it is ready")
        yield gateway
    finally:
        await gateway.close()
        await sim.close()


async def _is_ready(gateway: Gateway) -> bool:
    ready = await gateway.http.get(f"{gateway.admin}/readyz")
    return ready.status_code == 200 and await gateway.has_spare()


def stop(pid: int) -> None:
    """SIGSTOP: the process is there, and does nothing."""
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def kill(*pids: int) -> None:
    """SIGKILL, of processes of this test's gateway."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _leader(pid: int) -> int:
    """The process group: a process that the keeper has started leads its own, a guardian that was left behind does not."""
    with suppress(OSError):
        return os.getpgid(pid)
    return 0


__all__ = [
    "CHAT",
    "Gateway",
    "Stream",
    "ask",
    "check_all",
    "cpu_ticks",
    "go_on",
    "kill",
    "resume_request",
    "running",
    "stop",
]
