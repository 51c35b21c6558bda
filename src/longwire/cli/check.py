"""``longwire check``: is this machine, and what stands around the gateway, fit for many long streams?

What lives here: the command and the checks of the machine.
What must not: checks over HTTP (reachability.py), what an engine can do (examination.py),
and anything that changes the machine.

Each check is a function from what it looks at to one :class:`Finding`, so that tests can show it any machine.
"""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec

import click

from longwire.words.config import is_loopback
from longwire.words.settings import GIB, MIB, EngineSettings, Settings

from .configuration import configured, load_configuration, local_is_installed
from .finding import FAIL, OK, WARN, Finding
from .terminal import Command, print_json, print_table

EXAMPLES = """
longwire check                                     # this machine and the engines of longwire.toml
longwire check --engine http://127.0.0.1:8000      # ... and what this engine can do: asks it about 40 short answers
longwire check --engine https://llm.example.com --model m1 --api-key-env LLM_KEY
LONGWIRE_API_KEY=... longwire check --url https://llm.example.com    # does a proxy on the way buffer?
"""

DESCRIPTORS_PER_STREAM = 2
"""One to the client, one to the engine."""
SPARE_DESCRIPTORS = 128
"""Listeners, memfds, probes, log files and the interpreter's own."""
LEAST_STREAMS = 64
"""With fewer than these a gateway is of no use."""
LOCAL_ENGINE_BYTES = 300 * MIB


@click.command("check", cls=Command, examples=EXAMPLES)
@configured
@click.option(
    "--url", metavar="URL", help="A gateway's public address: find out whether a proxy on the way buffers streams."
)
@click.option("--model", metavar="NAME", help="With --engine: the model to ask.  [default: the first that it lists]")
@click.option("--api-key-env", metavar="NAME", help="With --engine: the variable that holds its key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: str | None, url: str | None, model: str | None, api_key_env: str | None, as_json: bool, **flags: object
) -> int:
    """Check this machine, the engines, and whether a proxy in front buffers; with --engine, what that engine can do."""
    settings = load_configuration(file, flags).settings
    is_named = bool(flags.get("engines"))
    if not is_named and (model or api_key_env):
        raise click.UsageError("--model and --api-key-env belong to an engine: name it with --engine URL.")
    if api_key_env:
        settings = with_key(settings, api_key_env)
    findings = [*check_machine(settings), *check_around(settings, url)]
    if not is_named:
        show(findings, as_json)
        return 1 if any(finding.state == FAIL for finding in findings) else 0
    from .examination import examine, show_examined

    if not as_json:
        show(findings, as_json)
    examined = examine(settings.engines, model or "")
    show_examined(findings, examined, as_json)
    answering = {f"engine {engine.name}" for engine, judgement in examined if judgement.answers}
    return 1 if any(finding.state == FAIL and finding.check not in answering for finding in findings) else 0


def with_key(settings: Settings, name: str) -> Settings:
    """The key out of a variable, for the engines of this command line."""
    key = os.environ.get(name)
    if not key:
        raise click.UsageError(f"The variable {name} is not set: export it, or leave --api-key-env out.")
    return replace(settings, engines=[replace(engine, api_key=key) for engine in settings.engines])


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """The machine and what stands around."""
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(("CHECK", "", "FOUND", "WHAT TO DO"), findings, wrap=("FOUND", "WHAT TO DO"))


def check_machine(settings: Settings) -> Iterator[Finding]:
    """What can be seen without a network."""
    yield check_descriptors(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    from longwire.observe.machine import memory_limit_bytes

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
    """Whether live connections can be moved to another process on this kernel."""
    from longwire.streams.counters import counters_work

    if counters_work():
        return Finding("kernel counters", OK, "TCP_INFO counts bytes exactly", "")
    advice = "Live connections cannot move to another process here (gVisor, macOS): they will drain or resume instead."
    return Finding("kernel counters", WARN, "TCP_INFO does not count bytes", advice)


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
