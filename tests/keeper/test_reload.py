"""Reloads before processes that fail at every point of them."""

from __future__ import annotations

import os
import signal

import pytest

from .keeper_host import Event, World

pytestmark = pytest.mark.e2e


def ask(world: World) -> None:
    """As the admin process does."""
    os.kill(world.admin["pid"], signal.SIGUSR1)


def problem_told(world: World) -> str:
    return str(world.expect("told", told="reload")["problem"])


def expect_moved(world: World, slots: int) -> list[Event]:
    """Every slot is served by a new process, and there is a spare."""
    moved = [world.expect("serving", settings="new") for _ in range(slots)]
    for _ in range(slots + 1):
        world.expect("warm", settings="new")
    return moved


def test_a_reload_moves_every_slot_and_the_old_guardians_go_along(world: World) -> None:
    old = world.serve(2)
    before = world.descriptors
    ask(world)
    new = expect_moved(world, 2)
    assert problem_told(world) == ""
    for shard in old:
        world.expect("told", do="yield", pid=shard["pid"])
    passed = sorted(event["ends"] for event in world.all if event.get("do") == "serve" and event["settings"] == "new")
    assert passed == sorted([str(shard["incarnation"])] for shard in old)
    world.admin = world.expect("ready", kind="admin", settings="new")
    world.until(lambda: world.descriptors == before, "as many descriptors as before")
    os.kill(new[0]["pid"], signal.SIGKILL)
    world.expect("serving", settings="new")
    assert world.drain() == 0
    assert "shard_died" in world.log and world.log.count("shard_died") == 1


def test_reloads_leave_nothing(world: World) -> None:
    """With a matrix of their own each, since tenants may change."""
    world.plan(reader={"read": ["new", "matrix"]})
    world.serve(2)
    before = world.descriptors
    for _ in range(6):
        ask(world)
        expect_moved(world, 2)
        assert problem_told(world) == ""
        world.admin = world.expect("ready", kind="admin", settings="new")
        world.until(lambda: world.descriptors == before, "as many descriptors as before")
    assert world.drain() == 0


def test_a_signal_reloads_too(world: World) -> None:
    world.serve()
    world.signal(signal.SIGHUP)
    expect_moved(world, 1)
    world.until(lambda: world.logged("reloaded"), "it is logged")
    assert world.drain() == 0


@pytest.mark.parametrize(
    ("fates", "problem"),
    [
        ({"reader": {"message": {"problem": "a.toml:3: bad"}}}, "a.toml:3: bad"),
        ({"reader": {"start": "die"}}, "the process that read the configuration has ended"),
        ({"reader": {"start": "nonsense", "read": []}}, "does not fit"),
        ({"reader": {"message": {"drain_s": "soon"}}}, "does not fit"),
        ({"reader": {"start": "hang"}}, "not ready in time"),
        ({"shard new": {"start": "exit"}}, "ended before it was ready"),
        ({"shard new": {"start": ["no port", 1]}}, "no port"),
        ({"shard new": {"start": "hang"}}, "not ready in time"),
    ],
)
def test_what_fails_before_the_move_leaves_all_as_it_was(world: World, fates: dict[str, object], problem: str) -> None:
    shards = world.serve(2, tuned={"reload.READY_S": 1.0})
    before = world.descriptors
    world.plan(**fates)
    ask(world)
    assert problem in problem_told(world)
    assert world.logged("reload_failed")
    world.until(lambda: world.descriptors == before, "as many descriptors as before")
    assert {event["settings"] for event in world.all if event["event"] == "serving"} == {"old"}
    assert not any(event.get("do") == "yield" for event in world.all)
    world.plan()
    for shard in shards:
        os.kill(shard["pid"], signal.SIGKILL)
        world.expect("serving", settings="old")
    ask(world)
    assert problem_told(world) == "", "and the next one can succeed"
    assert world.drain() == 0


def test_a_reader_that_is_not_there(world: World) -> None:
    world.serve(reader=["/nonexistent"])
    ask(world)
    assert "no process could be started" in problem_told(world)
    assert world.drain() == 0


def test_a_gateway_that_does_not_know_how_it_was_configured(world: World) -> None:
    world.serve(reader=[])
    ask(world)
    assert "does not know" in problem_told(world)
    assert world.drain() == 0


