"""Real clients against a real gateway, in front of the simulator and of the embedded model.

Whatever a client was told is compared with a full replay of its stream, which is read by nothing but ``http.client``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import httpx_sse
import openai
import pytest
from tests.client.cutting_proxy import Cut, CuttingProxy

from longwire.client import Backoff, ResumableStream, resumable
from longwire.engines import local
from longwire.sim.answer import answer_text

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(__file__).with_name("node")
LIMIT_S = 60.0
"""A hang must not hold up the suite; nothing here asserts how long things take."""
TOKENS = 12
SEED = 7
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
IMPATIENT = Backoff(attempts=50, first_s=0.001, cap_s=0.02)
"""On loopback there is nobody to be spared, and a gateway that answers nobody should be found out within a second."""

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules").is_dir(),
    reason="Node or its clients are not installed: `npm ci` in tests/e2e/node",
)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


# The gateway.


class Gateway(NamedTuple):
    """A running gateway and what to ask it."""

    url: str
    engine: str
    model: str

    def body(self, path: str = CHAT, **more: Any) -> dict[str, Any]:
        """A request whose answer is always the same."""
        asks: dict[str, Any] = {"model": self.model, "max_tokens": TOKENS, "temperature": 0, "seed": SEED, **more}
        if self.engine == "sim":
            asks["sim"] = {"tokens": TOKENS, "seed": SEED, "ttft_ms": 0, "itl_ms": 1}
        question = "Count from one to ten."
        return asks | ({"prompt": question} if path == TEXT else {"messages": [{"role": "user", "content": question}]})

    def openai(self, url: str | None = None) -> openai.OpenAI:
        """The plain client, through ``url`` where that is a proxy's."""
        return openai.OpenAI(base_url=f"{url or self.url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0)

    def replay(self, stream_id: str, after: str | None = None) -> list[tuple[str, str]]:
        """All events of a stream (or those after a cursor), as (id, data)."""
        wire = self.get(f"/v1/streams/{stream_id}", "text/event-stream", {"Last-Event-ID": after} if after else {})
        return [(block["id"], block["data"]) for block in blocks(wire) if "data" in block]

    def state(self, stream_id: str) -> dict[str, Any]:
        """The stream's JSON."""
        return dict(json.loads(self.get(f"/v1/streams/{stream_id}", "application/json")))

    def stream_ids(self) -> set[str]:
        """All streams that the gateway has."""
        return {stream["id"] for stream in json.loads(self.get("/v1/streams", "application/json"))["data"]}

    def get(self, path: str, accept: str, headers: dict[str, str] | None = None) -> str:
        """A GET by hand."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
        try:
            connection.request("GET", path, headers={"Accept": accept, **(headers or {})})
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read())
            return response.read().decode()
        finally:
            connection.close()


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """``longwire serve`` as a child; gives its URL."""
    command = [sys.executable, "-m", "longwire", "serve", "--port", "0", "--admin-port", "0", *flags]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT, start_new_session=True
    )
    assert child.stdout is not None
    said: list[str] = []
    rest = threading.Thread(target=said.extend, args=(child.stdout,))
    watchdog = threading.Timer(LIMIT_S, child.kill)
    watchdog.start()
    try:
        for line in child.stdout:
            said.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                break
        else:
            pytest.fail("the gateway did not start:\n" + "".join(said))
        watchdog.cancel()
        rest.start()
        yield found[1]
        child.send_signal(signal.SIGTERM)
        child.wait(LIMIT_S)
    finally:
        watchdog.cancel()
        if child.poll() is None:
            child.kill()
            child.wait()
        if rest.ident is not None:
            rest.join()  # it has read to the end, of a child that was killed, too
        child.stdout.close()


def first_model(url: str) -> str:
    """The first model that is listed. Each shard looks for itself: one may be asked that has not seen the engine yet."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    deadline = time.monotonic() + LIMIT_S
    while not (listed := client.models.list().data):
        assert time.monotonic() < deadline, "no shard lists a model"
    return listed[0].id


@pytest.fixture(scope="module", params=["sim", "local"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    engine = request.param
    if engine == "local" and not local.is_installed():
        pytest.skip("the embedded engine is not installed: `longwire local install`")
    with running("--engine", engine) as url:
        # The engine may still be loading: then /readyz is 503, and this client tries again, as any user's would.
        openai.OpenAI(base_url=url, api_key="none", max_retries=30).get("/readyz", cast_to=object)
        yield Gateway(url, engine, first_model(url))


def blocks(wire: str) -> Iterator[dict[str, str]]:
    """The fields of each block; comments are none."""
    for block in wire.replace("\r\n", "\n").split("\n\n"):
        lines = [line.partition(":") for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            yield {name: value.removeprefix(" ") for name, _, value in lines}


# What a client was told is what the gateway has.


def assert_same(gateway: Gateway, stream_id: str | None, events: list[Any]) -> None:
    """``events``, decoded and without the end marker, are the whole stream."""
    assert stream_id is not None
    replay = gateway.replay(stream_id)
    assert [event_id.split("-")[1] for event_id, _ in replay] == [str(seq) for seq in range(len(replay))]
    assert [json.loads(data) for _, data in replay[:-1]] == events
    assert replay[-1][1] == "[DONE]"
    assert gateway.state(stream_id)["close_reason"] == "completed"
    assert len(events) > 3
    if gateway.engine == "sim":
        assert text_of(events) == answer_text(SEED, TOKENS)


def text_of(events: list[Any]) -> str:
    """The answer's text, of either API."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def plain(items: list[Any]) -> list[Any]:
    """openai's objects as the JSON that they came from."""
    return [item.to_dict() for item in items]


def create(client: Any, path: str, body: dict[str, Any], **more: Any) -> Any:
    """The call of openai's that POSTs ``body`` to ``path``."""
    resource = client.completions if path == TEXT else client.chat.completions
    known = {name: value for name, value in body.items() if name != "sim"}
    return resource.create(**known, **more, extra_body={"sim": body["sim"]} if "sim" in body else None)


# openai, Python.


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_openai_streams(gateway: Gateway, path: str) -> None:
    with create(gateway.openai(), path, gateway.body(path), stream=True) as stream:
        events = plain(list(stream))
    assert_same(gateway, stream.response.headers["x-stream-id"], events)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_openai_without_a_stream(gateway: Gateway, path: str) -> None:
    stream = create(gateway.openai(), path, gateway.body(path), stream=True)
    streamed = text_of(plain(list(stream)))
    answer = create(gateway.openai(), path, gateway.body(path)).to_dict()
    choice = answer["choices"][0]
    assert (choice["text"] if path == TEXT else choice["message"]["content"]) == streamed
    assert answer["usage"]["completion_tokens"] > 0


def test_openai_is_given_usage_when_it_asks(gateway: Gateway) -> None:
    stream = create(gateway.openai(), CHAT, gateway.body(stream_options={"include_usage": True}), stream=True)
    *events, last = plain(list(stream))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    assert_same(gateway, stream.response.headers["x-stream-id"], [*events, last])


def test_openai_async_streams(gateway: Gateway) -> None:
    async def main() -> tuple[str, list[Any]]:
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0
        ) as client:
            stream = await create(client, CHAT, gateway.body(), stream=True)
            return stream.response.headers["x-stream-id"], plain([item async for item in stream])

    assert_same(gateway, *asyncio.run(main()))


# longwire.client over a bad line.

CUTS = [
    pytest.param(Cut(events=1), id="after-every-event"),
    pytest.param(Cut(events=2, extra_bytes=1), id="inside-a-frame"),
    pytest.param(Cut(events=1, extra_bytes=40), id="inside-an-event"),
    pytest.param(Cut(events=3, reset=True), id="reset"),
]


def assert_was_cut(proxy: CuttingProxy, cut: Cut, events: list[Any], path: str) -> None:
    assert proxy.requests[0] == f"POST {path} HTTP/1.1"
    assert all(request.startswith("GET /v1/streams/lw_") for request in proxy.requests[1:])
    assert len(proxy.requests) >= len(events) // cut.events


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("cut", CUTS)
def test_resumable_survives(gateway: Gateway, cut: Cut, path: str) -> None:
    with CuttingProxy(gateway.url, cut) as proxy:
        client = resumable(gateway.openai(proxy.url), backoff=IMPATIENT)
        stream = create(client, path, gateway.body(path), stream=True)
        events = plain(list(stream))
    assert isinstance(stream, ResumableStream)
    assert_same(gateway, stream.stream_id, events)
    assert stream.cursor.seq == len(events), "the end marker is an event too"
    assert_was_cut(proxy, cut, events, path)


@pytest.mark.parametrize("cut", CUTS)
def test_async_resumable_survives(gateway: Gateway, cut: Cut) -> None:
    async def main(url: str) -> tuple[str, list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0) as client:
            stream = await create(resumable(client, backoff=IMPATIENT), CHAT, gateway.body(), stream=True)
            return stream.stream_id, plain([item async for item in stream])

    with CuttingProxy(gateway.url, cut) as proxy:
        stream_id, events = asyncio.run(main(proxy.url))
    assert_same(gateway, stream_id, events)
    assert_was_cut(proxy, cut, events, CHAT)


def test_a_lost_answer_does_not_generate_twice(gateway: Gateway) -> None:
    before = gateway.stream_ids()
    with CuttingProxy(gateway.url, Cut(connections=0, lost_answers=2)) as proxy:
        client = resumable(gateway.openai(proxy.url), backoff=IMPATIENT)
        stream = create(client, CHAT, gateway.body(), stream=True)
        events = plain(list(stream))
    assert_same(gateway, stream.stream_id, events)
    assert proxy.requests == [f"POST {CHAT} HTTP/1.1"] * 3
    assert gateway.stream_ids() - before == {stream.stream_id}


def test_cancel_stops_the_generation(gateway: Gateway) -> None:
    body = gateway.body(max_tokens=2000)
    if gateway.engine == "sim":
        body["sim"] |= {"tokens": 100_000}
    stream = create(resumable(gateway.openai()), CHAT, body, stream=True)
    next(stream)
    stream.cancel()
    assert gateway.replay(stream.stream_id)[-1][1] == "[DONE]", "the replay ends, for the stream has ended"
    assert gateway.state(stream.stream_id)["close_reason"] == "cancelled"


# httpx-sse.


def test_httpx_sse(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url, timeout=LIMIT_S) as client:
        with httpx_sse.connect_sse(client, "POST", CHAT, json=gateway.body(stream=True)) as source:
            stream_id = source.response.headers["x-stream-id"]
            first = [event.data for event in source.iter_sse()]
        assert_same(gateway, stream_id, [json.loads(data) for data in first[:-1]])
        with httpx_sse.connect_sse(
            client, "GET", f"/v1/streams/{stream_id}", headers={"Last-Event-ID": "0-2"}
        ) as source:
            rest = [(event.id, event.data) for event in source.iter_sse()]
    assert rest == gateway.replay(stream_id)[3:]


# curl.


def run(*command: str, **env: str) -> str:
    """What a program printed."""
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | env, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@needs_curl
def test_curl(gateway: Gateway, tmp_path: Path) -> None:
    head = tmp_path / "head"
    body = json.dumps(gateway.body(stream=True))
    curl = ("curl", "-sSN", "--fail")
    printed = run(*curl, "-D", str(head), "-H", "Content-Type: application/json", "-d", body, gateway.url + CHAT)
    fields = dict(line.lower().split(": ", 1) for line in head.read_text().splitlines() if ": " in line)
    stream_id = fields["x-stream-id"]
    assert_same(gateway, stream_id, [json.loads(block["data"]) for block in list(blocks(printed))[:-1]])
    accept = ("-H", "Accept: text/event-stream")
    rest = run(*curl, *accept, "-H", "Last-Event-ID: 0-2", gateway.url + fields["location"])
    assert [(block["id"], block["data"]) for block in blocks(rest)] == gateway.replay(stream_id)[3:]
    assert run(*curl, *accept, f"{gateway.url}{fields['location']}?after=0-2") == rest


# Node.


def run_node(script: str, **asks: Any) -> Any:
    """The JSON that one of the scripts printed."""
    return json.loads(run("node", str(NODE / script), json.dumps(asks)))


@needs_node
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_node_openai_streams(gateway: Gateway, path: str) -> None:
    said = run_node("openai_client.mjs", url=gateway.url, path=path, body=gateway.body(path))
    assert_same(gateway, said["stream_id"], said["events"])


@needs_node
def test_node_openai_without_a_stream(gateway: Gateway) -> None:
    stream = create(gateway.openai(), CHAT, gateway.body(), stream=True)
    said = run_node("openai_client.mjs", url=gateway.url, path=CHAT, body=gateway.body(), whole=True)
    assert said["answer"]["choices"][0]["message"]["content"] == text_of(plain(list(stream)))


@needs_node
@pytest.mark.parametrize(
    "cut", [None, Cut(events=1), Cut(events=3, extra_bytes=40)], ids=["whole", "every-event", "inside"]
)
def test_node_eventsource(gateway: Gateway, cut: Cut | None) -> None:
    client = gateway.openai()
    headers = {"Longwire-On-Disconnect": "run"}
    stream = create(client, CHAT, gateway.body(), stream=True, extra_headers=headers)
    stream_id = stream.response.headers["x-stream-id"]
    stream.close()
    with CuttingProxy(gateway.url, cut or Cut(connections=0)) as proxy:
        said = run_node("eventsource_client.mjs", url=f"{proxy.url}/v1/streams/{stream_id}")
    replay = gateway.replay(stream_id)
    assert [(event["id"], event["data"]) for event in said["events"]] == replay
    assert said["status"] == 204, "or it would come back for ever"
    assert said["opened"] >= (len(replay) // cut.events if cut else 1)


@needs_node
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("cut", [None, *CUTS], ids=lambda cut: None if cut else "whole")
def test_example_resume_js(gateway: Gateway, cut: Cut | None, path: str) -> None:
    with CuttingProxy(gateway.url, cut or Cut(connections=0)) as proxy:
        said = run_node("resume_client.mjs", url=proxy.url, path=path, body=gateway.body(path))
    assert_same(gateway, said["stream_id"], said["events"])
    assert said["connections"] == len(proxy.requests)
    if cut:
        assert_was_cut(proxy, cut, said["events"], path)


# The other examples, as they are shown.


@pytest.mark.parametrize("example", ["quickstart.py", "resumable.py"])
def test_example_in_python(gateway: Gateway, example: str) -> None:
    printed = run(sys.executable, f"examples/{example}", "Hi.", LONGWIRE_URL=gateway.url, PYTHONPATH=str(ROOT / "src"))
    assert printed.strip()


@needs_curl
def test_example_in_curl(gateway: Gateway) -> None:
    printed = run("sh", "examples/curl.sh", "Count from one to ten.", LONGWIRE_URL=gateway.url, EVENTS="3")
    first, goes_on, state = printed.split("---")
    stream_id = re.search(r"lw_[0-9a-f]{34}", goes_on)
    assert stream_id is not None
    got = [
        block["data"]
        for part in (first.replace("\n", "\n\n"), goes_on.partition("goes on:")[2])
        for block in blocks(part)
    ]
    assert got == [data for _, data in gateway.replay(stream_id[0])]
    assert '"close_reason"' in state
