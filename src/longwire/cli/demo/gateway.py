"""A gateway of the demonstration's own: another process, on free ports, gone when the story ends.

What lives here: starting it, waiting for it with progress, stopping it.
What must not: what is asked of it (story.py).
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

from longwire.engines.local_install import TICK_S, Progress

from .wire import StreamClient, WireError

START_LIMIT_S = 90.0
"""A start takes two seconds; a slow disk and a busy machine may take much longer."""

STOP_LIMIT_S = 10.0
LAST_LINES = 20

ADDRESSES = re.compile(r"longwire: (?:listening|admin) on (http://\S+)")
"""Two lines: the public port's comes first."""


@contextmanager
def own_gateway(engine: str) -> Iterator[tuple[str, str]]:
    """A gateway on free ports, with nothing of this machine's settings; yields its address and its admin port's when it is
    ready."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGWIRE_")}
    with tempfile.TemporaryDirectory(prefix="longwire-demo-") as folder, Path(folder, "log").open("w+b") as log:
        Path(folder, "longwire.toml").touch()  # named, lest it take the one in the folder where it is run
        process = subprocess.Popen(
            serve_command(engine, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        before = signal.signal(signal.SIGTERM, _exit)  # a demonstration that is stopped leaves no gateway behind
        try:
            yield wait_ready(process, log.name, "loading the model" if engine == "local" else "waiting for the engine")
        finally:
            signal.signal(signal.SIGTERM, before)
            stop(process)


def _exit(signal_number: int, _: object) -> NoReturn:
    sys.exit(128 + signal_number)


def serve_command(engine: str, folder: str) -> list[str]:
    settings = ["--config", str(Path(folder, "longwire.toml")), "--state-dir", folder]
    ports = ["--port", "0", "--admin-port", "0"]
    # -P: what is run is what is installed, and not a folder called longwire that happens to stand here.
    return [sys.executable, "-P", "-m", "longwire", "serve", "--engine", engine, *ports, *settings]


def wait_ready(process: subprocess.Popen[str], log: str, step: str) -> tuple[str, str]:
    """Show progress until the gateway answers that it is ready; returns both addresses."""
    progress = Progress(f"Starting a gateway and {step}", sys.stdout)
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_find_addresses, args=(process.stdout, addresses), daemon=True).start()
    try:
        wait_until(lambda: addresses.qsize() == 2, "starting", progress, process, log)
        url, admin_url = addresses.get(), addresses.get()
        wait_until(StreamClient(url).is_ready, step.partition(" ")[0], progress, process, log)
    except WireError:
        progress.finish("FAILED")
        raise
    progress.finish(f"done, {url}")
    return url, admin_url


def _find_addresses(output: TextIO, addresses: queue.SimpleQueue[str]) -> None:
    """Read all that the gateway prints, lest it stand still on a full pipe, and pick out the addresses."""
    for line in output:
        if match := ADDRESSES.match(line):
            addresses.put(match[1])


def wait_until(
    is_true: Callable[[], bool], step: str, progress: Progress, process: subprocess.Popen[str], log: str
) -> None:
    """Look every quarter of a second; the gateway is another process, and has no other way to tell us."""
    give_up = time.monotonic() + START_LIMIT_S
    while not is_true():
        if process.poll() is not None:
            raise WireError(f"The gateway ended with exit code {process.returncode}:\n{_last_lines(log)}")
        if time.monotonic() > give_up:
            raise WireError(f"The gateway was not ready within {START_LIMIT_S:.0f} s:\n{_last_lines(log)}")
        progress.show(step)
        time.sleep(TICK_S)


def _last_lines(log: str) -> str:
    return "\n".join(Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
