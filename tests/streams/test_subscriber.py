"""Readers: whatever their pace, their door and the moment at which they come, all see the same."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.arena import BLOCK_BYTES
from longwire.streams.doors import Door, end_bytes
from longwire.streams.stream import BodyHead, OnDisconnect, Refusal, State
from longwire.streams.subscriber import MAX_WAKE_BYTES, MAX_WAKE_EVENTS
from longwire.words.reasons import CloseReason

from .entries import LOGS
from .test_doors import DOORS
from .world import Client, Entry, Feeder, World, data_block, framed, listed, rendered

ONE, TWO, THREE = (Entry("hot", data_block(word)) for word in (b"one", b"two", b"three"))
BEAT = Entry("record", b": longwire\n\n", silent=True)
CHUNKED = [Door.FRAMED, Door.FRAMED_IDS]
"""The doors that can have the short way."""
COMPLETED = CloseReason.COMPLETED


# The head.


def test_nothing_is_sent_before_the_stream_is_committed() -> None:
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        assert (client.begun, client.body) == (0, b"")
        stream.chain.append(ONE.block)
        world.settle()
        assert (client.begun, client.body) == (0, b"")


def test_the_head_is_sent_once_when_the_first_event_comes() -> None:
    with World() as world:
        feeder = world.start()
        early = world.client().attach(feeder.stream)
        assert early.begun == 0
        feeder.feed(ONE, TWO)
        late = world.client().attach(feeder.stream)
        feeder.feed(THREE)
        assert (early.begun, late.begun) == (1, 1)


def last_of_all(world: World) -> tuple[Feeder, Client]:
    """A stream with a reader, whose one event was published as the last."""
    feeder = world.start()
    client = world.client().attach(feeder.stream)
    feeder.stream.chain.append(ONE.block)
    feeder.stream.append_plain(0, len(ONE.block))
    feeder.stream.publish(-1, is_last=True)
    return feeder, client


def test_what_comes_together_with_the_end_goes_out_with_it_and_the_head() -> None:
    with World() as world:
        feeder, client = last_of_all(world)
        assert (client.begun, client.written) == (0, 0), "the end is waited for"
        feeder.end()
        whole = rendered([ONE], Door.FRAMED) + end_bytes(Door.FRAMED)
        assert (client.begun, client.largest_turn, client.written) == (1, len(whole), len(whole))
        world.settle()
        assert (client.body, client.finished) == (whole, COMPLETED)


def test_what_was_published_as_the_last_is_not_lost_where_more_comes_all_the_same() -> None:
    with World() as world:
        feeder, client = last_of_all(world)
        feeder.feed(TWO)
        feeder.end(CloseReason.INTERNAL_ERROR)
        world.settle()
        assert client.body.startswith(rendered([ONE, TWO], Door.FRAMED))


def test_a_refusal_is_the_whole_answer() -> None:
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.end(CloseReason.UPSTREAM_REFUSED, "", Refusal(404, b"no such model"))
        assert (client.begun, client.refusal, client.body, client.finished) == (1, b"no such model", b"", None)
        assert not stream.subscribers
        later = world.client().attach(stream)
        assert later.refusal == b"no such model"


def test_a_door_that_the_head_decides_is_used_for_the_body() -> None:
    """A body of known length goes out without HTTP chunks; only when the head is written is that known."""

    class Sized(Client):
        def begin(self, stream: object) -> bool:
            self.begun += 1
            self.subscriber.door = Door.BARE
            return True

    with World() as world:
        stream = world.open()
        client = Sized(world).attach(stream)
        stream.begin_body(BodyHead(200, [], 5))
        stream.append_plain(stream.chain.append(b"hello"), 5)
        stream.publish(-1)
        stream.end(COMPLETED)
        world.settle()
        assert client.body == b"hello"
        assert client.finished is COMPLETED


# Live is replay.


@pytest.mark.parametrize("door", CHUNKED)
@given(LOGS, st.integers(0, 24))
def test_the_short_way_writes_what_the_door_would_encode(door: Door, entries: list[Entry], attach_at: int) -> None:
    with World() as world:
        feeder = world.start(*entries[:attach_at])
        live = world.client().attach(feeder.stream, door, len(listed(entries[:attach_at])))
        for entry in entries[attach_at:]:
            feeder.feed(entry)
            live.take(1 << 30)
        replay = world.client(high_bytes=1 << 30).attach(feeder.stream, door, len(listed(entries[:attach_at])))
        world.settle()
        assert live.body == replay.body
        assert live.body == rendered(listed(entries), door, len(listed(entries[:attach_at])))


def test_frames_take_the_short_way_to_one_live_reader() -> None:
    """All but the first, which opens it, and the one that fills a block."""
    entries = [Entry("hot", data_block(b"%d" % number)) for number in range(2000)]
    with World() as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        for entry in entries:
            feeder.feed(entry)
            client.take(1 << 30)
            assert client.body.endswith(framed(entry.block)), "at once, though nothing was noted of it yet"
        feeder.stream.settle()
        assert client.spliced_bytes > len(client.body) - 200
        assert client.body == rendered([ONE, *entries], Door.FRAMED)
        assert client.subscriber.position == feeder.stream.log.deliverable == 2001


def spliced_world(world: World, door: Door = Door.FRAMED) -> tuple[Feeder, Client]:
    """A stream whose frames take the short way, with some under way that the log has not noted yet."""
    feeder = world.start(ONE)
    client = world.client(high_bytes=200).attach(feeder.stream, door)
    feeder.feed(TWO, THREE, TWO)
    feeder.stream.settle()
    assert client.spliced_bytes
    feeder.feed(THREE)
    client.take(1 << 30)
    return feeder, client


SO_FAR = [ONE, TWO, THREE, TWO, THREE]


@pytest.mark.parametrize("door", list(Door))
def test_a_second_reader_closes_the_short_way(door: Door) -> None:
    with World() as world:
        feeder, client = spliced_world(world)
        second = world.client().attach(feeder.stream, door)
        feeder.feed(ONE, TWO)
        world.settle()
        assert client.body == rendered([*SO_FAR, ONE, TWO], Door.FRAMED)
        assert second.body == rendered([*SO_FAR, ONE, TWO], door)
        second.leave()
        spliced = client.spliced_bytes
        feeder.feed(ONE, TWO, THREE)
        feeder.stream.settle()
        assert client.spliced_bytes > spliced, "alone again, it is open again"


@pytest.mark.parametrize("door", CHUNKED)
def test_a_full_transport_closes_the_short_way(door: Door) -> None:
    with World() as world:
        feeder, client = spliced_world(world, door)
        more = [Entry("hot", data_block(b"%d" % number)) for number in range(50)]
        feeder.feed(*more)
        assert client.subscriber.is_paused
        world.settle()
        assert client.body == rendered([*SO_FAR, *more], door)
        assert client.written == len(client.body), "the frame that filled it is in the account, too"


@pytest.mark.parametrize("door", CHUNKED)
@pytest.mark.parametrize("reason", [COMPLETED, CloseReason.UPSTREAM_RESET, CloseReason.CANCELLED])
def test_the_end_comes_behind_what_took_the_short_way(reason: CloseReason, door: Door) -> None:
    with World() as world:
        feeder, client = spliced_world(world, door)
        feeder.stream.stop(reason, "")
        world.settle()
        replay = world.client().attach(feeder.stream, door)
        world.settle()
        assert client.body == replay.body
        assert client.body.startswith(rendered(SO_FAR, door))
        assert client.finished is reason


@pytest.mark.parametrize("door", CHUNKED)
def test_who_leaves_the_short_way_leaves_a_log_that_knows_all(door: Door) -> None:
    with World() as world:
        feeder, client = spliced_world(world, door)
        feeder.stream.on_disconnect = OnDisconnect.RUN
        client.leave()
        feeder.feed(ONE)
        late = world.client().attach(feeder.stream)
        world.settle()
        assert late.body == rendered([*SO_FAR, ONE], Door.FRAMED)
        assert client.written == len(client.body), "the account of what was written holds what went the short way"


@pytest.mark.parametrize("door", CHUNKED)
def test_silence_and_comments_come_between_what_took_the_short_way(door: Door) -> None:
    with World(heartbeat_s=15.0) as world:
        feeder, client = spliced_world(world, door)
        comment = Entry("plain", b": x\n\n", silent=True)
        feeder.feed(comment, ONE, TWO)
        world.clock.advance(16)
        world.registry.tick()
        world.clock.advance(16)
        world.registry.tick()
        feeder.feed(ONE)
        world.settle()
        expected = [*SO_FAR, comment, ONE, TWO, BEAT, ONE]
        assert client.body == rendered(expected, door)
        assert client.written == len(client.body), "the account of what was written holds what went the short way"
        assert feeder.log.last_seq == 7


@given(
    LOGS,
    st.lists(st.tuples(DOORS, st.integers(0, 24), st.sampled_from([1, 100, 5000, 1 << 20])), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_readers_of_any_pace_that_come_at_any_time_see_the_same(
    entries: list[Entry], readers: list[tuple[Door, int, int]], rng: random.Random
) -> None:
    with World() as world:
        feeder = world.start()
        clients: list[tuple[Client, Door, int]] = []

        def attach(door: Door, high_bytes: int) -> None:
            client = world.client(high_bytes)
            seq = rng.randint(-1, feeder.log.last_seq)
            position = feeder.log.position_after(seq)
            clients.append((client.attach(feeder.stream, door, position), door, position))

        for step, entry in enumerate(entries):
            for door, at, high_bytes in readers:
                if at == step:
                    attach(door, high_bytes)
            feeder.feed(entry)
            world.dawdle(rng, 2 * BLOCK_BYTES)
        if feeder.stream.state is State.OPENING:
            feeder.feed(BEAT)
            entries = [*entries, BEAT]
        feeder.end()
        for door, at, high_bytes in readers:
            if at >= len(entries):
                attach(door, high_bytes)
        world.settle()
        for client, door, position in clients:
            assert client.body == rendered(listed(entries), door, position) + end_bytes(door)
            assert (client.begun, client.finished, client.was_cut) == (1, COMPLETED, None)


@given(LOGS, st.data())
def test_a_reader_cut_after_any_byte_comes_back_and_sees_the_same_blocks(
    entries: list[Entry], data: st.DataObject
) -> None:
    with World() as world:
        feeder = world.start(*entries)
        feeder.feed(ONE)
        feeder.end()
        uncut = world.client(high_bytes=1 << 30).attach(feeder.stream, Door.BARE_IDS)
        world.settle()
        whole = _data_blocks(uncut.body)
        cut = data.draw(st.integers(0, len(uncut.body)))
        first = world.client().attach(feeder.stream, Door.BARE_IDS)
        while first in world.clients and len(first.body) < cut:
            world.turn()
            first.take(cut - len(first.body))
        if first in world.clients:
            first.leave()
        kept = _data_blocks(first.body)
        seq = int(kept[-1].split(b"\n")[0].rpartition(b"-")[2]) if kept else -1
        second = world.client().attach(feeder.stream, Door.BARE_IDS, feeder.log.position_after(seq))
        world.settle()
        assert kept + _data_blocks(second.body) == whole


def _data_blocks(body: bytes) -> list[bytes]:
    """The whole blocks that a client would dispatch; what was cut off in its middle it throws away."""
    blocks = [block + b"\n\n" for block in body.split(b"\n\n")[:-1]]
    return [block for block in blocks if re.search(rb"^data:", block, re.MULTILINE)]


@pytest.mark.parametrize("door", CHUNKED)
@given(LOGS, st.integers(0, 24))
def test_a_checkpoint_says_how_much_of_which_entries_was_written(
    door: Door, entries: list[Entry], attach_at: int
) -> None:
    """An adopter regenerates the output from there: the position must stand at the very byte that was written last."""
    with World() as world:
        feeder = world.start(*entries[:attach_at])
        position = len(listed(entries[:attach_at]))
        client = world.client(high_bytes=5000).attach(feeder.stream, door, position)
        rng = random.Random(len(entries))
        for entry in entries[attach_at:]:
            feeder.feed(entry)
            world.dawdle(rng, 4 * BLOCK_BYTES)
        world.settle()
        expected = listed(entries)
        for written, at in client.checkpoints:
            assert written == len(rendered(expected[:at], door, position))


# Bounds.


@pytest.mark.parametrize("door", list(Door))
def test_a_replay_goes_in_bounded_steps(door: Door) -> None:
    """Thousands of live readers wait for the loop while one is served."""
    entries = [Entry("hot", data_block(b"x" * (seq % 90))) for seq in range(3000)]
    with World() as world:
        feeder = world.start(*entries)
        client = world.client(high_bytes=1 << 30).attach(feeder.stream, door)
        positions = [client.subscriber.position]
        while client.subscriber.position < len(entries):
            world.turn()
            positions.append(client.subscriber.position)
        assert client.largest_turn < MAX_WAKE_BYTES + 200
        assert max(b - a for a, b in pairwise(positions)) <= MAX_WAKE_EVENTS
        world.settle()
        assert client.body == rendered(entries, door)


@pytest.mark.parametrize("door", list(Door))
def test_what_comes_during_a_replay_waits_for_its_turn(door: Door) -> None:
    """A reader between two steps, and one that has just drained, is not at the tail: the short way is not for it."""
    entries = [Entry("hot", data_block(b"%d" % seq)) for seq in range(2 * MAX_WAKE_EVENTS + 3)]
    with World() as world:
        feeder = world.start(*entries)
        client = world.client(high_bytes=1 << 30).attach(feeder.stream, door)
        late = world.client(high_bytes=50).attach(feeder.stream, door)
        assert client.subscriber.position == MAX_WAKE_EVENTS
        while client.subscriber.position < len(entries):
            feeder.feed(ONE)
            entries.append(ONE)
            world.turn()
            late.take(1 << 30)
            feeder.feed(TWO)
            entries.append(TWO)
        world.settle()
        assert client.body == late.body == rendered(entries, door)


def test_an_event_that_is_larger_than_a_step_goes_out_whole() -> None:
    large = Entry("framed", data_block(b"x" * (3 * MAX_WAKE_BYTES)))
    with World() as world:
        feeder = world.start(large, ONE, large)
        client = world.client(high_bytes=1 << 30).attach(feeder.stream)
        world.settle()
        assert client.body == rendered([large, ONE, large], Door.FRAMED)


def test_a_full_transport_is_given_nothing_more() -> None:
    with World() as world:
        feeder = world.start(ONE)
        client = world.client(high_bytes=100).attach(feeder.stream)
        for number in range(50):
            feeder.feed(Entry("hot", data_block(b"%d" % number)))
            world.turn()
        assert client.subscriber.is_paused
        assert client.wire.get_write_buffer_size() < 100 + 20
        assert "paused" in repr(client.subscriber)
        before = client.subscriber.position
        client.take(90)
        assert client.subscriber.position > before, "drained, it goes on from the log"
        world.settle()
        assert len(client.body) == len(rendered([ONE], Door.FRAMED)) + sum(
            len(framed(data_block(b"%d" % number))) for number in range(50)
        )


def test_a_reader_behind_the_others_does_not_hold_them_up() -> None:
    with World() as world:
        feeder = world.start(ONE)
        slow = world.client(high_bytes=15).attach(feeder.stream)
        quick = world.client().attach(feeder.stream)
        for number in range(100):
            feeder.feed(Entry("hot", data_block(b"%d" % number)))
            quick.take(1 << 30)
            assert quick.body.endswith(framed(data_block(b"%d" % number)))
        assert slow.body == b""
        assert slow.subscriber.is_paused
        feeder.end()
        world.settle()
        assert slow.body == quick.body


# Ends.


def test_a_reader_that_is_paused_at_the_end_hears_of_it_when_it_has_drained() -> None:
    with World() as world:
        feeder = world.start()
        client = world.client(high_bytes=10).attach(feeder.stream)
        feeder.feed(ONE, TWO)
        feeder.end()
        assert client.finished is None
        world.settle()
        assert client.finished is COMPLETED
        assert client.body == rendered([ONE, TWO], Door.FRAMED) + end_bytes(Door.FRAMED)


def test_a_stream_that_cannot_say_how_it_ended_is_cut() -> None:
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.begin_body(BodyHead(200, [], None))
        stream.append_plain(stream.chain.append(b"half"), 4)
        stream.publish(-1)
        client.take(1 << 30)
        stream.end(CloseReason.UPSTREAM_RESET)
        assert client.was_cut is CloseReason.UPSTREAM_RESET
        assert client.body == framed(b"half"), "no last chunk: the client must see that the body is not whole"


@pytest.mark.parametrize("door", list(Door))
def test_a_reader_who_has_left_gets_nothing_more(door: Door) -> None:
    with World() as world:
        feeder = world.start(ONE)
        feeder.stream.on_disconnect = OnDisconnect.RUN
        client = world.client().attach(feeder.stream, door)
        client.take(1 << 30)
        before = client.body
        client.hang_up()
        feeder.feed(TWO)
        feeder.end()
        world.settle()
        assert client.body == before
        assert client.finished is None
        assert "ended" in repr(client.subscriber)


def test_leaving_while_a_step_is_due_is_harmless() -> None:
    with World() as world:
        feeder = world.start(*[Entry("hot", data_block(b"x")) for _ in range(MAX_WAKE_EVENTS + 1)])
        client = world.client(high_bytes=1 << 30).attach(feeder.stream)
        assert world.soon
        client.leave()
        world.turn()
        assert not world.soon


# The hold.


def test_a_log_is_held_until_the_kernel_has_every_byte() -> None:
    with World() as world:
        feeder = world.start(ONE, TWO)
        client = world.client().attach(feeder.stream)
        feeder.end()
        assert client.finished is COMPLETED
        world.registry.evict(feeder.stream)
        used = world.blocks_used()
        assert used > 0
        size = client.wire.get_write_buffer_size()
        client.take(size - 1)
        assert world.blocks_used() == used
        client.take(1)
        assert world.blocks_used() == 0


def test_saying_twice_that_all_is_flushed_lets_go_once() -> None:
    with World() as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        client.leave()
        client.subscriber.flushed()
        client.subscriber.flushed()
        assert feeder.stream.reason is CloseReason.CLIENT_LEFT
