"""A machine that starts no more processes: whoever serves already takes over what the dead leave, and gives it back later."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.house import hashed

from .luck import Gateway, Stream, check_all, kill, running

pytestmark = pytest.mark.e2e

TOKENS = 3000
"""Half a minute: more than what is done meanwhile takes. Then the stand-in is told to hurry."""


class Interpreter:
    """An environment like this one, whose program can be taken away."""

    def __init__(self, folder: Path) -> None:
        real = Path(sys.executable).parents[1]
        (folder / "bin").mkdir()
        for name in ("lib", "pyvenv.cfg"):
            if (real / name).exists():
                (folder / name).symlink_to(real / name)
        self.path = folder / "bin" / "python"
        self.path.symlink_to(Path(sys.executable).resolve() if not (real / "pyvenv.cfg").exists() else sys.executable)

    @contextmanager
    def missing(self) -> Iterator[None]:
        """No process of it can be started."""
        away = self.path.with_name("away")
        self.path.rename(away)
        try:
            yield
        finally:
            away.rename(self.path)


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    return Interpreter(tmp_path)


async def pids(gateway: Gateway) -> list[int]:
    return [int(shard["pid"] or 0) for shard in await gateway.shards()]


async def all_serve(gateway: Gateway) -> bool:
    return all(shard["state"] == "serving" for shard in await gateway.shards())


async def foster(gateway: Gateway, slot: int) -> int:
    """Have this slot served by the other one's process, which is returned. The interpreter is missing by now."""
    kill(*await gateway.spares())
    await gateway.until(lambda: gateway.events("start_failed"), "no spare can be started")
    others = await pids(gateway)
    kill(others[slot])
    foster = others[1 - slot]

    async def is_fostered() -> bool:
        return await pids(gateway) == [foster, foster] and await all_serve(gateway)

    await gateway.until(is_fostered, "the other shard serves it, too")
    return foster


async def relieved(gateway: Gateway, foster: int) -> None:
    async def is_so() -> bool:
        now = await pids(gateway)
        return foster not in now and len(set(now)) == 2 and await all_serve(gateway)

    await gateway.until(is_so, "each slot has a process of its own again")


async def check_new(gateway: Gateway, seed: int) -> None:
    await check_all(await asyncio.gather(*(gateway.stream(seed + n, 10, 1) for n in range(6))))


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_slot_is_fostered_while_there_is_no_process_for_it_and_given_back_when_there_is(
    interpreter: Interpreter, slot: int
) -> None:
    async with running(2, python=str(interpreter.path)) as gateway:
        by_slot = await gateway.streams_on_all(2, 4, TOKENS)
        streams: list[Stream] = [*by_slot[0], *by_slot[1]]
        sealed = [await gateway.stream(700 + n, 10, 1) for n in range(8)]
        await check_all(sealed)
        with interpreter.missing():
            other = await foster(gateway, slot)
            assert [event["slot"] for event in gateway.events("slot_fostered")] == [slot]
            await check_new(gateway, 800)
            for stream in sealed:
                client = await gateway.connect()
                client.get(f"/v1/streams/{stream.id}", {"accept": "text/event-stream"})
                assert (await client.answer()).text == stream.answer.text, "it is read where it was kept"
        await relieved(gateway, other)
        await check_new(gateway, 900)
        gateway.sim.hurry()
        await check_all(streams)
        assert gateway.upstream_requests == len(streams) + len(sealed) + 12


async def test_whoever_fosters_dies_and_both_slots_go_on(interpreter: Interpreter) -> None:
    async with running(2, python=str(interpreter.path)) as gateway:
        by_slot = await gateway.streams_on_all(2, 4, TOKENS)
        streams = [*by_slot[0], *by_slot[1]]
        with interpreter.missing():
            other = await foster(gateway, 0)
            silent = [await gateway.connect() for _ in range(4)]
            kill(other)
            await gateway.until(lambda: len(gateway.events("shard_died")) == 2, "it is dead")
        await relieved(gateway, other)
        for n, client in enumerate(silent):
            await (await gateway.stream(820 + n, 10, 1, client=client)).check()
        gateway.sim.hurry()
        await check_all(streams)
        assert gateway.upstream_requests == len(streams) + len(silent)


