"""A real keeper in a process of its own, before children that do what a plan says.

What lives here: the program that runs the keeper, and the test's side of it. What must not: expectations.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from longwire.keeper.deed import Deed, SlotDeed, store_text
from longwire.keeper.keeper import Keeper
from longwire.keeper.members import Orders
from longwire.keeper.shards import ShardsTable
from longwire.observe.jsonlog import configure_logging

SRC = Path(__file__).parents[2] / "src"
CHILD = Path(__file__).parent / "fake_child.py"
TIMEOUT_S = 20.0
"""For what should take milliseconds; a test that needs it has failed."""

Event = dict[str, Any]


# The program.


def child(kind: str, plan: str, events: str) -> tuple[str, ...]:
    """The command of a fake."""
    return (sys.executable, "-I", "-S", str(CHILD), kind, plan, events)


def make_deed(slots: int) -> Deed:
    """Memory of which only the shards table is real."""

    def memory() -> int:
        return store_text("fake", b"old")

    table = ShardsTable.make(slots)
    return Deed(
        memory(),
        memory(),
        memory(),
        memory(),
        os.dup(table.fd),
        memory(),
        (SlotDeed(*(memory() for _ in range(5))),) * slots,
    )


def main(plan: str, events: str, told: str) -> int:
    options = json.loads(told)
    configure_logging("info")
    for name, value in options["tuned"].items():
        module, _, attribute = name.partition(".")
        setattr(import_module(f"longwire.keeper.{module}"), attribute, value)
    kinds = {kind: child(kind, plan, events) for kind in ("shard", "admin", "reader")}
    commands: dict[str, Any] = kinds | {"engines": (), "drain_s": 5.0, "hang_kill_s": 0.0}
    commands |= {name: tuple(it) if isinstance(it, list) else it for name, it in options["orders"].items()}
    keeper = Keeper(make_deed(options["slots"]), Orders(**commands), lambda: print("announced", flush=True))
    assert "0 processes" in repr(keeper)
    return keeper.run()


# The test's side.


def readable(fds: list[int], timeout_s: float) -> list[int]:
    """Those of these descriptors that can be read from now; waits for the first."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1000)]


class World:
    """A keeper and what its children have told. ``plan`` may be changed at any time: it is read at each start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"longwire-test-{os.getpid()}-{id(self)}"
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._events.bind("\0" + self.name)
        self._events.settimeout(TIMEOUT_S)
        self._told: list[Event] = []
        self.all: list[Event] = []
        self.plan()
        self.process: subprocess.Popen[bytes] | None = None
        self.spare: Event = {}
        self.admin: Event = {}

    def plan(self, **fates: object) -> None:
        """By kind, by kind and incarnation (``shard3``), or by kind and settings (``shard new``)."""
        fresh = self.folder / "plan.new"
        fresh.write_text(json.dumps(fates))
        fresh.replace(self.folder / "plan")

    def start(self, slots: int = 1, tuned: dict[str, float] | None = None, **orders: object) -> None:
        options = json.dumps({"slots": slots, "tuned": {"keeper.TICK_S": 0.02} | (tuned or {}), "orders": orders})
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        with (self.folder / "log").open("wb") as log, (self.folder / "out").open("wb") as out:
            command = [sys.executable, "-P", __file__, str(self.folder / "plan"), self.name, options]
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=environment)

    def serve(self, slots: int = 1, tuned: dict[str, float] | None = None, **orders: object) -> list[Event]:
        """Start, and wait until every slot is served and the spare is there; the shards that serve."""
        self.start(slots, tuned, **orders)
        shards = [self.expect("serving") for _ in range(slots)]
        warm = [self.expect("warm") for _ in range(slots + 1)]
        serving = {shard["pid"] for shard in shards}
        (self.spare,) = (each for each in warm if each["pid"] not in serving)
        self.admin = self.expect("ready", kind="admin")
        return sorted(shards, key=lambda shard: self.slot_of(shard))

    def fake(self, kind: str) -> tuple[str, ...]:
        """The command of a fake of this kind."""
        return child(kind, str(self.folder / "plan"), self.name)

    def slot_of(self, shard: Event) -> int:
        (told,) = [e for e in self.all if e["event"] == "told" and e["pid"] == shard["pid"] and e.get("do") == "serve"]
        return int(told["slot"])

    def expect(self, event: str, **facts: object) -> Event:
        """The first event like this that was not expected yet."""
        wanted = {"event": event, **facts}
        while True:
            for told in self._told:
                if wanted.items() <= told.items():
                    self._told.remove(told)
                    return told
            try:
                self._take()
            except TimeoutError:
                raise AssertionError(f"{wanted} never came; left: {self._told}; log: {self.log}") from None

    def _take(self) -> None:
        told = json.loads(self._events.recv(1 << 16))
        self._told.append(told)
        self.all.append(told)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """For what nobody tells."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"this never came true: {what}; log: {self.log}"
            if readable([self._events.fileno()], 0.002):
                self._take()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    def logged(self, event: str) -> bool:
        return f'"event":"{event}"' in self.log

    @property
    def family(self) -> list[int]:
        """Those who have told something and have not been reaped."""
        return [pid for pid in {event["pid"] for event in self.all} if Path(f"/proc/{pid}").exists()]

    @property
    def descriptors(self) -> int:
        """Of the keeper while it waits: in the middle of a step it has some more or some less."""
        while True:
            was_waiting = self._is_waiting
            count = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
            if was_waiting and self._is_waiting:
                return count
            os.sched_yield()

    @property
    def _is_waiting(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code; every child has ended by then."""
        assert self.process is not None
        pidfd = os.pidfd_open(self.pid)
        while pidfd not in (ready := readable([self._events.fileno(), pidfd], TIMEOUT_S)):
            assert ready, f"it does not end: {self.log}"
            self._take()  # the kernel queues ten at most, and whoever tells an eleventh waits
        os.close(pidfd)
        code = self.process.wait(TIMEOUT_S)
        for pid in {event["pid"] for event in self.all}:
            assert not Path(f"/proc/{pid}/cwd").exists(), "a process was left behind"
        return code

    def drain(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def take_in_the_rest(self) -> None:
        """What was told and not expected."""
        self._events.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                self._take()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        self.take_in_the_rest()
        for pid in {event["pid"] for event in self.all}:
            _end_fake(pid)
        self._events.close()


def _end_fake(pid: int) -> None:
    """Only if it is still one of ours: a number may be somebody else's by now."""
    with suppress(OSError):
        if str(CHILD).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def keeper_world(folder: Path) -> Iterator[World]:
    """A world whose processes all end with it."""
    world = World(folder)
    try:
        yield world
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
