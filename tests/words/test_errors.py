"""One tree of errors: whose fault each is, what it is called, and what of it a client sees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from longwire.words import errors
from longwire.words.errors import (
    BadJson,
    LocalError,
    LongwireError,
    MethodNotAllowed,
    Overloaded,
    RefusedError,
    RemoteError,
    SettingsError,
    TooManyRequests,
    TooManyStreams,
    TooManyTokens,
    Unauthenticated,
    UpstreamError,
)

BRANCHES: dict[type[LongwireError], range] = {
    LocalError: range(500, 501),
    RemoteError: range(400, 500),
    RefusedError: range(401, 504),
    UpstreamError: range(502, 505),
    SettingsError: range(500, 501),
}
"""Each branch with the statuses that it may have."""

TYPES = {"api_error", "authentication_error", "invalid_request_error", "permission_error", "rate_limit_error"}
"""OpenAI's coarse classes: their SDKs choose an exception by status, people read this word."""


def family(root: type[LongwireError]) -> Iterator[type[LongwireError]]:
    yield root
    for child in root.__subclasses__():
        yield from family(child)


ALL = [error for error in family(LongwireError) if error is not LongwireError and error.__module__ == errors.__name__]


def make(error: type[LongwireError]) -> LongwireError:
    return MethodNotAllowed("No.", allow=("GET", "HEAD")) if error is MethodNotAllowed else error("No.")


@pytest.mark.parametrize("error", ALL)
def test_every_error_belongs_to_one_branch_and_has_its_kind_of_status(error: type[LongwireError]) -> None:
    (branch,) = [branch for branch in BRANCHES if issubclass(error, branch)]
    assert error.status in BRANCHES[branch]
    assert error.type in TYPES
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)


def test_codes_are_unique() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)


def test_the_docstring_draws_the_whole_first_level() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r":exc:`(\w+)`", errors.__doc__)
    assert drawn == ["LongwireError", *(branch.__name__ for branch in LongwireError.__subclasses__())]


@pytest.mark.parametrize("error", ALL)
def test_every_error_renders_the_shape_that_openai_clients_read(error: type[LongwireError]) -> None:
    body = json.loads(json.dumps(make(error).body()))
    assert body == {"error": {"message": "No.", "type": error.type, "param": None, "code": error.code}}
    assert str(make(error)) == "No."


def test_an_error_names_the_parameter_at_fault() -> None:
    assert BadJson("Not so.", param="messages").body()["error"]["param"] == "messages"  # type: ignore[index]


@pytest.mark.parametrize(
    ("seconds", "field"), [(None, None), (0.0, b"1"), (0.2, b"1"), (1.4, b"1"), (1.6, b"2"), (90.0, b"90")]
)
def test_retry_after_is_whole_seconds_and_never_none_at_all(seconds: float | None, field: bytes | None) -> None:
    error = Overloaded("Later.", retry_after_s=seconds)
    assert error.headers() == ([] if field is None else [(b"retry-after", field)])


def test_401_says_how_and_405_says_what_instead() -> None:
    assert Unauthenticated("Who?").headers() == [(b"www-authenticate", b'Bearer realm="longwire"')]
    assert make(MethodNotAllowed).headers() == [(b"allow", b"GET, HEAD")]


@pytest.mark.parametrize("error", [TooManyStreams, TooManyRequests, TooManyTokens, Overloaded, UpstreamError])
def test_what_may_pass_by_waiting_is_marked_so(error: type[LongwireError]) -> None:
    assert error.retryable


def test_a_setting_error_says_where_it_is() -> None:
    assert str(SettingsError("It is bad.", where="longwire.toml:3")) == "longwire.toml:3: It is bad."
    assert str(SettingsError("It is bad.")) == "It is bad."
