"""The recipes in packaging/proxies, run: each proxy that is installed stands in front of a real gateway.

What lives here: what passes through a proxy (each event at once, heartbeats, a resumed read, a client's leaving), and what must
not happen in one (a second POST).
What must not: what the recipes say (the files themselves, and docs/operate.md).

That events are not held back is proven without a clock: the engine falls silent for ever after some events, and they have all
arrived while the stream is still open. The gateway's heartbeats are slower than the test's patience, so nothing pushed them.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.e2e import test_sim
from tests.e2e.test_clients import running
from tests.server.test_tls import Pair, make_pair

pytestmark = pytest.mark.e2e

RECIPES = Path(__file__).parents[2] / "packaging" / "proxies"
LIMIT_S = 10.0
"""How long anything is waited for; less than a heartbeat's 15 s, so that none can push what was held back."""
PAUSE_S = 0.02
CHAT = "/v1/chat/completions"
NGINX_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
EVENTS = 5
TOKENS = 40
TENANTS = 32
"""That all of them fall to one of two gateways, even if its share is 60 %, has a chance of 1 in ten million."""


# The proxies.


class Kind(NamedTuple):
    """A proxy: how it is found, and how it is run in the foreground with a recipe that was filled in."""

    recipe: str
    programs: tuple[str, ...]
    command: Callable[[str, Path], list[str]]


def nginx(program: str, config: Path) -> list[str]:
    here = config.parent
    return [program, "-e", "stderr", "-p", str(here), "-c", str(config), "-g", f"daemon off; pid {here}/nginx.pid;"]


def haproxy(program: str, config: Path) -> list[str]:
    return [program, "-db", "-f", str(config)]


def envoy(program: str, config: Path) -> list[str]:
    return [program, "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]


KINDS = {
    "nginx": Kind("nginx.conf", ("nginx",), nginx),
    "haproxy": Kind("haproxy.cfg", ("haproxy",), haproxy),
    "envoy": Kind("envoy.yaml", ("envoy",), envoy),
}


def find(kind: Kind) -> str | None:
    """The proxy's program: on the path, where Debian has daemons, or beside this Python (Envoy comes as a wheel as well)."""
    places = [None, "/usr/sbin", str(Path(sys.executable).parent)]
    return next(
        (found for name in kind.programs for place in places if (found := shutil.which(name, path=place))), None
    )


Change = Callable[[str], str]


def fill_in(recipe: str, folder: Path, port: int, gateway: str, pair: Pair) -> str:
    """The recipe with this test's places in it. Everything else stays as it is: that is what is tested."""
    gateway_port = gateway.rpartition(":")[2]
    both = folder / "both.pem"
    both.write_text(Path(pair.certificate).read_text() + Path(pair.key).read_text())
    places = {
        "/etc/longwire/tls/cert.pem": pair.certificate,
        "/etc/longwire/tls/key.pem": pair.key,
        "/etc/longwire/tls/both.pem": str(both),
        "/var/log/nginx": str(folder),
        "listen 443": f"listen 127.0.0.1:{port}",
        "bind :443": f"bind 127.0.0.1:{port}",
        "address: 0.0.0.0, port_value: 443": f"address: 127.0.0.1, port_value: {port}",
        "127.0.0.1:8080": f"127.0.0.1:{gateway_port}",
        "address: 127.0.0.1, port_value: 8080": f"address: 127.0.0.1, port_value: {gateway_port}",
        "maxconn 20000": "maxconn 500",  # this machine may allow fewer descriptors
        # Folders that Debian's nginx makes as root, whatever the recipe does with bodies.
        "http {": "http {" + "".join(f"{each}_temp_path {folder}/{each};" for each in NGINX_TEMPORARY),
    }
    for place, ours in places.items():
        recipe = recipe.replace(place, ours)
    assert not re.search(r"\b(?:443|8080)\b", re.sub(r"#.*", "", recipe)), "a place that was not filled in"
    return recipe


class Proxied(NamedTuple):
    """A proxy that runs, and the gateway and the engine behind it."""

    kind: Kind
    port: int
    gateway: str
    engine: str
    process: subprocess.Popen[bytes]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """One request through the proxy, on a connection of its own, which closes with the response."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=LIMIT_S, context=context)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json", "Connection": "close"} | fields)
        return connection.getresponse()

    def stream(self, fault: str, **headers: str) -> http.client.HTTPResponse:
        """An event stream on which that happens."""
        response = self.ask("POST", CHAT, chat(fault), **headers)
        assert response.status == 200, response.read()
        return response

    def state(self, stream_id: str) -> dict[str, Any]:
        """What the gateway itself says about a stream."""
        return dict(httpx.get(f"{self.gateway}/v1/streams/{stream_id}", timeout=LIMIT_S).json())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Ask again and again, for as long as the proxy lives."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline, "it did not come to pass"
            try:
                pytest.fail(f"the proxy has ended with {self.process.wait(PAUSE_S)}")
            except subprocess.TimeoutExpired:
                continue

    def is_ready(self) -> bool:
        """Whether the gateway's readiness is seen through the proxy."""
        try:
            with self.ask("GET", "/readyz") as response:
                return response.status == 200
        except OSError:
            return False


def chat(fault: str, **more: Any) -> dict[str, Any]:
    sim = {"tokens": TOKENS, "seed": 3, "ttft_ms": 0, "itl_ms": 0, "fault": fault}
    return {"model": "sim", "stream": True, "messages": [{"role": "user", "content": "hi"}], "sim": sim, **more}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def standing_before(
    kind: Kind, folder: Path, gateway: str, engine: str, change: Change = lambda recipe: recipe
) -> Iterator[Proxied]:
    program = find(kind)
    if program is None:
        pytest.skip(f"{kind.programs[0]} is not installed")
    port = free_port()
    config = folder / kind.recipe
    recipe = change((RECIPES / kind.recipe).read_text(encoding="utf-8"))
    config.write_text(fill_in(recipe, folder, port, gateway, make_pair(folder, "proxy")))
    command = kind.command(program, config)
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    proxied = Proxied(kind, port, gateway, engine, process)
    try:
        proxied.until(proxied.is_ready)
        yield proxied
    except BaseException:
        print((folder / "said").read_text(errors="replace"))
        raise
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    process, url = test_sim.start()
    yield url
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def gateway(engine: str) -> Iterator[str]:
    with running("--engine", engine, "--trusted-proxies", "127.0.0.1") as url:
        yield url


@pytest.fixture(scope="module")
def lively_gateway(engine: str) -> Iterator[str]:
    """One whose heartbeats come at once."""
    with running("--engine", engine, "--heartbeat-s", "0.05") as url:
        yield url


@pytest.fixture(scope="module", params=KINDS)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, gateway: str, engine: str
) -> Iterator[Proxied]:
    with standing_before(KINDS[request.param], tmp_path_factory.mktemp(request.param), gateway, engine) as proxied:
        yield proxied


