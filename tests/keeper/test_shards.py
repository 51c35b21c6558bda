"""The shards table: what the keeper tells, what shards beat, and what whoever reads makes of both."""

from __future__ import annotations

import json

import pytest

from longwire.keeper.shards import (
    HUNG_AFTER_S,
    Beat,
    ShardFacts,
    ShardsTable,
    attach_counts,
    make_counts,
)
from longwire.streams.shared import LayoutMismatch
from longwire.words.clock import VirtualClock
from longwire.words.shards import MAX_COUNTS_BYTES, SHARD_STATES

SERVING = ShardFacts(pid=4711, incarnation=3, state="serving", started=1_700_000_000.5, restarts=2)


def test_every_slot_is_down_at_first() -> None:
    shards = ShardsTable.make(3)
    assert [view.state for view in shards.read()] == ["down"] * 3
    assert shards.read()[2].as_json() == {
        "index": 2,
        "pid": None,
        "state": "down",
        "streams": 0,
        "started": None,
        "restarts": 0,
        "loop_lag_ms": 0.0,
        "connections": 0,
        "silent_s": 0.0,
    }
    assert shards.statistics()["down"] == 3
    shards.close()


def test_the_keepers_words_and_the_shards_beats_make_one_view() -> None:
    clock = VirtualClock()
    shards = ShardsTable.make(2, clock.now)
    shards.tell(1, SERVING)
    clock.advance(1)
    shards.beat(1, clock.now(), Beat(12, 34, 5600))
    clock.advance(0.25)
    assert shards.read()[1].as_json() == {
        "index": 1,
        "pid": 4711,
        "state": "serving",
        "streams": 12,
        "started": 1_700_000_000.5,
        "restarts": 2,
        "loop_lag_ms": 5.6,
        "connections": 34,
        "silent_s": 0.25,
    }
    assert shards.facts(1) == SERVING
    assert "serving" in repr(shards)
    shards.close()


def test_another_process_sees_the_same() -> None:
    clock = VirtualClock()
    made = ShardsTable.make(2, clock.now)
    attached = ShardsTable.attach(made.fd, clock.now)
    made.tell(0, SERVING)
    attached.beat(0, clock.now(), Beat(1, 2, 3))
    assert attached.slots == 2
    assert made.read() == attached.read()
    with pytest.raises(LayoutMismatch):
        ShardsTable.attach(make_counts(1).fd)
    made.close()


def test_all_have_met_an_engine_when_each_that_beats_has() -> None:
    clock = VirtualClock()
    shards = ShardsTable.make(3, clock.now)
    assert shards.have_met_engines(), "none beats yet"
    clock.advance(1)
    shards.beat(0, clock.now(), Beat(1, 34, 3))
    shards.beat(1, clock.now(), Beat(1, 2, 3, has_met_engine=False))
    shards.tell(0, SERVING)
    assert shards.read()[0].connections == 34
    assert not shards.have_met_engines()
    clock.advance(HUNG_AFTER_S + 0.1)
    shards.beat(0, clock.now(), Beat(1, 2, 3))
    assert shards.have_met_engines(), "the other is not heard of any more"
    shards.close()


def test_new_clients_are_shared_out_by_what_processes_do_and_not_slots() -> None:
    clock = VirtualClock()
    shards = ShardsTable.make(3, clock.now)
    assert shards.loads() == []
    clock.advance(1)
    shards.beat(0, clock.now(), Beat(7, lag_us=1 << 40), 12)
    shards.beat(1, clock.now(), Beat(5, lag_us=4000), None)
    shards.beat(2, clock.now(), Beat(0), 0)
    assert shards.loads() == [12, 0], "slot 1 is fostered by the process of slot 0"
    shards.tell(1, SERVING)
    assert (shards.read()[1].streams, shards.read()[1].loop_lag_ms) == (5, 4)
    clock.advance(HUNG_AFTER_S + 0.1)
    assert shards.loads() == []
    shards.close()


@pytest.mark.parametrize("state", SHARD_STATES)
def test_only_a_shard_with_a_loop_can_hang(state: str) -> None:
    clock = VirtualClock()
    shards = ShardsTable.make(1, clock.now)
    shards.tell(0, SERVING._replace(state=state))
    clock.advance(HUNG_AFTER_S + 0.1)
    can = state in {"serving", "adopting", "draining"}
    assert shards.read()[0].state == ("hung" if can else state)
    shards.beat(0, clock.now(), Beat(0, 0, 0))
    assert shards.read()[0].state == state, "it goes on"
    shards.tell(0, SERVING._replace(state=state, pid=0))
    clock.advance(3600)
    assert shards.read()[0].state == state, "who has no process cannot be silent"
    shards.close()


def test_a_successor_is_not_blamed_for_its_predecessors_silence() -> None:
    clock = VirtualClock()
    shards = ShardsTable.make(1, clock.now)
    shards.tell(0, SERVING)
    shards.beat(0, clock.now(), Beat(9, 9, 9))
    clock.advance(60)
    assert shards.read()[0].state == "hung"
    shards.tell(0, SERVING._replace(pid=4712, incarnation=4))
    assert (shards.read()[0].state, shards.read()[0].silent_s) == ("serving", 0)
    shards.close()


@pytest.mark.parametrize(
    "payload",
    [b"\xff", b"[]", b"{", b'{"pid": "x", "state": 7, "started": NaN, "restarts": -1, "told_s": 1e400}', b"null"],
)
def test_strange_bytes_are_a_slot_that_is_down(payload: bytes) -> None:
    shards = ShardsTable.make(1)
    shards._table.write(0, payload)
    assert shards.read()[0].state == "down"
    json.dumps(shards.read()[0].as_json(), allow_nan=False)
    shards.close()


def test_counts_have_a_row_per_slot_for_whoever_attaches() -> None:
    made = make_counts(2)
    attached = attach_counts(made.fd)
    attached.write(1, b"x" * MAX_COUNTS_BYTES)
    assert made.read(1) == b"x" * MAX_COUNTS_BYTES and made.read(0) is None
    made.close()
