"""A shard is killed, and its clients do not notice: real processes, real sockets."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import signal
import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longwire.keeper.channel import close_all, send_with_descriptors, seqpacket_pair
from longwire.keeper.guardian import GuardianGone, fetch_sockets

from .shard_stand_in import TIMEOUT_S, Shard, running_shard, wait_dead

pytestmark = pytest.mark.e2e

UNREAD = bytes(range(256)) * 8
REPLY = UNREAD[::-1]


@pytest.fixture
def shard() -> Iterator[Shard]:
    with running_shard() as shard:
        yield shard


@contextmanager
def watching(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    yield pidfd
    os.close(pidfd)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    sock.settimeout(TIMEOUT_S)
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def check_working(fetched: dict[int, int], clients: dict[int, socket.socket]) -> None:
    """What lay unread is there, and both directions go on; the fetched descriptors are closed then."""
    assert set(fetched) == set(clients)
    assert not any(map(os.get_inheritable, fetched.values()))
    for number, client in clients.items():
        with socket.socket(fileno=fetched[number]) as adopted:
            name = number.to_bytes(4, "big")
            client.sendall(name)
            assert read_exactly(adopted, len(UNREAD) + 4) == UNREAD + name
            adopted.sendall(REPLY + name)
            assert read_exactly(client, len(REPLY) + 4) == REPLY + name


def test_connections_outlive_a_killed_shard(shard: Shard) -> None:
    """Opened after the clone; byte-exact; a number that is no socket is left out; the guardian ends with its keeper's end."""
    end, guardian = shard.guard()
    clients = shard.connections(7)
    for client in clients.values():
        client.sendall(UNREAD)
    with watching(guardian) as pidfd:
        shard.kill()
        fetched = fetch_sockets(end, [*clients, 0, 3_000, 2**32 - 1, *clients], TIMEOUT_S)
        check_working(fetched, clients)
        assert fetch_sockets(end, [], TIMEOUT_S) == {}
        assert fetch_sockets(end, [0, 1, 4_000], TIMEOUT_S) == {}, "an empty answer is not the end"
        end.close()
        assert wait_dead(pidfd)


