"""A stream's state, as its owner and the operator see it."""

from __future__ import annotations

import json

import pytest

from longwire.streams.describe import describe, describe_row
from longwire.streams.stream import BodyHead, Stream
from longwire.streams.tables import unpack_stream
from longwire.words.reasons import CloseReason

from .world import Entry, World, data_block

ONE = Entry("hot", data_block(b"one"))
BEAT = Entry("record", b": longwire\n\n", silent=True)


def test_a_stream_that_has_just_begun() -> None:
    with World() as world:
        stream = world.open("acme")
        stream.facts.model, stream.facts.engine = "m", "e"
        assert describe(stream) == {
            "id": stream.public_id,
            "object": "stream",
            "status": "opening",
            "close_reason": None,
            "tenant": "acme",
            "model": "m",
            "engine": "e",
            "route": "chat_completions",
            "epoch": 1,
            "seams": [],
            "events": 0,
            "bytes": 0,
            "last_seq": -1,
            "readers": 0,
            "readable": True,
            "created_at": round(stream.created_wall, 3),
            "first_byte_ms": None,
            "first_token_ms": None,
            "last_event_ms": None,
            "ended_ms": None,
            "usage": None,
            "usage_estimated": False,
        }


def test_times_are_milliseconds_since_its_creation() -> None:
    with World(retention_s=3600.0) as world:
        feeder = world.start()
        client = world.client().attach(feeder.stream)
        world.clock.advance(0.25)
        feeder.stream.note_first_byte()
        world.clock.advance(0.25)
        feeder.stream.note_first_token()
        feeder.feed(ONE, BEAT)
        world.clock.advance(1)
        feeder.feed(ONE)
        live = describe(feeder.stream)
        assert (live["status"], live["readers"], live["events"], live["last_seq"]) == ("live", 1, 2, 1)
        assert (live["first_byte_ms"], live["first_token_ms"], live["last_event_ms"]) == (250.0, 500.0, 1500.0)
        assert live["usage"] is None
        world.clock.advance(0.5)
        feeder.end()
        world.settle()
        ended = describe(feeder.stream)
        assert (ended["status"], ended["close_reason"], ended["ended_ms"]) == ("ended", "completed", 2000.0)
        assert ended["readers"] == 0
        assert client.finished is CloseReason.COMPLETED


def test_heartbeats_are_no_events() -> None:
    """Whoever looks for an engine that hangs looks at when it last said something."""
    with World(heartbeat_s=15.0) as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        world.tick(100)
        assert world.instruments.heartbeats_total > 3
        assert describe(feeder.stream)["last_event_ms"] == 0.0
        assert describe(feeder.stream)["events"] == 1


def test_an_engine_that_hangs_is_not_hidden_by_who_looks() -> None:
    """On the short way no clock is read: when it was last heard of is known from the last round, and not from the look."""
    with World(heartbeat_s=3600.0) as world:
        feeder = world.start(ONE)
        world.client().attach(feeder.stream)
        feeder.feed(ONE, ONE, ONE)
        assert feeder.spliced
        world.tick(100)
        stream = world.registry.find(feeder.stream.public_id, "acme")
        shown = describe(stream)
        assert shown["events"] == 4
        assert shown["last_event_ms"] == pytest.approx(0, abs=world.registry.tick_s * 1000)


def test_usage_is_the_engines_or_an_estimate_that_says_so() -> None:
    with World() as world:
        counted, guessed = world.start(ONE), world.start(ONE)
        counted.stream.facts.usage = {"prompt_tokens": 3, "completion_tokens": 5}
        guessed.stream.facts.tokens_estimated = 7
        counted.end()
        guessed.end()
        told = [(found["usage"], found["usage_estimated"]) for found in map(describe, (counted.stream, guessed.stream))]
        assert told == [({"prompt_tokens": 3, "completion_tokens": 5}, False), ({"completion_tokens": 7}, True)]


@pytest.mark.parametrize("reason", list(CloseReason))
def test_every_ending_has_its_word(reason: CloseReason) -> None:
    with World() as world:
        feeder = world.start(ONE)
        feeder.end(reason)
        assert describe(feeder.stream)["close_reason"] == str(reason)


def test_what_cannot_be_read_again_does_not_say_it_could() -> None:
    with World() as world:
        refused = world.open()
        refused.end(CloseReason.UPSTREAM_REFUSED)
        body = world.open()
        body.begin_body(BodyHead(200, [], None))
        events = world.start(ONE).stream
        assert [describe(stream)["readable"] for stream in (refused, body, events)] == [False, False, True]


def test_a_description_is_json_and_holds_no_secret() -> None:
    with World() as world:
        feeder = world.start(ONE)
        facts = feeder.stream.facts
        facts.key_hash, facts.prompt_hash, facts.model = b"k" * 16, b"p" * 16, "\ud800模型"
        feeder.stream.store_request(b"authorization: Bearer sk-secret")
        shown = json.dumps(describe(feeder.stream))
        assert "secret" not in shown
        assert not any(text in shown for text in (facts.key_hash.hex(), facts.prompt_hash.hex(), "kkkk", "pppp"))


# From the row alone.


def by_row(world: World, stream: Stream) -> dict[str, object]:
    world.registry.store_row(stream)
    return by_row_as_it_is(world, stream)


def by_row_as_it_is(world: World, stream: Stream) -> dict[str, object]:
    payload = world.table.read(stream.row)
    assert payload is not None
    first = world.table.word_index(stream.row)
    boot_s = world.clock.wall() - world.clock.now()
    return describe_row(unpack_stream(payload), world.table.words[first : first + 4].tolist(), boot_s)


UNTOLD = {"readers", "last_seq", "first_byte_ms", "last_event_ms"}
"""What no row knows of a stream that goes on."""


def test_a_row_says_the_same_where_it_knows() -> None:
    with World(retention_s=3600.0) as world:
        feeder = world.start()
        stream = feeder.stream
        stream.facts.model, stream.facts.engine = "m", "e"
        told = by_row(world, stream)
        assert told | dict.fromkeys(UNTOLD) == describe(stream) | dict.fromkeys(UNTOLD)
        world.clock.advance(0.5)
        stream.note_first_token()
        feeder.feed(ONE, ONE)
        stream.settle()
        told = by_row_as_it_is(world, stream)
        assert told | dict.fromkeys(UNTOLD) == describe(stream) | dict.fromkeys(UNTOLD), (
            "the words go on with each settling"
        )
        assert (told["status"], told["events"], told["first_token_ms"]) == ("live", 2, 500.0)
        stream.facts.usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        world.clock.advance(1)
        feeder.end()
        told = by_row_as_it_is(world, stream)
        whole = {**describe(stream), "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        untold = dict.fromkeys(UNTOLD - {"last_seq"})
        assert told | untold == whole | untold


@pytest.mark.parametrize("reason", list(CloseReason))
def test_every_ending_has_its_word_in_the_row(reason: CloseReason) -> None:
    with World() as world:
        begun, refused = world.start(ONE), world.open()
        begun.stream.facts.tokens_estimated = 4
        begun.end(reason)
        refused.end(reason)
        for stream in (begun.stream, refused):
            told, whole = by_row_as_it_is(world, stream), describe(stream)
            names = ("status", "close_reason", "events", "bytes", "readable", "usage", "usage_estimated", "ended_ms")
            assert {name: told[name] for name in names} == {name: whole[name] for name in names}
