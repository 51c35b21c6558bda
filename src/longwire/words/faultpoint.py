"""Places where a test may have the process killed: between two steps that must not be torn apart.

What lives here: naming such a place, and dying there when that was asked for. What must not: any other kind of fault.

Nothing is armed unless LONGWIRE_DIE_AT says so (it is for tests); an unarmed point costs one look at an empty dictionary, and
none of them lies on the path of a token. It is either a list, ``NAME=N[,NAME=N]``: every process that is started with it
dies when it passes NAME for the Nth time. Or it is a folder: a file of a point's name there lets the next process die that
passes the point, whichever it is, and is gone then, so that a test can say when, and how often.
"""

from __future__ import annotations

import os
import signal

_armed: dict[str, int] = {}
_folder = ""


def arm(spec: str) -> None:
    """What LONGWIRE_DIE_AT says; a slash tells a folder from a list."""
    global _folder
    if "/" in spec:
        _folder = spec
        return
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition("=")
        _armed[name] = int(count or 1)


def disarm() -> None:
    """Forget all of them."""
    global _folder
    _folder = ""
    _armed.clear()


def reach(name: str) -> None:
    """This point is reached: the process ends here, as by SIGKILL, if it was armed and its time has come."""
    if _folder:
        if _take_file(name):
            _die(name)
    elif _armed and name in _armed:
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