def test_a_thousand_connections(shard: Shard) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_000:
        pytest.skip("too few open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        end, _ = shard.guard()
        shard.ask("raise_limit")
        clients = shard.connections(1_000)
        for client in clients.values():
            client.sendall(UNREAD)
        shard.kill()
        check_working(fetch_sockets(end, clients, TIMEOUT_S), clients)
    finally:
        shard.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_the_shard_closes_is_closed(shard: Shard) -> None:
    """The peer sees it at once, with the guardian alive; and it is not among what the guardian has."""
    end, guardian = shard.guard()
    clients = shard.connections(3)
    closed = next(iter(clients))
    shard.ask("close", number=closed)
    assert clients.pop(closed).recv(1) == b""
    for client in clients.values():
        client.sendall(UNREAD)
    with watching(guardian):
        shard.kill()
        check_working(fetch_sockets(end, [closed, *clients], TIMEOUT_S), clients)


def test_what_nobody_fetches_is_closed_with_the_guardian(shard: Shard) -> None:
    end, _ = shard.guard()
    (client,) = shard.connections(1).values()
    shard.kill()
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(TIMEOUT_S)
    end.close()
    assert client.recv(1) == b""


def test_signals_to_a_group_change_nothing(shard: Shard) -> None:
    end, guardian = shard.guard()
    clients = shard.connections(2)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        os.kill(guardian, number)
    for client in clients.values():
        client.sendall(UNREAD)
    shard.kill()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(guardian, number)
    check_working(fetch_sockets(end, clients, TIMEOUT_S), clients)


def test_it_has_a_name_of_its_own(shard: Shard) -> None:
    """Cut by the kernel to 15 bytes."""
    _, guardian = shard.guard()
    assert Path(f"/proc/{guardian}/comm").read_text() == "lw-guardian-0\n"


def test_a_lost_guardian_is_noticed_and_cloned_again(shard: Shard) -> None:
    """Nothing is left over from the first one, and connections from its time are kept by the second."""
    first_end, first = shard.guard()
    clients = shard.connections(2)
    descriptors = shard.ask("descriptors")
    os.kill(first, signal.SIGKILL)
    lives, shown = shard.ask("wait_for_loss")
    assert not lives and "is dead" in shown
    second_end, second = shard.guard()
    assert second != first
    assert shard.ask("descriptors") == descriptors
    with pytest.raises(GuardianGone):
        fetch_sockets(first_end, clients, TIMEOUT_S)
    for client in clients.values():
        client.sendall(UNREAD)
    shard.kill()
    check_working(fetch_sockets(second_end, clients, TIMEOUT_S), clients)


def test_a_living_guardian_is_replaced_on_request_and_ended(shard: Shard) -> None:
    first_end, first = shard.guard()
    with watching(first) as pidfd:
        second_end, second = shard.guard()
        assert wait_dead(pidfd)
    assert first_end.recv(1) == b""
    with watching(second) as pidfd:
        shard.ask("end_guardian")
        assert wait_dead(pidfd)
    assert second_end.recv(1) == b""


def test_a_keeper_that_is_gone_is_not_waited_for(shard: Shard) -> None:
    """While the shard lives the guardian stays, asleep; after that it has nothing to do."""
    end, guardian = shard.guard()
    (client,) = shard.connections(1).values()
    end.close()
    with watching(guardian) as pidfd:
        while Path(f"/proc/{guardian}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            pass  # on its way to sleep; one that looks at its end again and again never gets there
        shard.kill()
        assert wait_dead(pidfd)
    assert client.recv(1) == b""


def test_while_the_shard_lives_nobody_answers(shard: Shard) -> None:
    """And what such a fetch has left behind does not confuse a later one."""
    end, _ = shard.guard()
    clients = shard.connections(5)
    for client in clients.values():
        client.sendall(UNREAD)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            fetch_sockets(end, clients, 0.0)
    shard.kill()
    check_working(fetch_sockets(end, clients, TIMEOUT_S), clients)


def test_a_shard_that_dies_before_the_clone_has_no_guardian(shard: Shard) -> None:
    """The keeper's end is there already: it reads end of file, and waits for nobody."""
    shard.tell("guard", dying=True)
    end = shard.take_end()
    shard.process.wait(TIMEOUT_S)
    with pytest.raises(GuardianGone):
        fetch_sockets(end, [5], TIMEOUT_S)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_refused_clone_is_an_error_and_nothing_else(shard: Shard, number: int) -> None:
    descriptors = shard.ask("descriptors")
    shard.ask("refuse_clones", number=number)
    shard.tell("guard")
    end, refused = shard.take_end(), shard.answer()
    assert refused["errno"] == number
    assert "could not be cloned" in refused["text"]
    assert not refused["lives"]
    assert refused["repr"] == "<Guarded lw-guardian-0: no guardian, 0 cloned>"
    assert end.recv(1) == b""
    assert shard.ask("descriptors") == descriptors
    shard.connections(1)


@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_clone_without_a_sign_of_life_is_tried_again(shard: Shard, how: str) -> None:
    descriptors = shard.ask("descriptors")
    shard.ask("stumble", times=2, how=how)
    end, _ = shard.guard()
    assert shard.ask("descriptors") == descriptors + 2, "its end and its pidfd"
    clients = shard.connections(1)
    for client in clients.values():
        client.sendall(UNREAD)
    shard.kill()
    check_working(fetch_sockets(end, clients, TIMEOUT_S), clients)


@pytest.mark.parametrize("how", ["hang", "die"])
def test_it_is_not_tried_for_ever(shard: Shard, how: str) -> None:
    descriptors = shard.ask("descriptors")
    shard.ask("stumble", times=3, how=how)
    shard.tell("guard")
    end, refused = shard.take_end(), shard.answer()
    assert "sign of life" in refused["text"]
    assert end.recv(1) == b""
    assert shard.ask("descriptors") == descriptors
    shard.guard()


def test_a_clone_frees_nothing_that_another_thread_holds(shard: Shard) -> None:
    """Python clears other threads' local values after a fork: a socket among them would be closed in the shard, too."""
    number = shard.ask("hold_in_thread")
    shard.guard()
    assert shard.ask("is_open", number=number)


def test_without_the_lock_there_is_no_clone_beside_threads(shard: Shard) -> None:
    """With a single thread nothing can be freed, and a kernel without seccomp will do."""
    shard.ask("refuse_locks")
    shard.guard()
    number = shard.ask("hold_in_thread")
    shard.tell("guard")
    shard.take_end()
    assert "sign of life" in shard.answer()["text"]
    assert shard.ask("is_open", number=number)


def test_a_clone_leaves_the_shard_as_it_was(shard: Shard) -> None:
    before = shard.ask("signals")
    shard.guard()
    assert shard.ask("signals") == before


def test_cloned_in_a_running_loop_beside_threads(shard: Shard) -> None:
    """uvloop, its threads, an executor and a thread that computes all the time; signals to the guardian are not the shard's."""
    client = shard.connect()
    client.sendall(b"ping")
    shard.tell("guard_in_loop")
    end = shard.take_end()
    assert read_exactly(client, 4) == b"ping"
    pid, number, signals = shard.answer()
    os.kill(pid, signal.SIGTERM)
    assert signals == []
    client.sendall(UNREAD)
    shard.kill()
    check_working(fetch_sockets(end, [number], TIMEOUT_S), {number: client})


# The adopter's side, before a guardian that is not one.

TAG = 7


@pytest.fixture
def known_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: TAG)


def answer(end: socket.socket, tag: int, *numbers: int, passed: int) -> None:
    send_with_descriptors(end, array("I", (tag, *numbers)).tobytes(), [0] * passed)


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_a_guardian_passed_before_it_died_is_not_lost(known_tag: None) -> None:
    ours, theirs = seqpacket_pair()
    with ours, theirs:
        answer(theirs, TAG - 1, 11, 12, passed=2)
        answer(theirs, TAG, 13, 14, passed=2)
        theirs.close()
        before = open_count()
        with pytest.raises(GuardianGone, match="2 sockets were fetched, 398 were") as caught:
            fetch_sockets(ours, range(400), TIMEOUT_S)
        assert set(caught.value.fetched) == {13, 14}
        close_all(caught.value.fetched.values())
        assert open_count() == before


def test_a_guardian_killed_with_requests_unread_resets_and_is_gone(known_tag: None) -> None:
    ours, theirs = seqpacket_pair()
    with ours, theirs:
        answer(theirs, TAG, 13, passed=1)
        ours.send(b"unread")
        theirs.close()
        with pytest.raises(GuardianGone) as caught:
            fetch_sockets(ours, [13, 14], TIMEOUT_S)
        assert set(caught.value.fetched) == {13}
        close_all(caught.value.fetched.values())


def test_an_answer_that_does_not_fit_is_an_error_and_leaves_nothing_open(known_tag: None) -> None:
    ours, theirs = seqpacket_pair()
    with ours, theirs:
        answer(theirs, TAG, 1, passed=1)
        answer(theirs, TAG, 2, 3, passed=1)
        before = open_count()
        with pytest.raises(OSError, match="named 2 sockets and passed 1"):
            fetch_sockets(ours, range(400), TIMEOUT_S)
        assert open_count() == before
