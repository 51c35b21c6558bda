"""Who gets which connection, and those that are made ahead of need: real sockets on loopback, by a clock that stands still.

The rest of keeping and connecting is in test_pool.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.house import ScriptedEngine, chat, open_house, serving, until

from longwire.engines import connections
from longwire.engines.breaker import BreakerState
from longwire.engines.dialing import ConnectFailed, ConnectTimeout, Place, dial
from longwire.engines.elastic import MAX_OPENING, SAMPLE_S
from longwire.engines.pool import Upstream
from longwire.engines.reserve import REST_S
from longwire.engines.transport import UpstreamConnection
from longwire.words.clock import VirtualClock
from longwire.words.settings import EngineSettings, Settings

COLD: dict[str, Any] = {"warm_floor": 0, "warm_ceiling": 0}


class Scene:
    """An upstream that is up, before an engine that says nothing. While ``gate`` is shut, connecting takes forever."""

    def __init__(self, engine: ScriptedEngine, settings: dict[str, Any]) -> None:
        self.engine = engine
        self.clock = VirtualClock()
        self.upstream = Upstream(EngineSettings(name="e", url=engine.url), Settings(**settings), self.clock)
        self.upstream.is_up = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusals = 0
        """So many of the next attempts fail."""

    async def dial(self, connection: UpstreamConnection, place: Place, settings: Settings) -> None:
        async with asyncio.timeout(settings.connect_timeout_s):
            await self.gate.wait()
        if self.refusals:
            self.refusals -= 1
            raise ConnectFailed("engine e cannot be reached: refused")
        await dial(connection, place, settings)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Idle, busy, connecting."""
        told = self.upstream.statistics()
        return told["idle"], told["busy"], told["connecting"]

    async def settled(self, idle: int, busy: int = 0) -> None:
        """Until so many are there and none is being made, here and at the engine."""
        await until(lambda: self.counts == (idle, busy, 0), f"{idle} idle and {busy} busy; it is {self.counts}")
        await self.engine.wait_for(lambda: self.engine.open_connections == idle + busy)

    async def wait(self) -> asyncio.Task[UpstreamConnection]:
        """Somebody who waits for a connection."""
        task = asyncio.get_running_loop().create_task(self.upstream.wait_connection())
        waiting = len(self.upstream._waiting)
        await until(lambda: len(self.upstream._waiting) > waiting or task.done(), "it waits")
        return task


@asynccontextmanager
async def scene_of(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Scene]:
    engine = ScriptedEngine()
    await engine.start()
    scene = Scene(engine, settings)
    monkeypatch.setattr(connections, "dial", scene.dial)
    try:
        yield scene
        scene.upstream.close()
        await scene.settled(idle=0)
        assert not scene.upstream._waiting
    finally:
        await engine.close()


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


# The reserve.


async def test_the_floor_stands_ready_and_is_made_up_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=3) as scene:
        scene.upstream.top_up()
        assert scene.counts == (0, 0, 3), "those that are being made are seen"
        await scene.settled(idle=3)
        first = scene.upstream.take_idle()
        assert first is not None and first.is_kept and scene.counts == (2, 1, 1)
        await scene.settled(idle=3, busy=1)


