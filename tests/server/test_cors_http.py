"""Browsers and headers over real sockets: pages that may come in and those that may not, and which fields go how far."""

from __future__ import annotations

import pytest
from tests.house import CHAT, CHUNKED, EVENTS, WHOLE, chat, hashed, head_of, in_chunks, open_house

from longwire.words.settings import TenantSettings

PAGE = "https://app.example"
TENANT = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/streams/lw_x", "/v1/models"])
async def test_a_preflight_needs_no_key(path: str) -> None:
    async with open_house(tenants=[TENANT], cors_origins=[PAGE]) as house:
        answer = await house.call("OPTIONS", path, None, PREFLIGHT)
        assert answer.status == 204 and answer.header("access-control-allow-origin") == PAGE
        assert answer.header("access-control-allow-methods") == answer.header("allow")
        assert answer.head.get(b"access-control-allow-credentials") is None


async def test_what_sdks_send_of_their_own_is_allowed() -> None:
    """openai in a browser sends a dozen X-Stainless fields; one that is not allowed would stop every request."""
    async with open_house(cors_origins=[PAGE]) as house:
        asked = "authorization,content-type, X-Stainless-OS,x-stainless-retry-count,traceparent,bad name,é"
        answer = await house.call("OPTIONS", CHAT, None, {**PREFLIGHT, "access-control-request-headers": asked})
        allowed = [name.strip().lower() for name in answer.header("access-control-allow-headers").split(",")]
        assert {"authorization", "idempotency-key", "x-stainless-os", "x-stainless-retry-count", "traceparent"} <= {
            *allowed
        }
        assert len(allowed) == len({*allowed}) and "bad name" not in allowed
        assert "*" not in allowed, "it would not cover Authorization"
        foreign = {**PREFLIGHT, "origin": "https://evil.example", "access-control-request-headers": asked}
        refused = await house.call("OPTIONS", CHAT, None, foreign)
        assert refused.head.get(b"access-control-allow-headers") is None


async def test_errors_and_streams_can_be_read_by_the_page() -> None:
    async with open_house(tenants=[TENANT], cors_origins=[PAGE]) as house:
        key = {"origin": PAGE, "authorization": "Bearer sk-ada"}
        stream = await house.ask(chat(), key)
        answers = [
            stream,
            await house.ask(chat(False), key),
            await house.ask(chat(), {"origin": PAGE}),
            await house.ask(b"{", key),
            await house.ask(chat(fault="status=500"), key),
            await house.fetch("/nowhere", key),
            await house.fetch(f"/v1/streams/{stream.stream_id}", {**key, **EVENTS}),
            await house.fetch(f"/v1/streams/{stream.stream_id}?after=1-{len(stream.data) - 1}", {**key, **EVENTS}),
        ]
        assert [answer.status for answer in answers] == [200, 200, 401, 400, 502, 404, 200, 204]
        for answer in answers:
            assert answer.header("access-control-allow-origin") == PAGE and answer.header("vary") == "Origin"
            exposed = answer.header("access-control-expose-headers").lower()
            assert "x-stream-id" in exposed and "location" in exposed and "x-request-id" in exposed


async def test_any_origin_is_said_as_a_star() -> None:
    async with open_house(tenants=[TENANT], cors_origins=["*"]) as house:
        answer = await house.ask(chat(), {"origin": "null", "authorization": "Bearer sk-ada"})
        assert answer.header("access-control-allow-origin") == "*"


async def test_an_engine_s_own_permissions_are_not_ours() -> None:
    async with open_house() as house:
        field = b"access-control-allow-origin: *"
        house.engine.will_say(
            head_of(b"transfer-encoding: chunked", field, kind=b"application/json") + in_chunks(b"{}")
        )
        answer = await house.ask({"model": "script"}, path="/v1/embeddings")
        assert answer.status == 200 and answer.head.get(b"access-control-allow-origin") is None


# Without tenants whoever comes from this machine may come in; a page that a browser on it shows may not.


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.1.2.3",
        "[::1]",
        "[::1]:8080",
        "[::ffff:127.0.0.1]",
    ],
)
async def test_loopback_names_are_answered(host: str) -> None:
    async with open_house() as house:
        assert (await house.fetch("/v1/models", {"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.0.2.1",
        "[2001:db8::1]",
        "0.0.0.0",
        "127.1",
    ],
)
async def test_a_page_that_rebinds_its_name_is_refused(host: str) -> None:
    async with open_house() as house:
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("POST", CHAT, chat()),
            ("POST", "/v1/embeddings", chat()),
        ):
            answer = await house.call(method, path, body, {"host": host})
            assert answer.status == 403 and answer.error["code"] == "refused" and answer.error["param"] == "Host"
        assert not house.sim.requests


