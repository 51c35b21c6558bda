"""The guardian: a tiny process that keeps a shard's sockets open when the shard is killed.

What lives here: what the guardian does, the shard's side of it, and the adopter's, who fetches the sockets.
What must not: which sockets matter (the rows say that), how a descriptor table is shared (cloning.py).

The guardian shares the shard's descriptor table: what the shard opens later is there too, and what the shard closes is closed.
It waits for the shard's death. Then the table is the guardian's alone, and it answers at its *end* of a socket pair, whose
other end the keeper holds:

    request   tag, descriptor numbers        32-bit words in the machine's order, at most 200 numbers
    answer    tag, those that are sockets    with them, in the same order, as SCM_RIGHTS

A tag belongs to one fetch: an adopter that died may have left answers behind. This format is never changed: the adopter may
be of a newer version. When all others have closed the other end, the guardian exits, and what nobody has fetched is closed.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import signal
import socket
import stat
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable

from .channel import MAX_DESCRIPTORS, close_all, receive_with_descriptors, send_with_descriptors, seqpacket_pair
from .cloning import clone_sharing_files, name_process

MAX_CLONES = 3
"""A clone stands still where another thread held a lock at that moment. That is rare: three in a row have another reason."""

SIGN_OF_LIFE_S = 2.0
"""It takes milliseconds. A shard that serves already stands still for so long, so not longer."""

MAX_PIPELINED = 2
"""Requests under way: one is answered while the other's sockets are taken in. Descriptors in flight count against a limit of
the user (RLIMIT_NOFILE, unless root), which several adoptions at once share."""

FLIGHT_TRIES, FLIGHT_PAUSE_MS = 500, 10
"""Where that limit is reached all the same (ETOOMANYREFS), what is in flight lands soon, or after five seconds never."""

IGNORED = frozenset({
    signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE,
})  # fmt: skip
"""What a terminal, a supervisor or an operator sends to a whole group; and a reader that left is no reason to die."""

_RECORD_BYTES = 4 * (1 + MAX_DESCRIPTORS)


class GuardianGone(ConnectionError):
    """Nobody answers any more. ``fetched`` are now the only copies: the caller's, to use or to close."""

    def __init__(self, fetched: dict[int, int], missing: int) -> None:
        super().__init__(f"the guardian is gone: {len(fetched)} sockets were fetched, {missing} were still asked for")
        self.fetched = fetched


# The guardian's own side.


def clone_guardian(end: socket.socket, name: str, shard: int) -> tuple[int, int]:
    """Start a guardian that answers at ``end``; its pid and a pidfd. ``shard`` is a pidfd of this process, which stays open.

    Whoever else may hold the other end of ``end``: this process must not, or the guardian does, and never sees it close.

    Raises:
        OSError: there is none, and the shard will have to run without.
    """
    for _ in range(MAX_CLONES):
        sign = os.eventfd(0)
        try:
            pid = clone_sharing_files(lambda: _guard(end, name, shard, sign))  # noqa: B023 - called before the next round
            pidfd = _take_pidfd(pid)
            if _is_alive(sign, pidfd):
                return pid, pidfd
            _end_process(pid, pidfd)
        finally:
            os.close(sign)
    raise OSError(errno.ETIMEDOUT, f"a guardian was cloned {MAX_CLONES} times and never gave a sign of life")


def _take_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _is_alive(sign: int, pidfd: int) -> bool:
    """Wait for the sign of life, or for the end of whoever should have given it."""
    either = select.poll()
    either.register(sign, select.POLLIN)
    either.register(pidfd, select.POLLIN)
    return any(fd == sign for fd, _ in either.poll(SIGN_OF_LIFE_S * 1000))


def _end_process(pid: int, pidfd: int) -> None:
    """Kill and reap a child of ours, dead or alive."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # reaped by somebody else in this process
    os.close(pidfd)


def _guard(end: socket.socket, name: str, shard: int, sign: int) -> None:
    """All that a guardian does. No object may be freed here that closes a descriptor: the table is the shard's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    name_process(name)
    os.eventfd_write(sign, 1)
    # Nothing but the death is waited for: the end of `end` would be reported again and again, and changes nothing yet.
    _wait(shard, select.POLLIN, None)
    try:
        while request := end.recv(_RECORD_BYTES):
            _answer(end, request)
    except ConnectionError:
        pass  # closed with an answer on the way, which is the same


def _answer(end: socket.socket, request: bytes) -> None:
    words = _words(request)
    sockets = array("I", filter(_is_socket, words[1:]))
    for _ in range(FLIGHT_TRIES):
        try:
            send_with_descriptors(end, (words[:1] + sockets).tobytes(), sockets)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            select.poll().poll(FLIGHT_PAUSE_MS)
        else:
            return


def _is_socket(number: int) -> bool:
    """A number that was closed may be something else by now, or nothing."""
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except (OSError, OverflowError):
        return False


# The shard's side.


