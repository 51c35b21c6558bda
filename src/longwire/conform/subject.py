"""The gateway under test as a process, where it is started here.

What lives here: its start, its end, and finding the one of its processes that talks to the engine.
What must not: anything about what kind of gateway it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO

END_S = 10.0
"""How long it may take to stop before it is killed."""
ESTABLISHED = "01"
"""The kernel's number for that state of a TCP connection."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def command_line(command: str, port: int, upstream: str) -> list[str]:
    """``{port}`` and ``{upstream}`` filled in; no shell reads it."""
    return [word.replace("{port}", str(port)).replace("{upstream}", upstream) for word in shlex.split(command)]


class Subject:
    """A started gateway, in a session of its own so that nothing of it is left behind."""

    def __init__(self, command: list[str], log: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def __repr__(self) -> str:
        return f"Subject(pid={self.process.pid}, code={self.process.poll()})"

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Ask it to end, and then make it and all its children end."""
        family = [self.process.pid, *descendants(self.process.pid)]
        if self.is_running():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)  # a gateway that drains is not waited for
        for pid in family:
            if pid == self.process.pid or _session_of(pid) == self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(END_S)

    def kill_worker(self, peers: Iterable[tuple[str, int]]) -> str:
        """SIGKILL for the process that holds a connection with one of these addresses; why not, else."""
        sockets = _sockets_at({port for _, port in peers})
        family = descendants(self.process.pid)
        holders = [pid for pid in family if sockets & _sockets_of(pid)]
        if not holders:
            return "there is no process but the one that was started"
        # A process that shares its sockets with its children is the one that works.
        worker = next(pid for pid in holders if _parent_of(pid) not in holders)
        os.kill(worker, signal.SIGKILL)
        return ""


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, group, session."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    return int((_stat(pid) or ["", "0"])[1])


def _session_of(pid: int) -> int:
    return int((_stat(pid) or ["", "0", "0", "0"])[3])


def _sockets_at(ports: set[int]) -> set[str]:
    """Inodes of connections whose own end is at one of these ports."""
    tables = [Path(name) for name in ("/proc/net/tcp", "/proc/net/tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {cells[9] for cells in rows if cells[3] == ESTABLISHED and int(cells[1].rpartition(":")[2], 16) in ports}


def _sockets_of(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        matches = [re.fullmatch(r"socket:\[(\d+)\]", _link(name)) for name in Path(f"/proc/{pid}/fd").iterdir()]
        return {match[1] for match in matches if match}
    return set()


def _link(name: Path) -> str:
    """Where it leads; nowhere once it is closed."""
    try:
        return str(name.readlink())
    except OSError:
        return ""
