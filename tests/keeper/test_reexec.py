"""The keeper becomes its own successor, and does not where that would end badly."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from longwire.keeper.reexec import VERSION, Inheritance, MemberState, SlotState

from .keeper_host import World

pytestmark = pytest.mark.e2e

REAL = [sys.executable, "-P", "-m", "longwire.keeper", "info"]


def reload(world: World, slots: int) -> list[int]:
    """One reload; the pids of those that serve after it."""
    os.kill(world.admin["pid"], signal.SIGUSR1)
    pids = [world.expect("serving", settings="new")["pid"] for _ in range(slots)]
    assert world.expect("told", told="reload")["problem"] == ""
    return pids


def program(world: World) -> bytes:
    return Path(f"/proc/{world.pid}/cmdline").read_bytes()


def test_after_a_reload_it_is_of_the_new_code_and_knows_all(world: World) -> None:
    world.plan(shard={"guardians": 1})
    world.serve(2, keeper=REAL)
    pid, before = world.pid, program(world)
    for n in range(3):
        shards = reload(world, 2)
        world.until(lambda n=n: world.log.count("keeper_replaced") == n + 1, "it is replaced")
        assert program(world) != before and b"longwire.keeper" in program(world) and world.pid == pid
        world.admin = world.expect("ready", kind="admin", settings="new")
    world.until(lambda: len(world.family) == 4, "two shards, the spare and the admin are left")
    descriptors = world.descriptors
    os.kill(shards[0], signal.SIGKILL)
    told = world.expect("told", do="serve", owners=[_incarnation(world, shards[0])])
    assert told["ends"] == [str(_incarnation(world, shards[0]))] and told["restarts"] == 4
    world.expect("serving")
    for _ in range(7):
        world.expect("warm", settings="new")
    world.until(lambda: world.descriptors == descriptors, "as many descriptors as before")
    os.kill(world.admin["pid"], signal.SIGKILL)
    world.admin = world.expect("ready", kind="admin")
    os.kill(world.admin["pid"], signal.SIGUSR2)
    for _ in range(2):
        world.expect("told", do="drain")
    assert world.wait() == 0


def _incarnation(world: World, pid: int) -> int:
    return next(int(event["incarnation"]) for event in world.all if event["pid"] == pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_of_it_is_not_lost(world: World, number: signal.Signals) -> None:
    world.serve(keeper=REAL)
    reload(world, 1)
    world.until(lambda: world.logged("reloaded"), "the reload is over and the exec is near")
    world.signal(number)
    assert world.wait() == 0


def test_deaths_that_nobody_was_told_of_are_seen(world: World) -> None:
    """The old spare's and the admin's fall into the exec or beside it; the shard's right after it."""
    world.serve(keeper=REAL)
    (shard,) = reload(world, 1)
    os.kill(shard, signal.SIGKILL)
    world.expect("serving", settings="new")
    assert world.drain() == 0


@pytest.mark.parametrize("fate", ["die", "exit"])
def test_new_code_that_fails_its_trial_is_not_taken(world: World, fate: str) -> None:
    world.plan(keeper={"try": fate})
    world.serve(keeper=[*world.fake("keeper")])
    before = program(world)
    (shard,) = reload(world, 1)
    world.until(lambda: world.logged("keeper_stays"), "it is logged")
    assert program(world) == before
    os.kill(shard, signal.SIGKILL)
    world.expect("serving", settings="new")
    assert world.drain() == 0


def test_a_program_that_is_gone_leaves_the_old_one(world: World) -> None:
    world.serve(keeper=["/nonexistent/python", "-m", "longwire.keeper"])
    before = program(world)
    reload(world, 1)
    world.until(lambda: world.logged("keeper_stays"), "it is logged")
    assert program(world) == before
    assert world.drain() == 0


def test_a_program_that_goes_between_trial_and_exec_leaves_the_old_one(world: World, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    world.plan(keeper={"try": {"unlink": str(python)}})
    world.serve(keeper=[str(python), *world.fake("keeper")[1:]])
    before, descriptors = program(world), world.descriptors
    (shard,) = reload(world, 1)
    world.until(lambda: world.logged("keeper_stays"), "it is logged")
    assert program(world) == before and not python.exists()
    os.kill(shard, signal.SIGKILL)
    world.expect("serving", settings="new")
    world.until(lambda: world.descriptors == descriptors, "the new ones have inherited nothing, and nothing leaks")
    assert world.drain() == 0, "signals are heard again"


def test_what_is_handed_over_is_read_as_it_was_written() -> None:
    member = MemberState("shard", 3, 1, 77, 9, "SERVING", 0, 11, 5.5, 6.5, False)
    known = Inheritance(
        VERSION,
        "deed",
        {"shard": ["a"]},
        1,
        9,
        [15],
        {"admin": 2.0},
        [member],
        [SlotState(2, [[1, 12, 1, 0]], 77, True)],
    )
    fd = known.store()
    assert Inheritance.parse(os.pread(fd, 10_000, 0)) == known
    os.close(fd)
    assert list(known.descriptors()) == [9, 11, 12]


@pytest.mark.parametrize("change", [b'"version": 99', b'"versions": 1'])
def test_another_version_s_state_is_refused(change: bytes) -> None:
    fd = Inheritance(VERSION, "deed", {}, 1, 9, [], {}, [], []).store()
    text = os.pread(fd, 10_000, 0).replace(b'"version": 1', change)
    os.close(fd)
    with pytest.raises((ValueError, KeyError)):
        Inheritance.parse(text)
