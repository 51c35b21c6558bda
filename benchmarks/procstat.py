"""What Linux says about a process and the machine: CPU time, memory, sockets.

What lives here: readings of /proc as values.
What must not: processes being started, or anything that is printed.

A gateway may be several processes (nginx has a master and a worker): every reading sums the tree below one pid.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU time so far, and how long the processes wanted a core and did not get it."""

    at_s: float
    user_ms: float
    system_ms: float
    waited_ms: float
    stolen_ms: float  # by the hypervisor, from that core


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory of the tree; of the kernel's objects and of the data in TCP sockets, both of the whole host."""

    anonymous_bytes: int
    shared_bytes: int
    sockets_bytes: int
    kernel_bytes: int


def children(pid: int) -> list[int]:
    """Those whose parent a process is."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children(pid)
    return found


def cpu(pid: int, core: int) -> CpuReading:
    """The tree's CPU time up to now."""
    user = system = waited = 0.0
    for each in tree(pid):
        with contextlib.suppress(OSError):  # it may just have ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            user += int(fields[11]) * TICK_MS
            system += int(fields[12]) * TICK_MS
            for thread in Path(f"/proc/{each}/task").iterdir():
                waited += int((thread / "schedstat").read_text().split()[1]) / 1e6
    return CpuReading(time.monotonic(), user, system, waited, stolen_ms(core))


def memory(pid: int) -> MemoryReading:
    """The tree's memory now."""
    anonymous = shared = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "RssAnon":
                    anonymous += int(value.split()[0]) * 1024
                elif name == "RssShmem":
                    shared += int(value.split()[0]) * 1024
    return MemoryReading(anonymous, shared, _tcp_memory_bytes(), _kernel_memory_bytes())


def _tcp_memory_bytes() -> int:
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        words = line.split()
        if words[0] == "TCP:":
            return int(words[words.index("mem") + 1]) * PAGE_BYTES
    return 0


def _kernel_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Slab:"):
            return int(line.split()[1]) * 1024
    return 0


def stolen_ms(core: int) -> float:
    """What the hypervisor has taken of a core so far."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name == f"cpu{core}":
            return int(values[7]) * TICK_MS
    return 0.0


def available_bytes() -> int:
    """Memory that could be taken now, of the machine and of our group of processes."""
    machine = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return min(machine, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return machine
