"""How coroutine tests are run: each in a uvloop of its own, as in production."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import hypothesis
import pytest
import uvloop

# A shared machine stands still now and then: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("longwire", deadline=None)
hypothesis.settings.load_profile("longwire")

HANG_LIMIT_S = 30.0
"""A test that waits for what never comes fails instead of standing still. No test takes a hundredth of it."""


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
