"""The keys file on disk, taken again when it changes.

What lives here: noticing a change by ``stat``, reading the file, keeping the last good keys.
What must not: the file's grammar (tenants.py), a timer (lifecycle calls on a tick of the clock).

``stat`` and not inotify: it works the same on every file system (a Kubernetes secret is a symlink that is swapped) and costs
two microseconds per tick. Write the new file beside the old one and rename it: a file that is written in place can be read
when it is half there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from longwire.words.errors import SettingsError

from .tenants import Tenants

MAX_FILE_BYTES = 1024 * 1024
"""4096 lines of the longest name and a hash take 560 KiB."""

Signature = tuple[int, int, int]


class KeysFile:
    """Watches one keys file for one set of tenants.

    A problem is given to ``on_problem`` once, when it appears or becomes another one; the last good keys stay in force.
    """

    __slots__ = ("_good", "_loads", "_on_problem", "_path", "_settled", "_signature", "_tenants", "problem")

    def __init__(self, path: str | Path, tenants: Tenants, on_problem: Callable[[SettingsError], None]) -> None:
        self._path = Path(path)
        self._tenants = tenants
        self._on_problem = on_problem
        self._signature: Signature | None = None
        self._settled = False
        self._good: bytes | None = None
        self._loads = 0
        self.problem: str | None = None

    def load(self) -> None:
        """Take the file now, as at start-up.

        Raises:
            SettingsError: it cannot be read or has a bad line; whoever starts the gateway should not start it so.
        """
        self._take(self._read())

    def poll_nowait(self) -> bool:
        """Look at the file; True when a new set of keys was taken."""
        try:
            if self._settled and self._stat() == self._signature:
                return False
            return self._take(self._read())
        except SettingsError as problem:
            self._note(problem)
            return False

    def _take(self, content: bytes) -> bool:
        is_new = content != self._good
        if is_new:
            self._tenants.load_keys(self._decode(content), where=str(self._path))
            self._good = content
            self._loads += 1
        self.problem = None
        return is_new

    def _stat(self) -> Signature:
        try:
            return _signature(self._path.stat())
        except OSError as error:
            raise self._unreadable(error) from None

    def _read(self) -> bytes:
        """The content; its signature is taken before it is read, so that a change in between shows at the next poll."""
        try:
            with open(self._path, "rb", opener=_open_nonblocking) as file:
                status = os.fstat(file.fileno())
                content = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
        except OSError as error:
            raise self._unreadable(error) from None
        # Two writes within one tick of the file system's clock leave the same stat. So a file that has just changed is
        # read once more at the next poll, before its stat is believed.
        signature = _signature(status)
        self._settled = signature == self._signature
        self._signature = signature
        if content is None:
            raise SettingsError("The keys file is no regular file.", where=str(self._path))
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(f"The keys file is larger than {MAX_FILE_BYTES} bytes.", where=str(self._path))
        return content

    def _decode(self, content: bytes) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise SettingsError("The keys file is not UTF-8 text.", where=str(self._path)) from None

    def _unreadable(self, error: OSError) -> SettingsError:
        # Whatever it is when it can be read again, even with the stat it had before, must be looked at.
        self._settled = False
        return SettingsError(f"The keys file cannot be read: {error.strerror}.", where=str(self._path))

    def _note(self, problem: SettingsError) -> None:
        # The text is kept and not the error, whose traceback would hold on to the file's content.
        was, self.problem = self.problem, str(problem)
        if was != self.problem:
            self._on_problem(problem)

    def statistics(self) -> dict[str, int]:
        return {"loads": self._loads, "has_problem": int(self.problem is not None)}

    def __repr__(self) -> str:
        return f"<KeysFile {str(self._path)!r} loads={self._loads} problem={self.problem is not None}>"


def _open_nonblocking(path: str, flags: int) -> int:
    """Without this, opening a FIFO that has no writer would hold up every stream of the process."""
    return os.open(path, flags | os.O_NONBLOCK)


def _signature(status: os.stat_result) -> Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino
