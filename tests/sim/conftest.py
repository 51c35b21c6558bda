"""The stand-in, and a connection to it, on a clock that stands still."""

from __future__ import annotations

import pytest
from tests.sim.playing import Line

from longwire.sim.server import SimServer
from longwire.words.clock import VirtualClock
from longwire.words.settings import SimSettings


@pytest.fixture
def server() -> SimServer:
    return SimServer(SimSettings(tokens=5, itl_ms=20, ttft_ms=50, seed=3), clock=VirtualClock())


@pytest.fixture
def line() -> Line:
    return Line(tokens=5, itl_ms=20, ttft_ms=50, seed=3)