class Guarded:
    """A shard's guardian as the shard sees it: cloned, watched, cloned again when lost.

    ``fileno`` is readable once the guardian is dead.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.clones = 0
        self._shard = os.pidfd_open(os.getpid())
        self._guardian = -1
        self._end: socket.socket | None = None

    def __repr__(self) -> str:
        state = f"guardian {self.pid} {'lives' if self.lives else 'is dead'}" if self.pid else "no guardian"
        return f"<Guarded {self.name}: {state}, {self.clones} cloned>"

    def statistics(self) -> dict[str, int]:
        """``clones`` so far, and whether one ``lives`` now."""
        return {"clones": self.clones, "lives": self.lives}

    @property
    def lives(self) -> bool:
        """Whether there is a guardian now."""
        return self.pid != 0 and not _is_readable(self._guardian)

    def fileno(self) -> int:
        return self._guardian

    def clone(self, hand_over: Callable[[int], None]) -> None:
        """Start a guardian, in place of a lost one too. ``hand_over`` sends the keeper's end away (a descriptor, closed after).

        That comes first: from the clone on the guardian would hold the keeper's end as well. A keeper that has received an
        end and reads end of file at it knows that no guardian came of it.

        Raises:
            OSError: there is no guardian now; all else is as before.
        """
        self.close_guardian()
        self._end, keepers_end = seqpacket_pair()
        try:
            with keepers_end:
                hand_over(keepers_end.fileno())
            self.pid, self._guardian = clone_guardian(self._end, self.name, self._shard)
            self.clones += 1
        finally:
            if not self.pid:
                self.close_guardian()

    def close_guardian(self) -> None:
        """End the guardian, if there is one. The keeper then reads end of file."""
        if self.pid:
            _end_process(self.pid, self._guardian)
        if self._end:
            self._end.close()
        self.pid, self._guardian, self._end = 0, -1, None

    def close(self) -> None:
        """For the end of a shard that has nothing left to guard."""
        self.close_guardian()
        os.close(self._shard)


# The adopter's side.


def fetch_sockets(end: socket.socket, numbers: Iterable[int], timeout_s: float) -> dict[int, int]:
    """Descriptors by the numbers that they had in the dead shard; those that are no sockets there are left out.

    ``end`` is the keeper's. What is returned is close-on-exec and the caller's; the guardian holds its own until it exits.

    Raises:
        GuardianGone: with what has been fetched until then, which exists nowhere else any more.
        TimeoutError: no answer, as long as the shard is not dead. Nothing is lost, what was fetched is closed.
        OSError: with EMFILE: this process may open no more. Nothing is lost here either.
    """
    fetch = _Fetch(end, numbers, time.monotonic() + timeout_s)
    try:
        return fetch.run()
    except GuardianGone:
        raise
    except OSError:
        close_all(fetch.fetched.values())
        raise


class _Fetch:
    """One round of requests and answers."""

    def __init__(self, end: socket.socket, numbers: Iterable[int], deadline_s: float) -> None:
        wanted = array("I", dict.fromkeys(numbers))
        self.fetched: dict[int, int] = {}
        self._wanted = len(wanted)
        self._waiting = deque(wanted[at : at + MAX_DESCRIPTORS] for at in range(0, len(wanted), MAX_DESCRIPTORS))
        self._unanswered = 0
        self._can_ask = True
        self._end = end
        self._deadline_s = deadline_s
        self._tag = array("I", (secrets.randbits(32),))

    def run(self) -> dict[int, int]:
        while self._waiting or self._unanswered:
            if self._waiting and self._can_ask and self._unanswered < MAX_PIPELINED:
                self._ask()
            else:
                self._take_answer()
        return self.fetched

    def _ask(self) -> None:
        _wait(self._end.fileno(), select.POLLOUT, self._deadline_s)
        try:
            self._end.send((self._tag + self._waiting[0]).tobytes(), socket.MSG_DONTWAIT)
        except ConnectionError:
            self._can_ask = False  # what was answered before lies there still: it is read up to the end
        else:
            self._waiting.popleft()
            self._unanswered += 1

    def _take_answer(self) -> None:
        _wait(self._end.fileno(), select.POLLIN, self._deadline_s)
        data, fds = receive_with_descriptors(self._end, _RECORD_BYTES, socket.MSG_DONTWAIT)
        if not data:
            raise GuardianGone(self.fetched, self._wanted - len(self.fetched))
        words = _words(data)
        if words[:1] != self._tag:
            close_all(fds)
            return
        self._unanswered -= 1
        if len(words) != 1 + len(fds):
            close_all(fds)
            raise OSError(errno.EPROTO, f"the guardian named {len(words) - 1} sockets and passed {len(fds)}")
        self.fetched.update(zip(words[1:], fds, strict=True))


def _words(data: bytes) -> array[int]:
    words = array("I")
    words.frombytes(data[: len(data) - len(data) % words.itemsize])
    return words


def _is_readable(fd: int) -> bool:
    """Whether a descriptor is readable now."""
    now = select.poll()
    now.register(fd, select.POLLIN)
    return bool(now.poll(0))


def _wait(fd: int, what: int, deadline_s: float | None) -> None:
    """Until a descriptor is ready, or for ever.

    Raises:
        TimeoutError: the deadline came first.
    """
    ready = select.poll()
    ready.register(fd, what)
    left_ms = None if deadline_s is None else max(0.0, (deadline_s - time.monotonic()) * 1000)
    if not ready.poll(left_ms):
        raise TimeoutError("no answer from the guardian: is its shard dead?")
