"""Starting a gateway: from settings to the processes that serve.

What lives here: what is done once, before the first process is started, and how each kind is started.
What must not: keeping them (keeper), serving (shard.py), reading configuration (cli).
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from ..admission.keysfile import KeysFile
from ..admission.tenants import Tenants
from ..engines.kinds import kind_of
from ..groundwork import CannotListen, bind, load_secret, make_secret, make_tls, raise_descriptor_limit, shown
from ..keeper.keeper import Keeper
from ..keeper.members import Orders
from ..keeper.roll import Roll, found_line
from ..observe.streamlog import configure_logging
from ..streams.counters import counters_work
from ..words import faultpoint
from ..words.errors import SettingsError
from ..words.settings import EngineSettings, Settings
from .estate import Blob, make_deed

OURS = ("local", "sim")
"""Engines that we run ourselves."""


LET_GO_S, LET_GO_POLL_S = 2.0, 0.02
"""For what is left of an earlier gateway to let its ports go, which takes milliseconds after its keeper's end."""


def run(settings: Settings, reader: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code; prints where it listens.

    ``reader`` is the command that reads the configuration anew for a reload.
    """
    configure_logging(settings.log_level)
    faultpoint.take_away(os.environ.get("LONGWIRE_WITHOUT", ""))
    raise_descriptor_limit()
    left = Roll(settings.state_dir).call()
    if left:
        print(found_line(left), flush=True)
    try:
        make_tls(settings)  # before anything that would have to be taken down again
        check_keys(settings)
        public = _bind(bool(left), settings.host, settings.port, "port")
        admin = _bind(bool(left), settings.admin_host, settings.admin_port, "admin_port")
        public.listen(BACKLOG)
        admin.listen(BACKLOG)
        served, ours = place_engines(settings)
        blob = Blob(served, load_secret(settings.state_dir) or make_secret(), ours)
    except CannotListen as exc:
        print(f"longwire: {exc.strerror}", file=sys.stderr)
        return 1
    except OSError as exc:
        print(f"longwire: cannot start: {exc.strerror or exc}.", file=sys.stderr)
        return 1
    except SettingsError as exc:
        print(f"longwire: {exc}", file=sys.stderr)
        return 2
    scheme = "https" if settings.tls_cert_file else "http"
    lines = [f"longwire: listening on {scheme}://{shown(public)}", f"longwire: admin on http://{shown(admin)}"]
    if not counters_work():
        lines.append(
            "longwire: adoption = off (this kernel does not count a connection's bytes): a killed shard's streams end"
        )
    deed = make_deed(blob, public, admin)
    return Keeper(deed, orders_for(served, bool(ours), reader), lambda: print(*lines, sep="\n", flush=True)).run()


BACKLOG = 4096
"""Connections that wait to be accepted while a shard is taken over; the kernel cuts it down to its own somaxconn."""


def _bind(is_succeeding: bool, host: str, port: int, flag: str) -> socket.socket:
    """A bound socket, once those who are left of an earlier gateway have let it go. Raises CannotListen."""
    deadline = time.monotonic() + (LET_GO_S if is_succeeding else 0.0)
    while True:
        try:
            return bind(host, port, flag)
        except CannotListen as exc:
            if exc.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
            time.sleep(LET_GO_POLL_S)


def orders_for(settings: Settings, has_ours: bool, reader: Sequence[str]) -> Orders:
    """How each kind of process is started."""

    def module(name: str) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", f"longwire.processes.{name}")

    return Orders(
        shard=module("shard"),
        admin=module("admin"),
        engines=module("engines") if has_ours else (),
        reader=tuple(reader),
        keeper=(sys.executable, "-P", "-m", "longwire.keeper", settings.log_level),
        drain_s=settings.drain_s,
        hang_kill_s=settings.hang_kill_s,
        state_dir=settings.state_dir,
    )


def check_keys(settings: Settings) -> None:
    """Read the keys file, if there is one, as each shard will.

    Raises:
        SettingsError: it is bad. A shard that found that out would only die of it, one after the other.
    """
    if settings.keys_file:
        KeysFile(settings.keys_file, Tenants(settings.tenants), _tell_nobody).load()


def _tell_nobody(problem: SettingsError) -> None:
    """Of later changes: nobody looks at these here."""


def place_engines(settings: Settings, ports: dict[str, int] | None = None) -> tuple[Settings, dict[str, int]]:
    """The settings with an address for each engine that we run ourselves, and the port of each kind.

    The port is chosen before the engine is there, and once: it is the same after a restart of the engine or of a shard, and
    nobody has to be told.
    """
    ours = {} if ports is None else dict(ports)
    engines: list[EngineSettings] = []
    for engine in settings.engines:
        if engine.url in OURS:
            port = ours.get(engine.url) or free_port()
            ours[engine.url] = port
            kind, name = kind_of(engine), engine.name or engine.url  # neither can be told from the address
            engines.append(replace(engine, name=name, kind=kind, url=f"http://127.0.0.1:{port}"))
        else:
            engines.append(engine)
    return replace(settings, engines=engines), ours


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
