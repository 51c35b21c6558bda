"""Places where a test may have the process killed: between two steps that must not be torn apart.

What lives here: naming such a place, and dying there when that was asked for. What must not: any other kind of fault.

Nothing is armed unless lifecycle was told so (by LONGWIRE_DIE_AT, which is for tests); an unarmed point costs one look at an
empty dictionary, and none of them lies on the path of a token.
"""

from __future__ import annotations

import os
import signal

_armed: dict[str, int] = {}


def arm(spec: str) -> None:
    """``NAME=N``, several with commas: die when the point of that name is passed for the Nth time."""
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition("=")
        _armed[name] = int(count or 1)


def disarm() -> None:
    """Forget all of them."""
    _armed.clear()


def reach(name: str) -> None:
    """This point is reached: the process ends here, as by SIGKILL, if it was armed and its time has come."""
    if _armed and name in _armed:
        _armed[name] -= 1
        if _armed[name] <= 0:
            os.write(2, f"longwire: killed at {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
