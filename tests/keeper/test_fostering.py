"""A keeper that can start no more processes: one that serves is entrusted with another slot, until there are some again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from longwire.keeper.channel import Channel
from longwire.keeper.keeper import Keeper
from longwire.keeper.members import Orders
from longwire.keeper.reexec import VERSION, Inheritance, MemberState, SlotState

from .keeper_host import Event, World, make_deed

QUICK = {"pace.FIRST_PAUSE_S": 0.01, "pace.MAX_PAUSE_S": 0.02}


class Machine:
    """The program of a world's shards, which can be taken away."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.path = folder / "python"
        self.give()

    def give(self) -> None:
        self.path.symlink_to(sys.executable)

    def serve(self, slots: int) -> list[Event]:
        shards = self.world.serve(slots, QUICK, shard=[str(self.path), *self.world.fake("shard")[1:]])
        for _ in shards:
            self.world.expect("told", do="serve")
        return shards

    def take(self) -> None:
        """From now on there is not even a spare."""
        self.path.unlink()
        os.kill(self.world.spare["pid"], signal.SIGKILL)
        self.world.until(lambda: self.world.logged("start_failed"), "it is tried")


@pytest.fixture
def machine(world: World, tmp_path: Path) -> Machine:
    return Machine(world, tmp_path)


def kill(*shards: Event) -> None:
    for shard in shards:
        os.kill(shard["pid"], signal.SIGKILL)


@pytest.mark.e2e
@pytest.mark.parametrize("lost", [0, 1])
def test_one_that_serves_gets_the_slot_and_leaves_both_when_there_are_two_to_follow_it(
    world: World, machine: Machine, lost: int
) -> None:
    world.plan(shard={"adopt": "tell"})
    shards = machine.serve(2)
    machine.take()
    kill(shards[lost])
    foster = shards[1 - lost]
    told = world.expect("told", do="serve", slot=lost)
    assert told["pid"] == foster["pid"] and told["owners"] == [shards[lost]["incarnation"]] and not told["guests"]
    assert told["ends"] == [str(shards[lost]["incarnation"])] and told["restarts"] == 1
    world.expect("serving", pid=foster["pid"])
    machine.give()
    world.expect("told", do="yield", pid=foster["pid"])
    own = world.expect("told", do="serve", owners=[foster["incarnation"]])
    assert own["slot"] == 1 - lost and not own["guests"], "its own slot comes first"
    second = world.expect("told", do="serve", owners=[foster["incarnation"]])
    assert second["slot"] == lost and second["guests"] == [foster["incarnation"]] and second["pid"] != own["pid"]
    reached = world.expect("reached", pid=own["pid"], at="adopt")
    assert world.all.index(reached) < world.all.index(second), "one after the other"
    assert world.drain() == 0


@pytest.mark.e2e
def test_what_kills_whoever_fosters_is_tried_on_two_of_them_and_no_more(world: World, machine: Machine) -> None:
    world.plan(shard={"foster 0": "die"})
    shards = machine.serve(4)
    machine.take()
    kill(shards[0])
    first = world.expect("told", do="serve", slot=0)
    assert first["owners"] == [shards[0]["incarnation"]]
    slot = shards.index(next(shard for shard in shards if shard["pid"] == first["pid"]))
    world.expect("told", do="serve", slot=slot, owners=[first["incarnation"]], guests=[])
    second = world.expect("told", do="serve", slot=0)
    assert second["owners"] == [shards[0]["incarnation"], first["incarnation"]]
    assert second["guests"] == [first["incarnation"]]
    world.until(lambda: world.log.count('"slot_fostered","slot":0') == 2, "it was tried twice")
    world.expect("told", do="serve", owners=[second["incarnation"]], guests=[])
    world.plan()
    machine.give()
    third = world.expect("told", do="serve", slot=0)
    assert third["pid"] not in {shard["pid"] for shard in shards}, "and then on one that has nothing to lose"
    assert third["owners"] == [shards[0]["incarnation"], first["incarnation"], second["incarnation"]]
    assert world.drain() == 0


@pytest.mark.e2e
def test_whoever_serves_two_slots_is_told_to_drain_once(world: World, machine: Machine) -> None:
    shards = machine.serve(2)
    machine.take()
    kill(shards[0])
    world.expect("told", do="serve", slot=0)
    world.expect("serving")
    assert world.drain() == 0
    assert sum(event.get("do") == "drain" for event in world.all) == 1


def test_a_keeper_s_successor_knows_who_fosters_what() -> None:
    keeper = Keeper(make_deed(3), Orders(("a",), ("b",), (), (), 5.0, 0.0), None)
    channels = [Channel.pair() for _ in range(2)]
    guardian, _other = socket.socketpair()
    members = [
        MemberState("shard", 4 + n, 0, 90 + n, os.dup(channels[n][0].fileno()), "SERVING", n, None, 5.5, 6.5, False)
        for n in range(2)
    ]
    slots = [SlotState(0, []), SlotState(0, []), SlotState(3, [[3, os.dup(guardian.fileno()), 1]], 91)]
    known = Inheritance(VERSION, str(keeper.deed), asdict(keeper.orders), 0, 9, [], {}, members, slots)
    known.fill(keeper)
    served = [(slot.member.pid, slot.member.slot) for slot in keeper.slots if slot.member is not None]
    assert served == [(90, 0), (91, 1), (91, 1)]
    assert [slot.index for slot in keeper.slots.served_by(keeper.members[91])] == [1, 2]
    assert keeper.slots[2].is_taken_over and not keeper.slots.all_serve and keeper.slots.are_adopting
    assert Inheritance.of(keeper) == known
    for channel in [member.channel for member in keeper.members.values()] + [end for pair in channels for end in pair]:
        channel.close()
    keeper.slots[2].release()
    guardian.close()
    _other.close()
    keeper.slots.close()