async def test_the_longest_warm_goes_first_and_what_was_used_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that accepts late has accepted the oldest; one that has answered over a connection has accepted that."""
    async with scene_of(monkeypatch, warm_floor=2) as scene:
        scene.upstream.top_up()
        await scene.settled(idle=2)
        oldest, next_one = scene.upstream._warm
        assert scene.upstream.take_idle() is oldest
        await scene.settled(idle=2, busy=1)
        oldest.release(reusable=True)
        assert scene.upstream.take_idle() is oldest and scene.upstream.take_idle() is next_one


def down(upstream: Upstream) -> None:
    upstream.is_up = False


def open_breaker(upstream: Upstream) -> None:
    upstream.breaker.state = BreakerState.OPEN


def half_open_breaker(upstream: Upstream) -> None:
    upstream.breaker.state = BreakerState.HALF_OPEN


@pytest.mark.parametrize(
    "trouble", [down, open_breaker, half_open_breaker, Upstream.retire, Upstream.stop_warming, Upstream.close]
)
async def test_nothing_is_warmed_where_nobody_should_go(
    monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Upstream], None]
) -> None:
    async with scene_of(monkeypatch) as scene:
        trouble(scene.upstream)
        scene.upstream.top_up()
        assert scene.upstream.take_idle() is None
        scene.upstream.sample()
        scene.upstream.purge_nowait()
        assert scene.counts == (0, 0, 0)


@pytest.mark.parametrize("settings", [COLD, {"upstream_keep_alive_s": 0}, {"max_upstream_idle": 0}])
async def test_nothing_is_warmed_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    async with scene_of(monkeypatch, **settings) as scene:
        scene.upstream.top_up()
        assert scene.upstream.take_idle() is None and scene.counts == (0, 0, 0)
        connection = await scene.upstream.wait_connection()
        assert not connection.is_kept and scene.counts == (0, 1, 0)


async def test_it_grows_with_use_and_shrinks_without(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=2, warm_ceiling=4, upstream_keep_alive_s=3600) as scene:
        scene.upstream.top_up()
        await scene.settled(idle=2)
        taken = [scene.upstream.take_idle(), scene.upstream.take_idle(), scene.upstream.take_idle()]
        assert taken[2] is None, "and that has made it grow"
        await scene.settled(idle=4, busy=2)
        for connection in taken[:2]:
            assert connection is not None
            connection.release(reusable=False)
        for _ in range(20):
            scene.clock.advance(SAMPLE_S)
            scene.upstream.sample()
        assert scene.upstream.warming.wanted == 2


async def test_what_grows_old_is_renewed_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=2, upstream_keep_alive_s=4) as scene:
        scene.upstream.top_up()
        await scene.settled(idle=2)
        old = list(scene.upstream._warm)
        scene.clock.advance(2.9)
        scene.upstream.top_up()
        assert scene.counts == (2, 0, 0)
        scene.clock.advance(0.2)
        scene.upstream.top_up()
        await scene.settled(idle=4)
        assert list(scene.upstream._warm)[:2] == old, "they serve until they are too old"
        scene.clock.advance(1)
        scene.upstream.top_up()
        await scene.settled(idle=2)
        assert all(each.is_closed for each in old)
        for _ in range(100):
            scene.clock.advance(0.5)
            scene.upstream.top_up()
            await until(lambda: not scene.upstream.connecting, "they are made")
            young = [each for each in scene.upstream._warm if each.idle_since > scene.clock.now() - 3.5]
            assert len(young) >= 2 and scene.counts[0] <= 4


async def test_a_large_reserve_is_filled_and_renewed_without_waiting_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = 3 * MAX_OPENING
    async with scene_of(monkeypatch, warm_floor=many, warm_ceiling=many) as scene:
        scene.upstream.top_up()
        assert scene.counts == (0, 0, MAX_OPENING), "the engine's backlog may be small"
        await scene.settled(idle=many)
        scene.clock.advance(3.5)
        scene.upstream.top_up()
        assert scene.counts == (many, 0, MAX_OPENING)
        await scene.settled(idle=2 * many)
        scene.clock.advance(1)
        scene.upstream.top_up()
        await scene.settled(idle=many)


async def test_a_renewal_is_not_given_up_for_who_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=2, warm_ceiling=2) as scene:
        scene.upstream.top_up()
        await scene.settled(idle=2)
        scene.clock.advance(3.5)
        scene.gate.clear()
        scene.upstream.top_up()
        await cancel(await scene.wait())
        assert scene.counts == (2, 0, 2)
        scene.gate.set()
        await scene.settled(idle=4)


async def test_a_renewal_keeps_to_what_may_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=2, warm_ceiling=2, max_upstream_idle=2) as scene:
        scene.upstream.top_up()
        await scene.settled(idle=2)
        old = list(scene.upstream._warm)
        scene.clock.advance(3.5)
        scene.upstream.top_up()
        await scene.settled(idle=2)
        assert all(each.is_closed for each in old)


async def test_a_used_one_is_not_thrown_out_for_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=1, warm_ceiling=1, max_upstream_idle=1) as scene:
        used = await scene.upstream.wait_new()
        scene.gate.clear()
        scene.upstream.top_up()
        used.release(reusable=True)
        scene.gate.set()
        await scene.settled(idle=1)
        assert scene.upstream.take_idle() is used
        used.close()


async def test_an_engine_that_closes_them_at_once_is_not_connected_to_in_a_circle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = 0

    async def close_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async with scene_of(monkeypatch, warm_floor=2) as scene, serving(close_at_once) as address:
        scene.upstream.set_url(f"http://{address}")
        scene.upstream.top_up()
        await until(lambda: accepted == 2 and scene.counts == (0, 0, 0), "they are gone")
        for _ in range(100):
            scene.upstream.take_idle()
            scene.upstream.top_up()
        assert scene.counts == (0, 0, 0)
        scene.clock.advance(REST_S)
        scene.upstream.top_up()
        assert scene.upstream.connecting


async def test_what_cannot_be_warmed_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=2, warm_ceiling=2) as scene:
        scene.refusals = 2
        scene.upstream.top_up()
        waiting = await scene.wait()
        connection = await waiting
        assert not connection.is_closed and scene.counts == (0, 1, 0)
        scene.upstream.top_up()
        assert scene.counts == (0, 1, 0), "it rests"


async def test_closing_and_retiring_leave_nothing_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (Upstream.close, Upstream.retire, Upstream.stop_warming):
        async with scene_of(monkeypatch) as scene:
            scene.upstream.top_up()
            end(scene.upstream)
            await scene.settled(idle=0)
        async with scene_of(monkeypatch) as scene:
            scene.gate.clear()
            scene.upstream.top_up()
            await asyncio.sleep(0)
            end(scene.upstream)
            assert scene.counts == (0, 0, 0)
            scene.gate.set()
            await scene.settled(idle=0)


# Who waits.


async def test_who_has_waited_longest_is_served_first_whosever_connection_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        used = await scene.upstream.wait_new()
        scene.gate.clear()
        first, second, third = [await scene.wait() for _ in range(3)]
        assert scene.counts == (0, 1, 3)
        used.release(reusable=True)
        assert await first is used and not second.done()
        assert scene.counts == (0, 1, 2), "one less is needed"
        scene.gate.set()
        done, _ = await asyncio.wait([second, third], return_when=asyncio.FIRST_COMPLETED)
        assert second in done
        await third
        await scene.settled(idle=0, busy=3)


async def test_one_that_is_warmed_serves_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=1, warm_ceiling=1) as scene:
        scene.gate.clear()
        scene.upstream.top_up()
        waiting = await scene.wait()
        assert scene.counts == (0, 0, 2)
        scene.gate.set()
        assert not (await waiting).is_kept, "it has never been idle"
        await scene.settled(idle=1, busy=1)


async def test_one_that_is_wanted_certainly_new_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=1) as scene:
        used = await scene.upstream.wait_new()
        scene.gate.clear()
        waiting = asyncio.get_running_loop().create_task(scene.upstream.wait_new())
        await until(lambda: scene.upstream.connecting == 1, "it is being made")
        used.release(reusable=True)
        assert scene.counts == (1, 0, 1)
        scene.gate.set()
        assert await waiting is not used and not (await waiting).is_kept


async def test_who_leaves_takes_the_connecting_along(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        scene.gate.clear()
        first, second = [await scene.wait() for _ in range(2)]
        await cancel(first)
        assert scene.counts == (0, 0, 1) and not second.done()
        scene.gate.set()
        await second
        await scene.settled(idle=0, busy=1)


async def test_what_is_made_for_who_has_left_joins_a_reserve_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=1, warm_ceiling=1) as scene:
        scene.gate.clear()
        await cancel(await scene.wait())
        assert scene.counts == (0, 0, 1)
        scene.gate.set()
        await scene.settled(idle=1)


@pytest.mark.parametrize("has_next", [True, False])
async def test_who_leaves_after_being_served_passes_it_on(monkeypatch: pytest.MonkeyPatch, has_next: bool) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        used = await scene.upstream.wait_new()
        scene.gate.clear()
        first = await scene.wait()
        second = await scene.wait() if has_next else None
        used.release(reusable=True)
        await cancel(first)  # before it has run again
        if second is not None:
            assert await second is used
            assert scene.counts == (0, 1, 0)
        else:
            assert scene.counts == (1, 0, 0) and scene.upstream.take_idle() is used


async def test_one_that_dies_between_being_given_and_being_taken_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        used = await scene.upstream.wait_new()
        scene.gate.clear()
        waiting = await scene.wait()
        used.release(reusable=True)
        used.close()
        scene.gate.set()
        taken = await waiting
        assert taken is not used and not taken.is_closed
        await scene.settled(idle=0, busy=1)


async def test_a_failure_is_told_to_as_many_as_it_leaves_without(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        scene.gate.clear()
        tasks = [await scene.wait() for _ in range(3)]
        scene.refusals = 2
        scene.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(each, ConnectFailed) for each in results) == 2
        await scene.settled(idle=0, busy=1)


async def test_a_failure_is_told_to_nobody_where_another_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, warm_floor=1, warm_ceiling=1) as scene:
        scene.gate.clear()
        scene.upstream.top_up()
        waiting = await scene.wait()
        scene.refusals = 1
        scene.gate.set()
        assert not (await waiting).is_closed
        await scene.settled(idle=0, busy=1)


async def test_one_that_is_made_just_when_its_asker_leaves_a_closed_pool_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        scene.gate.clear()
        waiting = await scene.wait()
        scene.upstream.close()

        async def dial_and_leave(connection: UpstreamConnection, place: Place, settings: Settings) -> None:
            await dial(connection, place, settings)
            waiting.cancel()

        made = scene.engine.connections
        monkeypatch.setattr(connections, "dial", dial_and_leave)
        scene.upstream._start_dial()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await scene.engine.wait_for(lambda: scene.engine.connections > made)
        await scene.settled(idle=0)


async def test_who_leaves_while_being_told_of_a_failure_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, **COLD) as scene:
        waiting = await scene.wait()
        scene.upstream._waiting.popitem()[0].set_exception(ConnectFailed("refused"))
        await cancel(waiting)
        await scene.settled(idle=0)


async def test_who_has_waited_too_long_does_not_take_the_youngest_along(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene_of(monkeypatch, connect_timeout_s=0.05, **COLD) as scene:
        scene.gate.clear()
        old = await scene.wait()
        own = next(iter(scene.upstream._dials))
        await asyncio.sleep(0.03)
        young = await scene.wait()
        with pytest.raises(ConnectTimeout, match="engine e did not accept a connection in time"):
            await old
        assert own not in scene.upstream._dials and len(scene.upstream._dials) == 1
        scene.gate.set()
        assert not (await young).is_closed


@pytest.mark.parametrize("warm_floor", [0, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_whoever_comes_and_goes(
    monkeypatch: pytest.MonkeyPatch, seed: int, warm_floor: int
) -> None:
    """Waiting, leaving, being served, freeing, dying and failing in any order, at any step of the loop."""
    dice = random.Random(seed)
    async with scene_of(monkeypatch, warm_floor=warm_floor, warm_ceiling=warm_floor * 2) as scene:
        upstream = scene.upstream
        tasks: list[asyncio.Task[UpstreamConnection]] = []
        held: list[UpstreamConnection] = []
        for _ in range(400):
            match dice.randrange(7):
                case 0 | 1:
                    if (found := upstream.take_idle()) is not None:
                        held.append(found)
                    else:
                        tasks.append(asyncio.get_running_loop().create_task(upstream.wait_connection()))
                case 2 if tasks:
                    dice.choice(tasks).cancel()
                case 3 if held:
                    held.pop(dice.randrange(len(held))).release(reusable=dice.random() < 0.8)
                case 4 if held:
                    held.pop(dice.randrange(len(held))).close()
                case 5:
                    scene.refusals = dice.randrange(2)
                    scene.clock.advance(dice.choice((0.0, 0.5, 5.0)))
                    upstream.top_up()
                case _:
                    for _ in range(dice.randrange(4)):
                        await asyncio.sleep(0)
            for task in [each for each in tasks if each.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    held.append(task.result())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        held += [each for each in results if isinstance(each, UpstreamConnection)]
        await until(lambda: not upstream.connecting, "all are made")
        alive = [each for each in held if not each.is_closed]
        assert len(set(held)) == len(held), "nobody has another's"
        assert {each for each in upstream._busy if not each.is_closed} == set(alive), "and each has an owner"
        for connection in alive:
            connection.release(reusable=True)
        await until(lambda: not upstream._busy, "all are free")


# In a house.


async def test_a_house_warms_what_its_probes_have_found_up() -> None:
    async with open_house(warm_floor=2, warm_ceiling=4) as house:
        upstream = house.gateway.directory.upstreams[0]
        upstream.is_up = False
        house.gateway._probe(upstream)
        house.gateway.directory.upstreams[1].was_asked.set()
        await house.gateway.wait_engines(5)
        assert upstream.is_up and upstream.statistics()["idle"] >= 2
        assert house.metric('longwire_engine_reserve_connections{engine="sim"}') == 2
        assert house.metric('longwire_engine_connections{engine="sim",state="idle"}') >= 2
        assert (await house.ask(chat())).is_marked_done
        assert house.metric("longwire_reserve_misses_total") == 0
        house.gateway._stop_probing(upstream)


async def test_a_house_looks_after_what_stands_ready_by_its_clock() -> None:
    async with open_house(warm_floor=1, warm_ceiling=8) as house:
        upstream = house.gateway.directory.upstreams[0]
        house.gateway.start_clockwork()
        house.pass_time(0.6)
        await until(lambda: upstream.statistics()["idle"] == 1, "it is warm")
        (first,) = upstream._warm
        for _ in range(10):
            house.pass_time(0.6)
            await until(lambda: not upstream.connecting, "it is renewed")
        assert first.is_closed and upstream.statistics()["idle"] >= 1
        upstream.warming.reserve = replace(upstream.warming.reserve, size=3)
        house.pass_time(SAMPLE_S * 8)
        assert upstream.warming.reserve.size == 1, "and it shrinks where nobody comes"
        await until(lambda: not upstream.connecting, "all are made")


async def test_a_house_that_drains_warms_nothing_more() -> None:
    async with open_house(warm_floor=2, warm_ceiling=4) as house:
        upstream = house.gateway.directory.upstreams[0]
        await house.gateway.close(0)
        upstream.top_up()
        assert upstream.warming.is_stopped and upstream.statistics()["connecting"] == 0


async def test_one_that_finds_none_is_counted() -> None:
    async with open_house() as house:
        assert (await house.ask(chat())).is_marked_done
        assert (await house.ask(chat())).is_marked_done
        assert house.metric("longwire_reserve_misses_total") == 1
