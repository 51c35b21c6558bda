"""What must be there before a house can be built: sockets, certificates, memory, secrets, and what is said at the door.

What lives here: functions that lifecycle calls once, each for one thing that the machine gives.
What must not: rooms, or anything that runs afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import resource
import secrets
import signal
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .observe.machine import memory_limit_bytes
from .words.errors import SettingsError
from .words.settings import Settings

SECRET_BYTES = 32
_PR_SET_PDEATHSIG = 1
MAX_WIDENED = 1 << 16
"""Descriptors that a table has room for from the start: half a megabyte of the kernel's memory."""
MAX_ARENA_BYTES = 64 << 30
"""A larger arena must be asked for: on a machine with so much memory somebody else wants the rest."""


class CannotListen(OSError):
    """An address or a port cannot be had; the words name the place and the flags that choose another one."""


class ReadingProcess(Executor):
    """One other process, for what would hold up the loop; a new one takes its place when it has died.

    It is spawned, not forked: a fork would carry every socket of this process along. And it is made when it is first needed:
    a process that takes over has no time for it.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    @staticmethod
    def _make_pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_begin_reading, initargs=(os.getpid(),)
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of any executor. A process that has died is replaced here; what it was doing has failed with BrokenExecutor."""
        if self._pool is None:
            self._pool = self._make_pool()
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool = self._make_pool()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the process, if there is one."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _begin_reading(parent: int) -> None:
    """What the reading process does first. It is deaf to Ctrl-C, which a terminal sends to the whole group: what that means is
    decided in the process that serves. And it ends with that one, even by SIGKILL: it holds both ends of the pipe that it
    waits at, and would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # where there is no such call it is left to the pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked to be told


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
