"""The command line under test: run in this process, in an empty folder, with no variables of the developer's."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from longwire.cli.program import program

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("config", "show", input=..., env=...)`` as ``longwire config show``."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LONGWIRE_")]:
        monkeypatch.delenv(name)

    def invoke(*args: str, **options: Any) -> Result:
        return CliRunner().invoke(program, args, prog_name="longwire", **options)

    return invoke


@pytest.fixture
def closed_url() -> Iterator[str]:
    """An address at which nothing listens, and nothing can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
