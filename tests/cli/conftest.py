"""The command line under test: run in this process, in an empty folder, with no variables of the developer's."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from longwire.cli.program import program

Run = Callable[..., Result]
Answer = tuple[int, str, bytes]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("config", "show", input=..., env=...)`` as ``longwire config show``."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LONGWIRE_")]:
        monkeypatch.delenv(name)

    def invoke(*args: str, **options: Any) -> Result:
        return CliRunner().invoke(program, args, prog_name="longwire", **options)

    return invoke


@pytest.fixture
def closed_url() -> Iterator[str]:
    """An address at which nothing listens, and nothing can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


class AdminStandIn(ThreadingHTTPServer):
    """Answers each request with what the test planned for its path; a body that is cut short is a cut connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def plan(self, request: str, body: object, status: int = 200) -> None:
        self.answers.setdefault(request, []).append((status, "application/json", json.dumps(body).encode()))

    def plan_events(self, request: str, *blocks: str, status: int = 200) -> None:
        self.answers.setdefault(request, []).append((status, "text/event-stream", "".join(blocks).encode()))


class _Handler(BaseHTTPRequestHandler):
    server: AdminStandIn

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        self.server.requests.append(request)
        planned = self.server.answers.get(request) or [
            (404, "application/json", b'{"error": {"message": "Not there."}}')
        ]
        status, kind, body = planned.pop(0) if len(planned) > 1 else planned[0]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if kind == "text/event-stream":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n" % (len(body), body)  # without the last chunk: cut
        self.end_headers()
        self.wfile.write(b"" if status == 204 else body)

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def admin() -> Iterator[AdminStandIn]:
    with AdminStandIn() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
