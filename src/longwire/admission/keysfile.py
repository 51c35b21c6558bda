"""The keys file on disk, taken again when it changes.

What lives here: keeping the last good keys, and telling of each problem once.
What must not: how a change is noticed (words/watchedfile.py), the file's grammar (tenants.py), a timer (lifecycle calls on a
tick of the clock).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from longwire.words.errors import SettingsError
from longwire.words.watchedfile import WatchedFile

from .tenants import Tenants

MAX_FILE_BYTES = 1024 * 1024
"""4096 lines of the longest name and a hash take 560 KiB."""


class KeysFile:
    """Watches one keys file for one set of tenants.

    A problem is given to ``on_problem`` once, when it appears or becomes another one; the last good keys stay in force.
    """

    __slots__ = ("_file", "_good", "_loads", "_on_problem", "_tenants", "problem")

    def __init__(self, path: str | Path, tenants: Tenants, on_problem: Callable[[SettingsError], None]) -> None:
        self._file = WatchedFile(path, "The keys file", MAX_FILE_BYTES)
        self._tenants = tenants
        self._on_problem = on_problem
        self._good: bytes | None = None
        self._loads = 0
        self.problem: str | None = None

    def load(self) -> None:
        """Take the file now, as at start-up.

        Raises:
            SettingsError: it cannot be read or has a bad line; whoever starts the gateway should not start it so.
        """
        self._take(self._file.read())

    def poll_nowait(self) -> bool:
        """Look at the file; True when a new set of keys was taken."""
        try:
            return self._file.may_differ() and self._take(self._file.read())
        except SettingsError as problem:
            self._note(problem)
            return False

    def _take(self, content: bytes) -> bool:
        is_new = content != self._good
        if is_new:
            self._tenants.load_keys(self._file.decode(content), where=str(self._file.path))
            self._good = content
            self._loads += 1
        self.problem = None
        return is_new

    def _note(self, problem: SettingsError) -> None:
        # The text is kept and not the error, whose traceback would hold on to the file's content.
        was, self.problem = self.problem, str(problem)
        if was != self.problem:
            self._on_problem(problem)

    def statistics(self) -> dict[str, int]:
        return {"loads": self._loads, "has_problem": int(self.problem is not None)}

    def __repr__(self) -> str:
        return f"<KeysFile {str(self._file.path)!r} loads={self._loads} problem={self.problem is not None}>"
