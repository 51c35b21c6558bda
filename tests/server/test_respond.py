"""Which fields go through, and how small responses look."""

from __future__ import annotations

import json

import pytest
from tests.server.heads import request_head

from longwire.server.respond import (
    error_parts,
    headers_from_engine,
    headers_to_engine,
    json_body,
    request_id_of,
    stream_headers,
    whole_response,
)
from longwire.words.errors import LocalError, MethodNotAllowed, TooManyStreams, Unauthenticated


@pytest.mark.parametrize("given", ["a", "req-1.2:3_4", "x" * 128, "0af7651916cd43dd8448eb211c80319c"])
def test_a_harmless_request_id_is_kept(given: str) -> None:
    assert request_id_of(request_head(x_request_id=given)) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "ä", "a;b", '{"a":1}', "a/b"])
def test_any_other_is_replaced(given: str) -> None:
    made = {request_id_of(request_head(x_request_id=given)) for _ in range(3)}
    assert len(made) == 3 and all(id.startswith("req_") and len(id) == 28 for id in made)
    assert request_id_of(request_head()).startswith("req_")


KEPT = [
    "content-type",
    "accept",
    "traceparent",
    "tracestate",
    "baggage",
    "openai-organization",
    "x-custom",
    "anthropic-version",
]
NOT_KEPT = [
    "connection", "keep-alive", "te", "trailer", "upgrade", "proxy-authorization", "proxy-connection",
    "authorization", "x-api-key", "api-key", "cookie", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip",
    "cf-connecting-ip", "via", "origin", "referer", "sec-fetch-site", "access-control-request-method", "user-agent",
    "accept-encoding", "idempotency-key", "last-event-id", "longwire-on-disconnect", "x-request-id",
]  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_client_s_own_fields_go_on_to_the_engine(name: str) -> None:
    assert (name.encode(), b"v") in headers_to_engine(request_head(**{name: "v"}), "id")


@pytest.mark.parametrize("name", NOT_KEPT)
def test_credentials_addresses_and_hop_fields_do_not(name: str) -> None:
    assert headers_to_engine(request_head(**{name: "v"}), "id") == [(b"x-request-id", b"id")]


@pytest.mark.parametrize(
    "name", ["content-type", "x-ratelimit-remaining", "openai-processing-ms", "cache-control", "etag"]
)
def test_an_engine_s_own_fields_come_back(name: str) -> None:
    assert headers_from_engine([(name.encode(), b"v")]) == [(name.encode(), b"v")]


@pytest.mark.parametrize(
    "name",
    [
        "connection", "keep-alive", "transfer-encoding", "content-length", "trailer", "upgrade", "te", "date", "server",
        "set-cookie", "x-request-id", "x-stream-id", "location", "alt-svc", "strict-transport-security", "x-accel-buffering",
        "access-control-allow-origin", "access-control-anything", "proxy-authenticate",
    ],
)  # fmt: skip
def test_what_is_ours_to_say_does_not(name: str) -> None:
    assert headers_from_engine([(name.encode(), b"v")]) == []


def test_what_an_engine_s_connection_names_does_not_come_back() -> None:
    given = [(b"connection", b"keep-alive, X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")]
    assert headers_from_engine(given) == [(b"x-end", b"2")]


def test_a_stream_is_found_by_two_fields() -> None:
    assert stream_headers("lw_x") == [(b"x-stream-id", b"lw_x"), (b"location", b"/v1/streams/lw_x")]


def test_a_whole_response() -> None:
    wire = whole_response(200, [(b"a", b"b")], b"body")
    assert wire == b"HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 4\r\n\r\nbody"
    assert whole_response(200, [], b"body", send_body=False) == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
    assert whole_response(204, [], b"") == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_a_response_cannot_be_split() -> None:
    for value in (b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0"):
        with pytest.raises(ValueError, match="control byte"):
            whole_response(200, [(b"x", value)], b"")


def test_errors_have_one_shape() -> None:
    for error in (
        LocalError("m"),
        Unauthenticated("m"),
        TooManyStreams("m", retry_after_s=2.4),
        MethodNotAllowed("m", allow=("GET",)),
    ):
        status, headers, body = error_parts(error)
        told = json.loads(body)["error"]
        assert set(told) == {"message", "type", "param", "code"} and told["message"] == "m"
        assert status == error.status and told["code"] == error.code
        assert headers[0] == (b"content-type", b"application/json")
    assert (b"retry-after", b"2") in error_parts(TooManyStreams("m", retry_after_s=2.4))[1]
    assert (b"retry-after", b"1") in error_parts(TooManyStreams("m", retry_after_s=0.1))[1]
    assert any(name == b"www-authenticate" for name, _ in error_parts(Unauthenticated("m"))[1])


def test_json_is_utf_8_whatever_it_holds() -> None:
    assert json_body({"a": "é"}) == '{"a":"é"}\n'.encode()
    assert json_body({"a": "\ud800"}) == b'{"a":"?"}\n'
