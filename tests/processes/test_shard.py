"""A shard's talk with its keeper, and fetching what the dead had, without a house."""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from longwire.adopt import Rows
from longwire.keeper.channel import Channel, send_with_descriptors, seqpacket_pair
from longwire.lifecycle import House
from longwire.processes import shard as module
from longwire.processes.shard import Shard, fetch_all

# What is not closed here belongs to a process that ends, and takes it along.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class PaperGuarded:
    """A guardian that is only noted."""

    def __init__(self, name: str) -> None:
        self.clones = 0
        self.lives = False
        self.refuses = False

    def clone(self, hand_over: Any) -> None:
        if self.refuses:
            raise OSError(11, "no more processes")
        ours, keepers = socket.socketpair()
        hand_over(keepers.fileno())
        ours.close()
        keepers.close()
        self.clones += 1
        self.lives = True

    def fileno(self) -> int:
        return -1


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setattr(module, "Guarded", PaperGuarded)
    monkeypatch.setattr(
        module,
        "Estate",
        lambda _: SimpleNamespace(settings=SimpleNamespace(drain_s=7.0), check_layouts=list, stop_listening=list),
    )
    ours, _its = Channel.pair()
    its.append(_its)
    return ours


its: list[Channel] = []


def make_shard(adopts: bool = True) -> Shard:
    shard = Shard(its.pop(), 5, cast(Any, None))
    shard.adopts = adopts
    return shard


def heard(keeper: Channel) -> list[tuple[str, int]]:
    keeper.set_blocking(False)
    found = []
    try:
        while received := keeper.receive():
            found.append((str(received[0].get("am")), len(received[1])))
            for fd in received[1]:
                os.close(fd)
    except BlockingIOError:
        pass
    return found


def test_it_hands_its_guardian_over_before_it_says_that_it_is_warm(keeper: Channel) -> None:
    make_shard().warm_up()
    assert heard(keeper) == [("guarded", 1), ("warm", 0)]


def test_without_counters_there_is_no_guardian(keeper: Channel) -> None:
    make_shard(adopts=False).warm_up()
    assert heard(keeper) == [("warm", 0)]


def test_it_serves_without_a_guardian_if_there_can_be_none(keeper: Channel, caplog: pytest.LogCaptureFixture) -> None:
    shard = make_shard()
    cast(PaperGuarded, shard.guarded).refuses = True
    shard.warm_up()
    assert heard(keeper) == [("warm", 0)]
    assert "no_guardian" in caplog.text


@pytest.mark.parametrize("message", [{"do": "stop"}, {"do": "drain"}, None])
def test_a_spare_that_is_not_needed_ends(keeper: Channel, message: dict[str, object] | None) -> None:
    shard = make_shard()
    if message is None:
        keeper.close()
    else:
        keeper.send(message)
    assert shard.wait_orders() is None


def test_orders_come_with_the_ends_of_guardians(keeper: Channel) -> None:
    shard = make_shard()
    end = os.memfd_create("end")
    keeper.send({"do": "serve", "slot": 1, "owners": [3]}, [end])
    received = shard.wait_orders()
    assert received is not None and received[0]["slot"] == 1 and len(received[1]) == 1


@pytest.mark.parametrize(
    ("message", "drain_s"),
    [({"do": "stop"}, 0.0), ({"do": "drain", "drain_s": 2.5}, 2.5), (None, module.ORPHANED_S)],
)
async def test_how_long_streams_may_take_when_it_is_to_end(
    keeper: Channel, message: dict[str, object] | None, drain_s: float
) -> None:
    shard = make_shard()
    shard._stopping = asyncio.Event()
    house = cast(House, SimpleNamespace(registry=SimpleNamespace(live_count=3)))
    if message is None:
        keeper.close()
    else:
        keeper.send(message)
    shard._hear(house)
    assert shard._stopping.is_set() and shard._drain_s == drain_s


async def test_what_it_does_not_understand_does_not_end_it(keeper: Channel, caplog: pytest.LogCaptureFixture) -> None:
    shard = make_shard()
    shard._stopping = asyncio.Event()
    shard.channel.set_blocking(False)
    shard._hear(cast(House, None))
    keeper.send({"do": "dance"})
    shard._hear(cast(House, None))
    assert not shard._stopping.is_set() and "strange_message" in caplog.text


# Fetching.


def rows(*sockets: tuple[int, int]) -> Rows:
    return cast(Rows, SimpleNamespace(sockets=sockets))


def guardian(has: dict[int, socket.socket]) -> int:
    """An end at which somebody answers as a guardian does."""
    keepers, mine = seqpacket_pair()

    def answer() -> None:
        while request := mine.recv(1 << 16):
            words = array("I", request)
            numbers = [number for number in words[1:] if number in has]
            send_with_descriptors(mine, array("I", [words[0], *numbers]).tobytes(), [has[n].fileno() for n in numbers])
        mine.close()

    Thread(target=answer, daemon=True).start()
    return keepers.detach()


def test_every_socket_comes_from_whoever_had_it() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    ends = {4: guardian({10: pairs[0][0], 11: pairs[1][0]}), 6: guardian({10: pairs[2][0]})}
    found = fetch_all(rows((4, 10), (4, 11), (6, 10), (4, 99), (7, 10)), ends)
    assert set(found) == {(4, 10), (4, 11), (6, 10)}
    for (key, sock), n in zip(sorted(found.items()), range(3), strict=True):
        pairs[n][1].send(b"%d" % key[0])
        assert sock.recv(9) == b"%d" % key[0]
        sock.close()
    for one, other in pairs:
        one.close()
        other.close()


def test_a_guardian_that_is_gone_or_silent_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FETCH_S", 0.01)
    gone, mine = seqpacket_pair()
    mine.close()
    silent, _kept = seqpacket_pair()
    one, other = socket.socketpair()
    found = fetch_all(rows((1, 10), (2, 10), (3, 10)), {1: gone.detach(), 2: silent.detach(), 3: guardian({10: one})})
    assert set(found) == {(3, 10)}
    assert "fetch_failed" in caplog.text
    for sock in (found[3, 10], one, other, _kept):
        sock.close()


def test_nothing_left_is_nothing_fetched() -> None:
    assert fetch_all(rows(), {}) == {}
