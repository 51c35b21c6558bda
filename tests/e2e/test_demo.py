"""``longwire demo`` as a newcomer runs it: a real gateway, a real model, a real kill, a real cut."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longwire.engines import local

pytestmark = pytest.mark.e2e

LIMIT_S = 120.0
"""A hang must not hold up the suite; nothing here asserts how long things take."""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            "local",
            marks=pytest.mark.skipif(not local.is_installed(), reason="run `longwire local install` to test this"),
        ),
        "sim",
    ],
)
def test_it_proves_that_nothing_is_lost(engine: str) -> None:
    command = [sys.executable, "-m", "longwire", "demo", "--engine", engine]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "is killed after event 19." in result.stdout
    assert "over the same connection" in result.stdout
    assert "Nothing was lost and nothing was repeated" in result.stdout
