"""``longwire check``: each check on machines good and bad, and the counters on this one."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from longwire.cli import check
from longwire.cli.check import check_descriptors, check_exposure, check_memory, check_package
from longwire.cli.finding import FAIL, OK, WARN
from longwire.cli.reachability import check_buffering, check_engine, judge_buffering
from longwire.observe.machine import memory_limit_bytes as limit
from longwire.streams import counters
from longwire.streams.counters import counters_work
from longwire.words.settings import GIB, MIB, EngineSettings, Settings

from .conftest import Run

# Descriptors


def test_descriptors_for_every_connection() -> None:
    settings = Settings(max_connections=1000)
    assert check_descriptors(settings, 4096).state == OK
    assert check_descriptors(settings, resource.RLIM_INFINITY).state == OK


def test_too_few_descriptors_say_how_to_get_more() -> None:
    few = check_descriptors(Settings(max_connections=1000), 1024)
    assert (few.state, few.found) == (WARN, "1024 open files: about 448 streams at once")
    assert "nofile to 2128" in few.advice
    assert check_descriptors(Settings(), 128).state == FAIL


# Memory


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       8388608 kB\nMemFree: 1 kB\n"}
V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"
NO_LIMIT = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, (8 * GIB, "machine")),
        ("0::/a/b\n", {f"{V2}/a/b/memory.max": "max\n", f"{V2}/a/memory.max": "1073741824\n"}, (GIB, "cgroup v2")),
        ("0::/hidden\n", {f"{V2}/memory.max": "1073741824\n"}, (GIB, "cgroup v2")),
        ("0::/a\n", {f"{V2}/a/memory.max": "17179869184\n"}, (8 * GIB, "machine")),
        (
            "4:memory:/a\n3:cpu,cpuacct:/\n0::/\n",
            {f"{V1}/a/memory.limit_in_bytes": "536870912\n", f"{V1}/memory.limit_in_bytes": NO_LIMIT},
            (GIB // 2, "cgroup v1"),
        ),
        ("4:memory:/a\n", {f"{V1}/a/memory.limit_in_bytes": NO_LIMIT}, (8 * GIB, "machine")),
    ],
)
def test_the_memory_limit_of_every_kind_of_machine(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: tuple[int, str]
) -> None:
    assert limit(machine(tmp_path, MEMINFO | {"proc/self/cgroup": cgroup} | files)) == expected


def test_the_memory_limit_where_there_is_no_proc(tmp_path: Path) -> None:
    assert limit(tmp_path) == (0, "unknown")


def test_the_arena_against_the_limit() -> None:
    assert check_memory(Settings(), GIB, "cgroup v2")[:3] == ("memory", OK, "arena 0.25 GiB of 1.00 GiB (cgroup v2)")
    assert check_memory(Settings(arena_bytes=600 * MIB), GIB, "machine").state == WARN
    assert check_memory(Settings(arena_bytes=GIB), GIB, "machine").state == FAIL
    local = Settings(engines=[EngineSettings(name="local", url="local")])
    assert check_memory(local, GIB, "machine").state == WARN
    assert check_memory(Settings(), 0, "unknown").state == WARN


# The kernel


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="Linux only")
def test_the_counters_of_this_kernel_are_exact() -> None:
    assert counters_work()


def test_counters_that_are_wrong_missing_or_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(counters, "_counters", lambda connection: (1, 0, 0))
        assert not counters_work()
    with monkeypatch.context() as patched:
        patched.setattr(counters, "TCP_INFO_BYTES", 4096)  # more than the kernel knows of
        assert not counters_work()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "create_server", _raise_os_error)
        assert not counters_work()
        assert check.check_counters().state == WARN


def _raise_os_error(*args: object, **named: object) -> None:
    raise OSError("not here")


def test_memfd_here_and_where_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check.check_memfd().state == OK
    monkeypatch.setattr("os.memfd_create", _raise_os_error)
    assert check.check_memfd().state == FAIL


def test_packages_and_the_open_admin_port() -> None:
    assert check_package("click").state == OK
    assert check_package("no_such_package").state == FAIL
    assert check_exposure(Settings()).state == OK
    assert check_exposure(Settings(admin_host="0.0.0.0")).state == WARN


# Engines and proxies


class Engine(ThreadingHTTPServer):
    """Lists models, and streams as many events as the test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: Any = {"data": [{"id": "m1"}, {"id": "m2"}]}
        self.state: Any = {"first_token_ms": 10.0, "last_event_ms": 12.0}
        self.authorization: list[str | None] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.authorization.append(self.headers["Authorization"])
        self._answer(json.dumps(self.server.models if self.path == "/v1/models" else self.server.state).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert request["stream"] is True
        assert request["model"] == "m1"
        self._answer(b'data: {"choices": []}\n\n' * 5 + b"data: [DONE]\n\n")

    def _answer(self, body: bytes) -> None:
        self.send_response(self.server.status)
        self.send_header("X-Stream-Id", "lw_" + "0" * 34)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_engine_that_lists_its_models(engine: Engine) -> None:
    found = check_engine(EngineSettings(name="a", url=engine.url, api_key="s3cret"))
    assert found == ("engine a", OK, f"{engine.url}: m1, m2", "")
    assert engine.authorization == ["Bearer s3cret"]


@pytest.mark.parametrize(
    ("models", "status", "state", "found"),
    [
        ({"data": []}, 200, WARN, "lists no models"),
        ({}, 200, FAIL, "no model list"),
        ([], 200, FAIL, "no model list"),
        ({"data": [5]}, 200, FAIL, "no model list"),
        ({}, 401, FAIL, "answered 401"),
    ],
)
def test_an_engine_that_answers_something_else(
    engine: Engine, models: Any, status: int, state: str, found: str
) -> None:
    engine.models, engine.status = models, status
    result = check_engine(EngineSettings(name="a", url=engine.url))
    assert (result.state, found in result.found) == (state, True)


def test_an_engine_that_is_not_there(closed_url: str) -> None:
    result = check_engine(EngineSettings(name="a", url=closed_url))
    assert (result.state, result.found) == (FAIL, f"{closed_url}: nothing listens there")


class Ticks:
    """A clock that moves on by a fixed step with each reading."""

    def __init__(self, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def test_buffering_is_measured_against_the_gateways_own_times(engine: Engine) -> None:
    engine.state = {"first_token_ms": 100, "last_event_ms": 500}
    spread = check_buffering(engine.url, "", Ticks(0.1))
    assert (spread.state, spread.found) == (OK, "5 events over 400 ms, made over 400 ms")
    held = check_buffering(f"{engine.url}/v1", "", Ticks(0.001))
    assert (held.state, held.found) == (FAIL, "5 events over 4 ms, made over 400 ms: held back")
    assert "proxy_buffering off" in held.advice


def test_buffering_without_the_gateways_times(engine: Engine) -> None:
    engine.state = {"error": {}}
    assert check_buffering(engine.url, "", Ticks(0.1)).found == "5 events over 400 ms, the first after 100 ms"


def test_buffering_that_cannot_be_tried(engine: Engine) -> None:
    assert check_buffering("ftp://x", "").state == FAIL
    engine.models = {"data": []}
    assert check_buffering(engine.url, "").state == WARN
    engine.status = 401
    assert "answered 401" in check_buffering(engine.url, "").found


@pytest.mark.parametrize(
    ("arrivals_ms", "made_ms", "state"),
    [
        ([50, 250, 450], 400.0, OK),
        ([450, 451, 452], 400.0, FAIL),
        ([300, 350, 450], 400.0, FAIL),
        ([10, 11, 12], 20.0, WARN),
        ([10], 400.0, WARN),
        ([50, 250, 450], None, OK),
        ([1000, 1100, 1200], None, OK),
        ([1000, 1001, 1002], None, FAIL),
        ([1, 2, 3], None, WARN),
    ],
)
def test_verdicts_about_arrival_times(arrivals_ms: list[float], made_ms: float | None, state: str) -> None:
    finding = judge_buffering(arrivals_ms, made_ms)
    assert finding.state == state
    assert bool(finding.advice) == (state != OK)


# The command


def test_the_table_and_its_exit_code(run: Run, engine: Engine, closed_url: str) -> None:
    good = run("check", "--engine", f"a={engine.url}", "--engine", "sim", "--arena-bytes", "1MiB")
    assert good.exit_code == 0
    assert good.output.splitlines()[0].split() == ["CHECK", "FOUND", "WHAT", "TO", "DO"]
    assert any(line.startswith("engine a") and " ok " in line for line in good.output.splitlines())
    bad = run("check", "--engine", closed_url, "--arena-bytes", "1MiB")
    assert bad.exit_code == 1


def test_json_for_scripts(run: Run, engine: Engine) -> None:
    engine.state = {"first_token_ms": 0, "last_event_ms": 0}
    result = run("check", "--json", "--url", engine.url, "--arena-bytes", "1MiB", env={"LONGWIRE_API_KEY": "k" * 20})
    rows = json.loads(result.output)
    assert {row["check"] for row in rows} >= {
        "descriptors",
        "memory",
        "kernel counters",
        "memfd",
        "uvloop",
        "proxy in front",
    }
    assert all(row["state"] in (OK, WARN, FAIL) for row in rows)
    assert set(engine.authorization) == {"Bearer " + "k" * 20}
