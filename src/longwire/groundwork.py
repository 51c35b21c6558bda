"""What must be there before a house can be built: sockets, certificates, memory, secrets, and what is said at the door.

What lives here: functions that lifecycle calls once, each for one thing that the machine gives.
What must not: rooms, or anything that runs afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import secrets
import socket
import ssl
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .observe.machine import memory_limit_bytes
from .words.errors import SettingsError
from .words.settings import Settings

SECRET_BYTES = 32
MAX_WIDENED = 1 << 16
"""Descriptors that a table has room for from the start: half a megabyte of the kernel's memory."""
MAX_ARENA_BYTES = 64 << 30
"""A larger arena must be asked for: on a machine with so much memory somebody else wants the rest."""


class CannotListen(OSError):
    """An address or a port cannot be had; the words name the place and the flags that choose another one."""


def bind(host: str, port: int, flag: str = "port") -> socket.socket:
    """A bound socket. ``flag`` is the setting that the port came from.

    Raises:
        CannotListen: the address or the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise CannotListen(exc.errno, _why_not(exc, place, flag)) from exc
    sock.setblocking(False)
    return sock


def _why_not(error: OSError, place: str, flag: str) -> str:
    words = f"cannot listen on {place}: {error.strerror or error}"
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        option = "--" + flag.replace("_", "-")
        return f"{words}; choose another port with {option} ({option} 0 takes a free one)."
    option = "--" + flag.replace("port", "host").replace("_", "-")
    return f"{words}; choose another address with {option}."


def shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_tls(settings: Settings) -> ssl.SSLContext | None:
    """TLS of our own, if it is configured. Raises SettingsError where the files cannot be loaded."""
    if not settings.tls_cert_file:
        return None
    if settings.proxy_protocol:
        # The header comes in the clear before the handshake, where nobody of ours could read it.
        raise SettingsError(
            "proxy_protocol and tls_cert_file do not go together: let the balancer end TLS, or pass it on bare."
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as exc:
        raise SettingsError(f"tls_cert_file and tls_key_file cannot be loaded: {exc}.") from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def settle_garbage() -> None:
    """What lives from start to end is taken out of the collector's sight; from here on it runs by our clock."""
    gc.collect()
    gc.freeze()
    gc.disable()


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # a container may forbid it; `longwire check` shows what is in force
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def widen_descriptor_table() -> None:
    """Have the kernel make our table of descriptors as large as it may become, while it is ours alone.

    Once a guardian shares it, the kernel waits for a grace period of RCU at each doubling (fs/file.c, expand_fdtable): ten
    milliseconds and more, five times in a row where hundreds of sockets are taken over.
    """
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MAX_WIDENED)
    with suppress(OSError):
        low = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError, ValueError):
            os.close(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, limit - 1))
        os.close(low)


def arena_bytes() -> int:
    """A quarter of the memory that this process may use; it is touched only as it fills."""
    limit, _ = memory_limit_bytes()
    return min(limit // 4, MAX_ARENA_BYTES)


def load_secret(state_dir: str) -> bytes | None:
    """The key under which ids, prompts and keys are hashed: kept in ``state_dir``, so that hashes in logs compare across
    restarts.

    None without a state folder: then each process has its own.

    Raises:
        SettingsError: the folder or the file cannot be used.
    """
    if not state_dir:
        return None
    path = Path(state_dir) / "hash.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
            os.close(descriptor)
        secret = path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"state_dir cannot be used: {exc.strerror or exc}.", where=str(path)) from exc
    if len(secret) != SECRET_BYTES:
        raise SettingsError(
            f"This file must hold {SECRET_BYTES} bytes; remove it to have a new one made.", where=str(path)
        )
    return secret


def make_secret() -> bytes:
    """A key for hashes that is as old as the gateway."""
    return secrets.token_bytes(SECRET_BYTES)


def greeting(url: str, model: str, *, with_key: bool) -> str:
    """A curl line and a Python snippet that work as they are shown; the snippet stands at the margin, to be pasted as it is.

    Both have a system message and a bound: without them a small model rambles, and may never come to an end.
    """
    auth = " -H 'Authorization: Bearer KEY'" if with_key else ""
    key = "KEY" if with_key else "none"
    system = '{"role": "system", "content": "You are a helpful assistant."}'
    user = '{"role": "user", "content": "Tell me about rivers."}'
    return f"""
Try it:

curl -N {url}/v1/chat/completions{auth} -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, "max_tokens": 200, "messages": [
    {system},
    {user}]}}'

Or in Python (pip install openai):

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
messages = [{system},
            {user}]
for event in client.chat.completions.create(model="{model}", messages=messages, max_tokens=200, stream=True):
    print(event.choices[0].delta.content or "", end="", flush=True)

"""


def package_version() -> str:
    """The installed version, or 0 from a bare checkout."""
    try:
        return version("longwire")
    except PackageNotFoundError:
        return "0"
