"""Shared memory: making it, and what outlives a shard.

What lives here: memfds, and the memory of one slot as one thing.
What must not: what stands in it (arena.py, tables.py).
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

F_ADD_SEALS: Final = 1033
F_SEAL_SHRINK: Final = 0x0002


class LayoutMismatch(Exception):
    """Shared memory was laid out by another version: it cannot be gone on with here."""


def make_memory(name: str, total_bytes: int) -> int:
    """The descriptor of fresh shared memory, sealed against shrinking: a truncation would kill whoever reads it."""
    fd = os.memfd_create(f"longwire-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, total_bytes)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd
