"""The deed: by which numbers each process of one gateway has what all of them share.

What lives here: the descriptors that the keeper hands to every process that it starts, at the same numbers in each.
What must not: attaching to any of it (estate), reading what stands in it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Self


class SlotDeed(NamedTuple):
    """One slot: its memory, and both ends of its inbox."""

    arena: int
    streams: int
    connections: int
    inbox: int
    """The end that the slot's shard reads. It outlives the shard: what lies unread in it is the successor's."""
    inbox_in: int
    """The end into which everyone else writes."""


class Deed(NamedTuple):
    """All of it. ``settings`` is a memfd with the configuration that is in force, as JSON."""

    settings: int
    public: int
    admin: int
    matrix: int
    shards: int
    counts: int
    slots: tuple[SlotDeed, ...]

    def __str__(self) -> str:
        return json.dumps([*self[:-1], [list(slot) for slot in self.slots]], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of ``str``."""
        settings, public, admin, matrix, shards, counts, slots = json.loads(text)
        return cls(settings, public, admin, matrix, shards, counts, tuple(SlotDeed(*slot) for slot in slots))

    def _descriptors(self) -> Iterator[int]:
        yield from (self.settings, self.public, self.admin, self.matrix, self.shards, self.counts)
        for slot in self.slots:
            yield from slot

    def let_inherit(self) -> None:
        """Let every process that is started from now on have all of it."""
        for fd in self._descriptors():
            os.set_inheritable(fd, True)


def shut_port(fd: int) -> None:
    """Stop listening, for whoever else holds this descriptor, too: who connects is refused. The descriptor stays."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def store_text(name: str, text: bytes) -> int:
    """A memfd that holds ``text``, for reading by whoever inherits it."""
    fd = os.memfd_create(f"longwire-{name}", os.MFD_CLOEXEC)
    os.pwrite(fd, text, 0)
    return fd


def read_text(fd: int) -> bytes:
    """What :func:`store_text` has stored."""
    return os.pread(fd, os.fstat(fd).st_size, 0)
