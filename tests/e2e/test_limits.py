"""Limits over real processes: each is a shard of one slot, and all hammer one row of the matrix at the same moment."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from longwire.admission.limiter import Limiter, Slot
from longwire.admission.matrix import HELD, LIVE, MINUTE_S, REQUESTS, Matrix, minute_of
from longwire.admission.tenants import Tenant
from longwire.words.clock import VirtualClock
from longwire.words.errors import TooManyStreams
from longwire.words.settings import TenantSettings

pytestmark = pytest.mark.e2e

SHARDS = 4
LIMIT = 5
ROUNDS = 60
CHURNS = 3000
START_S = 0.003
"""From the command until all begin: so long that each has read it."""


class PolitePauses(Matrix):
    """Lets another process run between a check and the count that follows it: where a race can be lost, it is."""

    def count(self, start: int, cell: int, minute: int, amount: int) -> None:
        os.sched_yield()
        super().count(start, cell, minute, amount)


class Shard:
    """The child's side: a limiter of one slot that does as it is told, a line at a time."""

    def __init__(self, fd: int, slot: int) -> None:
        self.tenant = Tenant(TenantSettings(name="acme", max_streams=LIMIT), 0)
        self.limiter = Limiter(PolitePauses.attach(fd), slot, VirtualClock(), 1000)
        self.random = random.Random(slot)
        self.held: list[Slot] = []

    def run(self) -> None:
        for line in sys.stdin:
            word, _, number = line.partition(" ")
            getattr(self, word.strip())(float(number or 0))
            print(len(self.held), flush=True)

    def fill(self, start_at: float) -> None:
        while time.monotonic() < start_at:
            pass
        while self._admit():
            pass

    def empty(self, _: float) -> None:
        while self.held:
            self.held.pop().release()

    def churn(self, times: float) -> None:
        for _ in range(int(times)):
            if self.random.random() < 0.5:
                self._admit()
            elif self.held:
                self.held.pop(self.random.randrange(len(self.held))).release()

    def _admit(self) -> bool:
        try:
            self.held.append(self.limiter.admit(self.tenant, 10))
        except TooManyStreams:
            return False
        return True


class Shards:
    """The parent's side."""

    def __init__(self, matrix: Matrix) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.children = [
            subprocess.Popen(
                [sys.executable, __file__, str(matrix.fd), str(slot)],
                pass_fds=(matrix.fd,),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for slot in range(SHARDS)
        ]

    def tell(self, command: str) -> None:
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write(command + "\n")

    def hear(self) -> list[int]:
        """How many streams each holds, once all have done what they were told."""
        return [int(child.stdout.readline()) for child in self.children if child.stdout is not None]

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()


@contextmanager
def hammered() -> Iterator[tuple[Matrix, Shards]]:
    matrix = Matrix.create(1, SHARDS)
    shards = Shards(matrix)
    try:
        yield matrix, shards
    finally:
        shards.close()
        matrix.close()


def test_processes_that_ask_at_once_exceed_a_limit_by_their_number_less_one_at_most() -> None:
    totals = []
    with hammered() as (matrix, shards):
        shards.tell("empty")
        shards.hear()
        for _ in range(ROUNDS):
            shards.tell(f"fill {time.monotonic() + START_S}")
            held = shards.hear()
            assert matrix.total(0, LIVE) == sum(held) and matrix.total(0, HELD) == 10 * sum(held)
            totals.append(sum(held))
            shards.tell("empty")
            shards.hear()
            assert matrix.total(0, LIVE) == matrix.total(1, LIVE) == matrix.total(0, HELD) == 0
        before, current = matrix.window(0, REQUESTS, minute_of(VirtualClock().now()))
    print(f"limit {LIMIT}, {SHARDS} shards: {sorted(set(totals))} streams at once in {ROUNDS} rounds")
    assert min(totals) >= LIMIT and max(totals) <= LIMIT + SHARDS - 1
    assert (before, current) == (0, sum(totals)), "no request was lost"


def test_counts_are_exact_after_any_coming_and_going_and_after_a_kill() -> None:
    with hammered() as (matrix, shards):
        shards.tell(f"churn {CHURNS}")
        held = shards.hear()
        assert [matrix.words[matrix.index(0, slot) + LIVE] for slot in range(SHARDS)] == held
        shards.tell(f"churn {CHURNS * 1000}")
        for slot in range(SHARDS):
            deadline = time.monotonic() + MINUTE_S
            start = matrix.total(0, REQUESTS)
            while matrix.total(0, REQUESTS) == start and time.monotonic() < deadline:
                pass  # until they are in the middle of it
            shards.children[slot].kill()
            shards.children[slot].wait()
            of_row, of_all = (matrix.words[matrix.index(row, slot) + LIVE] for row in (0, 1))
            assert 0 <= of_row <= LIMIT + SHARDS - 1 and abs(of_all - of_row) <= 1, "whole words, at most one behind"
            matrix.reset(slot)
        assert not any(matrix.total(row, cell) for row in (0, 1) for cell in (LIVE, HELD))


if __name__ == "__main__":
    Shard(int(sys.argv[1]), int(sys.argv[2])).run()
