"""The systemd unit: systemd itself understands it, and what it forbids is nothing that the processes need.

What lives here: the unit's relation to the settings, the commands and the system calls.
What must not: other packaging (beside this file).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from longwire.cli.program import SECTIONS
from longwire.words.settings import Settings

UNIT = Path(__file__).parents[2] / "packaging" / "longwire.service"
PROGRAM = "/opt/longwire/bin/longwire"
COMMANDS = {command for section in SECTIONS.values() for command in section}
ANALYZE = shutil.which("systemd-analyze")

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")

SYSTEM_CALLS = frozenset({
    "memfd_create", "ftruncate", "mmap",  # arena and tables
    "clone", "clone3", "execve", "waitid", "wait4", "prctl",  # shards and guardians
    "pidfd_open", "pidfd_send_signal", "poll", "epoll_wait",  # noticing that one has ended
    "socketpair", "sendmsg", "recvmsg", "ioctl", "getsockopt",  # passing connections, and reading their counters
    "fallocate", "madvise",  # giving idle blocks back
})  # fmt: skip


def unit() -> dict[str, list[str]]:
    """All that is set, by name; a name may stand several times."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def only(name: str) -> str:
    (value,) = unit()[name]
    return value


@needs_systemd
def test_systemd_understands_it(tmp_path: Path) -> None:
    """With a program that is there in place of ours, which need not be installed where systemd looks."""
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, str(shutil.which("true"))))
    assert ANALYZE is not None
    checked = subprocess.run([ANALYZE, "verify", str(here)], capture_output=True, text=True, check=False)
    if "No such file or directory" in checked.stderr and "bus" in checked.stderr:
        pytest.skip("systemd-analyze finds no system here: " + checked.stderr.strip())
    about_it = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert (checked.returncode, about_it) == (0, [])


@needs_systemd
def test_no_system_call_that_is_needed_is_forbidden() -> None:
    (group,) = unit()["SystemCallFilter"]
    allowed = calls_of(group)
    assert SYSTEM_CALLS - allowed == set()
    assert only("SystemCallErrorNumber") == "EPERM"


def calls_of(group: str) -> set[str]:
    """The system calls of a group, those of the groups in it included."""
    assert ANALYZE is not None
    listed = subprocess.run([ANALYZE, "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    words = {line.strip() for line in listed.splitlines()[1:]}
    inner = {word for word in words if word.startswith("@") and word != group}
    return (words - inner).union(*(calls_of(each) for each in inner))


@pytest.mark.parametrize("name", ["ExecStart", "ExecReload"])
def test_it_runs_commands_of_ours(name: str) -> None:
    program, command, *_ = only(name).split()
    assert program == PROGRAM
    assert command in COMMANDS


def test_a_stop_has_the_time_to_drain() -> None:
    assert only("KillMode") == "mixed"
    assert int(only("TimeoutStopSec")) > Settings().drain_s


def test_a_shard_s_death_does_not_end_the_unit() -> None:
    assert only("Type") == "exec"
    assert only("OOMPolicy") == "continue"


def test_there_are_descriptors_for_all_connections() -> None:
    assert int(only("LimitNOFILE")) > 2 * Settings().max_connections


def test_sockets_that_are_needed_may_be_made() -> None:
    assert {"AF_INET", "AF_INET6", "AF_UNIX"} <= set(only("RestrictAddressFamilies").split())


def test_nothing_that_would_break_it_is_set() -> None:
    assert {"ProcSubset", "PrivateNetwork", "RestrictFileSystems", "PrivateUsers"} & set(unit()) == set()
