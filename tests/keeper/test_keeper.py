"""The keeper and real processes that die, fail, hang and say strange things when they are told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .keeper_host import World

pytestmark = pytest.mark.e2e

ONCE = {"keeper.START_S": 0.3}


def ends_passed_to(world: World, **facts: object) -> list[str]:
    """Whose guardians the next one that is told to serve gets."""
    return list(world.expect("told", do="serve", **facts)["ends"])


def test_it_starts_everything_announces_once_and_drains(world: World) -> None:
    shards = world.serve(2)
    assert world.out == "announced\n"
    assert [world.slot_of(shard) for shard in shards] == [0, 1]
    assert world.drain() == 0
    for shard in shards:
        drain = world.expect("told", do="drain", pid=shard["pid"])
        assert 0 < drain["drain_s"] <= 5
    world.expect("told", do="stop", kind="admin")
    assert world.out == "announced\nlongwire: stopping\n"
    assert "error" not in world.log and "warning" not in world.log


def test_a_shard_that_dies_is_replaced_by_the_spare_which_gets_its_guardian(world: World) -> None:
    (shard,) = world.serve()
    assert ends_passed_to(world) == []
    for n in range(3):
        os.kill(shard["pid"], signal.SIGKILL)
        told = world.expect("told", do="serve")
        assert told["owners"] == [shard["incarnation"]] and told["ends"] == [str(shard["incarnation"])]
        assert told["restarts"] == n + 1
        successor = world.expect("serving")
        assert successor["incarnation"] != shard["incarnation"]
        shard = successor
        world.expect("warm")
    assert world.log.count("shard_died") == 3
    assert world.drain() == 0


def test_one_that_dies_while_it_adopts_leaves_both_guardians_to_the_next(world: World) -> None:
    world.plan(shard3={"adopt": "die"}, shard4={"adopt": "exit"})
    (shard,) = world.serve()
    ends_passed_to(world)
    os.kill(shard["pid"], signal.SIGKILL)
    assert ends_passed_to(world) == ["1"]
    assert ends_passed_to(world) == ["1", "3"]
    assert ends_passed_to(world) == ["1", "3", "4"]
    world.expect("serving")
    world.expect("warm")
    os.kill(world.expect("warm")["pid"], signal.SIGKILL)
    world.expect("warm")
    assert world.drain() == 0


def test_two_that_die_at_once(world: World) -> None:
    shards = world.serve(2)
    for _ in shards:
        assert ends_passed_to(world) == []
    for shard in shards:
        os.kill(shard["pid"], signal.SIGKILL)
    passed = sorted(ends_passed_to(world) for _ in shards)
    assert passed == sorted([str(shard["incarnation"])] for shard in shards)
    for _ in shards:
        world.expect("serving")
    assert world.drain() == 0


def test_a_guardian_that_was_cloned_anew_is_the_one_that_counts(world: World) -> None:
    world.plan(shard={"guardians": 50})
    (shard,) = world.serve()
    ends_passed_to(world)
    before = world.descriptors
    os.kill(shard["pid"], signal.SIGKILL)
    assert ends_passed_to(world) == ["1"]
    world.expect("serving")
    world.expect("warm")
    world.until(lambda: world.descriptors == before, "no old end is left")
    assert before < 40


def test_descriptors_do_not_leak_and_nobody_is_left_unreaped(world: World) -> None:
    world.plan(shard={"orphan": True})
    (shard,) = world.serve()
    before = world.descriptors
    for _ in range(20):
        os.kill(shard["pid"], signal.SIGKILL)
        shard = world.expect("serving")
        world.expect("warm")
    world.until(lambda: world.descriptors == before, "as many descriptors as before")
    os.kill(world.admin["pid"], signal.SIGKILL)
    for _ in range(20):
        orphan = world.expect("orphan")["orphan"]
        world.until(lambda orphan=orphan: not Path(f"/proc/{orphan}").exists(), "orphans are reaped")
    assert world.drain() == 0


# What fails.


def test_settings_that_no_shard_can_serve_with_end_the_start_at_once(world: World) -> None:
    world.plan(shard={"adopt": ["keys: it is bad", 2]})
    world.start(2)
    assert world.wait() == 2
    assert "longwire: keys: it is bad\n" in world.log and world.log.count("longwire: ") == 1
    assert "announced" not in world.out


@pytest.mark.parametrize("point", ["start", "warm", "adopt"])
@pytest.mark.parametrize("how", ["die", "exit", ["no memory", 1]])
def test_shards_that_never_serve_end_the_start(world: World, point: str, how: object) -> None:
    world.plan(shard={point: how})
    world.start()
    assert world.wait() == 1
    world.take_in_the_rest()
    assert sum(event["event"] == "start" and event["kind"] == "shard" for event in world.all) <= 4
    assert ("longwire: no memory\n" if isinstance(how, list) else "longwire: a shard has ended before") in world.log


def test_a_program_that_is_not_there_ends_the_start(world: World) -> None:
    world.start(shard=["/nonexistent/python"])
    assert world.wait() == 1
    assert "longwire: no process could be started: /nonexistent/python: No such file or directory\n" in world.log


def test_a_first_failure_leaves_no_trace_in_the_exit_code(world: World) -> None:
    world.plan(shard1={"start": ["once", 1]})
    world.serve()
    assert world.drain() == 0


def test_who_fails_later_is_started_again_after_pauses_only(world: World) -> None:
    (shard,) = world.serve()
    world.plan(shard={"start": "exit"})
    os.kill(shard["pid"], signal.SIGKILL)
    world.expect("serving")
    for _ in range(4):
        world.expect("start", kind="shard")
    world.plan()
    world.expect("warm")
    started = [event for event in world.all if event["event"] == "start" and event["kind"] == "shard"]
    assert len(started) < 12, "0.1 s, 0.2, 0.4, ...: not as often as it can"
    assert world.process is not None and world.process.poll() is None
    assert world.drain() == 0


@pytest.mark.parametrize("kind", ["admin", "engines"])
def test_the_others_are_started_again(world: World, kind: str) -> None:
    engines = list(world.fake("engines")) if kind == "engines" else []
    world.start(engines=engines)
    for _ in range(3):
        os.kill(world.expect("ready", kind=kind)["pid"], signal.SIGKILL)
    world.expect("ready", kind=kind)
    world.expect("serving")
    assert world.drain() == 0


def test_what_nobody_understands_does_no_harm(world: World) -> None:
    world.plan(shard={"serve": "nonsense"})
    (shard,) = world.serve()
    world.until(lambda: world.log.count("message_lost") == 2 and world.logged("strange_message"), "all was heard")
    os.kill(shard["pid"], signal.SIGKILL)
    world.expect("serving")
    assert world.drain() == 0


def test_one_that_says_nothing_any_more_costs_nothing(world: World) -> None:
    """Its end of the channel is closed, and it lives: no loop may turn for that."""
    world.plan(shard1={"serve": "deaf"})
    (shard,) = world.serve()
    world.expect("deaf")
    before = cpu_ticks(world.pid)
    os.kill(world.admin["pid"], signal.SIGKILL)
    world.expect("ready", kind="admin")
    assert cpu_ticks(world.pid) - before < 5
    world.signal(signal.SIGTERM)
    assert ends_passed_to(world, pid=world.spare["pid"]) == [str(shard["incarnation"])], "it cannot be told to drain"
    assert world.wait() == 0


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_shard_that_hangs_is_killed_where_that_was_asked_for(world: World) -> None:
    """None of the fakes' loops beats."""
    world.start(hang_kill_s=0.3)
    world.expect("serving")
    world.until(lambda: world.logged("shard_hangs"), "it is missed")
    world.expect("serving")
    assert world.drain() == 0


