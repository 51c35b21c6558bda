"""How coroutine tests are run: each in a uvloop of its own, as in production."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop
from tests.garbage import let_go

# A shared machine stands still now and then: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("longwire", deadline=None)
hypothesis.settings.load_profile("longwire")

HANG_LIMIT_S = 30.0
"""A test that waits for what never comes fails instead of standing still. No test takes a hundredth of it."""

MANY_DESCRIPTORS = 300
"""Left open behind a file of tests. Each house takes what lives out of the collector's sight, and with it the memory of worlds
that are gone: thousands of them had been open at the end of a run, and what counts descriptors depended on the order."""


@pytest.fixture(scope="module", autouse=True)
def _few_descriptors() -> Iterator[None]:
    yield
    if sum(1 for _ in Path("/dev/fd").iterdir()) > MANY_DESCRIPTORS:
        let_go()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run ``async def test_…``; ordinary tests are left to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    marker = pyfuncitem.get_closest_marker("patient")
    uvloop.run(_bounded(test, marker.args[0] if marker is not None else HANG_LIMIT_S))
    return True


async def _bounded(test: Awaitable[Any], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        await test