# What is read.


def read_events(response: http.client.HTTPResponse, count: int) -> list[tuple[str, str]]:
    """The next events, as (id, data), and not a byte beyond."""
    found: list[tuple[str, str]] = []
    event_id = ""
    while len(found) < count:
        line = response.readline().decode()
        assert line, "the response has ended"
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            found.append((event_id, value))
            assert response.readline() == b"\n"
    return found


def read_rest(response: http.client.HTTPResponse) -> list[str]:
    """The data of all that comes until the response's own end."""
    return [line.removeprefix("data: ") for line in response.read().decode().split("\n") if line.startswith("data: ")]


# What passes.


def test_every_event_passes_while_the_stream_is_open(proxied: Proxied) -> None:
    with proxied.stream(f"stall_after={EVENTS}", X_Request_Id="chosen-by-the-client") as response:
        events = read_events(response, EVENTS)
        state = proxied.state(response.headers["x-stream-id"])
        assert (state["status"], state["events"]) == ("live", EVENTS)
        assert [json.loads(data)["object"] for _, data in events] == ["chat.completion.chunk"] * EVENTS
        assert response.headers["x-request-id"] == "chosen-by-the-client"
        assert "content-encoding" not in response.headers


def test_a_second_reader_resumes_and_both_are_told_of_the_end(proxied: Proxied) -> None:
    with proxied.stream(f"stall_after={EVENTS}") as first:
        events = read_events(first, EVENTS)
        path = first.headers["location"]
        with proxied.ask("GET", path, Accept="text/event-stream", Last_Event_ID="0-1") as second:
            resumed = read_events(second, EVENTS - 2)
            assert [event_id.partition("-")[2] for event_id, _ in resumed] == ["2", "3", "4"]
            assert [data for _, data in resumed] == [data for _, data in events[2:]]
            with proxied.ask("DELETE", path) as stopped:
                assert json.load(stopped)["close_reason"] == "cancelled"
            ends = [read_rest(reader) for reader in (first, second)]
    for error, end in ends:
        assert (json.loads(error)["error"]["code"], end) == ("cancelled", "[DONE]")


def test_a_client_that_leaves_in_a_silence_is_noticed_at_the_engine(proxied: Proxied) -> None:
    def cancelled() -> int:
        return int(httpx.get(f"{proxied.engine}/health", timeout=LIMIT_S).json()["cancelled"])

    before = cancelled()
    with proxied.stream(f"stall_after={EVENTS}") as response:
        read_events(response, EVENTS)
        stream_id = response.headers["x-stream-id"]
    proxied.until(lambda: proxied.state(stream_id)["close_reason"] == "client_left")
    proxied.until(lambda: cancelled() > before)


