"""The real embedded engine: it answers, comes back after SIGKILL, and dies with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest
import uvloop

from longwire.engines import local
from longwire.engines.local import LocalEngine
from longwire.engines.local_process import ChildProcess
from longwire.words.clock import LoopClock
from longwire.words.settings import Settings

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not local.is_installed(), reason="the embedded engine is not installed: `longwire local install`"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the child through /proc and pidfd"),
]

SETTINGS = Settings(local_context_tokens=512, local_slots=1)
LIMIT_S = 60.0
"""A hang must not hold up the suite; nothing here asserts how long things take."""

LONER = """
import asyncio
from longwire.engines.local import LocalEngine
from longwire.words.clock import LoopClock
from longwire.words.settings import Settings

async def main():
    ready = asyncio.Event()
    engine = LocalEngine(Settings(local_slots=1), LoopClock(asyncio.get_running_loop()),
                         on_ready=lambda url: ready.set(), on_down=lambda: None)
    await engine.start()
    await ready.wait()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def running(settings: Settings = SETTINGS) -> AsyncIterator[tuple[LocalEngine, asyncio.Queue[str]]]:
    """An engine, and the queue of what it announces."""
    said: asyncio.Queue[str] = asyncio.Queue()
    engine = LocalEngine(
        settings,
        LoopClock(asyncio.get_running_loop()),
        on_ready=said.put_nowait,
        on_down=lambda: said.put_nowait("down"),
    )
    await engine.start()
    try:
        yield engine, said
    finally:
        await engine.close()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def engine_child(pid: int) -> int:
    """The process below that one which runs local_child.py."""
    below = [pid]
    for each in below:  # it grows while it is walked
        below += children_of(each)
    return next(c for c in below if b"local_child.py" in Path(f"/proc/{c}/cmdline").read_bytes())


def wait_answer(url: str) -> None:
    """Ask until the engine is back. The watchdog ends the gateway, and this with it, where that takes too long."""
    while True:
        try:
            ask(url)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (502, 503):
                raise
            time.sleep(0.1)
        else:
            return


def descriptors_of(pid: int) -> set[str]:
    held = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(str(each.readlink()))
        except FileNotFoundError:  # closed since it was listed
            continue
    return held


def wait_gone(pid_fd: int) -> bool:
    """Whether the process ended within the limit; a pidfd becomes readable when it does."""
    poll = select.poll()  # select() knows no descriptor beyond 1,023
    poll.register(pid_fd, select.POLLIN)
    return bool(poll.poll(LIMIT_S * 1000))


def ask(url: str) -> dict[str, object]:
    body = {
        "messages": [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 4,
    }
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        answer: dict[str, object] = json.load(response)
    return answer


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_it_answers_comes_back_after_sigkill_and_answers_again(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        async with running() as (engine, said), asyncio.timeout(LIMIT_S):
            first = await said.get()
            answer = await asyncio.to_thread(ask, first)
            assert answer["model"] == "smollm2-135m"
            os.kill(engine_child(os.getpid()), signal.SIGKILL)
            assert await said.get() == "down"
            assert "SIGKILL" in engine.statistics().last_failure
            second = await said.get()
            assert second.startswith("http://127.0.0.1:")
            await asyncio.to_thread(ask, second)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_close_leaves_no_process_behind() -> None:
    async def run() -> int:
        async with running() as (_, said), asyncio.timeout(LIMIT_S):
            await said.get()
            return os.pidfd_open(engine_child(os.getpid()))

    pid_fd = asyncio.run(run())
    try:
        assert wait_gone(pid_fd)
    finally:
        os.close(pid_fd)


def test_a_broken_model_file_is_named_in_the_failure(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"this is no model")

    async def run() -> str:
        async with running(Settings(local_model_path=str(broken))) as (engine, said), asyncio.timeout(LIMIT_S):
            assert await said.get() == "down"
            return engine.statistics().last_failure

    failure = asyncio.run(run())
    assert failure.startswith("exit code 1; ")
    assert "invalid magic" in failure


def test_it_inherits_nothing_but_its_pipes() -> None:
    """A listener or a client's connection held open there would outlive the gateway's own close."""

    async def run() -> set[str]:
        async with running() as (_, said), asyncio.timeout(LIMIT_S):
            await said.get()
            return descriptors_of(engine_child(os.getpid()))

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.set_inheritable(True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            held = runner.run(run())
        assert str(Path(f"/proc/self/fd/{listener.fileno()}").readlink()) not in held


def test_its_death_is_noticed_while_another_process_holds_its_pipes() -> None:
    async def run() -> str:
        died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ChildProcess(["sh", "-c", "sleep 600 & echo $! >&2; exit 3"], print, died.set_result)
        async with asyncio.timeout(LIMIT_S):
            return await died

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        reason = runner.run(run())
    code, _, sleeper = reason.partition("; ")
    os.kill(int(sleeper), signal.SIGKILL)
    assert code == "exit code 3"


def test_signals_to_the_process_group_do_not_end_it() -> None:
    """Ctrl-C and a service manager's SIGTERM reach the whole group; the gateway then drains, and needs its engine."""

    async def run() -> None:
        async with running() as (engine, said), asyncio.timeout(LIMIT_S):
            url = await said.get()
            child = engine_child(os.getpid())
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(child, name)
            await asyncio.to_thread(ask, url)
            assert engine.statistics().starts == 1

    asyncio.run(run())


def test_it_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", LONER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        pid_fd = os.pidfd_open(engine_child(parent.pid))
        parent.kill()
    try:
        assert wait_gone(pid_fd)
    finally:
        os.close(pid_fd)


def test_serve_runs_it_alone_until_interrupted() -> None:
    command = "from longwire.engines import local; from longwire.words.settings import Settings; "
    command += "raise SystemExit(local.serve('127.0.0.1', 0, Settings(local_slots=1)))"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.startswith("longwire: the embedded engine (smollm2-135m) listens on http://127.0.0.1:")
        ask(line.rsplit(" ", 1)[1])
        process.send_signal(signal.SIGINT)
        assert "curl -N" in process.stdout.read()
    assert process.returncode == 0


def test_serve_says_why_it_cannot_start(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert local.serve("127.0.0.1", taken.getsockname()[1], SETTINGS) == 1
    assert "bind" in capfd.readouterr().err


def read_until(lines: IO[str], words: str) -> str:
    """The first line that holds the words; the log says what happens, so nobody needs to look again and again."""
    return next(line for line in lines if words in line)


def test_the_gateway_outlives_its_engine(tmp_path: Path) -> None:
    """SIGKILL in mid-answer: the client is told the truth, and the next answer comes from the engine's next life."""
    command = [sys.executable, "-m", "longwire", "serve", "--engine", "local", "--port", "0", "--admin-port", "0"]
    command += ["--state-dir", str(tmp_path), "--local-slots", "1", "--shards", "1", "--probe-s", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        assert gateway.stderr is not None
        watchdog = threading.Timer(LIMIT_S, gateway.kill)
        watchdog.start()
        try:
            url = read_until(gateway.stdout, "listening on").split()[-1]
            read_until(gateway.stderr, '"up":true')
            body = {"stream": True, "max_tokens": 400, "messages": [{"role": "user", "content": "Tell me a story."}]}
            request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
                response.readline()
                os.kill(engine_child(gateway.pid), signal.SIGKILL)
                rest = response.read().decode()
            assert '"code":"upstream_reset"' in rest.replace(" ", "")
            assert rest.endswith("data: [DONE]\n\n")
            wait_answer(url)
        finally:
            gateway.terminate()
            gateway.communicate()
            watchdog.cancel()
    assert gateway.returncode == 0
