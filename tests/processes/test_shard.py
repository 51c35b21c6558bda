"""A shard's talk with its keeper, and fetching what the dead had, without a house."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from tests.house import until

from longwire.keeper.channel import Channel, seqpacket_pair
from longwire.processes import shard as module
from longwire.processes.serving import CannotFoster, Serving
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
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    monkeypatch.setattr(module, "Guarded", PaperGuarded)
    monkeypatch.setattr(
        module,
        "Estate",
        lambda _: SimpleNamespace(settings=SimpleNamespace(drain_s=7.0), check_layouts=list, stop_listening=list),
    )
    ours, _its = Channel.pair()
    its.append(_its)
    yield ours
    ours.close()
    _its.close()
    its.clear()


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


class PaperServing:
    """A slot that is taken over when it is let."""

    made: ClassVar[list[PaperServing]] = []
    refusal: ClassVar[Exception | None] = None

    def __init__(self, *arguments: Any) -> None:
        if PaperServing.refusal is not None:
            raise PaperServing.refusal
        self.slot, self.own = int(arguments[1]), arguments[4]
        self.may_begin = asyncio.Event()
        self.did: list[str] = []
        self.house = SimpleNamespace(registry=SimpleNamespace(live_count=0), drain=self._drain)
        PaperServing.made.append(self)

    async def begin(self, orders: dict[str, Any], ends: list[int]) -> SimpleNamespace:
        await self.may_begin.wait()
        return SimpleNamespace(streams_adopted=0)

    async def _drain(self, drain_s: float) -> None:
        self.did.append(f"drained {drain_s:g}")

    async def open(self) -> None:
        self.did.append("opened")

    async def close(self) -> None:
        is_drained = [each.did[-1].startswith(("drained", "closed")) for each in PaperServing.made]
        assert all(is_drained), "all are drained before any is closed"
        self.did.append("closed")

    def beat(self) -> None: ...

    def go_on(self, adopter: object) -> None: ...

    def greet_soon(self) -> None: ...


@pytest.fixture
def paper(keeper: Channel, monkeypatch: pytest.MonkeyPatch) -> Channel:
    """The keeper's end, of a shard whose slots are paper."""
    PaperServing.made.clear()
    monkeypatch.setattr(module, "Serving", PaperServing)
    monkeypatch.setattr(module, "make_tls", lambda _: None)
    return keeper


@asynccontextmanager
async def serving(keeper: Channel) -> AsyncIterator[tuple[Shard, asyncio.Task[int]]]:
    """A shard that serves slot 0 and, since it was told to, begins to take over slot 1."""
    shard = make_shard()
    with socket.create_server(("127.0.0.1", 0)) as public:
        shard.estate.deed = cast(Any, SimpleNamespace(public=os.dup(public.fileno())))
        task = asyncio.ensure_future(shard.serve({"slot": 0, "restarts": 1}, []))
        await until_made(1)
        PaperServing.made[0].may_begin.set()
        await until(lambda: bool(PaperServing.made[0].did), "it serves")
        await until(lambda: heard(keeper) == [("serving", 0)], "it says so")
        keeper.send({"do": "serve", "slot": 1, "restarts": 1})
        await until_made(2)
        yield shard, task
        assert await task == 0
        shard._entrance.sock.close()


async def until_made(count: int) -> None:
    await until(lambda: len(PaperServing.made) == count, "it was told")


@pytest.mark.parametrize("how", [{"do": "drain", "drain_s": 2.5}, {"do": "stop"}, None])
async def test_what_is_half_taken_over_is_whole_before_it_is_brought_to_an_end(
    paper: Channel, how: dict[str, object] | None
) -> None:
    """An end in between would leave all streams of that slot without one, and the keeper would hear that all is well."""
    async with serving(paper) as (shard, task):
        own, other = PaperServing.made
        assert other.own is own and own.did == ["opened"]
        if how is None:
            paper.close()
        else:
            paper.send(how)
        assert shard._stopping is not None
        await shard._stopping.wait()
        assert not task.done() and own.did == ["opened"]
        other.may_begin.set()
    assert [did.split()[0] for did in own.did] == ["opened", "drained", "closed"]
    assert [did.split()[0] for did in other.did] == ["drained", "closed"], "both are drained before either is closed"


@pytest.mark.parametrize("refusal", [CannotFoster("too many sockets"), OSError(24, "too many open files")])
async def test_one_that_has_no_room_says_so_keeps_nothing_and_serves_on(
    paper: Channel, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    async with serving(paper) as (shard, _):
        PaperServing.made[1].may_begin.set()
        await until(lambda: len(shard.servings) == 2 and shard._fostering is None, "it fosters")
        heard(paper)
        monkeypatch.setattr(PaperServing, "refusal", refusal)
        guardian, keepers = seqpacket_pair()
        paper.send({"do": "serve", "slot": 2, "restarts": 1, "owners": [3]}, [keepers.fileno()])
        keepers.close()
        await until(lambda: heard(paper) == [("unable", 0)], "it says so")
        assert guardian.recv(1) == b"", "the dead one's guardian may go: nobody holds its end any more"
        guardian.close()
        assert len(shard.servings) == 2
        paper.send({"do": "stop"})


async def test_a_message_that_cannot_be_taken_is_declined(paper: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no descriptor is left for a guardian's end."""

    def receive(_: Channel) -> None:
        raise OSError(24, "too many open files")

    async with serving(paper) as (shard, _):
        PaperServing.made[1].may_begin.set()
        await until(lambda: len(shard.servings) == 2, "it fosters")
        heard(paper)
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "receive", receive)
            shard._hear()
        assert heard(paper) == [("unable", 0)]
        paper.send({"do": "stop"})
