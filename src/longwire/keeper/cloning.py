"""A child process that shares our descriptor table: clone(2) with CLONE_FILES and no exec.

What lives here: the system call, Python's hooks around it, and the lock that keeps the child's hands off the table.
What must not: what the child is for (guardian.py).

`os.fork` copies the table, so this goes past it. Three things must not happen on the way:

* A thread that waits for the interpreter has asked for it at the moment of the clone. The child would grant that at its next
  bytecode, and wait for ever for a thread that it does not have. So from one hook to the other no bytecode is run: the calls
  are strung together by `any`, `all` and `map`, which are C.
* Every `close` in the child is one in the parent, and Python's own work after a fork closes things: it frees the thread-local
  values of all other threads, sockets among them. The number would soon be another client's. So the kernel keeps the child
  from closing and opening (seccomp) before any object is touched.
* glibc's fork handlers are not run. Where another thread held malloc's lock, the child stands still at its first allocation:
  whoever clones waits for a sign of life.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import operator
import os
import platform
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final, NamedTuple

from ..words.faultpoint import lacks

CLONE_FILES = 0x400
CLONE_PARENT_SETTID = 0x100000

Step = Callable[[], object]


class _Calls(NamedTuple):
    """Numbers of system calls, which differ by machine."""

    clone: int
    close: int
    openat: int


_CALLS: Final = {"x86_64": _Calls(56, 3, 257), "aarch64": _Calls(220, 57, 56)}
_CLOSE_RANGE = 436

_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def clone_sharing_files(run: Callable[[], None]) -> int:
    """Start a child that calls ``run`` and exits; its pid. It is told apart from a fork by one thing: one table for both.

    The child begins with all signals blocked, and with no garbage collector.

    Raises:
        OSError: the kernel refuses (EAGAIN, ENOMEM), or this machine's numbers are not known (ENOSYS).
    """
    if lacks("clone"):
        raise OSError(errno.EAGAIN, f"a process could not be cloned: {os.strerror(errno.EAGAIN)}")
    calls = _CALLS.get(platform.machine())
    if calls is None:
        raise OSError(
            errno.ENOSYS, f"no descriptor table can be shared on {platform.machine()}: its clone is not known"
        )
    pid, parent, api = ctypes.c_int(0), os.getpid(), ctypes.pythonapi
    for hook in (api.PyOS_BeforeFork, api.PyOS_AfterFork_Child, api.PyOS_AfterFork_Parent):
        hook.restype = None
    # The clone's answer is true in the parent: there `any` stops, and `all` goes on. In the child it is the other way round.
    forking = _until_true(api.PyOS_BeforeFork, _clone(calls, pid), *_lock(calls), api.PyOS_AfterFork_Child)
    steps = _until_false(forking, api.PyOS_AfterFork_Parent)
    with _undisturbed():
        steps()
        if os.getpid() != parent:
            _run_and_exit(run)
    if not pid.value:
        number = ctypes.get_errno()
        raise OSError(number, f"a process could not be cloned: {os.strerror(number)}")
    return pid.value


def name_process(name: str) -> None:
    """The name by which ``ps`` and ``top`` show this process; the kernel keeps 15 bytes of it."""
    _libc().prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _until_true(*steps: Step) -> Step:
    """Call one after the other, up to the first whose answer is true, without a bytecode between them."""
    return partial(any, map(operator.call, steps))


def _until_false(*steps: Step) -> Step:
    """Call one after the other, up to the first whose answer is false."""
    return partial(all, map(operator.call, steps))


def _clone(calls: _Calls, pid: ctypes.c_int) -> Step:
    """The system call: 0 in the child, anything else in the parent; the kernel writes ``pid`` for the parent only."""
    syscall = _libc().syscall
    syscall.restype = ctypes.c_long
    flags, zero = CLONE_FILES | CLONE_PARENT_SETTID | signal.SIGCHLD, ctypes.c_long(0)
    return partial(syscall, ctypes.c_long(calls.clone), ctypes.c_long(flags), zero, ctypes.byref(pid), zero, zero)


def _lock(calls: _Calls) -> Iterator[Step]:
    """Steps that put a seccomp filter on the child for good: ``close`` succeeds and does nothing, ``openat`` fails.

    Where it is refused, the child exits. With one thread nothing is freed after a clone: then it goes on without.
    """
    # Jumps count from the next instruction: to the last but one, or to the last.
    instructions = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_IF_EQUAL, 3, 0, calls.close),
        (_IF_EQUAL, 2, 0, _CLOSE_RANGE),
        (_IF_EQUAL, 2, 0, calls.openat),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ANSWER),
        (_RETURN, 0, 0, _ANSWER | errno.EPERM),
    )
    program = _Program(len(instructions), b"".join(struct.pack("HBBI", *each) for each in instructions))
    prctl, zero = _libc().prctl, ctypes.c_long(0)
    yield partial(prctl, _PR_SET_NO_NEW_PRIVS, ctypes.c_long(1), zero, zero, zero)
    put_on = partial(prctl, _PR_SET_SECCOMP, ctypes.c_long(_SECCOMP_MODE_FILTER), ctypes.byref(program), zero, zero)
    yield _until_false(put_on, bool if threading.active_count() == 1 else partial(os._exit, os.EX_NOPERM))


@cache
def _libc() -> Any:
    """The interpreter's own libc, called with the GIL held: between the hooks no other thread may run."""
    return ctypes.PyDLL(None, use_errno=True)


def _run_and_exit(run: Callable[[], None]) -> None:
    """Never return into the parent's code, whatever happens."""
    code = os.EX_SOFTWARE
    try:
        run()
        code = os.EX_OK
    finally:
        os._exit(code)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal (a handler in the child would write to the parent's wakeup descriptor), and no collector."""
    is_collecting = gc.isenabled()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
