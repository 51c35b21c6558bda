"""A stream: its states, its truthful ending, and what it tells its readers and its row."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from longwire.observe.instruments import BUCKETS
from longwire.streams.arena import BLOCK_BYTES, PAUSE_BLOCKS, ArenaFull, Use
from longwire.streams.doors import Door, end_bytes
from longwire.streams.gaps import SAMPLED
from longwire.streams.stream import BodyHead, Facts, OnDisconnect, Refusal, State, Stream
from longwire.streams.tables import COUNT_BITS, COUNT_MASK, HAS_COMMENTS, RECORDS_WORD, pack_word
from longwire.streams.terms import TRANSITIONS
from longwire.words.events import MAX_ENTRY_BYTES
from longwire.words.reasons import CloseReason

from .entries import LOGS
from .world import Client, Entry, FakeSlot, Feeder, Hoard, World, data_block, framed, listed, rendered

ONE, TWO = Entry("hot", data_block(b"one")), Entry("hot", data_block(b"two"))
BEAT = b": longwire\n\n"
FAILURES = [reason for reason in CloseReason if not reason.is_success]


def word(world: World, stream: Stream) -> tuple[int, int]:
    """The stream's checkpoint: upstream offset and entries."""
    stream.settle()
    value = world.table.words[world.table.word_index(stream.row)]
    return value >> COUNT_BITS, value & COUNT_MASK


def errors_in(body: bytes) -> list[dict[str, object]]:
    """The error objects in an event stream."""
    blocks = [block.removeprefix(b"data: ") for block in body.split(b"\n\n")]
    return [json.loads(block)["error"] for block in blocks if block.startswith(b'{"error"')]


# States.


def test_a_stream_goes_one_way() -> None:
    assert TRANSITIONS == {
        State.OPENING: (State.LIVE, State.ENDED),
        State.LIVE: (State.ENDED,),
        State.ENDED: (),
    }


@pytest.mark.parametrize("entry", [ONE, Entry("plain", ONE.block), Entry("record", ONE.block)])
def test_the_first_entry_commits_the_stream(entry: Entry) -> None:
    with World() as world:
        feeder = world.start()
        assert feeder.stream.state is State.OPENING
        feeder.feed(entry)
        assert feeder.stream.state is State.LIVE


def test_it_ends_exactly_once() -> None:
    with World() as world:
        feeder = world.start(ONE)
        slot = feeder.stream.slot
        assert isinstance(slot, FakeSlot)
        feeder.end(CloseReason.UPSTREAM_RESET)
        body = feeder.log.body()
        for reason in CloseReason:
            feeder.stream.end(reason)
            feeder.stream.stop(reason, "again")
        assert feeder.stream.reason is CloseReason.UPSTREAM_RESET
        assert feeder.log.body() == body
        assert world.ended == [feeder.stream]
        assert slot.released == 1
        assert not feeder.is_stopped, "an engine that has ended by itself is not stopped as well"


def test_stopping_gives_the_engine_back_before_it_tells_anyone() -> None:
    with World() as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        seen: list[bool] = []
        world.registry._report_end = lambda stream: seen.append(feeder.is_stopped)
        feeder.stream.stop(CloseReason.CANCELLED, "")
        assert feeder.is_stopped
        assert seen == [True]
        assert feeder.stream.producer is None
        world.settle()
        assert client.finished is CloseReason.CANCELLED


def test_what_an_exchange_appends_behind_the_end_is_nobodys() -> None:
    """It may be in the middle of a read when the stream ends (the arena had no room for a record, say)."""
    with World() as world:
        feeder = world.start(ONE)
        stream = feeder.stream
        stream.end(CloseReason.COMPLETED)
        before = (stream.log.body(), len(stream.log.entries), word(world, stream), world.blocks_used())
        frame = framed(TWO.block)
        start = stream.chain.append(frame)
        assert stream.splice() is None
        stream.append_framed(start, len(frame))
        stream.append_plain(start, len(frame), silent=True)
        stream.append_record(TWO.block)
        stream.publish(stream.chain.end)
        assert stream.splice() is None
        assert (stream.log.body(), len(stream.log.entries), word(world, stream), world.blocks_used()) == before


