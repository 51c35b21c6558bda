"""What the machine gives to this process.

What lives here: its memory, as the kernel and the container bound it.
What must not: what is done with it (lifecycle sizes the arena, `longwire check` shows it).
"""

from __future__ import annotations

from pathlib import Path

UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


def memory_limit_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """How much memory this process may use, and who says so: a cgroup (v2 or v1) or the machine."""
    total = _first_number(root / "proc/meminfo") * 1024
    limits = [(total, "machine")] if total else []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits_upwards(root / "sys/fs/cgroup", path, "memory.max", "cgroup v2")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "cgroup v1")
    return min(limits, default=(0, "unknown"))


def _limits_upwards(mount: Path, path: str, name: str, source: str) -> list[tuple[int, str]]:
    """The limits of a cgroup and all above it, for each of them binds. In a container the path may not be visible at all,
    and the mount's own file is the limit."""
    group = mount / path.lstrip("/")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(mount))]
    numbers = (_first_number(each / name) for each in groups)
    return [(number, source) for number in numbers if 0 < number < UNLIMITED]


def _first_number(path: Path) -> int:
    return next((int(word) for word in _read(path).split() if word.isdigit()), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # not on this kind of machine
