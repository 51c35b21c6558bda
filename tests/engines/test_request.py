"""Requests as one upstream gets them, and as another does."""

from __future__ import annotations

import json

import pytest

from longwire.engines.request import headers_for, take_apart, with_model, without_usage
from longwire.wire.http1 import Headers, encode_request_head

HEADERS: Headers = [
    (b"host", b"one:80"),
    (b"authorization", b"Bearer k1"),
    (b"x-a", b""),
    (b"x-a", b"b: c"),
    (b"content-length", b"5"),
]


@pytest.mark.parametrize("body", [b"hello", b"a\r\n\r\n", "é🚀".encode()[:5]])
def test_a_stored_request_is_taken_apart(body: bytes) -> None:
    request = encode_request_head(b"POST", b"/base/v1/chat/completions?x=1", HEADERS) + body
    assert take_apart(request) == (b"/base/v1/chat/completions?x=1", HEADERS, body)


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"POST / HTTP/1.1\r\n", b"POST /\r\n\r\n", b"POST / HTTP/1.1\r\nhost\r\n\r\n",
     b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab"],
)  # fmt: skip
def test_what_is_not_whole_is_refused(request_bytes: bytes) -> None:
    with pytest.raises(ValueError, match="stored request"):
        take_apart(request_bytes)


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        (HEADERS, "k2", [(b"host", b"two"), (b"authorization", b"Bearer k2"), (b"x-a", b""), (b"x-a", b"b: c")]),
        (HEADERS, "", [(b"host", b"two"), (b"x-a", b""), (b"x-a", b"b: c")]),
        ([(b"x", b"y")], "k2", [(b"x", b"y"), (b"host", b"two"), (b"authorization", b"Bearer k2")]),
        ([], "", [(b"host", b"two")]),
    ],
)  # fmt: skip
def test_another_upstream_gets_its_own_host_and_key(given: Headers, key: str, expected: Headers) -> None:
    before = list(given)
    assert headers_for(given, b"two", key) == expected
    assert given == before


def test_usage_is_no_longer_asked_for() -> None:
    assert (
        without_usage(b'{"a":1,"stream_options":{"include_usage":true},"b":"\xc3\xa9"}') == '{"a":1,"b":"é"}'.encode()
    )
    assert without_usage(b'{"a": 1}') == b'{"a": 1}'
    assert without_usage(b"[]") == b"[]"


def test_the_model_is_named_as_the_engine_names_it() -> None:
    assert json.loads(with_model(b'{"model":"a","x":1}', "a", "b")) == {"model": "b", "x": 1}
    assert with_model(b'{"x": 1}', "a", "b") == b'{"x": 1}'
    assert with_model(b'{"model": "a"}', "a", "a") == b'{"model": "a"}'