# Endings.


@pytest.mark.parametrize("reason", FAILURES)
def test_before_the_first_content_a_failure_is_an_ordinary_error(reason: CloseReason) -> None:
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.end(reason, "it broke")
        assert stream.refusal is not None
        assert stream.refusal.status == reason.status
        error = json.loads(stream.refusal.body)["error"]
        assert (error["code"], error["message"]) == (str(reason), "it broke")
        assert client.refusal == stream.refusal.body
        assert stream.log.body() == b""


def test_an_engines_own_refusal_is_passed_on() -> None:
    with World() as world:
        stream = world.open()
        refusal = Refusal(422, b"its words", b"text/plain", [(b"retry-after", b"3")])
        stream.end(CloseReason.UPSTREAM_REFUSED, "", refusal)
        assert stream.refusal is refusal


@pytest.mark.parametrize("reason", FAILURES)
@pytest.mark.parametrize("door", list(Door))
def test_after_it_a_failure_is_told_in_band(reason: CloseReason, door: Door) -> None:
    with World() as world:
        feeder = world.start(ONE, Entry("record", BEAT, silent=True), TWO)
        client = world.client().attach(feeder.stream, door)
        feeder.stream.end(reason, "")
        world.settle()
        assert client.finished is reason
        told = errors_in(feeder.log.body())
        assert told == [
            {
                "message": reason.help,
                "type": "api_error" if reason is not CloseReason.UPSTREAM_REFUSED else "invalid_request_error",
                "param": None,
                "code": str(reason),
                "stream_id": feeder.stream.public_id,
                "last_seq": 1,
                "resumable": reason.resumable,
                "continuable": False,
            }
        ]
        assert feeder.log.body().endswith(b"data: [DONE]\n\n")
        assert client.body.endswith(end_bytes(door))
        assert feeder.log.last_seq == 3, "the error and the end marker have a seq: a reader can be cut between them"


def test_success_adds_nothing() -> None:
    with World() as world:
        feeder = world.start(ONE, TWO)
        feeder.end()
        assert feeder.log.body() == ONE.block + TWO.block
        assert feeder.stream.refusal is None


def test_a_body_that_broke_off_is_cut() -> None:
    with World() as world:
        stream = world.open()
        stream.begin_body(BodyHead(200, [], None))
        stream.append_plain(stream.chain.append(b"half"), 4)
        stream.publish(-1)
        stream.end(CloseReason.UPSTREAM_RESET)
        assert stream.is_cut
        assert stream.log.body() == b"half"


def test_where_no_block_is_left_for_an_error_the_connection_is_the_message() -> None:
    with World() as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        hoard = Hoard(world.arena, 0)
        feeder.stream.end(CloseReason.UPSTREAM_RESET)
        assert feeder.stream.is_cut
        client.take(1 << 30)
        assert (client.was_cut, client.finished) == (CloseReason.UPSTREAM_RESET, None)
        hoard.give()


def test_a_record_that_finds_no_block_ends_the_stream() -> None:
    with World() as world:
        feeder = world.start(ONE)
        hoard = Hoard(world.arena, 0)
        feeder.feed(Entry("record", TWO.block))
        assert feeder.stream.reason is CloseReason.ARENA_FULL
        assert feeder.is_stopped
        assert feeder.log.body() == ONE.block
        hoard.give()


# What readers and the row learn.


@given(LOGS)
def test_the_checkpoint_follows_the_log(entries: list[Entry]) -> None:
    """Behind each event of the engine it counts every entry, and stands where its bytes end."""
    with World() as world:
        feeder = world.start()
        for number, entry in enumerate(entries, start=1):
            feeder.feed(entry)
            if entry.way in ("hot", "framed", "plain"):
                stored = sum(
                    len(framed(e.block)) if e.way in ("hot", "framed") else len(e.block)
                    for e in entries[:number]
                    if e.way != "record"
                )
                assert word(world, feeder.stream) == (stored, len(listed(entries[:number])))


