"""Places where a test may have the process killed, and things of the machine's that it may take away.

What lives here: naming such a place, and dying there when that was asked for; what is to be missing. What must not: any other
kind of fault.

Nothing is armed unless LONGWIRE_DIE_AT says so (it is for tests); an unarmed point costs one look at an empty dictionary, and
none of them lies on the path of a token. It is either a list, ``NAME=N[,NAME=N]``: every process that is started with it
dies when it passes NAME for the Nth time. Or it is a folder: a file of a point's name there lets the next process die that
passes the point, whichever it is, and is gone then, so that a test can say when, and how often.
"""

from __future__ import annotations

import os
import signal

_armed: dict[str, int] = {}
_missing: set[str] = set()
_folder = ""


def arm(spec: str, incarnation: int = 0) -> None:
    """What LONGWIRE_DIE_AT says; a slash tells a folder from a list.

    ``NAME:DETAIL=N`` counts only the passings with that detail, ``NAME@INCARNATION=N`` only those in that process.
    """
    global _folder
    if "/" in spec:
        _folder = spec
        return
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition("=")
        name, _, only = name.partition("@")
        if not only or int(only) == incarnation:
            _armed[name] = int(count or 1)


def disarm() -> None:
    """Forget all of them."""
    global _folder
    _folder = ""
    _armed.clear()
    _missing.clear()


def take_away(spec: str) -> None:
    """Names with commas: ``counters`` (a kernel that does not count a connection's bytes), ``clone`` (one that starts no more
    processes that share our descriptors)."""
    _missing.update(filter(None, spec.split(",")))


def lacks(name: str) -> bool:
    """Whether this was taken away."""
    return name in _missing


def reach(name: str, detail: str = "") -> None:
    """This point is reached: the process ends here, as by SIGKILL, if it was armed and its time has come."""
    if _folder:
        if _take_file(name):
            _die(name)
    elif _armed:
        for armed in (name, f"{name}:{detail}"):
            if armed in _armed:
                _count_down(armed)


def _count_down(name: str) -> None:
    _armed[name] -= 1
    if _armed[name] <= 0:
        _die(name)


def _take_file(name: str) -> bool:
    """Whether the point's file was there. To remove it succeeds once, for one process."""
    try:
        os.unlink(os.path.join(_folder, name))  # noqa: PTH118, PTH108 - no object is made where nothing is armed
    except OSError:
        return False
    return True


def _die(name: str) -> None:
    os.write(2, f"longwire: killed at {name}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
