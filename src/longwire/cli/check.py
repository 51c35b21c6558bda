"""``longwire check``: is this machine, and what stands around the gateway, fit for many long streams?

What lives here: the command and the checks of the machine. What must not: checks over HTTP (reachability.py), and anything
that changes the machine.

Each check is a function from what it looks at to one :class:`Finding`, so that tests can show it any machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import struct
import termios
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import click

from longwire.words.config import is_loopback
from longwire.words.settings import GIB, MIB, EngineSettings, Settings

from .configuration import configured, load_configuration, local_is_installed
from .finding import FAIL, OK, WARN, Finding
from .terminal import Command, print_table

EXAMPLES = """
longwire check                                     # this machine and the engines of longwire.toml
longwire check --engine http://127.0.0.1:8000
LONGWIRE_API_KEY=... longwire check --url https://llm.example.com    # does a proxy on the way buffer?
"""

DESCRIPTORS_PER_STREAM = 2
"""One to the client, one to the engine."""
SPARE_DESCRIPTORS = 128
"""Listeners, memfds, probes, log files and the interpreter's own."""
LEAST_STREAMS = 64
"""With fewer than these a gateway is of no use."""
LOCAL_ENGINE_BYTES = 300 * MIB
UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


@click.command("check", cls=Command, examples=EXAMPLES)
@configured
@click.option(
    "--url", metavar="URL", help="A gateway's public address: find out whether a proxy on the way buffers streams."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: str | None, url: str | None, as_json: bool, **flags: object) -> int:
    """Check this machine, the engines, and whether a proxy in front buffers."""
    settings = load_configuration(file, flags).settings
    findings = [*check_machine(settings), *check_around(settings, url)]
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings], indent=2, ensure_ascii=False))
    else:
        print_table(("CHECK", "", "FOUND", "WHAT TO DO"), findings, wrap=("FOUND", "WHAT TO DO"))
    return 1 if any(finding.state == FAIL for finding in findings) else 0


def check_machine(settings: Settings) -> Iterator[Finding]:
    """What can be seen without a network."""
    yield check_descriptors(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield check_memory(settings, *memory_limit_bytes())
    yield check_counters()
    yield check_memfd()
    yield from (check_package(name) for name in ("uvloop", "httptools"))
    yield check_exposure(settings)


def check_around(settings: Settings, url: str | None) -> Iterator[Finding]:
    """What answers over the network."""
    from .reachability import check_buffering, check_engine

    if not settings.engines and not local_is_installed(settings):
        yield Finding("engines", WARN, "none", "Name one with --engine URL, or run `longwire local install`.")
    for engine in settings.engines or [EngineSettings(name="local", url="local")] * local_is_installed(settings):
        if engine.url == "local":
            installed = local_is_installed(settings)
            advice = "" if installed else "Run `longwire local install`."
            yield Finding(f"engine {engine.name}", OK if installed else FAIL, "embedded", advice)
        elif engine.url == "sim":
            yield Finding(f"engine {engine.name}", OK, "stand-in", "")
        else:
            yield check_engine(engine)
    if url:
        yield check_buffering(url, os.environ.get("LONGWIRE_API_KEY", ""))


# Limits.


def check_descriptors(settings: Settings, hard_limit: int) -> Finding:
    """Descriptors are the first thing that many streams run out of. ``serve`` raises the soft limit by itself."""
    wanted = settings.max_connections * DESCRIPTORS_PER_STREAM + SPARE_DESCRIPTORS
    if hard_limit == resource.RLIM_INFINITY:
        return Finding("descriptors", OK, "no limit", "")
    streams = max(0, (hard_limit - SPARE_DESCRIPTORS) // DESCRIPTORS_PER_STREAM)
    found = f"{hard_limit} open files: about {streams} streams at once"
    if hard_limit >= wanted:
        return Finding("descriptors", OK, found, "")
    advice = f"Raise LimitNOFILE (systemd) or the container's nofile to {wanted}, or lower max_connections."
    return Finding("descriptors", FAIL if streams < LEAST_STREAMS else WARN, found, advice)


def memory_limit_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """How much memory this process may use, and who says so: a cgroup (v2 or v1) or the machine."""
    total = _first_number(root / "proc/meminfo") * 1024
    limits = [(total, "machine")] if total else []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits_upwards(root / "sys/fs/cgroup", path, "memory.max", "cgroup v2")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "cgroup v1")
    return min(limits, default=(0, "unknown"))


def _limits_upwards(mount: Path, path: str, name: str, source: str) -> list[tuple[int, str]]:
    """The limits of a cgroup and all above it, for each of them binds. In a container the path may not be visible at all,
    and the mount's own file is the limit."""
    group = mount / path.lstrip("/")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(mount))]
    numbers = (_first_number(each / name) for each in groups)
    return [(number, source) for number in numbers if 0 < number < UNLIMITED]