async def test_the_configured_host_and_anonymous_access_are_the_operator_s_word() -> None:
    async with open_house(host="gateway.example") as house:
        assert (await house.fetch("/v1/models", {"host": "gateway.example:8080"})).status == 200
    async with open_house(allow_anonymous=True) as house:
        assert (await house.fetch("/v1/models", {"host": "any.example"})).status == 200
        assert (await house.fetch("/v1/models", {"origin": PAGE})).status == 403, "yet no page of strangers"
    async with open_house(tenants=[TENANT]) as house:
        answer = await house.fetch("/v1/models", {"host": "any.example", "x-api-key": "sk-ada", "origin": PAGE})
        assert answer.status == 200, "where there are keys, a page has none that is not its own"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("", 200),
        ("http://localhost:8080", 200),
        ("http://localhost", 403),
        ("http://localhost:9999", 403),
        (PAGE, 403),
        ("null", 403),
        ("https://ok.example", 200),
    ],
)
async def test_a_page_posts_here_only_from_here_or_where_it_is_allowed(origin: str, status: int) -> None:
    async with open_house(cors_origins=["https://ok.example"]) as house:
        answer = await house.ask(chat(), {"host": "localhost:8080", "origin": origin})
        assert answer.status == status
        assert len(house.sim.requests) == (status == 200)


# Fields on their way.


@pytest.mark.parametrize("given", ["req-7", "a.b:c_d-e", "x" * 128])
async def test_a_request_id_is_echoed_and_goes_on(given: str) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), {"x-request-id": given})
        assert answer.header("x-request-id") == given
        assert house.sim.requests[-1].get(b"x-request-id") == given.encode()
        await house.lines.wait(1)
        assert house.lines.lines[0]["request_id"] == given


@pytest.mark.parametrize(
    "given", ["x" * 129, "a b", "a\tb", "é", "<script>", 'a"b', "a;b", "a\x00b", "a\nset-cookie: x"]
)
async def test_a_request_id_that_could_do_harm_is_replaced_or_refused(given: str) -> None:
    async with open_house() as house:
        client = await house.connect()
        client.send(f"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: {given}\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.status in (200, 400)
        if answer.status == 200:
            assert answer.header("x-request-id").startswith("req_")
        assert answer.head.get(b"set-cookie") is None


async def test_two_request_ids_do_not_both_go_on() -> None:
    async with open_house() as house:
        client = await house.connect()
        fields = "host: localhost\r\ncontent-type: application/json\r\nx-request-id: a\r\nx-request-id: b\r\n"
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
        body = b'{"model":"script","stream":true,"messages":[]}'
        client.send(f"POST {CHAT} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await client.answer()
        head, _ = house.engine.requests[-1]
        assert head.get_all(b"x-request-id") == [answer.header("x-request-id").encode()]


async def test_what_connection_names_goes_no_further() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
        fields = {
            "connection": "keep-alive, X-Hop ,x-other",
            "x-hop": "1",
            "x-other": "2",
            "x-kept": "3",
            "tracestate": "a=b",
        }
        assert (await house.ask(chat(model="script"), fields)).is_marked_done
        head, _ = house.engine.requests[-1]
        assert head.get(b"x-hop") is None and head.get(b"x-other") is None and head.get(b"connection") is None
        assert head.get(b"x-kept") == b"3" and head.get(b"tracestate") == b"a=b"


@pytest.mark.parametrize("name", ["content-length", "host", "authorization", "content-type", "transfer-encoding"])
async def test_connection_cannot_take_away_what_we_say_ourselves(name: str) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), {"connection": f"close, {name}"})
        assert answer.is_marked_done
        seen = house.sim.requests[-1]
        assert seen.get(b"authorization") == b"Bearer sk-engine" and seen.get(b"host") is not None


async def test_addresses_and_browsers_fields_stay_here() -> None:
    async with open_house() as house:
        fields = {
            "x-forwarded-for": "192.0.2.1",
            "x-forwarded-host": "x",
            "forwarded": "for=1",
            "x-real-ip": "192.0.2.1",
            "referer": "http://localhost/secret",
            "sec-fetch-site": "same-origin",
            "cf-connecting-ip": "192.0.2.1",
            "proxy-authorization": "Basic x",
            "via": "1.1 x",
        }
        assert (await house.ask(chat(), fields)).is_marked_done
        for name in fields:
            assert house.sim.requests[-1].get(name.encode()) is None, name
