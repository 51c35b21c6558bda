"""A shard's counters in a row: packing loses nothing, adding adds, and strange rows are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.observe.counts import (
    MAX_TENANTS_TOLD,
    BadCounts,
    add_counters,
    merge,
    pack_counts,
    restore_counters,
    unpack_counts,
)
from longwire.observe.declarations import OTHERS
from longwire.observe.instruments import MAX_REQUEST_SERIES, ROUTES, Histogram, Instruments
from longwire.observe.snapshot import ARENA_USES, STREAM_STATES, PoolSnapshot, Snapshot
from longwire.words.reasons import CloseReason
from longwire.words.shards import MAX_COUNTS_BYTES

counts = st.integers(0, 1 << 40)
names = st.text(max_size=8)
amounts = st.none() | st.floats(0, 1 << 40)
pools = st.builds(
    PoolSnapshot,
    up=st.booleans(),
    idle=counts,
    busy=counts,
    connecting=counts,
    in_flight=counts,
    breaker=st.integers(0, 2),
    kv_used=amounts,
    waiting=amounts,
    problem=names,
    reserve=counts,
    limit=amounts,
)
snapshots = st.builds(
    Snapshot,
    version=names,
    is_ready=st.booleans(),
    problem=names,
    streams=st.dictionaries(st.sampled_from(STREAM_STATES), counts),
    subscribers=counts,
    connections=counts,
    queued=counts,
    arena_blocks=counts,
    arena_blocks_free=counts,
    arena_blocks_used=st.dictionaries(st.sampled_from(ARENA_USES), counts),
    arena_bytes=counts,
    pools=st.dictionaries(names, pools, max_size=3),
    tenant_streams=st.dictionaries(names, st.integers(1, 1 << 40), max_size=3),
)


@st.composite
def instruments(draw: st.DrawFn) -> Instruments:
    made = Instruments()
    for name in Instruments.__slots__:
        if isinstance(getattr(made, name), int):
            setattr(made, name, draw(counts))
        elif isinstance(getattr(made, name), Histogram):
            for us in draw(st.lists(st.integers(0, 1 << 45), max_size=3)):
                getattr(made, name).observe_us(us)
    for reason in draw(st.lists(st.sampled_from(list(CloseReason)), max_size=3)):
        made.streams_ended[reason] += draw(counts)
        made.readers_ended[reason] += draw(counts)
    for route, status in draw(st.lists(st.tuples(st.sampled_from(sorted(ROUTES)), st.integers(0, 700)), max_size=4)):
        made.count_request(route, status)
    return made


def state_of(counted: Instruments) -> dict[str, Any]:
    """Everything that is counted, as values that can be compared."""
    values = {name: getattr(counted, name) for name in Instruments.__slots__}
    return {
        name: (value.sum_us, value.buckets) if isinstance(value, Histogram) else value for name, value in values.items()
    }


def sum_of(a: object, b: object) -> Any:
    """What adding must give, said once more."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {key: a.get(key, 0) + b.get(key, 0) for key in {*a, *b}}
    if isinstance(a, tuple) and isinstance(b, tuple):
        return a[0] + b[0], [x + y for x, y in zip(a[1], b[1], strict=True)]
    assert isinstance(a, int) and isinstance(b, int)
    return a + b


@given(instruments(), snapshots)
def test_what_is_packed_comes_out_again(counted: Instruments, snapshot: Snapshot) -> None:
    counters, now = unpack_counts(pack_counts(counted, snapshot))
    assert state_of(counters) == state_of(counted)
    assert now == snapshot


