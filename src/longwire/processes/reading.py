"""The process that reads large bodies, so that no stream waits for a parser.

What lives here: its loop, a question at a time over its two pipes. What must not: what is asked (a function of the dialects
and its arguments), sockets, the gateway's rooms.

It imports the dialects and little else, because there is one beside each shard all the time (reading.py).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from ..dialects import base, openai_chat

_PR_SET_PDEATHSIG = 1
PREPARED = (base.read_relayed, openai_chat.read_request)
"""What will be asked; its modules are here before it is."""


def answer_all(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions."""
    while True:
        try:
            question: tuple[Callable[..., Any], Any, Any] = pickle.load(questions)  # noqa: S301 - from our own parent
        except EOFError:
            return
        pickle.dump(_answer(question), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _answer(question: tuple[Callable[..., Any], Any, Any]) -> tuple[bool, Any]:
    """Whether it went well, and what came of it; else what went wrong."""
    function, args, kwargs = question
    try:
        return True, function(*args, **kwargs)
    except Exception as exc:  # noqa: BLE001 - whoever asked is to have it
        return False, exc


def main(arguments: list[str]) -> int:
    """``PARENT``: the process id of the one that asks.

    It is deaf to Ctrl-C, which a terminal sends to the whole group: what that means is decided in the process that serves. And
    it ends with that one, even by SIGKILL: the guardian keeps the other ends of its pipes open for a while.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # where there is no such call it is left to the pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(arguments[0]):
        return 1  # it died before we asked to be told
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed is an answer
    with os.fdopen(0, "rb", closefd=False) as questions, suppress(BrokenPipeError), answers:
        answer_all(questions, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