def test_heartbeats_pass(proxied: Proxied, lively_gateway: str, tmp_path: Path) -> None:
    """A second proxy of the kind: the heartbeats of the first one's gateway must be slow."""
    with (
        standing_before(proxied.kind, tmp_path, lively_gateway, proxied.engine) as other,
        other.stream(f"stall_after={EVENTS}") as response,
    ):
        read_events(response, EVENTS)
        assert response.readline().startswith(b":")
        assert other.state(response.headers["x-stream-id"])["events"] == EVENTS


def test_a_post_is_never_sent_twice(proxied: Proxied) -> None:
    """Not even where the client asks a proxy for it. The error is the gateway's own."""
    name = f"once-only-{proxied.kind.recipe}"
    headers = {"X_Request_Id": name, "x_envoy_retry_on": "5xx", "x_envoy_max_retries": "3"}
    with proxied.ask("POST", CHAT, chat("status=503"), **headers) as response:
        assert response.status == 503
        assert json.load(response)["error"]["code"] == "upstream_failed"
    seen = httpx.get(f"{proxied.engine}/sim/requests", timeout=LIMIT_S).json()["data"]
    assert len([request for request in seen if ["x-request-id", name] in request["headers"]]) == 1


def test_a_long_prompt_passes(proxied: Proxied) -> None:
    """nginx would take 1 MiB by itself."""
    with proxied.ask("POST", CHAT, chat("none", stream=False, padding="x" * (8 << 20))) as response:
        assert response.status == 200
        assert json.load(response)["choices"][0]["finish_reason"]


def test_http_2_ends_at_the_proxy(proxied: Proxied) -> None:
    curl = shutil.which("curl")
    if curl is None or " HTTP2" not in subprocess.run([curl, "-V"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("no curl that speaks HTTP/2")
    url = f"https://127.0.0.1:{proxied.port}{CHAT}"
    command = [curl, "-sNk", "--http2", url, "-H", "Content-Type: application/json", "-d", json.dumps(chat("none"))]
    asked = subprocess.run(
        [*command, "-w", "%{http_version}", "-m", str(LIMIT_S)], capture_output=True, text=True, check=True
    )
    *data, version = asked.stdout.split("\n\n")
    assert version == "2"
    assert len(data) > TOKENS and data[-1] == "data: [DONE]"


# The lines that stand in comments.


def for_two(other: str) -> Change:
    """The recipe with its line for several gateways, and with a second gateway."""
    port = other.rpartition(":")[2]
    lines = {
        "# hash $http": "hash $http",
        "server 127.0.0.1:8080 max_fails=0;": f"server 127.0.0.1:8080; server 127.0.0.1:{port};",
        "# balance hdr": "balance hdr",
        "# hash-type": "hash-type",
        "    server one": f"    server two 127.0.0.1:{port} check inter 2s\n    server one",
        "# hash_policy": "hash_policy",
        "type: STATIC": "type: STATIC\n      lb_policy: RING_HASH",
        "          - lb_endpoints:": "          - lb_endpoints:\n              - endpoint: "
        f"{{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}",
    }

    def change(recipe: str) -> str:
        for line, ours in lines.items():
            recipe = recipe.replace(line, ours)
        return recipe

    return change


def test_a_tenant_stays_with_its_gateway(proxied: Proxied, lively_gateway: str, tmp_path: Path) -> None:
    """Every key finds its own stream again, and not because all of them are on one gateway."""
    where = set()
    change = for_two(lively_gateway)
    with standing_before(proxied.kind, tmp_path, proxied.gateway, proxied.engine, change) as both:
        for tenant in range(TENANTS):
            key = f"Bearer tenant-{tenant}"
            with both.ask("POST", CHAT, chat("none"), Authorization=key) as response:
                path = response.headers["location"]
                said = read_rest(response)
            with both.ask("GET", path, Authorization=key, Accept="text/event-stream") as again:
                assert (again.status, read_rest(again)) == (200, said)
            where.add(httpx.get(proxied.gateway + path, timeout=LIMIT_S).status_code)
    assert where == {200, 404}


def test_the_proxy_protocol_in_place_of_a_header(engine: str, tmp_path: Path) -> None:
    """A gateway that expects it answers nobody who comes without it from an address that it trusts."""
    line = "check inter 2s fall 2 rise 1"
    flags = ("--proxy-protocol", "--trusted-proxies", "127.0.0.1")
    with (
        running("--engine", engine, *flags) as gateway,
        standing_before(
            KINDS["haproxy"], tmp_path, gateway, engine, lambda recipe: recipe.replace(line, line + " send-proxy-v2")
        ) as proxied,
        proxied.ask("POST", CHAT, chat("none")) as response,
    ):
        assert response.status == 200 and read_rest(response)[-1] == "[DONE]"
