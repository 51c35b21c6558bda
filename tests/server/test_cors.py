"""Cross-origin access: off unless origins are configured, and then theirs alone."""

from __future__ import annotations

import pytest
from tests.house import CHAT, chat, open_house
from tests.server.heads import request_head

from longwire.server.cors import preflight_headers, response_headers

PAGE = "https://page.example"


def test_off_by_default() -> None:
    assert response_headers(request_head(origin=PAGE), []) == []
    assert preflight_headers(request_head(origin=PAGE), [], ("POST",)) == [(b"allow", b"POST")]


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ([PAGE], PAGE, PAGE.encode()),
        (["https://other.example", PAGE], PAGE, PAGE.encode()),
        (["*"], PAGE, b"*"),
        ([PAGE], "https://evil.example", None),
        ([PAGE], PAGE + ".evil.example", None),
        ([PAGE], "https://page.example:8443", None),
        ([PAGE], "null", None),
        ([PAGE], None, None),
    ],
)
def test_an_origin_is_allowed_only_as_it_is_configured(
    origins: list[str], origin: str | None, allowed: bytes | None
) -> None:
    head = request_head() if origin is None else request_head(origin=origin)
    fields = dict(response_headers(head, origins))
    assert fields.get(b"access-control-allow-origin") == allowed
    assert fields[b"vary"] == b"Origin", "a cache must not give one origin's answer to another"
    assert b"access-control-allow-credentials" not in fields
    preflight = dict(preflight_headers(head, origins, ("GET", "DELETE")))
    assert preflight[b"allow"] == b"GET, DELETE"
    assert (b"access-control-allow-methods" in preflight) == (allowed is not None)


async def test_a_page_finds_its_stream_and_resumes_it() -> None:
    async with open_house(cors_origins=[PAGE]) as house:
        origin = {"origin": PAGE}
        ask = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "idempotency-key"}
        preflight = await house.call("OPTIONS", CHAT, None, ask)
        assert preflight.status == 204 and preflight.header("access-control-allow-origin") == PAGE
        assert "POST" in preflight.header("access-control-allow-methods")
        for needed in ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Longwire-On-Disconnect"):
            assert needed in preflight.header("access-control-allow-headers")
        answer = await house.ask(chat(), origin)
        assert answer.header("access-control-allow-origin") == PAGE
        for needed in ("X-Stream-Id", "Location", "Retry-After", "Longwire-On-Disconnect"):
            assert needed in answer.header("access-control-expose-headers")
        replay = await house.fetch(f"/v1/streams/{answer.stream_id}", {**origin, "accept": "text/event-stream"})
        assert replay.header("access-control-allow-origin") == PAGE
        refused = await house.ask(b"{", origin)
        assert refused.status == 400 and refused.header("access-control-allow-origin") == PAGE, (
            "a page reads errors, too"
        )


async def test_a_strange_page_gets_no_allowance() -> None:
    async with open_house(cors_origins=[PAGE]) as house:
        answer = await house.call("OPTIONS", CHAT, None, {"origin": "https://evil.example"})
        assert answer.head.get(b"access-control-allow-origin") is None
