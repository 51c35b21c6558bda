"""Reading the configuration once more, for a reload: a process of its own, so that nothing of it can harm the gateway.

What lives here: reading, comparing with what is in force, and handing the result to the keeper.
What must not: what the keeper does with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import fields

from longwire.groundwork import make_tls
from longwire.keeper.channel import Channel
from longwire.keeper.deed import Deed
from longwire.processes.estate import Blob, make_matrix
from longwire.processes.start import check_keys, place_engines
from longwire.words.errors import SettingsError
from longwire.words.settings import Settings

from .configuration import load_configuration, with_engine

FIXED = (
    "host", "port", "admin_host", "admin_port", "shards", "arena_bytes", "max_streams", "max_connections", "state_dir",
)  # fmt: skip
"""What was used before the first process was started, and cannot be changed under those that run."""


def reread(origin: str, old: Blob) -> tuple[Blob, bool]:
    """The configuration as it is written now, and whether the tenants are others.

    Raises:
        SettingsError: it is bad, or differs in what only a restart can change.
    """
    file, flags = json.loads(origin)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}
    settings, ours = place_engines(with_engine(load_configuration(file, given).settings), old.ours)
    if ours.keys() != old.ours.keys():
        raise SettingsError("An engine that the gateway runs itself (local, sim) can only be added by a restart.")
    make_tls(settings)
    check_keys(settings)
    changed = [each.name for each in fields(Settings) if _differs(each.name, settings, old.settings)]
    if fixed := [name for name in changed if name in FIXED]:
        raise SettingsError(f"{', '.join(fixed)} cannot be changed by a reload: restart the gateway.")
    if old.settings.tenants and not settings.tenants:
        raise SettingsError("No tenant is left, and then anybody may come in: if that is meant, restart the gateway.")
    names = [[tenant.name for tenant in each.tenants] for each in (settings, old.settings)]
    return Blob(settings, old.secret, old.ours), names[0] != names[1]


def _differs(name: str, one: Settings, other: Settings) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def main(arguments: Sequence[str]) -> int:
    """``ORIGIN CHANNEL INCARNATION DEED``, as the keeper starts it."""
    origin, channel_fd, _, deed_text = arguments
    channel = Channel(socket.socket(fileno=int(channel_fd)))
    deed = Deed.parse(deed_text)
    try:
        blob, has_other_tenants = reread(origin, Blob.read(deed.settings))
    except SettingsError as exc:
        channel.send({"am": "read", "problem": str(exc)})
        return 2
    fds = [blob.store()]
    if has_other_tenants:
        fds.append(make_matrix(blob.settings))
    times = {"drain_s": blob.settings.drain_s, "hang_kill_s": blob.settings.hang_kill_s}
    channel.send({"am": "read", "problem": "", **times}, fds)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