def test_a_checkpoint_without_events_moves_only_the_offset() -> None:
    """The end of an HTTP chunk may come with a later read: no event, and nothing for anybody to wake up for."""
    with World() as world:
        feeder = world.start(ONE)
        stream = feeder.stream
        client = world.client().attach(stream)
        world.settle()
        gaps, last_at = world.instruments.event_gap.count, stream.last_at
        world.clock.advance(1)
        stream.chain.append(b"\r\n")
        stream.publish(stream.chain.end)
        assert word(world, stream) == (stream.chain.end, 1)
        assert (world.instruments.event_gap.count, stream.last_at) == (gaps, last_at)
        assert not client.wire.get_write_buffer_size()


def test_an_offset_of_no_checkpoint_leaves_the_last_one() -> None:
    with World() as world:
        feeder = world.start(ONE)
        before = word(world, feeder.stream)
        feeder.feed(Entry("record", TWO.block))
        assert word(world, feeder.stream) == before


def test_gaps_between_events_are_counted_the_same_on_both_ways() -> None:
    buckets = []
    for way in ("hot", "framed"):
        with World() as world:
            feeder = world.start()
            feeder.stream.is_measured = True
            feeder.feed(Entry(way, ONE.block))
            for gap_s in (0, 0.000_001, 0.02, 1, 0.02):
                world.clock.advance(gap_s)
                feeder.feed(Entry(way, ONE.block))
            buckets.append((list(world.instruments.event_gap.buckets), world.instruments.event_gap.sum_us))
    assert buckets[0] == buckets[1]
    assert sum(buckets[0][0]) == 5, "there is one gap fewer than events"


def test_a_gap_that_nobody_saw_the_start_of_is_not_counted() -> None:
    """On the short way no clock is read. The first event behind it must not be taken for one that came at once."""
    with World() as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        for _ in range(3):
            world.clock.advance(1)
            feeder.feed(ONE)
        gaps = world.instruments.event_gap
        assert gaps.buckets[0] == 0
        world.clock.advance(1)
        feeder.feed(Entry("plain", TWO.block))
        assert gaps.buckets[0] == 0
        world.clock.advance(1)
        feeder.feed(Entry("plain", TWO.block))
        assert gaps.sum_us == gaps.count * 1_000_000


def test_some_streams_are_measured_all_the_way() -> None:
    """By chance and not by row: where few streams run at a time, the same rows are used again and again."""
    with World() as world:
        measured = []
        for _ in range(SAMPLED * 12):
            stream = world.registry.open(Facts(tenant="acme", tenant_index=0, route="relay"), world.words)
            measured.append(stream.is_measured)
            stream.end(CloseReason.CANCELLED)
            world.registry.evict(stream)
        assert 0 < sum(measured) < SAMPLED * 6


def test_each_gap_of_a_measured_stream_is_measured_on_the_short_way_too() -> None:
    with World() as world:
        feeder = world.start(ONE)
        feeder.stream.is_measured = True
        world.client().attach(feeder.stream)
        for _ in range(5):
            world.clock.advance(1)
            feeder.feed(ONE)
            world.clock.advance(0.5)
            feeder.stream.look(world.clock.now())
            feeder.stream.settle()
        assert feeder.spliced == 4
        assert (world.instruments.event_gap.count, world.instruments.event_gap.sum_us) == (5, 7_000_000)


def test_half_a_frame_is_no_event_yet() -> None:
    """Its first part lies at the end of a full block, and goes out together with the second."""
    with World() as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        feeder.feed(ONE, ONE)
        frame = framed(TWO.block)
        chain = feeder.stream.chain
        for part in (frame[:7], frame[7:]):
            before = feeder.stream.count_events()
            chain.rest[: len(part)] = part
            chain.rest = chain.rest[len(part) :]
            assert feeder.stream.count_events() == before + (part == frame[7:])
        feeder.stream.settle()
        assert feeder.stream.log.block(3) == TWO.block


@pytest.mark.parametrize("way", ["hot", "framed"])
def test_an_engine_may_be_silent_for_months(way: str) -> None:
    with World() as world:
        feeder = world.start()
        feeder.stream.is_measured = True
        feeder.feed(Entry(way, ONE.block))
        world.clock.advance(200 * 86_400)
        feeder.feed(Entry(way, TWO.block))
        assert feeder.log.last_seq == 1
        assert world.instruments.event_gap.buckets[BUCKETS - 1] == 1