async def test_whoever_fosters_dies_in_mid_adoption_and_no_client_has_two_owners(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """It had fetched the other slot's sockets, silent ones among them, and no row said so yet."""
    points = tmp_path / "points"
    points.mkdir()
    async with running(2, python=str(interpreter.path), env={"LONGWIRE_DIE_AT": f"{points}/"}) as gateway:
        by_slot = await gateway.streams_on_all(2, 4, TOKENS)
        streams = [*by_slot[0], *by_slot[1]]
        silent = [await gateway.connect() for _ in range(12)]

        async def are_in() -> bool:
            return sum(int(shard["connections"]) for shard in await gateway.shards()) >= len(streams) + len(silent)

        await gateway.until(are_in, "all are accepted")
        with interpreter.missing():
            kill(*await gateway.spares())
            await gateway.until(lambda: gateway.events("start_failed"), "no spare can be started")
            victim, other = await pids(gateway)
            (points / "adopting_connection").touch()
            kill(victim)
            await gateway.until(lambda: len(gateway.events("shard_died")) == 3, "both are dead")
        await relieved(gateway, other)
        await check_new(gateway, 800)
        for n, client in enumerate(silent):
            await (await gateway.stream(820 + n, 10, 1, client=client)).check()
            await (await gateway.stream(840 + n, 10, 1, client=client)).check()
        gateway.sim.hurry()
        await check_all(streams)
        assert gateway.upstream_requests == len(streams) + 2 * len(silent) + 6


async def test_nothing_is_read_from_disk_for_a_slot_that_is_fostered(interpreter: Interpreter, tmp_path: Path) -> None:
    """A keys file that is being written is bad for a moment: a shard that serves lives through that."""
    keys, good = tmp_path / "keys", f"one {hashed('sk-one')}\n"
    keys.write_text(good)
    config = '[[tenants]]\nname = "one"\n'
    headers = {"authorization": "Bearer sk-one"}
    async with running(2, python=str(interpreter.path), config=config, path=tmp_path, keys_file=keys) as gateway:
        streams = [await gateway.stream(seed, TOKENS, headers=headers) for seed in range(1, 9)]
        with interpreter.missing():
            keys.write_text("one half a line")
            await gateway.until(lambda: gateway.events("keys_file"), "it is bad")
            await foster(gateway, 0)
            await (await gateway.stream(800, 10, 1, headers=headers)).check()
            gateway.sim.hurry()
            await check_all(streams)
            keys.write_text(good)


async def test_three_slots_in_one_process(interpreter: Interpreter) -> None:
    async with running(3, python=str(interpreter.path)) as gateway:
        by_slot = await gateway.streams_on_all(3, 3, TOKENS)
        streams = [stream for some in by_slot.values() for stream in some]
        with interpreter.missing():
            kill(*await gateway.spares())
            await gateway.until(lambda: gateway.events("start_failed"), "no spare can be started")
            *victims, last = await pids(gateway)
            kill(*victims)

            async def is_fostered() -> bool:
                return await pids(gateway) == [last] * 3 and await all_serve(gateway)

            await gateway.until(is_fostered, "one serves all")
            await check_new(gateway, 800)
            kill(last)
            await gateway.until(lambda: len(gateway.events("shard_died")) >= 3, "it is dead")
        await gateway.settled(last)
        assert len(set(await pids(gateway))) == 3
        gateway.sim.hurry()
        await check_all(streams)


async def test_a_drain_ends_both_slots_of_one_process(interpreter: Interpreter) -> None:
    async with running(2, python=str(interpreter.path)) as gateway:
        by_slot = await gateway.streams_on_all(2, 2, TOKENS)
        with interpreter.missing():
            await foster(gateway, 1)
            gateway.process.terminate()
            gateway.sim.hurry()
            await check_all([*by_slot[0], *by_slot[1]])
            assert await asyncio.wait_for(gateway.process.wait(), 10) == 0