def _first_number(path: Path) -> int:
    return next((int(word) for word in _read(path).split() if word.isdigit()), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # not on this kind of machine


def check_memory(settings: Settings, limit_bytes: int, source: str) -> Finding:
    """The arena is shared memory: it counts against the cgroup like any other."""
    if not limit_bytes:
        return Finding("memory", WARN, "the limit cannot be read here", "Set arena_bytes yourself.")
    arena = settings.arena_bytes or limit_bytes // 4
    local = LOCAL_ENGINE_BYTES if any(engine.url == "local" for engine in settings.engines) else 0
    found = f"arena {arena / GIB:.2f} GiB of {limit_bytes / GIB:.2f} GiB ({source})"
    if arena + local > limit_bytes * 3 // 4:
        return Finding("memory", FAIL, found, f"Set arena_bytes to {limit_bytes // 4} or give it more memory.")
    if arena + local > limit_bytes // 2:
        return Finding("memory", WARN, found, "Leave half of the memory to connections and the interpreter.")
    return Finding("memory", OK, found, "")


def check_exposure(settings: Settings) -> Finding:
    """The admin port shows all tenants' streams and asks nobody who they are."""
    if is_loopback(settings.admin_host):
        return Finding("admin port", OK, f"on {settings.admin_host}", "")
    return Finding(
        "admin port", WARN, f"on {settings.admin_host}", "It has no keys: let only operators and Prometheus reach it."
    )


# The kernel and the packages.


def check_counters() -> Finding:
    if kernel_counters_work():
        return Finding("kernel counters", OK, "TCP_INFO counts bytes exactly", "")
    advice = "Live connections cannot move to another process here (gVisor, macOS): they will drain or resume instead."
    return Finding("kernel counters", WARN, "TCP_INFO does not count bytes", advice)


# struct tcp_info (linux/tcp.h): 8 single bytes, 24 words of 32 bits, then pacing_rate, max_pacing_rate, bytes_acked and
# bytes_received of 64 bits.
TCP_INFO_BYTES = 136
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_OFFSET = 120
SIOCOUTQ = getattr(termios, "TIOCOUTQ", 0x5411)
MAX_READINGS = 100
"""Acknowledgements arrive between two system calls; on loopback a handful of readings is enough."""


def kernel_counters_work() -> bool:
    """Whether the kernel tells exactly what was read and written: shown on a loopback connection, not guessed."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return _counters_work_through(server)
    except OSError:
        return False  # no loopback, no such option, or bytes that do not arrive: all mean no


def _counters_work_through(server: socket.socket) -> bool:
    with socket.create_connection(server.getsockname(), timeout=2) as writer:
        reader, _ = server.accept()
        with reader:
            reader.settimeout(2)
            return _counters_agree(writer, reader)


def _counters_agree(writer: socket.socket, reader: socket.socket) -> bool:
    """Send 5,000 bytes, read 2,000 of them, then the rest: at each point the counters must give the same numbers."""
    written_base, read_base = _written_bytes(writer), _read_bytes(reader)
    writer.sendall(bytes(5000))
    if _written_bytes(writer) - written_base != 5000:
        return False
    for size in (2000, 3000):
        missing = size
        while missing:
            data = reader.recv(missing)
            if not data:
                return False
            missing -= len(data)
        if _read_bytes(reader) - read_base != (2000 if size == 2000 else 5000):
            return False
    return True


def _written_bytes(connection: socket.socket) -> int:
    """What was given to the kernel: acknowledged plus queued."""
    return _settled(connection, 0, SIOCOUTQ, 1)


def _read_bytes(connection: socket.socket) -> int:
    """What was taken from the kernel: received less unread."""
    return _settled(connection, 1, termios.FIONREAD, -1)


def _settled(connection: socket.socket, counter: int, queue: int, sign: int) -> int:
    """A counter and a queue that belong together: bytes can move between two calls, so read until nothing did."""
    for _ in range(MAX_READINGS):
        before = _tcp_counters(connection)[counter]
        queued = struct.unpack("i", fcntl.ioctl(connection.fileno(), queue, bytes(4)))[0]
        if _tcp_counters(connection)[counter] == before:
            return int(before + sign * queued)
    raise OSError("the counters do not settle")


def _tcp_counters(connection: socket.socket) -> tuple[int, int]:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:
        raise OSError("this kernel's TCP_INFO is too old")
    acked, received = _COUNTERS.unpack_from(info, _COUNTERS_OFFSET)
    return acked, received


def check_memfd() -> Finding:
    """Shared memory without a name, sealed so that nobody can shrink it under a reader."""
    try:
        descriptor = os.memfd_create("longwire-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, 4096)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        return Finding(
            "memfd",
            FAIL,
            f"not available ({error})",
            "Longwire needs Linux 3.17 or later, and a seccomp profile that allows memfd_create.",
        )
    return Finding("memfd", OK, "available, can be sealed", "")


def check_package(name: str) -> Finding:
    if find_spec(name) is None:
        return Finding(name, FAIL, "not installed", f"Run `pip install {name}`.")
    return Finding(name, OK, metadata.version(name), "")
