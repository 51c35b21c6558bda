"""The admin API, without a socket: httpx speaks to the application directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

import httpx
import pytest
from starlette.types import Message

from longwire.admin.app import LIST_SLICE, State, admin_app, wants_events
from longwire.words.errors import LocalError, UpstreamError

from .fakes import FakeGateway, FakeKeeper, FakeMetrics

EVENTS = {"accept": "text/event-stream"}
ID = "lw_" + "a" * 34


@pytest.fixture
def gateway() -> FakeGateway:
    fake = FakeGateway()
    fake.add(ID, 3)
    return fake


def ask(
    gateway: FakeGateway,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    keeper: FakeKeeper | None = None,
) -> httpx.Response:
    """One request to a fresh application."""

    async def send() -> httpx.Response:
        app = admin_app(gateway, FakeMetrics(), keeper)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]  # type: ignore[no-any-return]


# Metrics and health.


def test_metrics_are_rendered_for_the_accept_header(gateway: FakeGateway) -> None:
    response = ask(gateway, "GET", "/metrics", {"accept": "application/openmetrics-text"})
    assert response.text == "accept application/openmetrics-text"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_healthz_is_ok_even_if_not_ready(gateway: FakeGateway) -> None:
    gateway.readiness = (False, "No engine is up yet.")
    assert ask(gateway, "GET", "/healthz").status_code == 200
    response = ask(gateway, "GET", "/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "not_ready", "reason": "No engine is up yet."}


def test_readyz_says_ready(gateway: FakeGateway) -> None:
    assert ask(gateway, "GET", "/readyz").json() == {"status": "ready"}


def test_shards_are_an_array_and_the_overview_an_object(gateway: FakeGateway) -> None:
    assert ask(gateway, "GET", "/v1/shards").json() == [{"index": 0, "state": "serving"}]
    assert ask(gateway, "GET", "/v1/overview").json() == {"object": "overview"}
    assert ask(gateway, "DELETE", "/v1/shards").status_code == 405


# The keeper.


def test_a_reload_is_answered_when_it_is_over(gateway: FakeGateway) -> None:
    keeper = FakeKeeper()
    response = ask(gateway, "POST", "/v1/reload", keeper=keeper)
    assert (response.status_code, response.json(), keeper.asked) == (200, {"status": "reloaded"}, ["reload"])


def test_a_reload_that_fails_says_why(gateway: FakeGateway) -> None:
    response = ask(gateway, "POST", "/v1/reload", keeper=FakeKeeper("longwire.toml:3: bad."))
    assert response.status_code == 409
    assert error_of(response)["message"] == "Nothing was changed: longwire.toml:3: bad."


def test_a_drain_is_answered_at_once(gateway: FakeGateway) -> None:
    keeper = FakeKeeper()
    response = ask(gateway, "POST", "/v1/drain", keeper=keeper)
    assert (response.status_code, response.json(), keeper.asked) == (202, {"status": "draining"}, ["drain"])


@pytest.mark.parametrize("path", ["/v1/reload", "/v1/drain"])
def test_no_page_may_reload_or_drain(gateway: FakeGateway, path: str) -> None:
    keeper = FakeKeeper()
    for origin in ("https://evil.example", "http://127.0.0.1:8081", "null"):
        response = ask(gateway, "POST", path, {"origin": origin}, keeper)
        assert response.status_code == 403 and error_of(response)["param"] == "Origin"
    assert ask(gateway, "GET", path, keeper=keeper).status_code == 405
    assert keeper.asked == []


@pytest.mark.parametrize("path", ["/v1/reload", "/v1/drain"])
def test_without_a_keeper_there_is_nothing_to_reload(gateway: FakeGateway, path: str) -> None:
    response = ask(gateway, "POST", path)
    assert response.status_code == 404 and "keeper" in error_of(response)["message"]


# Streams.


@pytest.mark.parametrize("count", [0, 1, LIST_SLICE, LIST_SLICE + 1, 3 * LIST_SLICE])
def test_the_list_holds_every_stream(count: int) -> None:
    gateway = FakeGateway()
    for n in range(count):
        gateway.add(f"lw_{n:034x}", 0)
    body = ask(gateway, "GET", "/v1/streams").json()
    assert body["object"] == "list"
    assert [state["id"] for state in body["data"]] == [f"lw_{n:034x}" for n in range(count)]


def test_a_list_is_taken_piece_by_piece() -> None:
    turns: list[int] = []

    class Slow(FakeGateway):
        def list_streams(self) -> Iterable[State]:
            for n in range(2 * LIST_SLICE):
                turns.append(n)
                yield {"n": n}

    async def read() -> None:
        app = admin_app(Slow(), FakeMetrics())
        sizes: list[int] = []

        async def send(message: Message) -> None:
            if message.get("more_body"):
                sizes.append(len(turns))

        await app(scope_of("/v1/streams"), never_leaves(), send)
        assert sizes[:2] == [LIST_SLICE, 2 * LIST_SLICE]

    asyncio.run(read())


def test_a_stream_is_shown(gateway: FakeGateway) -> None:
    response = ask(gateway, "GET", f"/v1/streams/{ID}")
    assert response.json() == gateway.state(ID)
    assert response.headers["content-type"] == "application/json"
    assert gateway.asked == []


def test_head_of_a_stream_starts_no_tail(gateway: FakeGateway) -> None:
    response = ask(gateway, "HEAD", f"/v1/streams/{ID}", EVENTS)
    assert response.headers["content-type"] == "application/json"
    assert gateway.asked == []


def test_delete_cancels(gateway: FakeGateway) -> None:
    response = ask(gateway, "DELETE", f"/v1/streams/{ID}")
    assert response.json()["close_reason"] == "cancelled"
    assert gateway.cancelled == [ID]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_unknown_stream_is_not_found(gateway: FakeGateway, method: str) -> None:
    response = ask(gateway, method, "/v1/streams/lw_none")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


# Tails.


def test_a_tail_is_the_blocks_as_they_are(gateway: FakeGateway) -> None:
    response = ask(gateway, "GET", f"/v1/streams/{ID}", EVENTS)
    assert response.content == b"".join(gateway.blocks[ID])
    assert response.headers["content-type"] == "text/event-stream"
    assert gateway.closed_tails == 1


@pytest.mark.parametrize(
    ("query", "header", "after"),
    [
        ("", None, None),
        ("?after=1-0", None, "1-0"),
        ("", "1-1", "1-1"),
        ("?after=1-0", "1-1", "1-1"),
        ("?after=1-0", "", "1-0"),
    ],
)
def test_the_cursor_comes_from_header_or_query(
    gateway: FakeGateway, query: str, header: str | None, after: str | None
) -> None:
    headers = EVENTS if header is None else EVENTS | {"last-event-id": header}
    response = ask(gateway, "GET", f"/v1/streams/{ID}{query}", headers)
    assert response.status_code == 200
    assert gateway.asked == [(ID, after)]


def test_nothing_left_is_204(gateway: FakeGateway) -> None:
    response = ask(gateway, "GET", f"/v1/streams/{ID}?after=1-2", EVENTS)
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize(("cursor", "code", "status"), [("x", "bad_cursor", 400), ("1-9", "bad_cursor", 400)])
def test_a_bad_cursor_is_told_before_the_stream_begins(
    gateway: FakeGateway, cursor: str, code: str, status: int
) -> None:
    response = ask(gateway, "GET", f"/v1/streams/{ID}?after={cursor}", EVENTS)
    assert response.status_code == status
    assert error_of(response)["code"] == code


def test_an_evicted_stream_is_gone(gateway: FakeGateway) -> None:
    gateway.evicted.add(ID)
    response = ask(gateway, "GET", f"/v1/streams/{ID}", EVENTS)
    assert response.status_code == 410
    assert error_of(response)["code"] == "stream_evicted"


def test_an_error_in_mid_stream_is_the_last_block(gateway: FakeGateway) -> None:
    gateway.broken_after = UpstreamError("The engine went away.")
    response = ask(gateway, "GET", f"/v1/streams/{ID}", EVENTS)
    assert response.status_code == 200
    blocks = response.content.split(b"\n\n")
    assert b"\n\n".join(blocks[:3]) + b"\n\n" == b"".join(gateway.blocks[ID])
    assert json.loads(blocks[3].removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert gateway.closed_tails == 1


def test_a_reader_that_leaves_closes_its_tail(gateway: FakeGateway) -> None:
    class Endless(FakeGateway):
        async def _read(self, blocks: list[bytes]) -> AsyncGenerator[bytes, None]:
            try:
                yield blocks[0]
                await asyncio.Event().wait()
            finally:
                self.closed_tails += 1

    async def read() -> int:
        endless = Endless()
        endless.add(ID, 2)
        got_first = asyncio.Event()

        async def receive() -> Message:
            await got_first.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message.get("body"):
                got_first.set()

        app = admin_app(endless, FakeMetrics())
        await app(scope_of(f"/v1/streams/{ID}", EVENTS), receive, send)
        return endless.closed_tails

    assert asyncio.run(asyncio.wait_for(read(), 10)) == 1


def scope_of(path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """An ASGI scope as uvicorn makes it."""
    pairs = {"host": "localhost"} | (headers or {})
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
        "server": ("127.0.0.1", 8081),
        "client": ("127.0.0.1", 50000),
    }


def never_leaves() -> Any:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return receive


# Errors.


def test_unknown_paths_and_methods_have_the_one_shape(gateway: FakeGateway) -> None:
    unknown = ask(gateway, "GET", "/v1/nothing")
    assert unknown.status_code == 404
    assert "/metrics" in error_of(unknown)["message"]
    wrong = ask(gateway, "POST", "/v1/streams")
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert error_of(wrong)["code"] == "method_not_allowed"


def test_a_trailing_slash_is_not_redirected(gateway: FakeGateway) -> None:
    assert ask(gateway, "GET", "/v1/streams/").status_code == 404


@pytest.mark.parametrize("bug", [ZeroDivisionError("secret inside"), LocalError("The row is torn.")])
def test_a_bug_is_a_500_that_tells_nothing_of_the_inside(bug: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeGateway):
        def ready(self) -> tuple[bool, str]:
            raise bug

    response = ask(Broken(), "GET", "/readyz")
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert ("admin_error" in caplog.messages) == isinstance(bug, LocalError)  # uvicorn logs what is raised again


# Who may ask.


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/v1/streams", f"/v1/streams/{ID}", "/nothing"])
def test_a_foreign_host_is_refused_everywhere(gateway: FakeGateway, path: str) -> None:
    response = ask(gateway, "GET", path, {"host": "evil.example:8081"})
    assert response.status_code == 403
    assert error_of(response)["code"] == "refused"


def test_a_foreign_host_can_cancel_nothing(gateway: FakeGateway) -> None:
    assert ask(gateway, "DELETE", f"/v1/streams/{ID}", {"host": "evil.example"}).status_code == 403
    assert gateway.cancelled == []


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"evil.example"], [b"\xff"]])
def test_no_host_two_hosts_and_garbage_are_refused(gateway: FakeGateway, hosts: list[bytes]) -> None:
    async def status() -> int:
        statuses: list[int] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = scope_of("/metrics") | {"headers": [(b"host", host) for host in hosts]}
        await admin_app(gateway, FakeMetrics())(scope, never_leaves(), send)
        return statuses[0]

    assert asyncio.run(status()) == 403


def test_there_is_no_cors(gateway: FakeGateway) -> None:
    origin = {"origin": "https://evil.example", "access-control-request-method": "DELETE"}
    preflight = ask(gateway, "OPTIONS", f"/v1/streams/{ID}", origin)
    assert preflight.status_code == 405
    for response in (preflight, ask(gateway, "GET", "/v1/streams", origin)):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_every_answer_is_private_and_dated(gateway: FakeGateway) -> None:
    for response in (
        ask(gateway, "GET", "/metrics"),
        ask(gateway, "GET", "/x"),
        ask(gateway, "GET", "/x", {"host": "y"}),
    ):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["date"].endswith(" GMT")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("application/json, TEXT/Event-Stream;q=0.9", True),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream;q=0", False),
        ("text/event-streams", False),
    ],
)
def test_accept_decides_between_state_and_events(accept: str, wanted: bool) -> None:
    assert wants_events(accept) is wanted


def test_blocks_need_no_aclose(gateway: FakeGateway) -> None:
    class Plain:
        def __init__(self) -> None:
            self.left = [b"data: 1\n\n"]

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Source(FakeGateway):
        async def tail(self, id: str, after: str | None) -> Any:
            return Plain()

    assert ask(Source(), "GET", f"/v1/streams/{ID}", EVENTS).content == b"data: 1\n\n"
