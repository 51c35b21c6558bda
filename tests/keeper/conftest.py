"""A keeper before fakes, for each test its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .keeper_host import World, keeper_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with keeper_world(tmp_path) as world:
        yield world
