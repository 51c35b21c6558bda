"""The roll: which processes a gateway has, in a file of its state folder, for the gateway that comes after it.

What lives here: writing it, and finding out who of an earlier one is still there.
What must not: ending any of them: they finish their streams, and end by themselves.

A number alone says little, because numbers are given out again: with each stands when its process was started, as the kernel
has it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FILE = "gateway.json"
MAX_FILE_BYTES = 64 * 1024
"""Over a thousand processes; a longer file is somebody else's."""

_START_FIELD = 19
"""Of /proc/PID/stat, counted behind the name, which may hold anything: clock ticks since boot."""

Process = tuple[str, int]
"""Its kind and its pid."""


class Roll:
    """The file of one gateway. Without a state folder there is none, and nothing is done."""

    def __init__(self, state_dir: str) -> None:
        self._path = Path(state_dir) / FILE if state_dir else None
        self._born: dict[int, int | None] = {}

    def __repr__(self) -> str:
        return f"<Roll {self._path}>"

    def call(self) -> list[Process]:
        """Who of an earlier gateway is still there; nobody where that one's keeper is, for then it is not an earlier one."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                said = json.loads(file.read(MAX_FILE_BYTES))
            (keeper, *others) = [(str(kind), int(pid), int(born)) for kind, pid, born in said["processes"]]
        except (OSError, ValueError, TypeError, KeyError):
            return []
        if _born(keeper[1]) == keeper[2]:
            return []
        return [(kind, pid) for kind, pid, born in others if _born(pid) == born]

    def write(self, others: Iterable[Process]) -> None:
        """Put down who is there now, ourselves first. A disk that is full is no reason to stop."""
        if self._path is None:
            return
        everyone = [("keeper", os.getpid()), *others]
        self._born = {pid: self._born.get(pid) or _born(pid) for _, pid in everyone}
        said = {"processes": [[kind, pid, self._born[pid] or 0] for kind, pid in everyone]}
        fresh = self._path.with_suffix(".new")
        with suppress(OSError):
            fresh.write_text(json.dumps(said))
            fresh.replace(self._path)

    def remove(self) -> None:
        """All have ended."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def found_line(left: Iterable[Process]) -> str:
    """What a new gateway says of those whom it found."""
    names = ", ".join(f"{kind} {pid}" for kind, pid in left)
    return f"longwire: of an earlier gateway there are still {names}: they finish their streams, and end by themselves"


def _born(pid: int) -> int | None:
    """When a process was started; None where there is none, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[_START_FIELD])
