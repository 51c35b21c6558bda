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
from longwire.keeper.filling import MAX_LOST_FOSTERS
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

    def serve(self, slots: int, tuned: dict[str, float] | None = None) -> list[Event]:
        shards = self.world.serve(slots, QUICK | (tuned or {}), shard=[str(self.path), *self.world.fake("shard")[1:]])
        for _ in shards:
            self.world.expect("told", do="serve")
        return shards

    def take(self) -> None:
        """From now on there is not even a spare."""
        self.path.unlink()
        os.kill(self.world.spare["pid"], signal.SIGKILL)
        self.world.until(lambda: self.world.logged("start_failed"), "it is tried")

    def have_fostered(self) -> list[Event]:
        """Two shards, of which the second one serves both slots now."""
        shards = self.serve(2)
        self.take()
        kill(shards[0])
        self.world.expect("told", do="serve", slot=0)
        self.world.expect("serving", pid=shards[1]["pid"])
        return shards


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
    assert told["pid"] == foster["pid"] and told["owners"] == [shards[lost]["incarnation"]] and not told["mixed"]
    assert told["ends"] == [str(shards[lost]["incarnation"])] and told["restarts"] == 1
    world.expect("serving", pid=foster["pid"])
    machine.give()
    world.expect("told", do="yield", pid=foster["pid"])
    own = world.expect("told", do="serve", owners=[foster["incarnation"]])
    assert own["slot"] == 1 - lost and not own["mixed"] and own["shared"], "its own slot comes first"
    second = world.expect("told", do="serve", owners=[foster["incarnation"]])
    assert second["slot"] == lost and second["mixed"] == [foster["incarnation"]] and second["pid"] != own["pid"]
    reached = world.expect("reached", pid=own["pid"], at="adopt")
    assert world.all.index(reached) < world.all.index(second), "one after the other"
    assert world.drain() == 0


@pytest.mark.e2e
def test_what_kills_whoever_fosters_is_tried_on_three_of_them_and_no_more(world: World, machine: Machine) -> None:
    world.plan(shard={"foster 0": "die"})
    shards = machine.serve(5)
    by_pid = {shard["pid"]: slot for slot, shard in enumerate(shards)}
    machine.take()
    kill(shards[0])
    owners = [shards[0]["incarnation"]]
    for _ in range(MAX_LOST_FOSTERS):
        told = world.expect("told", do="serve", slot=0)
        assert told["owners"] == owners and told["mixed"] == owners[1:], "of a guest only what rows name is fetched"
        own = world.expect("told", do="serve", slot=by_pid[told["pid"]])
        assert own["owners"] == own["mixed"] == [told["incarnation"]], (
            "it had clients of the other slot, which no row names"
        )
        owners.append(told["incarnation"])
    world.plan()
    machine.give()
    last = world.expect("told", do="serve", slot=0)
    assert last["pid"] not in by_pid, "and then on one that has nothing to lose"
    assert last["owners"] == owners
    assert world.drain() == 0


@pytest.mark.e2e
def test_one_that_has_no_room_is_not_asked_for_ever_and_serves_on(world: World, machine: Machine) -> None:
    world.plan(shard={"foster 0": "decline"})
    shards = machine.serve(2)
    machine.take()
    kill(shards[0])
    for _ in range(MAX_LOST_FOSTERS):
        world.expect("told", do="serve", slot=0, pid=shards[1]["pid"])
    machine.give()
    told = world.expect("told", do="serve", slot=0)
    assert told["pid"] != shards[1]["pid"] and told["owners"] == [shards[0]["incarnation"]] and not told["mixed"]
    assert world.log.count("foster_unable") == MAX_LOST_FOSTERS and world.log.count('"event":"shard_died"') == 2
    assert world.drain() == 0


@pytest.mark.e2e
def test_one_that_never_says_that_it_serves_is_killed(world: World, machine: Machine) -> None:
    world.plan(shard={"foster 1": "hang"})
    shards = machine.serve(2, {"keeper.FOSTER_S": 0.3})
    machine.take()
    kill(shards[1])
    world.expect("hangs", at="foster 1")
    world.expect("told", do="serve", slot=1)
    machine.give()
    world.until(lambda: world.logged("foster_hangs"), "it is noticed")
    for slot in range(2):
        assert shards[0]["incarnation"] in world.expect("told", do="serve", slot=slot)["owners"]
    assert world.drain() == 0


@pytest.mark.e2e
def test_a_slot_of_which_no_guardian_is_left_is_fostered_too(world: World, machine: Machine) -> None:
    """Its streams can be read and end truthfully, and its inbox is emptied."""
    world.plan(shard={"guardians": 0})
    shards = machine.serve(2)
    machine.take()
    kill(shards[0])
    told = world.expect("told", do="serve", slot=0)
    assert told["pid"] == shards[1]["pid"] and told["owners"] == []
    assert world.drain() == 0


@pytest.mark.e2e
def test_a_reload_finds_and_leaves_slots_that_are_fostered(world: World, machine: Machine) -> None:
    shards = machine.have_fostered()
    os.kill(world.admin["pid"], signal.SIGUSR1)
    assert "could" in world.expect("told", told="reload")["problem"], (
        "there is no process for the new configuration either"
    )
    machine.give()
    world.expect("told", do="yield", pid=shards[1]["pid"])
    assert {world.expect("told", do="serve")["slot"] for _ in range(2)} == {0, 1}
    assert world.drain() == 0


@pytest.mark.e2e
def test_whoever_serves_two_slots_is_told_to_drain_once(world: World, machine: Machine) -> None:
    machine.have_fostered()
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
    slots = [SlotState(0, []), SlotState(0, []), SlotState(3, [[3, os.dup(guardian.fileno()), 1, 0]], 91, True)]
    known = Inheritance(VERSION, str(keeper.deed), asdict(keeper.orders), 0, 9, [], {}, members, slots)
    known.fill(keeper)
    served = [(slot.member.pid, slot.member.slot) for slot in keeper.slots if slot.member is not None]
    assert served == [(90, 0), (91, 1), (91, 1)]
    assert [slot.index for slot in keeper.slots.served_by(keeper.members[91])] == [1, 2]
    assert keeper.slots[2].is_being_adopted and not keeper.slots.all_serve and keeper.slots.are_adopting
    assert Inheritance.of(keeper) == known
    for channel in [member.channel for member in keeper.members.values()] + [end for pair in channels for end in pair]:
        channel.close()
    keeper.slots[2].release()
    guardian.close()
    _other.close()
    keeper.slots.close()
