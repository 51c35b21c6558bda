"""The Dockerfile, without Docker: what it copies is there and let in, and what it starts is ours.

What lives here: everything about it that can be known without building it; its health check is run.
What must not: other packaging (beside this file).
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from longwire.cli.program import SECTIONS
from longwire.words.config import load_settings
from longwire.words.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "packaging" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LIMIT_S = 10.0


class Instruction(NamedTuple):
    """One instruction, continued lines joined."""

    name: str
    args: str


def instructions() -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in lines if line.strip()]


def stages() -> list[list[Instruction]]:
    """Instructions by stage; what stands before the first FROM is none."""
    found: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.name == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def last(name: str) -> str:
    """What an instruction of the image itself says, the last time that it stands there."""
    return [args for each, args in stages()[-1] if each == name][-1]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for name, args in stages()[-1] if name == "ENV" for pair in args.split())


def copied() -> list[str]:
    """What comes from the folder that is built."""
    sources = [args.split()[:-1] for name, args in instructions() if name == "COPY" and "--from" not in args]
    return [source.removeprefix("./") for each in sources for source in each]


# What goes in.


def test_what_is_copied_exists_and_is_let_in() -> None:
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert sorted(rule[1:] for rule in rules if rule.startswith("!")) == sorted(copied())
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_what_the_build_needs_is_copied() -> None:
    assert {"pyproject.toml", "src", PROJECT["readme"], "LICENSE"} <= set(copied())


def test_caches_stay_outside() -> None:
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert any(fnmatch("src/longwire/__pycache__", rule) for rule in ignore[1:] if rule.startswith("**"))


def test_no_secret_is_built_in() -> None:
    named = [args for name, args in instructions() if name in ("ARG", "ENV")]
    assert [args for args in named if re.search(r"API_KEY|TOKEN|SECRET|PASSWORD", args)] == []


def test_python_is_one_that_the_project_knows() -> None:
    version = next(args.partition("=")[2] for name, args in instructions() if args.startswith("PYTHON="))
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


# What comes of it.


def test_the_last_stage_has_no_compiler_and_no_source() -> None:
    assert len(stages()) == 2
    assert all("-slim" in stage[0].args for stage in stages())
    assert [args for name, args in stages()[-1] if name == "COPY"] == ["--from=build /opt/longwire /opt/longwire"]
    assert not any("pip" in args or "apt" in args for name, args in stages()[-1] if name == "RUN")


def test_it_does_not_run_as_root() -> None:
    user, _, group = last("USER").partition(":")
    assert int(user) > 0 and int(group) > 0


def test_process_1_is_a_command_of_ours() -> None:
    """In the exec form: a shell between would not pass signals on."""
    program, command = json.loads(last("ENTRYPOINT")) + json.loads(last("CMD"))
    assert program in PROJECT["scripts"]
    assert command == "serve" and any(command in section for section in SECTIONS.values())
    assert last("STOPSIGNAL") == "SIGTERM"


def test_its_variables_are_settings() -> None:
    ours = {name: value for name, value in environment().items() if name.startswith("LONGWIRE_")}
    settings = load_settings(None, "", ours, {"allow_anonymous": True})
    assert settings.host == "0.0.0.0"
    assert settings.admin_host == Settings().admin_host
    assert last("EXPOSE").split() == [str(settings.port), str(settings.admin_port)]


# The health check, run.


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server that answers GET /healthz with that; gives its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def health_check(port: int) -> int:
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"
    env = {**os.environ, **environment(), "LONGWIRE_PORT": str(port), "PATH": os.environ["PATH"]}
    asked = [sys.executable, *command[1:]]
    return subprocess.run(asked, env=env, capture_output=True, timeout=LIMIT_S, check=False).returncode


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_says_what_healthz_says(status: int, code: int) -> None:
    with answering(status) as port:
        assert health_check(port) == code


def test_the_health_check_fails_where_nobody_listens() -> None:
    with answering(200) as port:
        pass
    assert health_check(port) == 1
