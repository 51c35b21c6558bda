"""``longwire reload`` and ``longwire drain`` before an admin port of the tests' own."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import AdminStandIn, Run


@pytest.mark.parametrize(("command", "said"), [("reload", "reloaded\n"), ("drain", "draining\n")])
def test_one_request_and_one_word(run: Run, admin: AdminStandIn, command: str, said: str) -> None:
    admin.plan(f"POST /v1/{command}", {"status": command})
    result = run(command, "--url", admin.url)
    assert (result.exit_code, result.output) == (0, said)
    assert admin.requests == [f"POST /v1/{command}"]


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