def test_times_are_noted_once() -> None:
    with World() as world:
        stream = world.open()
        world.clock.advance(2)
        stream.note_first_byte()
        world.clock.advance(1)
        stream.note_first_byte()
        stream.note_first_token()
        stream.note_first_token()
        assert stream.facts.first_byte_at == stream.created_at + 2
        assert stream.facts.first_token_at == stream.created_at + 3
        assert (world.instruments.ttfb.count, world.instruments.ttft.count) == (1, 1)


# Heartbeats.


def test_a_heartbeat_is_seen_by_all_and_counted_by_none() -> None:
    with World() as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        world.clock.advance(20)
        feeder.stream.heartbeat(BEAT)
        feeder.feed(TWO)
        world.settle()
        expected = [ONE, Entry("record", BEAT, silent=True), TWO]
        assert client.body == rendered(expected, Door.FRAMED)
        assert feeder.log.last_seq == 1
        assert world.instruments.heartbeats_total == 1


def test_a_heartbeat_is_no_event_of_the_engines() -> None:
    """Else an engine that hangs for a minute would be shown as one that sends something every 15 seconds."""
    with World() as world:
        feeder = world.start(ONE)
        told_at = feeder.stream.last_at
        for _ in range(4):
            world.clock.advance(15)
            feeder.stream.heartbeat(BEAT)
        assert feeder.stream.last_at == told_at
        assert world.instruments.event_gap.count == 0
        feeder.feed(TWO)
        assert world.instruments.event_gap.sum_us == 60_000_000


def test_a_heartbeat_commits_a_stream_that_is_still_opening() -> None:
    with World() as world:
        feeder = world.start()
        client = world.client().attach(feeder.stream)
        feeder.stream.heartbeat(BEAT)
        assert feeder.stream.state is State.LIVE
        feeder.end(CloseReason.UPSTREAM_UNREACHABLE)
        world.settle()
        assert (client.begun, client.refusal) == (1, None)
        assert errors_in(feeder.log.body())[0]["last_seq"] == -1


def test_heartbeats_do_not_take_the_last_blocks() -> None:
    """A thousand silent streams would, and none of them could say how it ended."""
    with World() as world:
        streams = [world.start(ONE).stream for _ in range(3)]
        streams[0].heartbeat(BEAT)
        hoard = Hoard(world.arena, PAUSE_BLOCKS - 1)
        for stream in streams:
            stream.heartbeat(BEAT)
        assert world.arena.free_blocks == PAUSE_BLOCKS - 1
        assert world.instruments.heartbeats_total == 2, "where a record's block has room, it costs nothing"
        streams[1].end(CloseReason.UPSTREAM_RESET)
        assert not streams[1].is_cut
        hoard.give()


# Starting over.


def test_a_retry_starts_over_under_a_reader() -> None:
    """A pooled connection turned out to be dead: the reader, who waits since the first attempt, gets the second's answer."""
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.chain.append(b"HTTP/1.1 400 Bad" + b"x" * (2 * BLOCK_BYTES))
        stream.restart()
        assert world.blocks_used() == 1
        feeder = Feeder(world, stream).feed(ONE, TWO)
        feeder.end()
        world.settle()
        assert client.body == rendered([ONE, TWO], Door.FRAMED) + end_bytes(Door.FRAMED)
        world.registry.evict(stream)
        assert world.blocks_used() == 0


def test_a_retry_keeps_the_blocks_until_its_reader_has_them() -> None:
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.restart()
        feeder = Feeder(world, stream).feed(ONE)
        feeder.end()
        world.registry.evict(stream)
        stranger = world.start(Entry("hot", data_block(b"another tenant's"))).stream
        assert stranger.chain.first != stream.chain.first
        world.settle()
        assert client.body == rendered([ONE], Door.FRAMED) + end_bytes(Door.FRAMED)


def test_a_retry_may_come_after_a_heartbeat() -> None:
    """The status was committed after a long silence; then the engine refused what it can be asked without."""
    with World() as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.heartbeat(BEAT)
        stream.restart()
        Feeder(world, stream).feed(ONE).end()
        world.settle()
        assert client.body == rendered([Entry("record", BEAT, True), ONE], Door.FRAMED) + end_bytes(Door.FRAMED)


