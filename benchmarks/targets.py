"""What can be measured: nginx, this checkout's longwire, the bare relay, a peer (peers.py), or any command.

What lives here: a name and how to start it.
What must not: measuring.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import nginx

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
DIRECT = "direct"
"""The control: the load connected to the engine, with no gateway between them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway: from port, upstream URL and a directory of its own to the command that runs it in the foreground."""

    name: str
    version: str
    command: Callable[[int, str, Path], list[str]]


def resolve(words: Sequence[str]) -> tuple[list[Target], list[str]]:
    """The targets that were asked for, and what to say about those that cannot be had."""
    import peers  # it makes targets of them, and so needs this module first

    targets: list[Target] = []
    remarks: list[str] = []
    for word in words:
        name, is_command, command = word.partition("=")
        if is_command:
            targets.append(Target(name, command, _from_template(command)))
        elif name == "nginx":
            binary = nginx.find()
            if binary is None:
                remarks.append(nginx.HOW_TO_INSTALL)
            else:
                targets.append(_nginx(binary))
        elif name in _OURS:
            targets.append(Target(name, _python_version(), _OURS[name]))
        elif name in peers.ALL:
            found = peers.find(name)
            if isinstance(found, str):
                remarks.append(found)
            else:
                targets.append(found)
        else:
            known = ", ".join(["nginx", *_OURS, *peers.ALL])
            raise ValueError(f"no target {name!r}: {known} or NAME=COMMAND with {{port}} and {{upstream}}")
    return targets, remarks


def use_this_checkout() -> None:
    """Let us and children import longwire from here, installed or not."""
    sys.path.insert(0, str(SOURCES))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))


def _python_version() -> str:
    try:
        return f"Python {platform.python_version()}, uvloop {metadata.version('uvloop')}"
    except metadata.PackageNotFoundError:
        return f"Python {platform.python_version()}; uvloop is not installed for {sys.executable}"


def _nginx(binary: str) -> Target:
    def command(port: int, upstream: str, directory: Path) -> list[str]:
        return nginx.command(binary, port, upstream, directory)

    return Target("nginx", nginx.version(binary), command)


def _longwire(port: int, upstream: str, _directory: Path) -> list[str]:
    serve = [sys.executable, "-m", "longwire", "serve"]
    return [*serve, "--shards", "1", "--engine", upstream, "--port", str(port), "--admin-port", "0"]


def _relay(port: int, upstream: str, _directory: Path) -> list[str]:
    return [sys.executable, str(HERE / "relay.py"), "--port", str(port), "--upstream", upstream]


_OURS = {"longwire": _longwire, "relay": _relay}


def _from_template(template: str) -> Callable[[int, str, Path], list[str]]:
    def command(port: int, upstream: str, directory: Path) -> list[str]:
        places = {"{port}": str(port), "{upstream}": upstream, "{directory}": str(directory)}
        words = shlex.split(template)
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        return words

    return command
