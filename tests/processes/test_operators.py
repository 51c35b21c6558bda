"""The admin process' source over a fake estate: real tables that this test writes, and shards that play scripts."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from tests.admin.shard import EVENTS, LAST, FakeShard, chunk, event, refusal, response
from tests.streams.world import Entry, World, data_block

from longwire.admin import operator
from longwire.keeper.shards import HUNG_AFTER_S, Beat, ShardFacts, ShardsTable, make_counts
from longwire.observe.counts import pack_counts
from longwire.observe.instruments import Instruments
from longwire.observe.snapshot import Snapshot
from longwire.processes.operators import Clocks, EstateSource, serve_admin
from longwire.streams.tables import Table
from longwire.words.clock import VirtualClock
from longwire.words.errors import Gone, NotFound
from longwire.words.ids import format_stream_id, make_stream_id
from longwire.words.settings import Settings, TenantSettings

ONE = Entry("hot", data_block(b"one"))
SETTINGS = Settings(tenants=[TenantSettings(name="acme", max_streams=7)])
READY = Snapshot(version="1.2", is_ready=True, connections=3, streams={"live": 2})


@dataclass
class FakeEstate:
    """Two slots."""

    streams: list[Table]
    clock: VirtualClock = field(default_factory=VirtualClock)
    inboxes: list[FakeShard] = field(default_factory=lambda: [FakeShard(), FakeShard()])

    def open_inboxes(self) -> list[FakeShard]:
        return self.inboxes

    def __post_init__(self) -> None:
        self.shards = ShardsTable.make(2, self.clock.now)
        self.counts = make_counts(2)

    def source(self) -> EstateSource:
        return EstateSource(self, SETTINGS, clocks=Clocks(self.clock.now, self.clock.wall))

    def serve(self, slot: int, snapshot: Snapshot = READY, **counted: int) -> None:
        """Let the slot's shard be there, and say so."""
        counters = Instruments()
        for name, count in counted.items():
            setattr(counters, name, count)
        self.shards.tell(slot, ShardFacts(pid=100 + slot, incarnation=1, state="serving", started=5.0, restarts=slot))
        self.shards.beat(slot, self.clock.now(), Beat(2, 3, 1500))
        self.counts.write(slot, pack_counts(counters, snapshot))


@asynccontextmanager
async def estate_over(*worlds: World) -> AsyncIterator[FakeEstate]:
    tables = [world.table for world in worlds]
    estate = FakeEstate([*tables, *(Table("streams", 4, 700) for _ in range(2 - len(tables)))])
    yield estate
    for shard in estate.inboxes:
        await shard.close()
    estate.shards.close()
    estate.counts.close()


# Streams by their rows.


async def test_the_list_has_every_slots_streams() -> None:
    with World() as one, World() as two:
        live, ended = one.start(ONE, ONE), two.start(ONE)
        opening = two.open("acme")
        two.registry.store_row(opening)
        one.registry.store_row(live.stream)
        live.stream.settle()  # what goes the short way is in the row when a block is full, or somebody looks
        ended.end()
        async with estate_over(one, two) as estate:
            shown = {state["id"]: state for state in estate.source().list_streams()}
            assert set(shown) == {stream.public_id for stream in (live.stream, ended.stream, opening)}
            assert shown[live.stream.public_id]["status"] == "live" and shown[live.stream.public_id]["events"] == 2
            assert shown[ended.stream.public_id]["close_reason"] == "completed"
            assert shown[opening.public_id]["status"] == "opening"


async def test_rows_that_make_no_sense_are_left_out() -> None:
    with World() as world:
        stream = world.open()
        world.registry.store_row(stream)
        good = world.table.read(stream.row)
        assert good is not None
        async with estate_over(world) as estate:
            for strange in (b"\0", good[:-1], good[:29] + b"\xff" + good[30:], good[:-9] + b"[" * 9, b"x" * 300):
                world.table.write(stream.row, strange)
                assert list(estate.source().list_streams()) == []
            world.table.write(stream.row, good)


# Streams by their shards.


async def test_a_shard_is_asked_and_its_row_shown_where_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator.Operator.show, "__defaults__", (0.01,))
    with World() as world:
        stream = world.start(ONE).stream
        world.registry.store_row(stream)
        async with estate_over(world) as estate:
            source = estate.source()
            estate.inboxes[0].scripts.append([response(200, {"id": stream.public_id, "readers": 3})])
            assert await source.show_stream(stream.public_id) == {"id": stream.public_id, "readers": 3}
            estate.inboxes[0].hang()
            shown = await source.show_stream(stream.public_id)
            assert shown is not None and (shown["status"], shown["readers"]) == ("live", None)
            assert await source.show_stream(format_stream_id(make_stream_id(0))) is None


