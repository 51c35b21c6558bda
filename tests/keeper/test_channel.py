"""Channels: messages stay whole, descriptors arrive or the message is an error, and none is left open."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwire.keeper.channel import MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Channel, close_all, send_with_descriptors


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = Channel.pair()
    yield one, other
    one.close()
    other.close()


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_messages_arrive_one_by_one(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    messages: list[dict[str, object]] = [{"kind": "ready", "slot": 1}, {}, {"ümlaut": [None, True, 1.5, {"x": "y"}]}]
    for message in messages:
        one.send(message)
    other.send({"back": 1})
    assert [other.receive() for _ in messages] == [(message, []) for message in messages]
    assert one.receive() == ({"back": 1}, [])


def test_the_end_is_none_and_what_came_before_it_is_read(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send({"last": "words"})
    one.close()
    assert other.receive() == ({"last": "words"}, [])
    assert other.receive() is None
    assert other.receive() is None
    with pytest.raises(BrokenPipeError):
        other.send({})


def test_an_empty_channel_does_not_block_who_does_not_want_it(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.set_blocking(False)
    with pytest.raises(BlockingIOError):
        one.receive()
    with pytest.raises(BlockingIOError):
        while True:
            one.send({"a": "x" * 10_000})
    one.set_blocking(True)
    message = other.receive()
    assert message is not None and len(message[0]["a"]) == 10_000


def test_the_longest_message_fits_and_a_longer_one_is_not_sent(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    frame = len(b'{"a":""}')
    with pytest.raises(ValueError, match="does not fit"):
        one.send({"a": "x" * (MAX_MESSAGE_BYTES - frame + 1)})
    one.send({"a": "x" * (MAX_MESSAGE_BYTES - frame)})
    message = other.receive()
    assert message is not None and len(message[0]["a"]) == MAX_MESSAGE_BYTES - frame


def test_descriptors_come_in_order_and_are_not_inherited(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    pipes = [os.pipe() for _ in range(MAX_DESCRIPTORS // 2)]
    sent = [end for pipe in pipes for end in pipe]
    one.send({"pipes": len(pipes)}, sent)
    received = other.receive()
    assert received is not None
    message, fds = received
    assert message == {"pipes": len(pipes)}
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in sent]
    assert not any(map(os.get_inheritable, fds))
    os.write(fds[1], b"through")
    assert os.read(pipes[0][0], 100) == b"through"
    close_all([*sent, *fds])


def test_too_many_descriptors_are_not_sent(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    with pytest.raises(ValueError, match="descriptors do not fit"):
        one.send({}, [one.fileno()] * (MAX_DESCRIPTORS + 1))
    other.set_blocking(False)
    with pytest.raises(BlockingIOError):
        other.receive()


def test_a_message_that_was_looked_at_stays_until_it_is_dropped(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send({"n": 1}, [0])
    one.send({"n": 2})
    before = open_count()
    for _ in range(2):
        looked = other.peek()
        assert looked is not None and looked[0] == {"n": 1}
        close_all(looked[1])
    other.drop()
    assert open_count() == before, "its descriptors went with it"
    assert other.receive() == ({"n": 2}, [])


def test_an_end_that_leaves_something_unread_is_an_end(ends: tuple[Channel, Channel]) -> None:
    """The kernel calls that a reset; what was said before still comes."""
    one, other = ends
    one.send({"n": 1})
    other.send({"unread": True})
    one.close()
    assert other.receive() == ({"n": 1}, [])
    assert other.receive() is None
    assert other.receive() is None


def test_at_the_limit_of_open_files_nothing_comes_and_nothing_stays_open(ends: tuple[Channel, Channel]) -> None:
    """Some of the descriptors would fit: which ones are missing cannot be known, so none is kept."""
    one, other = ends
    one.send({"n": 1}, [0] * 10)
    one.send({"n": 2})
    before = open_count()
    lowest_free = os.dup(0)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 3, hard))
    try:
        with pytest.raises(OSError, match="limit of open files") as caught:
            other.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert open_count() == before
    assert other.receive() == ({"n": 2}, []), "the channel goes on"


@pytest.mark.parametrize("record", [b"{", b"\xff", b"[]", b"1", b'{"a":"' + b"x" * MAX_MESSAGE_BYTES + b'"}'])
def test_what_is_no_message_is_an_error_and_leaves_nothing_open(record: bytes) -> None:
    raw, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(sock)
    with raw:
        before = open_count()
        send_with_descriptors(raw, record, [0, 0])
        with pytest.raises(ValueError):
            channel.receive()
        assert open_count() == before
    channel.close()


def test_it_shows_what_it_is(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    assert repr(one) == f"<Channel at descriptor {one.fileno()}, blocking>"
    one.set_blocking(False)
    assert "non-blocking" in repr(one)
    one.close()
    assert repr(one) == "<Channel closed>"
