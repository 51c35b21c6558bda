"""One process as the keeper sees it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.garbage import let_go

from longwire.keeper.channel import Channel
from longwire.keeper.deed import Deed
from longwire.keeper.members import Member, start_member
from longwire.keeper.states import Event, State

NOBODY = 2**31 - 1
"""No process has this number: to kill it is an error."""
DEED = Deed(0, 0, 0, 0, 0, 0, ())
SHOW = """
import json, os, signal, socket, sys
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
ours = [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
told = {"argv": sys.argv[2:], "group": os.getpgid(0) == os.getpid(), "blocked": len(blocked), "default": all(ours)}
socket.socket(fileno=int(sys.argv[1])).send(json.dumps(told).encode())
"""


@pytest.fixture
def pair() -> Iterator[tuple[Member, Channel]]:
    ours, its = Channel.pair()
    ours.set_blocking(False)
    yield Member("shard", 1, 0, NOBODY, ours), its
    ours.close()
    its.close()


@pytest.mark.e2e
def test_a_process_finds_everything_on_its_command_line_and_signals_as_they_were_born() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    member = start_member("shard", (sys.executable, "-I", "-S", "-c", SHOW), 7, 2, DEED)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, handler)
    assert os.waitpid(member.pid, 0)[1] == 0
    received = member.channel.receive()
    assert received is not None
    assert received[0] == {"argv": ["7", str(DEED)], "group": True, "blocked": 0, "default": True}
    member.channel.close()
    assert (member.kind, member.incarnation, member.generation, member.state) == ("shard", 7, 2, State.STARTING)


def test_a_program_that_is_not_there_leaves_no_descriptor() -> None:
    let_go()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No such file"):
        start_member("shard", ("/nonexistent",), 1, 0, DEED)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_telling_says_whether_it_was_told(pair: tuple[Member, Channel]) -> None:
    member, its = pair
    assert member.tell({"do": "serve"})
    assert its.receive() == ({"do": "serve"}, [])
    while member.tell({"fill": "x" * 10_000}):
        pass
    its.close()
    assert not member.tell({"do": "serve"}), "it is gone"
    member.is_reaped = True
    member.channel.close()
    assert not member.tell({"do": "serve"}), "and buried"


def test_nobody_else_is_killed_for_a_number(pair: tuple[Member, Channel]) -> None:
    member, _ = pair
    member.is_reaped = True
    member.kill()
    member.dismiss()
    assert member.is_unwanted
    member.retire()
    member.happens(Event.DIED)
    assert member.state is State.GONE


def test_the_newest_guardian_counts(pair: tuple[Member, Channel]) -> None:
    member, _ = pair
    ends = [socket.socketpair() for _ in range(3)]
    for ours, _ in ends:
        member.take_guardian(ours)
    assert [ours.fileno() < 0 for ours, _ in ends] == [True, True, False]
    member.close_guardian()
    member.close_guardian()
    assert member.guardian is None
    for _, its in ends:
        assert its.recv(1) == b""
        its.close()
