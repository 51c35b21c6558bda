"""Paths and methods to names: the path that is checked is the path that is served."""

from __future__ import annotations

import pytest

from longwire.observe.instruments import ROUTES as LABELS
from longwire.server.routes import MAX_QUERY_FIELDS, ROUTES, find_route, methods_of
from longwire.words.errors import MethodNotAllowed, NotFound

STREAM = "lw_" + "0" * 34


@pytest.mark.parametrize(
    ("method", "target", "name", "argument"),
    [
        ("POST", "/v1/chat/completions", "chat_completions", ""),
        ("POST", "/v1/completions", "completions", ""),
        ("GET", "/v1/models", "models", ""),
        ("HEAD", "/v1/models", "models", ""),
        ("GET", "/v1/streams", "stream_list", ""),
        ("GET", f"/v1/streams/{STREAM}", "stream_read", STREAM),
        ("HEAD", f"/v1/streams/{STREAM}", "stream_read", STREAM),
        ("DELETE", f"/v1/streams/{STREAM}", "stream_delete", STREAM),
        ("GET", "/healthz", "healthz", ""),
        ("GET", "/readyz", "readyz", ""),
        ("GET", "/openapi.json", "openapi", ""),
        ("POST", "/v1/embeddings", "relay", "embeddings"),
        ("POST", "/v1/audio/transcriptions", "relay", "audio/transcriptions"),
        ("POST", "/v1/responses", "relay", "responses"),
        ("POST", "/v1/messages", "relay", "messages"),
        ("POST", "/v1/models/x:predict", "relay", "models/x:predict"),
        ("OPTIONS", "/v1/chat/completions", "options", ""),
        ("OPTIONS", "/v1/embeddings", "options", "embeddings"),
    ],
)
def test_a_route_is_found(method: str, target: str, name: str, argument: str) -> None:
    match = find_route(method, target.encode())
    assert (match.name, match.argument, match.query) == (name, argument, [])


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1", "/v1/", "/v1/chat/completions/", "/V1/models", "/v1//models", "/v1/./models", "/v1/../v1/models",
        "/v1/x/..", "/v1/x/.hidden", "/v1/%2e%2e/admin", "/v1/a%2Fb", "/v1/streams/", "/v1/streams/a/b", "/v1/streams/a-b",
        "/v1/streams/" + "a" * 65, "/v1/" + "a" * 65, "/v1/a/b/c/d/e/f/g", "/v1/a\n", "/v1/models\n", "*", "/metrics", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_nothing_else_is(method: str, target: str) -> None:
    with pytest.raises(NotFound):
        find_route(method, target.encode("latin-1"))


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/v1/chat/completions", ("POST", "OPTIONS")),
        ("POST", "/v1/streams", ("GET", "HEAD", "OPTIONS")),
        ("POST", f"/v1/streams/{STREAM}", ("GET", "DELETE", "HEAD", "OPTIONS")),
        ("PUT", "/v1/embeddings", ("POST", "OPTIONS")),
        ("BREW", "/healthz", ("GET", "HEAD", "OPTIONS")),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, target: str, allow: tuple[str, ...]) -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        find_route(method, target.encode())
    assert caught.value.allow == allow == methods_of(target.encode())
    assert caught.value.headers() == [(b"allow", ", ".join(allow).encode())]


def test_streams_are_never_relayed() -> None:
    """A POST below /v1/streams is nobody's business but ours."""
    for target in ("/v1/streams/x/y", "/v1/streams/", "/v1/streams/x"):
        with pytest.raises((NotFound, MethodNotAllowed)):
            find_route("POST", target.encode())
    assert find_route("POST", b"/v1/streamsets").name == "relay"


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("", []),
        ("?", []),
        ("?after=1-2", [("after", "1-2")]),
        ("?a=1&a=2&b", [("a", "1"), ("a", "2"), ("b", "")]),
        ("?after=%31-2&x=a+b", [("after", "1-2"), ("x", "a b")]),
        ("?after=1?b=2", [("after", "1?b=2")]),
        ("?x=%ff", [("x", "\ufffd")]),
    ],
)
def test_the_query_is_read_in_order(query: str, fields: list[tuple[str, str]]) -> None:
    assert find_route("GET", b"/v1/streams" + query.encode()).query == fields


def test_a_query_is_bounded() -> None:
    fields = "&".join(f"a{number}=1" for number in range(MAX_QUERY_FIELDS))
    assert len(find_route("GET", f"/v1/models?{fields}".encode()).query) == MAX_QUERY_FIELDS
    with pytest.raises(NotFound):
        find_route("GET", f"/v1/models?{fields}&z=1".encode())


def test_every_route_has_a_label() -> None:
    """Otherwise it would be counted among those of strangers."""
    names = {name for _, methods in ROUTES for name in methods.values()}
    assert names - LABELS <= {"openapi"}


def test_methods_of_nothing() -> None:
    assert methods_of(b"/nowhere") == ("OPTIONS",)