async def test_the_slot_in_the_id_is_asked() -> None:
    async with estate_over() as estate:
        source, id = estate.source(), format_stream_id(make_stream_id(1))
        estate.inboxes[1].scripts.extend(
            [
                [response(200, {"close_reason": "cancelled"})],
                [EVENTS, chunk(event(0)), LAST],
                [refusal(410, "stream_evicted")],
            ]
        )
        assert await source.cancel_stream(id) == {"close_reason": "cancelled"}
        blocks = await source.tail(id, None)
        assert blocks is not None and [block async for block in blocks] == [event(0)]
        with pytest.raises(Gone):
            await source.tail(id, None)
        assert len(estate.inboxes[1].requests) == 3 and not estate.inboxes[0].requests


@pytest.mark.parametrize("id", ["", "lw_x", "lw_" + "a" * 34, format_stream_id(make_stream_id(2))])
async def test_an_id_of_no_slot_is_nobodys(id: str) -> None:
    async with estate_over() as estate:
        source = estate.source()
        assert await source.show_stream(id) is None and await source.cancel_stream(id) is None
        with pytest.raises(NotFound):
            await source.tail(id, None)


# All of it.


async def test_shards_are_added_up() -> None:
    async with estate_over() as estate:
        estate.serve(0, events_total=10)
        estate.serve(1, events_total=5)
        counters, now = estate.source().look()
        assert counters.events_total == 15
        assert (now.connections, now.streams, now.is_ready) == (6, {"live": 4}, True)
        assert now.tenant_streams == {"acme": 0}
        assert [(shard.state, shard.restarts) for shard in now.shards] == [("serving", 0), ("serving", 1)]


async def test_what_is_counted_elsewhere_is_added_by_whoever_knows() -> None:
    async with estate_over() as estate:
        source = EstateSource(estate, SETTINGS, lambda now: replace(now, tenant_streams={"acme": 4}))
        assert source.overview()["tenants"] == [{"name": "acme", "streams": 4, "limit": 7}]


async def test_a_shard_that_is_gone_leaves_its_counters_and_nothing_else() -> None:
    async with estate_over() as estate:
        estate.serve(0, events_total=10)
        estate.shards.tell(0, ShardFacts(restarts=1))
        counters, now = estate.source().look()
        assert (counters.events_total, now.connections, now.streams) == (10, 0, {})
        assert estate.source().ready() == (False, "no shard serves yet")


async def test_the_gateway_is_ready_if_any_shard_is_and_can_say_so() -> None:
    async with estate_over() as estate:
        source = estate.source()
        assert source.ready() == (False, "no shard serves yet")
        estate.serve(0, replace(READY, is_ready=False, problem="e: refused"))
        assert source.ready() == (False, "e: refused")
        estate.serve(1)
        assert source.ready() == (True, "")
        estate.clock.advance(HUNG_AFTER_S + 1)
        assert source.ready() == (False, "e: refused; hung"), "neither has been heard of"
        estate.shards.beat(1, estate.clock.now(), Beat(0, 0, 0))
        assert source.ready()[0]


async def test_a_strange_row_of_counters_is_passed_over() -> None:
    async with estate_over() as estate:
        estate.serve(0, events_total=10)
        estate.serve(1, events_total=5)
        estate.counts.write(1, b"strange")
        assert estate.source().look().counters.events_total == 10


# Served.


async def test_the_port_answers_whatever_the_shards_do() -> None:
    """With no shard there at all, all that is asked of memory is answered."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with estate_over() as estate:
            estate.serve(0, events_total=10)
            for shard in estate.inboxes:
                shard.is_full = True
            server = await serve_admin(SETTINGS, estate, sock)
            async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
                answers: dict[str, Any] = {
                    path: await client.get(path)
                    for path in ("/healthz", "/readyz", "/v1/shards", "/v1/streams", "/v1/overview", "/metrics")
                }
                gone = await client.delete("/v1/streams/" + format_stream_id(make_stream_id(0)))
            await server.close()
    assert {answer.status_code for answer in answers.values()} == {200}
    assert [shard["index"] for shard in answers["/v1/shards"].json()] == [0, 1]
    assert answers["/v1/streams"].json()["data"] == []
    assert "longwire_events_total 10.0" in answers["/metrics"].text
    assert 'longwire_shards{state="serving"} 1.0' in answers["/metrics"].text
    assert gone.status_code == 503 and "does not answer" in gone.text
    json.dumps(answers["/v1/overview"].json(), allow_nan=False)


def test_unix_times_are_the_monotonic_clocks_and_a_difference() -> None:
    clock = VirtualClock()
    assert Clocks(clock.now, clock.wall).boot_s == clock.wall() - clock.now()
