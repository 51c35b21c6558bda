"""The embedded engine's own process: llama.cpp's HTTP server around one model file.

What lives here: loading the model, saying where it listens, and dying when the parent does.
What must not: anything of Longwire's. This file is run by its path, needs nothing but the standard library and ``xllamacpp``,
and shares no memory with the gateway, so that a crash in native code (or the kernel's out-of-memory killer) takes only
this process with it.

The contract with the parent (``local.py``):

* stdout is the report pipe: exactly one JSON line, ``{"url", "model", "load_ms"}`` or ``{"error"}``;
* stderr is for native logs and tracebacks, of which the parent keeps the end;
* stdin is held open by the parent and never written to: its end means that the parent is gone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends us when the parent's thread that started us ends."""

OOM_SCORE = 500
"""When memory runs out, this process is to be killed (and started again) before the gateway that holds everyone's streams."""

HTTP_THREADS_SPARE = 64
"""llama.cpp's server blocks one thread for each request, waiting ones included. With only as many threads as slots a queue of
requests would shut out the health probe, and a busy engine would look dead."""

PROMPT_CACHE_MIB = 512
"""llama.cpp keeps the KV cache of past prompts in main memory, up to 8 GiB by default: too much for a guest on this machine."""

MAX_INHERITED = 65_536
"""Descriptors above it are no longer looked for; the gateway's own limit is lower on all but unusual machines."""


def main(argv: list[str] | None = None) -> int:
    """Run until stdin ends."""
    options = _read_arguments(argv)
    report = _take_over_stdout()
    _outlive_nobody(options.parent)
    started = time.monotonic()
    try:
        server = _load(options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        _write_report(report, {"error": f"{type(error).__name__}: {error}"})
        return 1
    load_ms = round((time.monotonic() - started) * 1000)
    _write_report(report, {"url": server.listening_address, "model": options.alias, "load_ms": load_ms})
    threading.Event().wait()  # the server runs in native threads; the watcher of stdin ends the process
    return 0


def _read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="longwire-local", description="The embedded engine's process; started by longwire."
    )
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model name to answer to")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True, help="0: a free one")
    parser.add_argument("--slots", type=int, required=True, help="answers generated at once")
    parser.add_argument("--context-tokens", type=int, required=True, help="context of each slot")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    return parser.parse_args(argv)


def _take_over_stdout() -> int:
    """Keep the report pipe for ourselves and send what native code prints to stderr."""
    report = os.dup(sys.stdout.fileno())  # not inheritable, unlike stdout
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


def _write_report(report: int, content: dict[str, Any]) -> None:
    with os.fdopen(report, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(content) + "\n")


# Life and death.


def _outlive_nobody(parent: int) -> None:
    """End with the parent, however it ends, and by nothing else that reaches the whole process group.

    A Ctrl-C or a service manager's SIGTERM goes to the group; the gateway then still drains its streams, and needs its
    engine for it.
    """
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            print(f"prctl: {os.strerror(ctypes.get_errno())}; watching stdin only", file=sys.stderr)
        _volunteer_for_oom()
    if os.getppid() != parent:  # it died before prctl took effect
        os._exit(0)
    threading.Thread(target=_exit_when_stdin_ends, name="parent-watch", daemon=True).start()


def _volunteer_for_oom() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    except OSError as error:
        print(f"oom_score_adj: {error}", file=sys.stderr)


def _exit_when_stdin_ends() -> NoReturn:
    """Exit at once, skipping native destructors: they would wait for running answers that nobody reads any more."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


# The model.


def _load(options: argparse.Namespace) -> Any:
    """Load the model and start the server; returns it, because it stops when it is collected."""
    if not options.model.is_file():
        raise FileNotFoundError(f"no model file at {options.model}")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.context_tokens * options.slots  # shared out among the slots
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = options.threads
    params.n_threads_http = options.slots + HTTP_THREADS_SPARE
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.warmup = False  # the first request pays 0.1 s instead of every start
    params.verbosity = 1  # errors: the parent keeps their end for its own message
    return xllamacpp.Server(params)


if __name__ == "__main__":
    # A gateway's listener or a client's connection that was left inheritable would stay open as long as this process lives.
    os.closerange(3, MAX_INHERITED)
    sys.exit(main())