def test_a_reload_during_a_reload_is_refused(world: World) -> None:
    world.plan(reader={"start": "hang"})
    world.serve(tuned={"reload.READY_S": 1.0})
    ask(world)
    world.expect("hangs", kind="reader")
    ask(world)
    assert "try again" in problem_told(world)
    assert "in time" in problem_told(world)
    assert world.drain() == 0


def test_one_that_dies_in_adoption_after_the_move_began_is_followed_by_the_next(world: World) -> None:
    (old,) = world.serve()
    new = world.spare["incarnation"] + 2  # after the reader
    world.plan(**{f"shard{new}": {"adopt": "die"}})
    ask(world)
    ends = [world.expect("told", do="serve", settings="new")["ends"] for _ in range(2)]
    assert ends == [[str(old["incarnation"])], [str(old["incarnation"]), str(new)]]
    assert problem_told(world) == ""
    assert world.drain() == 0


def test_where_no_new_process_can_serve_all_goes_back(world: World) -> None:
    old = world.serve(2)
    before = world.descriptors
    world.plan(**{"shard new": {"adopt": ["keys: bad", 2]}})
    ask(world)
    assert problem_told(world) == "keys: bad"
    (back,) = [world.expect("serving", settings="old")]
    moved = next(event for event in world.all if event.get("do") == "serve" and event["pid"] == back["pid"])
    assert str(old[0]["incarnation"]) in moved["ends"], "what had been on its way is taken over"
    assert len([event for event in world.all if event.get("do") == "yield"]) == 1, "the other one never moved"
    world.expect("warm", settings="old")
    world.expect("warm", settings="old")
    world.until(lambda: world.descriptors == before, "as many descriptors as before")
    world.plan()
    ask(world)
    expect_moved(world, 2)
    assert problem_told(world) == ""
    assert world.drain() == 0


def test_a_shard_that_is_killed_during_a_reload(world: World) -> None:
    """While the new ones are not ready the old spare takes its place, and moves later."""
    world.plan(reader={"start": "hang"})
    old = world.serve(2)
    ask(world)
    reader = world.expect("hangs", kind="reader")
    for shard in old:
        os.kill(shard["pid"], signal.SIGKILL)
    for _ in old:
        world.expect("serving", settings="old")
    os.kill(reader["pid"], signal.SIGKILL)
    assert "has ended" in problem_told(world)
    assert world.drain() == 0


def test_a_shard_that_does_not_yield_is_killed(world: World) -> None:
    world.plan(**{"shard old": {"yield": "hang"}})
    (old,) = world.serve(tuned={"members.YIELD_S": 0.05})
    ask(world)
    assert world.expect("told", do="serve", settings="new")["ends"] == [str(old["incarnation"])]
    assert problem_told(world) == ""
    assert world.drain() == 0


def test_an_admin_that_dies_before_its_answer(world: World) -> None:
    world.plan(reader={"start": "hang"})
    world.serve(tuned={"reload.READY_S": 0.5})
    ask(world)
    world.expect("hangs", kind="reader")
    os.kill(world.admin["pid"], signal.SIGKILL)
    world.until(lambda: world.logged("reload_failed"), "it has come to its end")
    world.expect("ready", kind="admin")
    assert world.drain() == 0


def test_a_signal_to_stop_before_the_move_ends_the_reload(world: World) -> None:
    world.plan(reader={"start": "hang"})
    world.serve()
    ask(world)
    world.expect("hangs", kind="reader")
    assert world.drain() == 0
    assert problem_told(world) == "the gateway is stopping"


def test_a_signal_to_stop_during_the_move_waits_for_what_is_on_its_way(world: World) -> None:
    """The shard that yields has left its streams: without a successor they would end without a word."""
    world.plan(**{"shard old": {"yield": "hang"}})
    old = world.serve(2)
    ask(world)
    yielding = world.expect("hangs", at="yield")
    world.signal(signal.SIGTERM)
    assert problem_told(world) == "the gateway is stopping"
    other = next(shard for shard in old if shard["pid"] != yielding["pid"])
    world.expect("told", do="drain", pid=other["pid"])
    os.kill(yielding["pid"], signal.SIGKILL)
    taken = world.expect("told", do="serve", settings="new")
    assert taken["ends"] == [str(yielding["incarnation"])]
    world.expect("told", do="drain", pid=taken["pid"])
    assert world.wait() == 0
