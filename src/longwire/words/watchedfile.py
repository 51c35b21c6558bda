"""A small file that people change while we run: whether it may have changed, and its content.

What lives here: noticing a change by ``stat``, reading within a bound, and the words for a file that cannot be read.
What must not: what stands in it, timers, what holds while it is bad (whoever reads it).

``stat`` and not inotify: it works the same on every file system (a Kubernetes secret is a symlink that is swapped) and costs
two microseconds per tick. Write the new file beside the old one and rename it: a file that is written in place can be read
when it is half there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import SettingsError

Signature = tuple[int, int, int]


class WatchedFile:
    """One file. ``called`` is what errors call it, such as "The keys file"."""

    __slots__ = ("_called", "_max_bytes", "_settled", "_signature", "path")

    def __init__(self, path: str | Path, called: str, max_bytes: int) -> None:
        self.path = Path(path)
        self._called = called
        self._max_bytes = max_bytes
        self._signature: Signature | None = None
        self._settled = False

    def __repr__(self) -> str:
        return f"<WatchedFile {str(self.path)!r} settled={self._settled}>"

    def may_differ(self) -> bool:
        """Whether it must be read again. Raises SettingsError where it cannot even be looked at."""
        try:
            return not self._settled or _signature(self.path.stat()) != self._signature
        except OSError as error:
            raise self._unreadable(error) from None

    def read(self) -> bytes:
        """The content; its signature is taken before it is read, so that a change in between shows at the next look.

        Raises:
            SettingsError: it cannot be read, is no file, or too large.
        """
        try:
            with open(self.path, "rb", opener=_open_nonblocking) as file:
                status = os.fstat(file.fileno())
                content = file.read(self._max_bytes + 1) if stat.S_ISREG(status.st_mode) else None
        except OSError as error:
            raise self._unreadable(error) from None
        # Two writes within one tick of the file system's clock leave the same stat. So a file that has just changed is
        # read once more at the next look, before its stat is believed.
        signature = _signature(status)
        self._settled = signature == self._signature
        self._signature = signature
        if content is None:
            raise SettingsError(f"{self._called} is no regular file.", where=str(self.path))
        if len(content) > self._max_bytes:
            raise SettingsError(f"{self._called} is larger than {self._max_bytes} bytes.", where=str(self.path))
        return content

    def decode(self, content: bytes) -> str:
        """What was read, as text. Raises SettingsError where it is none."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise SettingsError(f"{self._called} is not UTF-8 text.", where=str(self.path)) from None

    def _unreadable(self, error: OSError) -> SettingsError:
        # Whatever it is when it can be read again, even with the stat it had before, must be looked at.
        self._settled = False
        return SettingsError(f"{self._called} cannot be read: {error.strerror}.", where=str(self.path))


def _open_nonblocking(path: str, flags: int) -> int:
    """Without this, opening a FIFO that has no writer would hold up every stream of the process."""
    return os.open(path, flags | os.O_NONBLOCK)


def _signature(status: os.stat_result) -> Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino
