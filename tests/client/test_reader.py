"""The machine that decides: tables for its moves, and any sequence of cuts for its promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.client import blocks
from longwire.client.backoff import Backoff
from longwire.client.reader import Reader
from longwire.client.table import TRANSITIONS, Fail, Post, Read, Resume, Sign, State, Stop, Wait
from longwire.words.ids import Cursor

STREAM_ID = "lw_" + "0" * 32
HEAD = {"content-type": "text/event-stream; charset=utf-8", "x-stream-id": STREAM_ID}
LOST = OSError("lost")
STEADY = Backoff(attempts=3, deferrals=2, first_s=1.0, random=lambda: 1.0)


def drain(reader: Reader, data: bytes = b"") -> list[bytes]:
    reader.receive_data(data)
    return list(iter(reader.next_block, None))


def reading(*events: bytes, backoff: Backoff = STEADY) -> Reader:
    """A reader on its POST's connection that has these events."""
    reader = Reader(backoff)
    reader.receive_head(200, HEAD)
    drain(reader, b"".join(b"data: " + event + b"\n\n" for event in events))
    return reader


def resuming(*events: bytes, backoff: Backoff = STEADY) -> Reader:
    """A reader whose connection broke after these events and whose wait is over."""
    reader = reading(*events, backoff=backoff)
    reader.receive_break(LOST)
    reader.receive_wakeup()
    return reader


def resumed(*events: bytes) -> Reader:
    """A reader on a GET's connection."""
    reader = resuming(*events)
    reader.receive_head(200, HEAD)
    return reader


# The table itself.


def test_every_state_has_a_row_and_the_last_ones_cannot_be_left() -> None:
    assert set(TRANSITIONS) == set(State)
    for over in (State.ENDED, State.FAILED):
        assert set(TRANSITIONS[over]) == set(Sign)
        assert set(TRANSITIONS[over].values()) == {over}


def test_every_state_is_reachable_and_can_end() -> None:
    reached = {State.ASKING}
    for _ in State:
        reached |= {target for state in reached for target in TRANSITIONS[state].values()}
    assert reached == set(State)
    assert all(Sign.FINISHED in row for row in TRANSITIONS.values())


# One move each.

MOVES: list[Any] = [
    pytest.param(lambda: Reader(STEADY), lambda r: None, Post(), id="the-first-thing-is-the-post"),
    pytest.param(lambda: Reader(STEADY), lambda r: r.receive_break(LOST), Wait(1.0), id="post-lost"),
    pytest.param(
        lambda: Reader(STEADY), lambda r: (r.receive_break(LOST), r.receive_wakeup()), Post(), id="post-again"
    ),
    pytest.param(lambda: Reader(STEADY), lambda r: r.receive_head(200, HEAD), Read(), id="post-answered"),
    pytest.param(
        lambda: Reader(STEADY),
        lambda r: r.receive_head(200, {"content-type": "text/event-stream"}),
        Stop(),
        id="no-gateway",
    ),
    pytest.param(
        lambda: Reader(STEADY),
        lambda r: r.receive_head(200, HEAD | {"content-type": "text/html"}),
        Stop(),
        id="no-events",
    ),
    pytest.param(reading, lambda r: r.receive_eof(), Wait(1.0), id="ended-too-soon"),
    pytest.param(reading, lambda r: r.receive_break(LOST), Wait(1.0), id="broke"),
    pytest.param(reading, lambda r: drain(r, b"data: [DONE]\n\n"), Stop(), id="end-marker"),
    pytest.param(reading, lambda r: (r.close(), r.receive_break(LOST)), Stop(), id="closed-by-the-program"),
    pytest.param(resuming, lambda r: r.receive_break(LOST), Wait(2.0), id="no-connection"),
    pytest.param(resuming, lambda r: r.receive_head(204, {}), Stop(), id="nothing-more"),
    pytest.param(resuming, lambda r: r.receive_head(200, HEAD), Read(), id="resumed"),
    pytest.param(
        resuming, lambda r: r.receive_head(200, {"content-type": "text/html"}), Wait(2.0), id="a-proxy's-page"
    ),
    pytest.param(resuming, lambda r: r.receive_refusal(503, {}, LOST), Wait(2.0), id="busy"),
    pytest.param(resuming, lambda r: r.receive_refusal(429, {"retry-after": "7"}, LOST), Wait(7.0), id="busy-for-7-s"),
    pytest.param(
        resuming, lambda r: r.receive_refusal(421, {"retry-after": "1"}, LOST), Wait(2.0), id="another-shards"
    ),
    pytest.param(
        resuming, lambda r: r.receive_refusal(503, {"retry-after": "9999"}, LOST), Wait(60.0), id="busy-for-ever"
    ),
    pytest.param(
        resuming, lambda r: r.receive_refusal(503, {"retry-after": "soon"}, LOST), Wait(2.0), id="busy-for-a-date"
    ),
    pytest.param(resumed, lambda r: (drain(r, b"retry: 4500\n\n"), r.receive_eof()), Wait(4.5), id="come-back-later"),
    pytest.param(
        resumed,
        lambda r: (drain(r, b"retry: 9\nid: 1-0\ndata: a\n\n"), r.receive_eof()),
        Wait(1.0),
        id="retry-with-data-is-no-deferral",
    ),
]


@pytest.mark.parametrize(("given_reader", "what_happens", "expected"), MOVES)
def test_moves(given_reader: Callable[[], Reader], what_happens: Callable[[Reader], object], expected: object) -> None:
    reader = given_reader()
    what_happens(reader)
    assert reader.decide() == expected
    assert reader.decide() == expected, "asking twice changes nothing"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (404, "no longer has"),
        (410, "no longer has"),
        (400, "refused to resume"),
        (401, "401"),
        (403, "403"),
        (422, "422"),
    ],
)
def test_statuses_that_no_retry_mends(status: int, why: str) -> None:
    reader = resuming(b"a", b"b")
    reader.receive_refusal(status, {}, LOST)
    fail = reader.decide()
    assert isinstance(fail, Fail) and fail.why is not None
    assert why in fail.why and fail.cause is LOST and fail.status == status
    assert reader.events == 2


# Cursors.


def test_the_resume_asks_for_what_comes_after_the_last_event() -> None:
    action = resuming(b"a", b"b").decide()
    assert isinstance(action, Resume)
    assert action.stream_id == STREAM_ID
    assert action.headers["Last-Event-ID"] == "0-1"
    assert action.headers["Accept"] == "text/event-stream"


def test_without_an_event_the_resume_asks_for_all() -> None:
    action = resuming().decide()
    assert isinstance(action, Resume) and "Last-Event-ID" not in action.headers


def test_the_gateways_epoch_is_kept() -> None:
    reader = resumed(b"a")
    assert drain(reader, b"id: 3-1\ndata: b\n\n") == [b"data: b\n\n"]
    assert reader.cursor == Cursor(3, 1)
    reader.receive_eof()
    reader.receive_wakeup()
    action = reader.decide()
    assert isinstance(action, Resume) and action.headers["Last-Event-ID"] == "3-1"


def test_comments_and_blocks_without_data_are_not_counted() -> None:
    reader = reading()
    assert drain(reader, b": ping\n\ndata: a\n\n: ping\n\nevent: x\n\ndata: b\n\n") == [b"data: a\n\n", b"data: b\n\n"]
    assert reader.cursor.seq == 1


def test_the_end_marker_is_an_event() -> None:
    reader = reading(b"a", b"[DONE]")
    assert reader.cursor.seq == 1


def test_the_cursor_moves_with_what_is_handed_on_not_with_what_has_come() -> None:
    reader = reading()
    reader.receive_data(b"data: a\n\ndata: b\n\n")
    assert reader.cursor.seq == -1
    reader.next_block()
    assert reader.cursor.seq == 0


def test_what_follows_the_end_marker_is_not_read() -> None:
    reader = reading()
    assert drain(reader, b"data: [DONE]\n\ndata: more\n\n") == [b"data: [DONE]\n\n"]


def test_a_repeated_event_is_dropped() -> None:
    reader = resumed(b"a", b"b")
    assert drain(reader, b"id: 1-0\ndata: a\n\nid: 1-1\ndata: b\n\nid: 1-2\ndata: c\n\n") == [b"data: c\n\n"]


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        pytest.param(b"id: 1-3\ndata: d\n\n", "1-3 where 2 was due", id="gap"),
        pytest.param(b"data: c\n\n", "without a usable id", id="no-id"),
        pytest.param(b"id: x\ndata: c\n\n", "without a usable id", id="bad-id"),
        pytest.param(b"id: 1-\xff\ndata: c\n\n", "without a usable id", id="id-that-is-no-text"),
        pytest.param(b"id: 4-2\ndata: c\n\nid: 3-3\ndata: d\n\n", "3-3 where 3 was due", id="older-epoch"),
    ],
)
def test_what_cannot_be_the_next_event_is_an_error(wire: bytes, why: str) -> None:
    reader = resumed(b"a", b"b")
    drain(reader, wire)
    fail = reader.decide()
    assert isinstance(fail, Fail) and fail.why is not None and why in fail.why
    reader.receive_eof()
    assert reader.decide() == fail, "what comes later does not hide it"


def test_an_endless_block_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 10)
    reader = reading()
    drain(reader, b"data: 123456789")
    fail = reader.decide()
    assert isinstance(fail, Fail) and fail.why is not None and "larger than" in fail.why


# Bounds.


def test_a_post_that_is_never_answered_raises_its_own_error() -> None:
    reader = Reader(STEADY)
    for _ in range(STEADY.attempts - 1):
        reader.receive_break(LOST)
        reader.receive_wakeup()
        assert reader.decide() == Post()
    reader.receive_break(LOST)
    assert reader.decide() == Fail(None, LOST)


def test_connections_that_bring_nothing_are_counted() -> None:
    reader = reading(b"a")
    for _ in range(STEADY.attempts - 1):
        reader.receive_eof()
        reader.receive_wakeup()
        reader.receive_head(200, HEAD)
    reader.receive_break(LOST)
    fail = reader.decide()
    assert isinstance(fail, Fail) and fail.cause is LOST
    assert fail.why == "its connection broke, and 3 tries in a row brought no new event"


def test_each_new_event_begins_the_count_anew() -> None:
    reader = resumed()
    for seq in range(5 * STEADY.attempts):
        assert drain(reader, b"id: 1-%d\ndata: x\n\n" % seq)
        reader.receive_break(LOST)
        assert reader.decide() == Wait(1.0)
        reader.receive_wakeup()
        reader.receive_head(200, HEAD)


def test_deferrals_have_a_bound_of_their_own() -> None:
    reader = resumed()
    for _ in range(STEADY.deferrals):
        assert reader.decide() == Read()
        drain(reader, b"retry: 10\n\n")
        reader.receive_eof()
        reader.receive_wakeup()
        reader.receive_head(200, HEAD)
    assert isinstance(reader.decide(), Fail)
    assert reader.statistics() == {"events": 0, "connections": 3, "failures": 1, "deferrals": 2}


def test_repr_shows_where_it_is() -> None:
    assert repr(reading(b"a")) == f"<Reader reading stream={STREAM_ID} cursor=0-0 failures=0>"


# The promise: any sequence of cuts yields the exact events.


def connection(events: list[bytes], after: int, numbered: bool, epoch: int) -> bytes:
    """What a gateway sends on one connection, heartbeats among it."""
    wire = b": ping\n\n"
    for seq in range(after + 1, len(events)):
        wire += (b"id: %d-%d\n" % (epoch, seq) if numbered else b"") + b"data: " + events[seq] + b"\n\n: ping\n\n"
    return wire


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[bytes], Iterator[tuple[int, int, int, str]]]:
    """Events, and for each connection: where it is cut, how large the reads are, how far it repeats, how it ends."""
    events = [
        *draw(st.lists(st.binary(min_size=1, max_size=12).map(lambda b: b.hex().encode()), max_size=12)),
        b"[DONE]",
    ]
    cuts = draw(
        st.lists(
            st.tuples(
                st.integers(0, 120),
                st.integers(1, 40),
                st.integers(0, 3),
                st.sampled_from(["break", "eof", "busy", "none"]),
            ),
            max_size=30,
        )
    )
    return events, iter(cuts)


@given(lives())
def test_any_sequence_of_cuts_yields_the_exact_events(
    life: tuple[list[bytes], Iterator[tuple[int, int, int, str]]],
) -> None:
    events, cuts = life
    reader = Reader(Backoff(attempts=100, random=lambda: 0.5))
    got: list[bytes] = []
    wire = b""
    epoch = 1
    end = "whole"
    size = 1
    for _ in range(1000):
        match reader.decide():
            case Post() | Resume() as action:
                at, size, repeats, end = next(cuts, (10_000, 7, 0, "whole"))
                if end == "busy" and isinstance(action, Resume):
                    reader.receive_refusal(503, {}, LOST)
                elif end == "none":
                    reader.receive_break(LOST)
                else:
                    after = len(got) - 1
                    if isinstance(action, Resume):
                        said = action.headers.get("Last-Event-ID", "0--1")
                        assert said.split("-", 1)[1] == str(after)
                        after = max(-1, after - repeats)
                    wire = connection(events, after, isinstance(action, Resume), epoch)[:at]
                    epoch += at % 2
                    reader.receive_head(200, HEAD)
            case Read():
                for start in range(0, len(wire), size):
                    got += drain(reader, wire[start : start + size])
                if reader.is_reading:
                    reader.receive_break(LOST) if end == "break" else reader.receive_eof()
            case Wait():
                reader.receive_wakeup()
            case Stop():
                break
            case Fail() as fail:
                pytest.fail(str(fail))
    assert got == [b"data: " + event + b"\n\n" for event in events]
