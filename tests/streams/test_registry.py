"""Finding, keeping and forgetting streams, and what happens by the clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from longwire.streams.arena import BLOCK_BYTES
from longwire.streams.doors import Door
from longwire.streams.rebuild import facts_of_row
from longwire.streams.registry import MAX_TOMBSTONES
from longwire.streams.stream import BodyHead, Kind, OnDisconnect, State, Stream
from longwire.streams.tables import StreamRow, unpack_stream
from longwire.words.errors import Gone, KeyReused, NotFound, Overloaded
from longwire.words.reasons import CloseReason

from .world import Entry, World, data_block, rendered

ONE, TWO = Entry("hot", data_block(b"one")), Entry("hot", data_block(b"two"))
BLOCKFUL = Entry("framed", data_block(b"x" * BLOCK_BYTES))
BODY, OTHER_BODY = b"b" * 16, b"o" * 16


def ended(world: World, *entries: Entry, tenant: str = "acme", reason: CloseReason = CloseReason.COMPLETED) -> Stream:
    feeder = world.start(*entries, tenant=tenant)
    feeder.end(reason)
    return feeder.stream


def status(world: World, stream: Stream, tenant: str | None) -> int:
    """What an HTTP answer about the stream would be."""
    try:
        assert world.registry.find(stream.public_id, tenant) is stream
    except (NotFound, Gone) as exc:
        return exc.status
    return 200


def row_of(world: World, stream: Stream) -> StreamRow:
    payload = world.table.read(stream.row)
    assert payload is not None
    return unpack_stream(payload)


# Finding.


def test_a_stream_is_its_tenants_own() -> None:
    with World() as world:
        stream = world.open("acme")
        assert status(world, stream, "acme") == 200
        assert status(world, stream, None) == 200, "the operator sees all"
        assert status(world, stream, "other") == 404


@pytest.mark.parametrize(
    "name", ["", "lw_", "lw_" + "0" * 31, "lw_" + "0" * 32, "lw_" + "G" * 32, "lw_" + "0" * 33, "x"]
)
def test_names_that_no_stream_has_are_not_found(name: str) -> None:
    with World() as world:
        world.open()
        with pytest.raises(NotFound):
            world.registry.find(name, None)


def test_another_tenants_stream_and_none_at_all_look_alike() -> None:
    with World() as world:
        theirs = world.open("other").public_id
        messages = []
        for name in (theirs, "lw_" + "0" * 32, "nonsense"):
            with pytest.raises(NotFound) as caught:
                world.registry.find(name, "acme")
            messages.append(str(caught.value))
        assert len(set(messages)) == 1


def test_tenants_list_their_own_oldest_first() -> None:
    with World() as world:
        streams = [world.open(tenant) for tenant in ("acme", "other", "acme")]
        assert list(world.registry.list("acme")) == [streams[0], streams[2]]
        assert list(world.registry.list("nobody")) == []
        assert list(world.registry.list(None)) == streams


def test_a_list_may_be_read_while_streams_go() -> None:
    with World() as world:
        for _ in range(3):
            ended(world, ONE)
        for stream in world.registry.list(None):
            world.registry.evict(stream)
        assert world.registry.statistics()["ended"] == 0


# Keeping.


def test_an_ended_stream_is_kept_for_the_retention_time() -> None:
    with World(retention_s=600.0) as world:
        stream = ended(world, ONE)
        world.tick(599)
        assert status(world, stream, "acme") == 200
        world.tick(3)
        assert status(world, stream, "acme") == 410
        assert world.blocks_used() == 0
        assert world.table.rows_used == 0


def test_what_ended_first_goes_first_whatever_began_first() -> None:
    with World(retention_s=600.0) as world:
        early = world.start(ONE)
        late = ended(world, ONE)
        world.tick(100)
        early.end()
        world.tick(502)
        assert status(world, late, None) == 410
        assert status(world, early.stream, None) == 200
        world.tick(100)
        assert status(world, early.stream, None) == 410


def test_a_stream_is_kept_for_the_request_that_has_started_it() -> None:
    """Its process died before the reader was noted; to read the request again may take longer than the retention time."""
    asker = (7, 100)
    with World(retention_s=2) as world:
        registry = world.registry
        stream = ended(world, ONE)
        stream.facts.asker = asker
        registry.let_sleep(stream.id, asker, lambda: stream)
        for _ in range(2):
            assert registry.keep_askers(lambda each: each == asker) == {stream.id}
            world.tick(3)
            assert status(world, stream, "acme") == 200
        assert registry.find_asked(asker) is stream
        assert registry.find_asked(asker) is None, "it was found"
        world.tick(1)
        assert status(world, stream, "acme") == 410


def test_a_stream_is_not_kept_for_a_request_that_will_not_come() -> None:
    asker = (7, 100)
    with World(retention_s=2) as world:
        stream = ended(world, ONE)
        stream.facts.asker = asker
        world.registry.let_sleep(stream.id, asker, lambda: stream)
        world.registry.keep_askers(lambda _: True)
        assert world.registry.keep_askers(lambda _: False) == set()
        world.tick(3)
        assert world.registry.find_asked(asker) is None


def test_no_retention_forgets_at_once() -> None:
    with World(retention_s=0.0) as world:
        stream = ended(world, ONE)
        world.registry.tick()
        assert status(world, stream, "acme") == 410


def test_within_a_total_the_oldest_give_way() -> None:
    with World(retention_bytes=4 * BLOCK_BYTES) as world:
        streams = [ended(world, BLOCKFUL) for _ in range(3)]
        assert [status(world, stream, None) for stream in streams] == [410, 200, 200]
        assert world.registry.statistics()["retained_blocks"] == 4
        ended(world, ONE)
        assert [status(world, stream, None) for stream in streams] == [410, 410, 200]
        assert world.registry.statistics()["retained_blocks"] == 3


def test_a_stream_larger_than_the_total_is_read_to_its_end_by_who_reads_it() -> None:
    entries = [BLOCKFUL] * 5
    with World(retention_bytes=2 * BLOCK_BYTES) as world:
        feeder = world.start(*entries)
        client = world.client(high_bytes=100).attach(feeder.stream, Door.BARE)
        feeder.end()
        assert status(world, feeder.stream, None) == 410
        assert world.blocks_used() > 0
        world.settle()
        assert client.body == rendered(entries, Door.BARE)
        assert world.blocks_used() == 0


def test_live_streams_are_never_evicted() -> None:
    with World(retention_s=1.0, retention_bytes=1) as world:
        feeder = world.start(BLOCKFUL, BLOCKFUL)
        world.client().attach(feeder.stream)
        world.tick(3600)
        assert status(world, feeder.stream, "acme") == 200
        with pytest.raises(AssertionError):
            world.registry.evict(feeder.stream)


def test_gone_is_told_to_the_owner_alone() -> None:
    with World(retention_s=1.0) as world:
        stream = ended(world, ONE)
        world.tick(3)
        assert status(world, stream, "acme") == 410
        assert status(world, stream, None) == 410
        assert status(world, stream, "other") == 404


def test_so_many_of_the_gone_are_remembered() -> None:
    with World() as world:
        for _ in range(MAX_TOMBSTONES + 10):
            stream = ended(world, ONE)
            world.registry.evict(stream)
        assert world.registry.statistics()["tombstones"] == MAX_TOMBSTONES


def test_a_full_table_forgets_the_oldest_or_refuses() -> None:
    with World(rows=3) as world:
        first, second = ended(world, ONE), ended(world, ONE)
        live = world.start(ONE).stream
        third = world.open()
        assert [status(world, stream, None) for stream in (first, second, live, third)] == [410, 200, 200, 200]
        world.open()
        with pytest.raises(Overloaded) as caught:
            world.open()
        assert caught.value.retry_after_s
        assert world.table.rows_used == 3


# Idempotency keys.


def test_a_key_finds_the_stream_that_it_started() -> None:
    with World() as world:
        registry = world.registry
        key = registry.hash(b"acme", b"/v1/chat/completions", b"key")
        assert registry.find_by_key(key, BODY) is None
        stream = world.open()
        registry.pin_key(key, BODY, stream)
        assert registry.find_by_key(key, BODY) is stream
        with pytest.raises(KeyReused) as caught:
            registry.find_by_key(key, OTHER_BODY)
        assert (caught.value.status, caught.value.param) == (422, "Idempotency-Key")


def test_hashes_are_of_the_parts_and_not_of_their_sum() -> None:
    with World() as world:
        hash = world.registry.hash
        assert hash(b"a", b"bc") != hash(b"ab", b"c")
        assert hash(b"a") != hash(b"a", b"")
        assert hash(b"a", b"b") == hash(b"a", b"b")
        assert len(hash(b"x" * 1000)) == 16


def test_hashes_say_nothing_without_this_process_secret() -> None:
    with World() as world, World() as other:
        assert world.registry.hash(b"prompt") != other.registry.hash(b"prompt")


def test_a_key_expires() -> None:
    with World(idempotency_ttl_s=60.0, retention_s=600.0) as world:
        stream = ended(world, ONE)
        stream.facts.first_token_at = world.clock.now()
        world.registry.pin_key(b"key", BODY, stream)
        world.clock.advance(59)
        assert world.registry.find_by_key(b"key", BODY) is stream
        world.clock.advance(1)
        assert world.registry.find_by_key(b"key", BODY) is None
        assert world.registry.find_by_key(b"key", OTHER_BODY) is None, "and with it what it was used for"
        world.registry.tick()
        assert world.registry.statistics()["keys"] == 0


def test_a_key_that_is_used_anew_has_its_whole_time() -> None:
    with World(idempotency_ttl_s=60.0) as world:
        first, other, second = world.open(), world.open(), world.open()
        world.registry.pin_key(b"key", BODY, first)
        world.clock.advance(50)
        world.registry.pin_key(b"other", BODY, other)
        world.clock.advance(20)
        world.registry.pin_key(b"key", BODY, second)
        world.clock.advance(45)
        world.registry.tick()
        assert world.registry.find_by_key(b"key", BODY) is second
        assert world.registry.find_by_key(b"other", BODY) is None
        first.end(CloseReason.CANCELLED)
        assert world.registry.find_by_key(b"key", BODY) is second, "the first one's end is not the second one's"


def test_a_key_goes_with_its_stream() -> None:
    with World() as world:
        stream = ended(world, ONE)
        world.registry.pin_key(b"key", BODY, stream)
        world.registry.evict(stream)
        assert world.registry.find_by_key(b"key", BODY) is None
        assert world.registry.statistics()["keys"] == 0


ENDINGS_WITHOUT_CONTENT: dict[str, list[Entry]] = {
    "nothing at all": [],
    "only heartbeats": [Entry("record", b": longwire\n\n", silent=True)],
    "a role and no word": [Entry("hot", data_block(b'{"choices":[{"delta":{"role":"assistant"}}]}'))],
}


@pytest.mark.parametrize("entries", ENDINGS_WITHOUT_CONTENT.values(), ids=ENDINGS_WITHOUT_CONTENT.keys())
def test_a_stream_that_failed_before_its_first_content_frees_its_key(entries: list[Entry]) -> None:
    with World() as world:
        feeder = world.start(*entries)
        world.registry.pin_key(b"key", BODY, feeder.stream)
        assert world.registry.find_by_key(b"key", BODY) is feeder.stream
        feeder.end(CloseReason.UPSTREAM_RESET)
        assert world.registry.find_by_key(b"key", BODY) is None


def test_one_that_failed_later_keeps_it() -> None:
    """What was generated was paid for: the client gets it again, with the error behind it."""
    with World() as world:
        feeder = world.start(ONE)
        feeder.stream.note_first_token()
        world.registry.pin_key(b"key", BODY, feeder.stream)
        feeder.end(CloseReason.UPSTREAM_RESET)
        assert world.registry.find_by_key(b"key", BODY) is feeder.stream


def test_one_that_succeeded_without_a_word_keeps_it() -> None:
    with World() as world:
        feeder = world.start(ONE)
        world.registry.pin_key(b"key", BODY, feeder.stream)
        feeder.end()
        assert world.registry.find_by_key(b"key", BODY) is feeder.stream


@pytest.mark.parametrize(
    ("reason", "is_kept"),
    [(CloseReason.UPSTREAM_RESET, False), (CloseReason.CLIENT_LEFT, False), (CloseReason.COMPLETED, True)],
)
def test_half_a_body_frees_the_key(reason: CloseReason, is_kept: bool) -> None:
    """Nobody can do anything with it, and a client that asks again must not get it again."""
    with World() as world:
        stream = world.open()
        world.registry.pin_key(b"key", BODY, stream)
        stream.begin_body(BodyHead(200, [], 100))
        stream.append_plain(stream.chain.append(b'{"half":'), 8)
        stream.publish(-1)
        stream.note_first_token()
        stream.end(reason)
        assert (world.registry.find_by_key(b"key", BODY) is stream) == is_kept


# By the clock.


def test_unread_streams_are_stopped_at_once_or_later_or_never() -> None:
    with World() as world:
        feeders = {}
        for policy in OnDisconnect:
            feeder = feeders[policy] = world.start(ONE)
            feeder.stream.on_disconnect, feeder.stream.grace_s = policy, 30.0
            world.client().attach(feeder.stream).leave()
        assert feeders[OnDisconnect.CANCEL].stream.reason is CloseReason.CLIENT_LEFT
        assert feeders[OnDisconnect.CANCEL].is_stopped
        world.tick(29)
        assert feeders[OnDisconnect.GRACE].stream.state is State.LIVE
        world.tick(2)
        assert feeders[OnDisconnect.GRACE].stream.reason is CloseReason.CLIENT_LEFT
        assert feeders[OnDisconnect.GRACE].is_stopped
        world.tick(10_000)
        assert feeders[OnDisconnect.RUN].stream.state is State.LIVE


def test_a_reader_that_comes_back_in_time_saves_the_stream() -> None:
    with World() as world:
        feeder = world.start(ONE)
        feeder.stream.on_disconnect, feeder.stream.grace_s = OnDisconnect.GRACE, 30.0
        world.client().attach(feeder.stream).leave()
        world.tick(20)
        again = world.client().attach(feeder.stream)
        world.tick(60)
        assert feeder.stream.state is State.LIVE
        again.leave()
        world.tick(29)
        assert feeder.stream.state is State.LIVE, "the grace begins anew"
        world.tick(2)
        assert feeder.stream.state is State.ENDED


def test_an_operators_look_does_not_end_a_stream_that_others_read() -> None:
    with World() as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        world.client().attach(feeder.stream).leave()
        assert feeder.stream.state is State.LIVE


def test_silence_is_broken_by_heartbeats() -> None:
    with World(heartbeat_s=15.0) as world:
        feeder = world.start(ONE)
        client = world.client().attach(feeder.stream)
        world.settle()
        before = client.body
        world.tick(14)
        world.settle()
        assert client.body == before
        world.tick(60)
        world.settle()
        beats = client.body.removeprefix(before).count(b": longwire\n\n")
        assert 3 <= beats <= 4
        assert feeder.log.last_seq == 0


def test_events_put_heartbeats_off() -> None:
    with World(heartbeat_s=15.0) as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        for _ in range(10):
            world.tick(14)
            feeder.feed(ONE)
        assert world.instruments.heartbeats_total == 0


def test_nobody_hears_no_heartbeat() -> None:
    """A detached stream would only grow by them, and each who reads it later would have to read them."""
    with World(heartbeat_s=15.0) as world:
        feeder = world.start(ONE)
        feeder.stream.on_disconnect = OnDisconnect.RUN
        opening = world.open()
        world.tick(3600)
        assert world.instruments.heartbeats_total == 0
        assert opening.state is State.OPENING


def test_bodies_have_no_heartbeats() -> None:
    with World(heartbeat_s=15.0) as world:
        stream = world.open()
        client = world.client().attach(stream)
        stream.begin_body(BodyHead(200, [], None))
        world.tick(3600)
        assert client.body == b""


def test_after_a_long_silence_the_status_is_committed() -> None:
    with World(commit_after_ms=30_000) as world:
        stream = world.open()
        client = world.client().attach(stream)
        world.tick(29)
        assert stream.state is State.OPENING
        world.tick(2)
        assert stream.state is State.LIVE
        world.settle()
        assert client.body == rendered([Entry("record", b": longwire\n\n", True)], Door.FRAMED)


def test_an_operator_can_do_without() -> None:
    with World(commit_after_ms=0) as world:
        stream = world.open()
        world.client().attach(stream)
        world.tick(3600)
        assert stream.state is State.OPENING


def test_an_answer_that_is_no_stream_is_waited_for_in_silence() -> None:
    """An engine sends the head of a whole answer when it has all of it. Committing an event stream meanwhile would be a lie."""
    with World(commit_after_ms=30_000) as world:
        stream = world.open()
        stream.facts.wants_stream = False
        client = world.client().attach(stream)
        world.tick(120)
        assert (stream.state, client.begun) == (State.OPENING, 0)
        stream.begin_body(BodyHead(200, [], 2))
        stream.append_plain(stream.chain.append(b"{}"), 2)
        stream.publish(-1)
        stream.end(CloseReason.COMPLETED)
        world.settle()
        assert client.finished is CloseReason.COMPLETED
        assert (stream.kind, stream.log.body()) == (Kind.BODY, b"{}")


@pytest.mark.parametrize(
    ("settings", "tick_s"),
    [({}, 3.75), ({"heartbeat_s": 0.4}, 0.1), ({"commit_after_ms": 200}, 0.05), ({"commit_after_ms": 1}, 0.01)],
)
def test_ticks_are_a_fraction_of_the_shortest_time(settings: dict[str, Any], tick_s: float) -> None:
    with World(**settings) as world:
        assert world.registry.tick_s == pytest.approx(tick_s)


# The row, and the sums.


def test_a_row_says_what_an_adopter_must_know() -> None:
    with World() as world:
        stream = world.open("acme")
        stream.facts.model, stream.facts.engine, stream.facts.choices = "m", "e", 2
        stream.facts.prompt_hash = b"p" * 16
        stream.on_disconnect, stream.grace_s = OnDisconnect.GRACE, 12.5
        stream.store_request(b"the request")
        world.registry.store_row(stream)
        row = row_of(world, stream)
        assert (row.id, row.epoch, row.state, row.kind, row.reason) == (stream.id, 1, State.OPENING, Kind.EVENTS, 0)
        assert (row.log_block, row.request_bytes) == (stream.log.upstream.first, len(b"the request"))
        assert (row.prompt_hash, row.key_hash) == (b"p" * 16, bytes(16))
        assert (row.on_disconnect, row.grace_ms) == (OnDisconnect.GRACE, 12_500)
        told = json.loads(row.facts)
        assert (told["tenant"], told["model"], told["engine"], told["n"]) == ("acme", "m", "e", 2)


@pytest.mark.parametrize("model", ["模型" * 400, "\ud800", "\0" * 100])
def test_a_model_of_any_name_leaves_a_row_that_names_the_owner(model: str) -> None:
    """An adopter that did not know whose the stream is would have to hide it from everyone."""
    with World() as world:
        stream = world.open("acme")
        stream.facts.model = model
        world.registry.store_row(stream)
        assert json.loads(row_of(world, stream).facts)["tenant"] == "acme"


def test_an_evicted_streams_row_is_empty() -> None:
    with World() as world:
        stream = world.open()
        world.registry.store_row(stream)
        stream.end(CloseReason.COMPLETED)
        world.registry.evict(stream)
        assert world.table.read(stream.row) is None


def test_events_and_bytes_are_counted_once_while_streams_live_and_end() -> None:
    with World() as world:
        feeders = [world.start(ONE, TWO, Entry("record", b": x\n\n", silent=True)) for _ in range(3)]
        size = feeders[0].stream.chain.end
        counted = world.instruments
        assert (counted.events_total, counted.upstream_bytes_total) == (6, 3 * size)
        feeders[0].end()
        feeders[1].end()
        world.registry.evict(feeders[0].stream)
        assert (counted.events_total, counted.upstream_bytes_total) == (6, 3 * size)


def test_what_goes_the_short_way_is_counted_when_it_settles() -> None:
    with World() as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        feeder.feed(ONE, ONE)
        assert feeder.spliced
        feeder.stream.settle()
        feeder.stream.settle()
        assert world.instruments.events_total == 3
        feeder.feed(ONE)
        feeder.end(CloseReason.UPSTREAM_RESET)
        assert world.instruments.events_total == feeder.stream.log.event_count == 6, "with the error and the end marker"
        assert world.instruments.upstream_bytes_total == feeder.stream.chain.end
        world.settle()


def test_statistics_follow_every_coming_and_going() -> None:
    with World() as world:
        feeder = world.start(ONE)
        clients = [world.client().attach(feeder.stream) for _ in range(2)]
        opening = world.open()
        told = world.registry.statistics()
        assert [told[name] for name in ("opening", "live", "ended", "subscribers")] == [1, 1, 0, 2]
        clients[0].subscriber.detach()
        opening.end(CloseReason.UPSTREAM_REFUSED)
        told = world.registry.statistics()
        assert [told[name] for name in ("opening", "live", "ended", "subscribers")] == [0, 1, 1, 1]
        world.registry.evict(opening)
        feeder.end()
        world.settle()
        told = world.registry.statistics()
        assert [told[name] for name in ("opening", "live", "ended", "subscribers")] == [0, 0, 1, 0]


def test_statistics_say_how_many_are_in_which_state() -> None:
    with World() as world:
        world.open()
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        ended(world, ONE)
        statistics = world.registry.statistics()
        assert (statistics["opening"], statistics["live"], statistics["ended"]) == (1, 1, 1)
        assert statistics["subscribers"] == 1
        assert "3 streams, 1 of them ended" in repr(world.registry)


def test_endings_are_counted_by_reason() -> None:
    with World() as world:
        for reason in CloseReason:
            world.open().end(reason)
        assert world.instruments.streams_ended == dict.fromkeys(CloseReason, 1)
        assert world.instruments.streams_started_total == len(CloseReason)


def test_closing_ends_and_forgets_everything() -> None:
    world = World()
    feeder = world.start(ONE)
    client = world.client().attach(feeder.stream)
    opening = world.open()
    reader = world.client().attach(opening)
    ended(world, ONE)
    world.registry.close()
    assert feeder.is_stopped
    world.settle()
    assert client.finished is CloseReason.SHUTDOWN
    assert opening.refusal is not None
    assert (opening.refusal.status, opening.refusal.body) == (503, reader.refusal)
    world.close()


def test_a_row_tells_what_its_stream_was_admitted_with() -> None:
    """Who takes it over holds the same tokens for it, and corrects the same estimate at its end."""
    with World() as world:
        stream = world.open()
        stream.facts.prompt_tokens, stream.facts.context_tokens = 12, 512
        world.registry.store_row(stream)
        facts = facts_of_row(row_of(world, stream))
        assert (facts.prompt_tokens, facts.context_tokens) == (12, 512)
