"""``longwire reload`` and ``longwire drain`` before an admin port of the tests' own."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import AdminStandIn, Run


def test_one_request_and_one_word(run: Run, admin: AdminStandIn) -> None:
    admin.plan("POST /v1/reload", {"status": "reloaded"})
    result = run("reload", "--url", admin.url)
    assert (result.exit_code, result.output) == (0, "reloaded\n")
    assert admin.requests == ["POST /v1/reload"]


@pytest.mark.parametrize(
    ("overview", "what"),
    [
        ({"streams": {"opening": 1, "live": 2, "ended": 9}}, "3 streams"),
        ({"streams": {"opening": 0, "live": 1, "ended": 9}}, "1 stream"),
        ({"streams": {}}, "the streams that run"),
        (None, "the streams that run"),
    ],
)
def test_a_drain_says_what_it_waits_for(
    run: Run, admin: AdminStandIn, overview: dict[str, object] | None, what: str
) -> None:
    if overview is not None:
        admin.plan("GET /v1/overview", overview)
    admin.plan("POST /v1/drain", {"status": "draining"}, status=202)
    result = run("drain", "--url", admin.url)
    assert result.exit_code == 0
    assert result.output.startswith(f"draining: {what} may take up to drain_s (30 s unless it was set)")
    assert "the gateway ends by itself" in result.output
    assert "returns at once" in run("drain", "--help").output


def test_a_drain_of_nothing_waits_for_nothing(run: Run, admin: AdminStandIn) -> None:
    admin.plan("GET /v1/overview", {"streams": {"opening": 0, "live": 0, "ended": 9}})
    admin.plan("POST /v1/drain", {"status": "draining"}, status=202)
    assert run("drain", "--url", admin.url).output == "draining: no stream runs; the gateway ends by itself\n"


def test_no_engine_is_posted_a_drain(run: Run, admin: AdminStandIn) -> None:
    admin.plan("GET /readyz", {"ready": True, "reason": ""})
    assert "public port" in run("drain", "--url", admin.url).stderr
    assert "POST /v1/drain" not in admin.requests


@pytest.mark.parametrize(
    ("status", "words"),
    [(409, "Nothing was changed: longwire.toml:3: bad."), (404, "This gateway is one process without a keeper.")],
)
@pytest.mark.parametrize("command", ["reload", "drain"])
def test_a_refusal_in_the_gateway_s_own_words(
    run: Run, admin: AdminStandIn, command: str, status: int, words: str
) -> None:
    error: dict[str, Any] = {"error": {"message": words}}
    admin.plan(f"POST /v1/{command}", error, status=status)
    result = run(command, "--url", admin.url)
    assert (result.exit_code, result.stderr) == (1, f"longwire: {words}\n")


@pytest.mark.parametrize("command", ["reload", "drain"])
def test_no_gateway_is_one_sentence(run: Run, closed_url: str, command: str) -> None:
    result = run(command, "--url", closed_url)
    assert result.exit_code == 1 and "longwire serve" in result.stderr
