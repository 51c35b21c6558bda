"""A shard without a gateway: it accepts connections, has a guardian, and does what a test tells it to.

What lives here: the program (its argument is the descriptor of its channel) and the test's side of it.
What must not: expectations.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from longwire.keeper import cloning, guardian
from longwire.keeper.channel import Channel
from longwire.keeper.guardian import Guarded

SRC = Path(__file__).parents[2] / "src"
TIMEOUT_S = 20.0
"""For what should take milliseconds; a test that needs it has failed."""


class Program:
    """What runs in the process. Each public method is one thing to be told; what it returns is the answer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._guarded = Guarded("lw-guardian-0")
        self._listener: socket.socket | None = None
        self._kept: list[Any] = []

    def run(self) -> None:
        while (received := self._channel.receive()) is not None:
            message, fds = received
            if fds:
                self._listener = socket.socket(fileno=fds[0])
            answer = getattr(self, message.pop("what"))(**message)
            self._channel.send({"answer": answer})

    def listen(self) -> None:
        """The listener came with the message."""

    def guard(self, dying: bool = False) -> object:
        def hand_over(fd: int) -> None:
            self._channel.send({"end": fd}, [fd])
            if dying:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            self._guarded.clone(hand_over)
        except OSError as error:
            return {"errno": error.errno, "text": str(error), "lives": self._guarded.lives, "repr": repr(self._guarded)}
        return self._guarded.pid

    def accept(self, count: int) -> list[int]:
        assert self._listener is not None
        return [self._listener.accept()[0].detach() for _ in range(count)]

    def close(self, number: int) -> None:
        os.close(number)

    def is_open(self, number: int) -> bool:
        with contextlib.suppress(OSError):
            os.fstat(number)
            return True
        return False

    def descriptors(self) -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def raise_limit(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def wait_for_loss(self) -> list[object]:
        lost = select.poll()
        lost.register(self._guarded.fileno(), select.POLLIN)
        lost.poll()
        return [self._guarded.lives, repr(self._guarded)]

    def end_guardian(self) -> None:
        self._guarded.close_guardian()

    def refuse_clones(self, number: int) -> None:
        vars(cloning)["_clone"] = lambda *_: lambda: ctypes.set_errno(number) or -1

    def refuse_locks(self) -> None:
        vars(cloning)["_PR_SET_SECCOMP"] = -1

    def stumble(self, times: int, how: str) -> None:
        """The next clones never say that they live. Those that stand still are not waited for long."""
        left = times

        def before() -> None:
            nonlocal left
            left -= 1
            guardian.SIGN_OF_LIFE_S = 0.05 if left >= 0 and how == "hang" else TIMEOUT_S

        def in_child() -> None:
            if left >= 0:
                os._exit(1) if how == "die" else select.poll().poll()

        os.register_at_fork(before=before, after_in_child=in_child)

    def hold_in_thread(self) -> int:
        """A socket that only another thread's local values hold."""
        held: list[int] = []
        ready = threading.Event()

        def hold() -> None:
            local = threading.local()
            self._kept.append(local)
            local.sock = socket.socket()
            held.append(local.sock.fileno())
            ready.set()
            threading.Event().wait()

        threading.Thread(target=hold, daemon=True).start()
        ready.wait()
        return held[0]

    def signals(self) -> list[object]:
        return [sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), gc.isenabled()]

    def guard_in_loop(self) -> list[object]:
        return uvloop.run(self._guard_in_loop())

    async def _guard_in_loop(self) -> list[object]:
        """A loop that runs, its threads and Python's that have worked, and one that works all the time."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._kept.append("SIGTERM"))
        is_over = threading.Event()
        busy = threading.Thread(target=lambda: all(not is_over.is_set() for _ in iter(int, 1)))
        busy.start()
        with ThreadPoolExecutor(2) as pool:
            await loop.run_in_executor(pool, socket.getaddrinfo, "localhost", 80)
            await loop.getaddrinfo("localhost", 80)
            pid = self.guard()
            assert self._listener is not None
            self._listener.setblocking(False)
            accepted, _ = await loop.sock_accept(self._listener)
            await loop.sock_sendall(accepted, await loop.sock_recv(accepted, 100))
            await loop.run_in_executor(pool, socket.getaddrinfo, "localhost", 80)
            await loop.getaddrinfo("localhost", 80)
        is_over.set()
        busy.join()
        return [pid, accepted.detach(), self._kept]


class Shard:
    """The test's side."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, listener: socket.socket) -> None:
        self.process = process
        self.listener = listener
        self._channel = channel
        self._ends: list[socket.socket] = []
        self._clients: list[socket.socket] = []

    def tell(self, what: str, **details: object) -> None:
        self._channel.send({"what": what, **details})

    def answer(self) -> Any:
        received = self._channel.receive()
        assert received is not None, "the shard is dead"
        return received[0]["answer"]

    def ask(self, what: str, **details: object) -> Any:
        self.tell(what, **details)
        return self.answer()

    def take_end(self) -> socket.socket:
        """The keeper's end, as it was handed over."""
        received = self._channel.receive()
        assert received is not None, "the shard is dead"
        message, fds = received
        assert "end" in message, message
        self._ends.append(socket.socket(fileno=fds[0]))
        return self._ends[-1]

    def guard(self) -> tuple[socket.socket, int]:
        """The keeper's end and the guardian's pid."""
        self.tell("guard")
        end, pid = self.take_end(), self.answer()
        assert isinstance(pid, int), pid
        return end, pid

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), timeout=TIMEOUT_S)
        self._clients.append(client)
        return client

    def connections(self, count: int) -> dict[int, socket.socket]:
        """Clients by the number that their connection has in the shard; few at a time, for the backlog's sake."""
        found: dict[int, socket.socket] = {}
        while len(found) < count:
            clients = [self.connect() for _ in range(min(100, count - len(found)))]
            found.update(zip(self.ask("accept", count=len(clients)), clients, strict=True))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.kill()
        self._channel.close()
        for sock in (*self._ends, *self._clients):
            sock.close()


@contextmanager
def running_shard() -> Iterator[Shard]:
    """A shard with a listener; at the end it is killed, and its guardian has nobody left to wait for."""
    ours, theirs = Channel.pair()
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    theirs.close()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        shard = Shard(process, ours, listener)
        try:
            ours.send({"what": "listen"}, [listener.fileno()])
            shard.answer()
            yield shard
        finally:
            shard.close()


def wait_dead(pidfd: int) -> bool:
    """Whether a process ended within the time that it may take."""
    dead = select.poll()
    dead.register(pidfd, select.POLLIN)
    return bool(dead.poll(TIMEOUT_S * 1000))


if __name__ == "__main__":
    Program(Channel(socket.socket(fileno=int(sys.argv[1])))).run()