def test_one_that_never_gets_warm_is_killed(world: World) -> None:
    world.plan(shard3={"start": "hang"})
    world.start(tuned=ONCE)
    world.expect("hangs")
    world.expect("serving")
    world.expect("warm", incarnation=4)
    assert world.drain() == 0


# The end.


def test_a_second_signal_means_now(world: World) -> None:
    world.plan(shard={"drain": "hang"})
    world.serve(2)
    world.signal(signal.SIGTERM)
    for _ in range(2):
        world.expect("hangs", at="drain")
    world.signal(signal.SIGINT)
    assert world.wait() == 130


def test_an_operator_s_drain_is_no_first_signal(world: World) -> None:
    """It is what runs before the SIGTERM of whoever stops a container."""
    world.plan(shard={"drain": "hang"})
    world.serve()
    os.kill(world.admin["pid"], signal.SIGUSR2)
    world.expect("hangs", at="drain")
    world.signal(signal.SIGTERM)
    os.kill(world.admin["pid"], signal.SIGUSR2)
    world.signal(signal.SIGHUP)
    os.kill(world.admin["pid"], signal.SIGUSR1)
    world.expect("told", told="reload", problem="the gateway is stopping")
    assert world.process is not None and world.process.poll() is None
    world.signal(signal.SIGTERM)
    assert world.wait() == 130


def test_what_has_not_drained_by_the_deadline_is_killed(world: World) -> None:
    world.plan(shard={"drain": "hang"})
    world.serve(tuned={"ending.PATIENCE_S": 0.05}, drain_s=0.05)
    assert world.drain() == 0


def test_one_that_dies_while_it_drains_is_replaced_and_its_successor_drains(world: World) -> None:
    world.plan(shard1={"drain": "die"})
    world.serve()
    ends_passed_to(world)
    world.signal(signal.SIGTERM)
    assert ends_passed_to(world) == ["1"]
    world.expect("told", do="drain", incarnation=3)
    assert world.wait() == 0


def test_what_cannot_be_drained_is_given_up(world: World) -> None:
    (shard,) = world.serve()
    world.plan(shard={"adopt": "die"})
    os.kill(world.spare["pid"], signal.SIGKILL)
    world.expect("warm")
    os.kill(shard["pid"], signal.SIGSTOP)
    world.signal(signal.SIGTERM)
    world.until(lambda: "stopping" in world.out, "it drains")
    os.kill(shard["pid"], signal.SIGKILL)
    assert world.wait() == 0


def test_a_signal_before_anything_serves(world: World) -> None:
    world.plan(shard={"start": "hang"})
    world.start(2)
    for _ in range(2):
        world.expect("hangs")
    assert world.drain() == 0
    assert world.out == "longwire: stopping\n"


def test_all_others_end_when_the_keeper_is_killed(world: World) -> None:
    world.serve(2)
    assert world.process is not None
    world.process.kill()
    for _ in range(4):
        world.expect("orphaned")
