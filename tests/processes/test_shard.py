"""A shard's talk with its keeper, and fetching what the dead had, without a house."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from longwire.keeper.channel import Channel
from longwire.processes import shard as module
from longwire.processes.serving import Serving
from longwire.processes.shard import Shard

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
    shard.servings.append(cast(Serving, SimpleNamespace(house=SimpleNamespace(registry=SimpleNamespace(live_count=3)))))
    if message is None:
        keeper.close()
    else:
        keeper.send(message)
    shard._hear()
    assert shard._stopping.is_set() and shard._drain_s == drain_s


async def test_what_it_does_not_understand_does_not_end_it(keeper: Channel, caplog: pytest.LogCaptureFixture) -> None:
    shard = make_shard()
    shard._stopping = asyncio.Event()
    shard.channel.set_blocking(False)
    shard._hear()
    keeper.send({"do": "dance"})
    shard._hear()
    assert not shard._stopping.is_set() and "strange_message" in caplog.text