@given(st.lists(st.tuples(instruments(), snapshots), min_size=2, max_size=2))
def test_several_shards_make_their_sum(parts: list[tuple[Instruments, Snapshot]]) -> None:
    (first, now_first), (second, now_second) = parts
    counters, now = merge(unpack_counts(pack_counts(*part)) for part in parts)
    both = state_of(first), state_of(second)
    assert state_of(counters) == {name: sum_of(both[0][name], both[1][name]) for name in both[0]}
    assert now.connections == now_first.connections + now_second.connections
    assert now.streams == sum_of(now_first.streams, now_second.streams)
    assert now.tenant_streams == sum_of(now_first.tenant_streams, now_second.tenant_streams)
    assert now.is_ready == (now_first.is_ready or now_second.is_ready)
    assert now.version in (now_first.version, now_second.version)
    for name, pool in now.pools.items():
        of_both = [one.pools[name] for one in (now_first, now_second) if name in one.pools]
        assert pool.up == any(one.up for one in of_both)
        assert (pool.idle, pool.busy) == (sum(one.idle for one in of_both), sum(one.busy for one in of_both))
        assert pool.in_flight == sum(one.in_flight for one in of_both)
        assert pool.reserve == sum(one.reserve for one in of_both)
        assert pool.breaker == max(one.breaker for one in of_both)
        for told in ("kv_used", "waiting"):
            known = [getattr(one, told) for one in of_both if getattr(one, told) is not None]
            assert getattr(pool, told) == (known[-1] if known else None)


def test_nobody_counts_as_nothing() -> None:
    counters, now = merge([])
    assert state_of(counters) == state_of(Instruments())
    assert now == Snapshot()


def test_a_successor_counts_on() -> None:
    former, successor = Instruments(), Instruments()
    former.events_total, former.requests["models", 200] = 40, 3
    former.ttft.observe_us(1000)
    successor.events_total = 2
    assert restore_counters(successor, pack_counts(former, Snapshot()))
    assert (successor.events_total, successor.requests["models", 200], successor.ttft.count) == (42, 3, 1)
    assert not restore_counters(successor, None) and not restore_counters(successor, b"torn")
    assert successor.events_total == 42


def test_reasons_of_unreadiness_are_told_once_each_and_only_if_nobody_is_ready() -> None:
    one = (Instruments(), Snapshot(problem="e: refused"))
    assert merge([one, one])[1].problem == "e: refused"
    assert merge([one, (Instruments(), Snapshot(problem="draining"))])[1].problem == "e: refused; draining"
    assert merge([one, (Instruments(), Snapshot(is_ready=True))])[1].problem == ""


# Bounds.


def test_the_largest_row_fits() -> None:
    counted = Instruments()
    for route in sorted(ROUTES):
        for status in range(100, 600):
            counted.count_request(route, status)
    assert sum(counted.requests.values()) == 500 * len(ROUTES), (
        "what finds no series of its own is counted all the same"
    )
    assert len(counted.requests) <= MAX_REQUEST_SERIES + len(ROUTES)
    for name in Instruments.__slots__:
        if isinstance(getattr(counted, name), int):
            setattr(counted, name, 1 << 60)
        elif isinstance(getattr(counted, name), Histogram):
            getattr(counted, name).buckets = [1 << 60] * 40
    busy = Snapshot(problem="x" * 5000, tenant_streams={f"{n:064}": 1_000_000 for n in range(5000)})
    payload = pack_counts(counted, busy)
    assert len(payload) <= MAX_COUNTS_BYTES
    counters, now = unpack_counts(payload)
    assert state_of(counters) == state_of(counted)
    assert len(now.tenant_streams) == MAX_TENANTS_TOLD + 1
    assert sum(now.tenant_streams.values()) == 5000 * 1_000_000
    assert now.tenant_streams[OTHERS] == (5000 - MAX_TENANTS_TOLD) * 1_000_000
    many = replace(busy, pools={f"{n:0100}": PoolSnapshot() for n in range(2000)})
    payload = pack_counts(counted, many)
    assert len(payload) <= MAX_COUNTS_BYTES
    assert state_of(unpack_counts(payload)[0]) == state_of(counted), "gauges give way, never counters"


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_strange_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(BadCounts):
        unpack_counts(payload)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("n", "events_total"), -1),
        (("n", "events_total"), "9"),
        (("n", "events_total"), 1.5),
        (("n", "events_total"), 1 << 80),
        (("h", "ttft"), [1, 2]),
        (("h", "ttft"), []),
        (("requests",), [["models", 200]]),
        (("requests",), [["models", float("inf"), 1]]),
        (("streams_ended",), 7),
        (("now", "pools"), {"e": [1, 2]}),
        (("now", "loads"), {"e": [1, 2]}),
        (("now", "loads"), {"e": [1, 0, -0.5, None, ""]}),
        (("now", "loads"), {"e": [1, 0, "much", None, ""]}),
        (("now", "loads"), {"e": [1, 0, float("nan"), None, ""]}),
        (("now", "loads"), {"e": [1, 0, True, None, ""]}),
        (("now", "loads"), {"e": [None, 0, None, None, ""]}),
        (("now",), None),
    ],
)
def test_a_row_that_is_wrong_in_one_place_is_refused_as_a_whole(path: tuple[str, ...], value: object) -> None:
    told = json.loads(pack_counts(Instruments(), Snapshot(pools={"e": PoolSnapshot()})))
    place = told
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(BadCounts):
        unpack_counts(json.dumps(told).encode())