def test_what_readers_have_cannot_be_taken_back() -> None:
    with World() as world:
        feeder = world.start(ONE)
        with pytest.raises(AssertionError):
            feeder.stream.restart()


def test_what_is_said_of_comments_outlives_each_adoption() -> None:
    """The second adopter would else take a comment for an event, and every seq behind it would be another."""
    with World() as world:
        stream = world.start(Entry("plain", b": note\n\n", silent=True), ONE).stream
        stream.heartbeat(BEAT)
        word = world.table.word_index(stream.row) + RECORDS_WORD
        before = world.table.words[word]
        assert before & HAS_COMMENTS and before ^ HAS_COMMENTS
        stream.commit_taken()
        assert world.table.words[word] == before


def test_a_retry_while_the_stream_waits_for_blocks() -> None:
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        hoard = Hoard(world.arena, PAUSE_BLOCKS - 1)
        stream.chain.filled(len(stream.chain.rest))
        assert stream.chain.is_full
        stream.restart()
        assert not stream.chain.is_full
        feeder.feed(ONE)
        hoard.give()
        world.settle()
        assert stream.log.body() == ONE.block


# The request.


def test_the_request_is_kept_until_the_stream_has_ended() -> None:
    with World() as world:
        feeder = world.start()
        request = b"POST / HTTP/1.1\r\n\r\n" + b"x" * (2 * BLOCK_BYTES)
        feeder.stream.store_request(request)
        assert b"".join(feeder.stream.request_views()) == request
        assert world.arena.used[Use.REQUEST] == 3
        feeder.stream.store_request(b"another")
        assert world.arena.used[Use.REQUEST] == 1
        feeder.feed(ONE)
        assert b"".join(feeder.stream.request_views()) == b"another"
        feeder.end()
        assert world.arena.used[Use.REQUEST] == 0


def test_a_second_attempts_request_needs_no_more_room_than_the_firsts() -> None:
    """The engine refused what the gateway had added. Whoever waits for blocks must not get them in between."""
    with World() as world:
        feeder = world.start()
        feeder.stream.store_request(b"with usage " + b"x" * (2 * BLOCK_BYTES))
        hoard = Hoard(world.arena, 0)
        feeder.stream.store_request(b"without " + b"x" * (2 * BLOCK_BYTES))
        assert b"".join(feeder.stream.request_views()) == b"without " + b"x" * (2 * BLOCK_BYTES)
        hoard.give()


def test_a_request_for_which_there_is_no_room_leaves_nothing_behind() -> None:
    with World() as world:
        feeder = world.start()
        hoard = Hoard(world.arena, PAUSE_BLOCKS + 2)
        with pytest.raises(ArenaFull):
            feeder.stream.store_request(b"x" * (4 * BLOCK_BYTES))
        assert world.arena.used[Use.REQUEST] == 0
        assert feeder.stream.request is None
        hoard.give()


# Readers.


def test_leaving_is_noted_when_nobody_is_left() -> None:
    with World() as world:
        feeder = world.start(ONE)
        feeder.stream.on_disconnect = OnDisconnect.RUN
        first, second = (world.client().attach(feeder.stream) for _ in range(2))
        first.leave()
        assert feeder.stream.is_unread_since is None
        second.leave()
        assert feeder.stream.is_unread_since == world.clock.now()
        world.client().attach(feeder.stream)
        assert feeder.stream.is_unread_since is None
        assert feeder.stream.facts.readers_total == 3


def test_a_reader_that_leaves_while_others_are_woken_disturbs_none() -> None:
    with World() as world:
        feeder = world.start(ONE)
        clients = [world.client().attach(feeder.stream) for _ in range(3)]
        world.settle()

        class Leaver:
            def pump(self) -> None:
                clients[1].leave()

            wake = pump

            def splice(self) -> None:
                """Not the reader for that."""

            def spliced(self, count: int, size: int) -> None:
                raise AssertionError("nothing was spliced")

        leaver = Leaver()
        feeder.stream.subscribers = (leaver, *feeder.stream.subscribers)
        feeder.feed(TWO)
        feeder.stream.detach(leaver)
        world.settle()
        assert clients[0].body == clients[2].body == rendered([ONE, TWO], Door.FRAMED)
        assert clients[1].body == rendered([ONE], Door.FRAMED)


