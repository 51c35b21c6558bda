"""What a dead shard's descriptor table holds besides what rows name."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread
from types import SimpleNamespace
from typing import cast

import pytest

from longwire.adopt import Rows
from longwire.keeper.channel import receive_with_descriptors, send_with_descriptors, seqpacket_pair
from longwire.processes.bequest import Bequest
from longwire.streams.counters import counters_work

pytestmark = pytest.mark.skipif(not counters_work(), reason="this kernel does not count a connection's bytes")


class Guardian(Thread):
    """Answers as a guardian does, out of the table of this very process."""

    def __init__(self, end: socket.socket, may_pass: set[int]) -> None:
        super().__init__()
        self.end, self.may_pass = end, may_pass

    def run(self) -> None:
        while request := receive_with_descriptors(self.end, 4096)[0]:
            words = array("I", request)
            found = array("I", (number for number in words[1:] if number in self.may_pass))
            send_with_descriptors(self.end, (words[:1] + found).tobytes(), found)


class Scene:
    """A listening socket, and clients that were accepted."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.public = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def accept(self, sent: bytes = b"", read: int = 0) -> socket.socket:
        client = self.stack.enter_context(socket.create_connection(self.public.getsockname()))
        client.sendall(sent)
        sock = self.stack.enter_context(self.public.accept()[0])
        sock.settimeout(5)
        assert len(sock.recv(read, socket.MSG_WAITALL) if read else b"") == read
        return sock

    def fetch(
        self,
        *sockets: socket.socket,
        mixed: tuple[int, ...] = (),
        shared: tuple[int, ...] = (1,),
        elsewhere: tuple[tuple[int, int], ...] = (),
    ) -> set[int]:
        """The inodes of the newcomers among them."""
        end, its = seqpacket_pair()
        guardian = Guardian(its, {sock.fileno() for sock in sockets})
        guardian.start()
        # Numbers are high where other tests have left much open: a row that names one so high has the search go on.
        rows = cast(Rows, SimpleNamespace(sockets={(1, 1 + max(sock.fileno() for sock in sockets))}))
        found, newcomers = Bequest({1: end.detach()}, mixed, shared).fetch(rows, self.public, lambda: elsewhere)
        guardian.join(10)
        its.close()
        assert not found
        inodes = {os.fstat(sock.fileno()).st_ino for sock in newcomers}
        assert len(inodes) == len(newcomers), "each of them once"
        for sock in newcomers:
            sock.close()
        return inodes


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


def test_clients_of_which_nothing_was_read_are_found(scene: Scene) -> None:
    silent, waiting = scene.accept(), scene.accept(b"GET / HTTP/1.1\r\n")
    assert scene.fetch(silent, waiting) == {os.fstat(sock.fileno()).st_ino for sock in (silent, waiting)}


def test_one_that_was_read_from_and_whatever_else_is_open_are_no_newcomers(scene: Scene) -> None:
    begun = scene.accept(b"GET", read=1)
    other = scene.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    engine = scene.stack.enter_context(socket.create_connection(other.getsockname()))
    one, two = (scene.stack.enter_context(sock) for sock in socket.socketpair())
    assert scene.fetch(begun, other, engine, one, two, scene.public) == set()


def test_two_descriptors_of_one_socket_are_one_newcomer(scene: Scene) -> None:
    sock = scene.accept()
    again = scene.stack.enter_context(sock.dup())
    assert scene.fetch(sock, again) == {os.fstat(sock.fileno()).st_ino}


def test_newcomers_of_one_that_fostered_are_those_of_its_own_slot(scene: Scene) -> None:
    """And there such as a row of the fostered slot names, silent as they are, must not be taken for newcomers."""
    new, silent = scene.accept(), scene.accept()
    inodes = {os.fstat(sock.fileno()).st_ino for sock in (new, silent)}
    assert scene.fetch(new, silent, mixed=(1,)) == set()
    named = ((1, silent.fileno()), (2, new.fileno()))
    assert scene.fetch(new, silent, elsewhere=named) == {os.fstat(new.fileno()).st_ino}
    assert scene.fetch(new, silent, shared=(), elsewhere=named) == inodes, "nobody else's rows are read for nothing"
