"""Shards are killed hundreds of times under clients of every kind, and none of them notices."""

from __future__ import annotations

import os

import pytest
import uvloop

from longwire.streams.counters import counters_work

from .matrix import run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not counters_work(), reason="this kernel does not count a connection's bytes"),
]

AT_RANDOM = 70
"""Besides those at each point; more than 200 in all."""
LEAST_KILLS = 200


def test_no_client_notices_any_of_two_hundred_kills() -> None:
    seed = int(os.environ.get("SURVIVAL_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"SURVIVAL_SEED={seed}")
    lines = uvloop.run(run(seed, AT_RANDOM))
    print(*lines, sep="\n")
    assert int(lines[0].split(": ")[1].split()[0]) >= LEAST_KILLS