def test_what_another_version_counts_is_left_out_and_what_it_lacks_is_nothing() -> None:
    told = json.loads(pack_counts(Instruments(), Snapshot()))
    told["n"]["from_the_future_total"] = 5
    told["streams_ended"]["a_new_reason"] = told["readers_ended"]["a_new_reason"] = 5
    del told["n"]["events_total"], told["h"]["ttft"]
    counters, _ = unpack_counts(json.dumps(told).encode())
    assert state_of(counters) == state_of(Instruments())


def test_rows_of_a_version_without_loads_are_read_and_ours_are_read_there() -> None:
    pool = PoolSnapshot(up=True, idle=1, busy=2, connecting=3, in_flight=4, breaker=2, kv_used=0.5, problem="5 faults")
    told = json.loads(pack_counts(Instruments(), Snapshot(pools={"e": pool})))
    assert told["now"]["pools"] == {"e": [1, 1, 2, 3]}, "four numbers and no more"
    del told["now"]["loads"]
    _, now = unpack_counts(json.dumps(told).encode())
    assert now.pools == {"e": PoolSnapshot(up=True, idle=1, busy=2, connecting=3)}


def test_what_a_later_version_adds_to_a_load_is_left_out() -> None:
    told = json.loads(pack_counts(Instruments(), Snapshot(pools={"e": PoolSnapshot(in_flight=4)})))
    told["now"]["loads"]["e"].append("from the future")
    assert unpack_counts(json.dumps(told).encode())[1].pools["e"].in_flight == 4


def test_the_problem_of_the_worst_breaker_is_told() -> None:
    well, ill = PoolSnapshot(problem="slow"), PoolSnapshot(breaker=2, problem="5 faults")
    for pair in ((well, ill), (ill, well)):
        parts = [(Instruments(), Snapshot(pools={"e": pool})) for pool in pair]
        assert merge(parts)[1].pools["e"].problem == "5 faults"


def test_limits_are_added_up_where_shards_have_learned_any() -> None:
    for limits, whole in (((None, None), None), ((3.0, None), 3.0), ((None, 2.0), 2.0), ((3.0, 2.0), 5.0)):
        parts = [(Instruments(), Snapshot(pools={"e": PoolSnapshot(limit=limit)}, queued=2)) for limit in limits]
        _, now = merge(parts)
        assert (now.pools["e"].limit, now.queued) == (whole, 4)


def test_adding_leaves_the_other_alone() -> None:
    one, other = Instruments(), Instruments()
    other.ttft.observe_us(5)
    add_counters(one, other)
    one.ttft.observe_us(5)
    assert (one.ttft.count, other.ttft.count) == (2, 1)