def test_the_longest_event_fits_an_entry() -> None:
    assert MAX_ENTRY_BYTES > 31 << 20
    assert pack_word(1, 2) == 1 << COUNT_BITS | 2


# The short way.


def stalled(client: Client) -> None:
    client.subscriber.pause()
    client.subscriber.resume()


def frames(count: int) -> list[Entry]:
    return [Entry("hot", data_block(b"%d" % number * 20)) for number in range(count)]


@pytest.mark.parametrize("door", [Door.FRAMED, Door.FRAMED_IDS])
def test_the_one_reader_at_the_tail_gets_frames_the_short_way_and_the_same_bytes(door: Door) -> None:
    """All but the first (which opens it) and those that cross a block; log, reader and row agree afterwards."""
    many = frames(600)
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        client = world.client().attach(stream, door)
        feeder.feed(*many)
        world.settle()
        assert feeder.spliced > 590
        assert client.body == rendered(many, door)
        stream.settle()
        assert stream.log.last_seq == 599
        assert client.subscriber.position == stream.log.deliverable == 600
        assert client.checkpoints[-1] == (len(client.body), 600)
        assert [stream.log.block(at) for at in range(600)] == [entry.block for entry in many]


def test_what_nobody_reads_goes_the_short_way_into_the_log() -> None:
    many = frames(600)
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        feeder.feed(*many[:590])
        assert feeder.spliced > 580
        assert (stream.count_events(), world.instruments.events_total) == (590, 590)
        assert word(world, stream) == (stream.log.upstream.end, 590), "an adopter goes on from there"
        client = world.client().attach(stream, Door.FRAMED_IDS, 7)
        feeder.feed(*many[590:])
        world.settle()
        assert client.body == rendered(many, Door.FRAMED_IDS, 7)
        assert feeder.log.last_seq == 599


def test_a_stream_on_the_short_way_to_nobody_is_heard_and_waits_for_no_longer_than_its_grace() -> None:
    with World() as world:
        stream = world.open()
        stream.on_disconnect, stream.grace_s = OnDisconnect.GRACE, 60.0
        feeder = Feeder(world, stream)
        world.client().attach(stream).leave()
        for _ in range(10):
            feeder.feed(*frames(1))
            stream.look(world.clock.now())
            assert stream.last_at == world.clock.now()
            world.tick(5)
        assert feeder.spliced == 9
        assert stream.state is State.LIVE
        world.tick(11)
        assert stream.reason is CloseReason.CLIENT_LEFT
        assert feeder.is_stopped


@pytest.mark.parametrize("door", [Door.BARE, Door.BARE_IDS])
def test_bare_doors_know_no_frames(door: Door) -> None:
    many = frames(9)
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        client = world.client().attach(stream, door)
        feeder.feed(*many)
        world.settle()
        assert not feeder.spliced
        assert client.body == rendered(many, door)


def test_whoever_comes_late_finds_what_went_the_short_way() -> None:
    many = frames(40)
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        world.client().attach(stream)
        feeder.feed(*many[:30])
        late = world.client().attach(stream, Door.FRAMED_IDS, 7)
        feeder.feed(*many[30:])
        world.settle()
        assert late.body == rendered(many, Door.FRAMED_IDS, 7)


def test_a_second_reader_a_pause_and_a_heartbeat_close_the_short_way() -> None:
    many = frames(9)
    with World() as world:
        stream = world.open()
        feeder = Feeder(world, stream)
        client = world.client().attach(stream)
        for close in (
            lambda: world.client().attach(stream).leave(),
            lambda: stream.heartbeat(b": still here\n\n"),
            lambda: stalled(client),
        ):
            feeder.feed(many.pop(0), many.pop(0))
            before = feeder.spliced
            assert before
            close()
            feeder.feed(many.pop(0))
            assert feeder.spliced == before, "the next frame goes the long way, and opens the short one again"
        feeder.end()
        world.settle()
        assert client.finished is CloseReason.COMPLETED
