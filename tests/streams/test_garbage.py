"""No stream, however it came and went, is left to the garbage collector: it looks seldom, and every look is a delay for all."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from longwire.streams.doors import Door
from longwire.streams.stream import BodyHead, OnDisconnect, Refusal, Stream
from longwire.words.reasons import CloseReason

from .world import Entry, World, data_block

STREAMS = 10_000
ENTRIES = [Entry("hot", data_block(b"%d" % number)) for number in range(3)]


@contextmanager
def no_garbage() -> Iterator[None]:
    """What happens inside leaves nothing behind that only the collector finds.

    What lived before is frozen: what other tests left may become garbage now (a traceback is let go), and is not ours.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        ours = Counter(type(found).__qualname__ for found in gc.garbage if _is_ours(found))
        assert not ours
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("longwire")


def read_to_the_end(world: World) -> Stream:
    feeder = world.start(*ENTRIES)
    world.client().attach(feeder.stream)
    feeder.end()
    world.settle()
    world.client().attach(feeder.stream, Door.FRAMED_IDS)
    world.settle()
    return feeder.stream


def came_back(world: World) -> Stream:
    feeder = world.start(*ENTRIES)
    world.client().attach(feeder.stream, Door.FRAMED_IDS)
    feeder.feed(*ENTRIES)
    assert feeder.spliced
    feeder.end()
    world.settle()
    return feeder.stream


def broke(world: World) -> Stream:
    feeder = world.start(*ENTRIES, Entry("record", b": longwire\n\n", silent=True))
    world.client().attach(feeder.stream)
    feeder.end(CloseReason.UPSTREAM_RESET)
    world.settle()
    return feeder.stream


def was_refused(world: World) -> Stream:
    stream = world.open()
    stream.store_request(b"request")
    world.client().attach(stream)
    stream.end(CloseReason.UPSTREAM_REFUSED, "", Refusal(404, b"no"))
    world.settle()
    return stream


def was_left(world: World) -> Stream:
    feeder = world.start(*ENTRIES)
    world.client().attach(feeder.stream).leave()
    return feeder.stream


def was_cut_off(world: World) -> Stream:
    stream = world.open()
    world.client().attach(stream)
    stream.begin_body(BodyHead(200, [], None))
    stream.end(CloseReason.UPSTREAM_RESET)
    return stream


def went_under_a_blocked_reader(world: World) -> Stream:
    feeder = world.start(*ENTRIES)
    feeder.stream.on_disconnect = OnDisconnect.RUN
    world.client(high_bytes=10).attach(feeder.stream)
    feeder.end()
    return feeder.stream


def began_again(world: World) -> Stream:
    stream = world.open()
    world.registry.pin_key(stream.id, b"body", stream)
    world.client().attach(stream)
    stream.restart()
    stream.end(CloseReason.CANCELLED)
    world.settle()
    return stream


LIVES = [
    read_to_the_end,
    came_back,
    broke,
    was_refused,
    was_left,
    was_cut_off,
    went_under_a_blocked_reader,
    began_again,
]


def live_and_go(world: World, live: Callable[[World], Stream]) -> None:
    stream = live(world)
    world.registry.evict(stream)
    world.ended.clear()
    world.settle()


@pytest.mark.parametrize("live", LIVES)
def test_no_way_to_live_leaves_garbage(live: Callable[[World], Stream]) -> None:
    with World() as world, no_garbage():
        for _ in range(3):
            live_and_go(world, live)
        world.clients.clear()


def test_ten_thousand_streams_leave_no_garbage() -> None:
    with World() as world:
        with no_garbage():
            for number in range(STREAMS):
                live_and_go(world, LIVES[number % len(LIVES)])
            world.clients.clear()
        assert world.instruments.streams_started_total == STREAMS
